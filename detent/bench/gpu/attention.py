"""``attention_split`` beside FlashAttention-3 as vLLM ships it.

FA3's time is the better of its heuristic's splits and at most 32 splits (vLLM's setting in graphs), the metadata made
beforehand as vLLM does. Consecutive calls read other pages, so that no cache serves what a model's layers would fetch
from memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from detent.bench.gpu import Bound, Case, Options
from detent.bench.gpu.record import Record, geometric_mean
from detent.bench.gpu.timing import floor

STRIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)
PAGE = 16
COLD = 320 << 20
"""Bytes that consecutive calls read before they come back to the first pages."""
LAYOUTS = ((32, 8), (32, 4))
"""Query and KV heads of Llama-8B, and of Llama-70B on two GPUs."""
BATCHES, CONTEXTS = (1, 8, 32, 128), (1024, 1025, 8192, 8193, 32768, 32769)
PREFILLS = ((2048, 2048), (8192, 8192), (32768, 8192))
"""KV tokens and query tokens of one request."""
SHORT_PAGE = 1
"""Another page size, which some engines have; FA3 then fetches token by token as well."""
SHORT_PAGES = ((8, 8192, 1), (32, 1024, 1), (32, 8192, 1), (1, 8192, 8192))
"""Batch, context and queries at that page size."""
SINGLE_DIM = 128
BANDWIDTH_AT = "b32 c8192 32/8"


class Shape:
    """Requests with ``context`` cached tokens, the last ``queries`` of them asked, in random pages of one pool."""

    def __init__(self, batch: int, context: int, queries: int, heads: int, kv_heads: int, dim: int,
                 page: int = PAGE) -> None:
        import torch

        width = -(-context // page)
        self.bytes = 4 * batch * context * kv_heads * dim
        rounds = max(1, min(16, COLD // self.bytes))
        pages = rounds * batch * width
        self.k, self.v = (torch.randn(pages, page, kv_heads, dim, device="cuda", dtype=torch.bfloat16)
                          for _ in range(2))
        self.tables = torch.randperm(pages, device="cuda").to(torch.int32).reshape(rounds, batch, width)
        self.q = torch.randn(batch * queries, heads, dim, device="cuda", dtype=torch.bfloat16)
        self.cu = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * queries
        self.used = torch.full((batch,), context, device="cuda", dtype=torch.int32)
        self.out = torch.empty_like(self.q)
        self.batch, self.context, self.queries, self.page = batch, context, queries, page
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim

    def split(self, stride: int) -> Callable[[int], Any]:
        from detent.kernels.attention_split import attention_split

        def call(turn: int) -> Any:
            return attention_split(
                self.q, self.k, self.v, self.tables[turn % len(self.tables)], self.cu, self.used,
                max_seqlen_q=self.queries, max_context=self.context, num_splits=max(2, -(-self.context // stride)),
                split_stride=stride, softmax_scale=None, out=self.out)
        return call

    def fa3(self, splits: int) -> Callable[[int], Any]:
        import torch

        ops = torch.ops._vllm_fa3_C
        ready = ops.get_scheduler_metadata(
            self.batch, self.queries, self.context, self.heads, self.kv_heads, self.dim, self.dim, torch.bfloat16,
            self.used, self.cu, None, None, None, None, self.page, 0, True, -1, -1, False, splits, None, 0)

        def call(turn: int) -> Any:
            return ops.fwd(
                self.q, self.k, self.v, None, None, None, self.out, self.cu, None, None, None, self.used,
                self.queries, self.context, self.tables[turn % len(self.tables)], None, None, None, None, None, None,
                None, None, 1 / math.sqrt(self.dim), True, -1, -1, 0.0, True, ready, splits, None, 0, None, 1, 0,
                None)
        return call

    def case(self, group: str, name: str, fa3: bool) -> Case:
        pairs = self.batch * (self.queries * self.context - self.queries * (self.queries - 1) // 2)
        least, what = floor(self.bytes + 4 * self.q.numel(), 4.0 * pairs * self.heads * self.dim)
        ours = {f"stride {stride}": self.split(stride) for stride in STRIDES
                if stride < 2 * self.context and self.context <= stride * 256}
        settings = (0, 32) if self.queries == 1 else (0,)
        stock = {f"fa3 {splits or 'heuristic'}": self.fa3(splits) for splits in settings} if fa3 else {}
        return Case("attention", group, name, {**stock, **ours}, tuple(stock), tuple(ours), least, what)


def cases(options: Options) -> Iterator[Case]:
    """Decode and prefill of head dim 128, then fewer shapes of the others and of pages of one token."""
    fa3 = "fa3" in options.libraries
    if fa3:
        import torch

        torch.ops.load_library(options.libraries["fa3"])
    for dim in (SINGLE_DIM, 64, 96, 256):
        few = options.quick or dim != SINGLE_DIM
        for heads, kv_heads in LAYOUTS[:1] if few else LAYOUTS:
            shapes = [(b, c, 1) for b in (BATCHES[:3] if few else BATCHES) for c in ((1024, 8192) if few else CONTEXTS)]
            for batch, context, queries in [*shapes, *((1, context, queries) for context, queries in PREFILLS)]:
                kind, name = _named(batch, context, queries, heads, kv_heads)
                yield Shape(batch, context, queries, heads, kv_heads, dim).case(f"{kind} hd {dim}", name, fa3)
    heads, kv_heads = LAYOUTS[0]
    for batch, context, queries in SHORT_PAGES:
        kind, name = _named(batch, context, queries, heads, kv_heads)
        yield Shape(batch, context, queries, heads, kv_heads, SINGLE_DIM, SHORT_PAGE).case(
            f"{kind} hd {SINGLE_DIM} page {SHORT_PAGE}", name, fa3)


def _named(batch: int, context: int, queries: int, heads: int, kv_heads: int) -> tuple[str, str]:
    """A shape's kind and its case's name."""
    what = f" q{queries}" if queries > 1 else ""
    return "prefill" if what else "decode", f"b{batch} c{context}{what} {heads}/{kv_heads}"


def bounds(record: Record) -> Iterator[Bound]:
    """The issue's for head dim 128, measured or not; the same figures without a bound for the others."""
    for dim in (SINGLE_DIM, 64, 96, 256):
        found = list(_figures(record, dim))
        yield from (replace(bound, must=None, aim=None) if dim != SINGLE_DIM else bound for bound in found
                    if dim == SINGLE_DIM or bound.value is not None)
    for kind in ("decode", "prefill"):
        yield from _short_pages(record, f"{kind} hd {SINGLE_DIM}")


def _figures(record: Record, dim: int) -> Iterator[Bound]:
    """A head dim's with the issue's limits; ``value`` None where nothing was measured."""
    for kind, must, aim in (("decode", 1.10, 1.00), ("prefill", 1.35, 1.05)):
        rows = [row for row in record.of("attention", f"{kind} hd {dim}") if row.stock]
        worst = max(rows, key=lambda row: row.ratio() or 0.0, default=None)
        yield Bound(f"{kind}, head dim {dim}, best stride over FA3, worst case", worst.ratio() if worst else None,
                    must, aim, f"{worst.name}, {worst.best[0]}" if worst else "")
        if kind == "decode":
            means = {stride: geometric_mean(_at(row, stride) for row in rows) for stride in STRIDES
                     if any(f"stride {stride}" in row.us for row in rows)}
            best = min(means, key=lambda stride: means[stride], default=None)
            yield Bound(f"{kind}, head dim {dim}, one stride over FA3, geometric mean", best and means[best],
                        1.12, 1.02, f"stride {best}" if best else "")
    row = record.rows.get(f"attention/decode hd {dim}/{BANDWIDTH_AT}")
    yield Bound(f"decode bandwidth, head dim {dim}, {BANDWIDTH_AT}, of the copy's",
                row.floor_us / row.best[1] if row else None, 0.91, 0.97, row.best[0] if row else "", least=True)


def _short_pages(record: Record, group: str) -> Iterator[Bound]:
    """Pages of one token, over FA3 and over our own with pages of 16."""
    rows = record.of("attention", f"{group} page {SHORT_PAGE}")
    beside = [row for row in rows if row.stock]
    if beside:
        worst = max(beside, key=lambda row: row.ratio() or 0.0)
        yield Bound(f"{group}, page size {SHORT_PAGE}, best stride over FA3, worst case", worst.ratio(), None, None,
                    f"{worst.name}, {worst.best[0]}")
    longer = [(row.best[1] / other.best[1], row.name) for row in rows
              if (other := record.rows.get(f"attention/{group}/{row.name}")) is not None and other.code == row.code]
    if longer:
        value, name = max(longer)
        yield Bound(f"{group}, page size {SHORT_PAGE} over {PAGE}, worst case", value, None, None, name)


def _at(row: Any, stride: int) -> float:
    """The ratio at a stride. One that covers a request in a single split does what the smallest such stride does."""
    arm = f"stride {stride}" if f"stride {stride}" in row.us else row.ours[-1]
    ratio: float = row.ratio(arm)
    return ratio

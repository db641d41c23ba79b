"""``moe`` beside vLLM's fused experts, for one layer of Qwen3-30B-A3B at three tensor-parallel degrees.

Ours runs under every row of vLLM's tuned table for the H200. Stock is vLLM's own Triton kernel under the row that its
table has for the number of tokens, where vLLM can be imported. Elsewhere PyTorch's grouped product stands in, between
the same sort and the same sum (:func:`grouped`): it is no engine's kernel, and the arm is named after what it is.
Consecutive calls route the tokens otherwise.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.resources import files
from multiprocessing import get_context
from typing import Any

from detent.bench.gpu import Bound, Case, Options
from detent.bench.gpu.record import Record, Row, geometric_mean
from detent.bench.gpu.timing import floor

EXPERTS, HIDDEN, TOP_K = 128, 2048, 8
WIDTHS = {"tp1": 768, "tp2": 384, "tp4": 192}
"""Columns of an expert's intermediate layer on one GPU."""
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
FEW_TOKENS = (1, 32, 512)
ROUTINGS = 8
VLLM, GROUPED = "vllm", "torch grouped_mm"


@cache
def table(width: int) -> dict[int, dict[str, int]]:
    """vLLM 0.26.0's rows for the H200, by the number of tokens that each is for."""
    name = f"tables/vllm-0.26.0/E={EXPERTS},N={width},device_name=NVIDIA_H200.json"
    found = json.loads((files("detent.programs") / name).read_text(encoding="utf-8"))
    return {int(tokens): row for tokens, row in found.items() if tokens.isdigit()}


def chosen(width: int, tokens: int) -> dict[str, int]:
    """The row that vLLM takes: that of the nearest number of tokens."""
    rows = table(width)
    return rows[min(rows, key=lambda key: abs(key - tokens))]


def arm(row: dict[str, int]) -> str:
    """A row's name: BLOCK_SIZE_M/_N/_K, GROUP_SIZE_M, warps, stages."""
    from detent.kernels.moe import row_of

    return "/".join(map(str, row_of(row)))


def grouped(x: Any, gate_up: Any, down: Any, ids: Any, shares: Any) -> Any:
    """The layer by PyTorch's grouped products. Shapes as :func:`detent.kernels.moe.moe` has them."""
    import torch
    from torch.nn import functional

    by_expert = ids.flatten().sort(stable=True)
    ends = torch.searchsorted(by_expert.values, torch.arange(len(gate_up), device=x.device, dtype=ids.dtype),
                              right=True).to(torch.int32)
    gate, up = functional.grouped_mm(x[by_expert.indices // ids.shape[1]], gate_up.transpose(1, 2),
                                     offs=ends).chunk(2, 1)
    parts = functional.grouped_mm(functional.silu(gate) * up, down.transpose(1, 2), offs=ends)
    parts = (parts * shares.flatten()[by_expert.indices][:, None]).to(x.dtype)
    in_order = torch.empty_like(parts).index_copy_(0, by_expert.indices, parts)
    return in_order.view(*ids.shape, -1).sum(1)


class Layer:
    """Tokens and their routings beside a layer's weights."""

    def __init__(self, tokens: int, gate_up: Any, down: Any) -> None:
        import torch

        from detent.kernels.moe import topk_softmax

        at = torch.Generator("cuda").manual_seed(tokens)
        self.x = torch.randn(tokens, HIDDEN, generator=at, device="cuda").bfloat16()
        self.routings = [topk_softmax(torch.randn(tokens, EXPERTS, generator=at, device="cuda"), TOP_K,
                                      renormalize=True) for _ in range(ROUTINGS)]
        self.gate_up, self.down, self.out = gate_up, down, torch.empty_like(self.x)

    def ours(self, row: dict[str, int]) -> Callable[[int], Any]:
        from detent.kernels.moe import moe

        def call(turn: int) -> Any:
            shares, ids = self.routings[turn % ROUTINGS]
            return moe(self.x, self.gate_up, self.down, ids, shares, row=row, out=self.out)
        return call

    def stock(self) -> dict[str, Callable[[int], Any]]:
        """One arm, or none where PyTorch has no grouped product either."""
        from torch.nn import functional

        if importlib.util.find_spec("vllm") is not None:
            from vllm.model_executor.layers.fused_moe.fused_moe import (  # type: ignore[import-not-found, unused-ignore]
                fused_experts,
            )

            name = VLLM
        elif hasattr(functional, "grouped_mm"):
            name = GROUPED
        else:
            return {}

        def call(turn: int) -> Any:
            shares, ids = self.routings[turn % ROUTINGS]
            if name == VLLM:
                return fused_experts(self.x, self.gate_up, self.down, shares, ids)
            return grouped(self.x, self.gate_up, self.down, ids, shares)
        return {name: call}

    def case(self, group: str, width: int) -> Case:
        tokens = len(self.x)
        touched = sum(len(ids.unique()) for _, ids in self.routings) / ROUTINGS
        least, what = floor(touched * 6 * width * HIDDEN + 4 * self.x.numel(), tokens * TOP_K * 6 * width * HIDDEN)
        ours = {arm(row): self.ours(row) for row in table(width).values()}
        stock = self.stock()
        return Case("moe", group, f"{tokens} tokens", {**stock, **ours}, tuple(stock), tuple(ours), least, what)


def cases(options: Options) -> Iterator[Case]:
    """Every number of tokens at every degree; the table's kernels are compiled first, by many processes."""
    import torch

    widths = {name: width for name, width in WIDTHS.items() if not options.quick or name == "tp4"}
    _compile(list(widths.values()))
    for name, width in widths.items():
        gate_up, down = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.03
                         for shape in ((EXPERTS, 2 * width, HIDDEN), (EXPERTS, HIDDEN, width)))
        for tokens in FEW_TOKENS if options.quick else TOKENS:
            yield Layer(tokens, gate_up, down).case(name, width)


def _compile(widths: list[int]) -> None:
    """Into Triton's cache on disk, which this process then reads."""
    names = {arm(row): row for width in widths for row in table(width).values()}
    workers = min(12, os.cpu_count() or 1, len(names))
    shares = [list(names.values())[at::workers] for at in range(workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(_run_once, [widths] * workers, shares))


def _run_once(widths: list[int], rows: list[dict[str, int]]) -> None:
    import torch

    for width in widths:
        gate_up, down = (torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
                         for shape in ((EXPERTS, 2 * width, HIDDEN), (EXPERTS, HIDDEN, width)))
        layer = Layer(8, gate_up, down)
        for row in rows:
            layer.ours(row)(0)
    torch.cuda.synchronize()


def bounds(record: Record) -> Iterator[Bound]:
    """No bound is set: what a row pinned for every number of tokens costs over the table's own rows, under our kernel;
    and our best row over stock."""
    for name, width in WIDTHS.items():
        rows = record.of("moe", name)
        single = {each: geometric_mean(row.median(each) / row.median(arm(chosen(width, _tokens(row)))) for row in rows)
                  for each in (rows[0].ours if rows else ())}
        if single:
            best = min(single, key=lambda each: single[each])
            yield Bound(f"moe {name}, one row over the table's rows, geometric mean", single[best], None, None, best)
        for stock in (VLLM, GROUPED):
            beside = [row for row in rows if row.stock == (stock,)]
            if beside:
                worst = max(beside, key=lambda row: row.ratio() or 0.0)
                yield Bound(f"moe {name}, best row over {stock}, geometric mean",
                            geometric_mean(row.ratio() or 0.0 for row in beside), None, None,
                            f"worst {worst.ratio():.3f}, {worst.name}")


def _tokens(row: Row) -> int:
    return int(row.name.split()[0])

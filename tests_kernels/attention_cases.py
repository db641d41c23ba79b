"""Requests for the attention kernels' tests: one token stream, cached in pages, read in any batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from detent.kernels.attention_split import attention_split

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float16  # Triton's interpreter gets bf16 wrong


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int16)


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    rows = (bits(got) != bits(want)).flatten(1).any(1).nonzero().flatten().tolist()
    assert not rows, f"{what}: bits differ in {len(rows)} of {len(want)} rows, first {rows[:5]}"


@dataclass
class Stream:
    """A request's queries, keys and values, one for each of its tokens."""

    q: torch.Tensor  # tokens, heads, head dim
    k: torch.Tensor  # tokens, KV heads, head dim
    v: torch.Tensor

    def __len__(self) -> int:
        return len(self.q)


def stream(tokens: int, kv_heads: int, group: int, dim: int, seed: int) -> Stream:
    at = torch.Generator().manual_seed(seed)
    made = [torch.randn(tokens, heads, dim, generator=at) for heads in (kv_heads * group, kv_heads, kv_heads)]
    return Stream(*(part.to(DEVICE, DTYPE) for part in made))


@dataclass
class Batch:
    """Requests as (stream, tokens in the cache, the last of them that are queries)."""

    requests: list[tuple[Stream, int, int]]
    page: int = 16
    seed: int = 0
    arrays: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        first = self.requests[0][0]
        width = max(-(-tokens // self.page) for _, tokens, _ in self.requests) + 1
        pages = len(self.requests) * width
        at = torch.Generator().manual_seed(self.seed)
        table = torch.randperm(pages, generator=at).to(DEVICE).reshape(len(self.requests), width)
        caches = [torch.full((pages, self.page, *part.shape[1:]), math.nan, device=DEVICE, dtype=DTYPE)
                  for part in (first.k, first.v)]
        for row, (request, tokens, _) in zip(table, self.requests, strict=True):
            token = torch.arange(tokens, device=DEVICE)
            for cache, part in zip(caches, (request.k, request.v), strict=True):
                cache[row[token // self.page], token % self.page] = part[:tokens]
        counts = [queries for _, _, queries in self.requests]
        self.arrays = {
            "q": torch.cat([request.q[tokens - queries : tokens] for request, tokens, queries in self.requests]),
            "k_cache": caches[0],
            "v_cache": caches[1],
            "page_table": table.to(torch.int32).contiguous(),
            "cu_seqlens_q": torch.tensor([sum(counts[:i]) for i in range(len(counts) + 1)], device=DEVICE,
                                         dtype=torch.int32),
            "seqused_k": torch.tensor([tokens for _, tokens, _ in self.requests], device=DEVICE, dtype=torch.int32),
        }
        self.longest_q = max(1, *counts, 1)
        self.longest = max(1, *(tokens for _, tokens, _ in self.requests), 1)

    def run(self, stride: int, *, splits: int | None = None, max_q: int | None = None) -> list[torch.Tensor]:
        """Each request's rows; the output is poisoned first."""
        count = splits or max(2, -(-self.longest // stride))
        out = torch.full_like(self.arrays["q"], math.nan)
        attention_split(**self.arrays, max_seqlen_q=max_q or self.longest_q, max_context=self.longest,
                        num_splits=count, split_stride=stride, softmax_scale=None, out=out)
        assert not out.isnan().any(), "a row was not written, or read a key that is not its own"
        return list(out.split([queries for _, _, queries in self.requests]))


def reference(request: Stream, tokens: int, queries: int) -> torch.Tensor:
    """The same attention in float64 and plain torch."""
    group = request.q.shape[1] // request.k.shape[1]
    q = request.q[tokens - queries : tokens].double().transpose(0, 1)
    k, v = (part[:tokens].double().repeat_interleave(group, 1).transpose(0, 1) for part in (request.k, request.v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    position = torch.arange(tokens - queries, tokens, device=q.device)
    hidden = torch.arange(tokens, device=q.device)[None, :] > position[:, None]
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(0, 1)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())

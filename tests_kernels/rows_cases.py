"""Rows for the tests of ``rows``, and how they are compared."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from attention_cases import DEVICE, DTYPE, GPU

ROUNDS = 12 if GPU else 2
MOST = 700 if GPU else 5


def noise(*shape: int, seed: int, dtype: torch.dtype = DTYPE, scale: float = 1.0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return made.to(DEVICE, dtype)


def raw(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    bad = (raw(got) != raw(want)).reshape(len(got), -1).any(1).nonzero().flatten().tolist()
    assert not bad, f"{what}: bits differ in {len(bad)} of {len(got)} rows, first {bad[:5]}"


def spread(size: int, count: int, seed: int) -> tuple[torch.Tensor, list[int]]:
    """Rows of very different sizes, among which ``count`` chosen places; gaps behind every row hold NaN."""
    draw = random.Random(seed)
    many = draw.randint(count, MOST)
    whole = torch.full((many, size + 8 * draw.randint(0, 3)), math.nan, device=DEVICE, dtype=DTYPE)
    whole[:, :size] = noise(many, size, seed=seed) * torch.logspace(-2, 2, many, device=DEVICE)[:, None]
    return whole[:, :size], draw.sample(range(many), count)


def assert_rows_alone(run: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor], size: int, width: int,
                      kind: torch.dtype) -> None:
    """``run(x, out)`` on chosen rows among others, into a poisoned output, against each of them alone."""
    count = 20 if GPU else 2
    for seed in range(ROUNDS):
        mine = noise(count, size, seed=999)
        x, places = spread(size, count, seed)
        x[places] = mine
        got = run(x, torch.full((len(x), width), math.nan, device=DEVICE, dtype=kind))
        assert not got.isnan().any()
        for row, place in enumerate(places):
            assert_same(got[place : place + 1], run(mine[row : row + 1].clone(), None), f"row {place} of {len(x)}")


def close(got: torch.Tensor, want: torch.Tensor, unit: float) -> None:
    """Within ``unit`` of every value, as all results here are rounded once."""
    apart = (got.double() - want).abs() / want.abs().clamp_min(1e-3)
    assert float(apart.max()) < unit, float(apart.max())


def unit_of(kind: torch.dtype) -> float:
    return {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-20}[kind] * 1.02

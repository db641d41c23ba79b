"""Two toy kernels. Each adds a row's numbers in single precision, in an order that depends on that row alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from detent.lang import F32, f32


def sequential(row: Sequence[float], width: int) -> F32:
    """From left to right; the width does not matter."""
    total = f32(0.0)
    for value in row:
        total = f32(total + f32(value))
    return total


def blocked(row: Sequence[float], width: int) -> F32:
    """Blocks of ``width`` numbers each from left to right, then the blocks: other bits than ``sequential``."""
    total = f32(0.0)
    for start in range(0, len(row), width):
        total = f32(total + sequential(row[start : start + width], width))
    return total


KERNELS: dict[str, Callable[[Sequence[float], int], F32]] = {"sequential": sequential, "blocked": blocked}

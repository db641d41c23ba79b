"""Row-wise operations of the embedded engine: RMSNorm, the gate of an MLP, softmax and argmax.

Elementwise functions such as ``exp`` have other bits in the last few elements of a thread's share than in the rest, so
those run on tiles of ``rows`` rows, filled up if ``full``: then an element's place within its share is its place
within the tile.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float, rows: int, full: bool) -> Tensor:
    """``x[M, H]`` over its root mean square, times ``weight[H]``; in fp32, rounded once to x's type."""
    def one(tile: Tensor) -> Tensor:
        wide = tile.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(tile.dtype)

    return tiled(one, x, rows, full)


def gate(x: Tensor, rows: int, full: bool) -> Tensor:
    """SiLU of the left half of ``x[M, 2I]`` times its right half: ``[M, I]``."""
    def one(tile: Tensor) -> Tensor:
        left, right = tile.chunk(2, -1)
        return functional.silu(left) * right

    return tiled(one, x, rows, full)


def softmax(x: Tensor, rows: int, full: bool) -> Tensor:
    """Softmax of every row of ``x[M, V]`` in fp32."""
    return tiled(lambda tile: torch.softmax(tile.float(), -1), x, rows, full)


def log_softmax(x: Tensor, rows: int, full: bool) -> Tensor:
    """Logarithm of the softmax of every row of ``x[M, V]`` in fp32."""
    return tiled(lambda tile: torch.log_softmax(tile.float(), -1), x, rows, full)


def argmax(x: Tensor) -> Tensor:
    """The lowest index of every row's largest element: ``x[M, V]`` gives ``[M]``."""
    index: Tensor = torch.argmax(x, -1)
    return index


def tiled(function: Callable[[Tensor], Tensor], x: Tensor, rows: int, full: bool) -> Tensor:
    """``function`` of the tiles of ``rows`` rows of ``x``, the last one filled up with zeros if ``full``."""
    count = x.shape[0]
    if count == rows or (count < rows and not full):
        return function(x)
    parts = []
    for start in range(0, count, rows):
        part = x[start:start + rows]
        short = part.shape[0]
        if full and short < rows:
            part = torch.cat((part, part.new_zeros(rows - short, x.shape[1])))
        parts.append(function(part)[:short])
    return parts[0] if len(parts) == 1 else torch.cat(parts)

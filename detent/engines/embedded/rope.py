"""Rotary position embedding, in the half-rotation layout of Hugging Face checkpoints."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from detent.engines.embedded.config import Rope


def frequencies(rope: Rope, head_dim: int) -> list[float]:
    """The ``head_dim / 2`` angles a position turns by, in radians; ``transformers``' rule for type llama3."""
    plain = [rope.base ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    if rope.factors:
        return [f / factor for f, factor in zip(plain, rope.factors, strict=True)]
    if rope.scaling is None:
        return plain
    factor, low, high, original = rope.scaling
    scaled = []
    for f in plain:
        wave = 2 * math.pi / f
        if wave < original / high:
            scaled.append(f)
        elif wave > original / low:
            scaled.append(f / factor)
        else:
            smooth = (original / wave - low) / (high - low)
            scaled.append((1 - smooth) * f / factor + smooth * f)
    return scaled


class Rotary:
    """Cosines and sines of every position, computed once in float64 so that no step's shape can touch their bits."""

    def __init__(self, rope: Rope, head_dim: int, context: int, device: torch.device) -> None:
        angles = torch.outer(torch.arange(context, dtype=torch.float64),
                             torch.tensor(frequencies(rope, head_dim), dtype=torch.float64))
        self.cos = angles.cos().float().to(device)  # [context, head_dim / 2]
        self.sin = angles.sin().float().to(device)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines ``[T, 1, head_dim / 2]`` for positions ``[T]``."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x [T, heads, head_dim]`` turned. Products and sums stand alone: each rounds the same wherever it stands."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)

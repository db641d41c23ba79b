"""Layers and batches for the expert kernels' tests: one pool of tokens, each with its own experts, in any company."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from attention_cases import DEVICE, DTYPE, GPU, bits

from detent.kernels import moe as module
from detent.kernels.moe import moe

__all__ = ["DEVICE", "DTYPE", "GPU", "Layer", "bits", "poisoned", "random_batches", "reference", "run"]

SIZES = (128, 2048, 192, 8) if GPU else (6, 64, 48, 3)  # experts, hidden, width, experts a token


def row_dict(text: str) -> dict[str, int]:
    """``"16/64/64/1/4/5"``: BLOCK_SIZE_M, _N, _K, GROUP_SIZE_M, num_warps, num_stages."""
    return dict(zip(module.COLUMNS, map(int, text.split("/")), strict=True))


@dataclass
class Layer:
    """Weights, and a pool of tokens with their experts and shares."""

    tokens: int
    seed: int
    sizes: tuple[int, int, int, int] = SIZES
    gate_up: torch.Tensor = field(init=False)
    down: torch.Tensor = field(init=False)
    x: torch.Tensor = field(init=False)
    ids: torch.Tensor = field(init=False)
    shares: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        experts, hidden, width, k = self.sizes
        at = torch.Generator(DEVICE).manual_seed(self.seed)

        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(shape, generator=at, device=DEVICE) * scale).to(DTYPE)

        self.gate_up = normal(experts, 2 * width, hidden, scale=hidden**-0.5)
        self.down = normal(experts, hidden, width, scale=width**-0.5)
        self.x = normal(self.tokens, hidden)
        self.ids, self.shares = self.routed(self.tokens, at)

    def routed(self, tokens: int, at: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        experts, _, _, k = self.sizes
        drawn = torch.rand(tokens, experts, generator=at, device=DEVICE)
        shares, ids = drawn.topk(k)
        return ids.to(torch.int32), (shares / shares.sum(1, keepdim=True)).float()


def poisoned(torch: Any, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Workspace in which whatever was not written is wrong: NaN, or a pair and a block that exist but are others."""
    return torch.full(shape, float("nan") if like.is_floating_point() else 7, dtype=like.dtype, device=like.device)


def run(layer: Layer, row: dict[str, int], tokens: Any = slice(None), **other: Any) -> torch.Tensor:
    """The output for tokens of the pool, or of ``x``, ``ids`` and ``shares``; workspace and output poisoned."""
    x = other.pop("x", layer.x)[tokens]
    ids, shares = other.pop("ids", layer.ids)[tokens].contiguous(), other.pop("shares", layer.shares)[tokens]
    out = torch.full_like(x, float("nan"))
    with mock.patch.object(module, "_empty", poisoned):
        return moe(x, layer.gate_up, layer.down, ids, shares.contiguous(), row=row, out=out, **other)


def alone(layer: Layer, row: dict[str, int]) -> torch.Tensor:
    return torch.cat([run(layer, row, slice(token, token + 1)) for token in range(layer.tokens)])


def random_batches(
    layer: Layer, row: dict[str, int], want: torch.Tensor, batches: int, seed: int
) -> tuple[int, list[str]]:
    """Rows of random batches beside ``want``, what each token gave alone: how many were compared, and what differed.

    A batch has tokens of the pool, some more than once, among strangers: of great size or NaN, routed at random, all to
    the same experts, or to none of this rank's, as padding is.
    """
    draw = random.Random(seed)
    at = torch.Generator(DEVICE).manual_seed(seed)
    experts, hidden, _, k = layer.sizes
    cases, wrong = 0, []
    for batch in range(batches):
        own = draw.choice((1, 2, draw.randint(1, 8), draw.randint(9, 64), draw.randint(65, 600))) if GPU else (
            draw.randint(1, 8))
        guests = draw.choice((0, 1, draw.randint(1, 40), draw.randint(41, 900), 3000 if batch % 10 == 0 else 5)) if (
            GPU) else draw.randint(0, 9)
        pick = torch.tensor([draw.randrange(layer.tokens) for _ in range(own)], device=DEVICE)
        x = (torch.randn(guests, hidden, generator=at, device=DEVICE) * draw.choice((1, 100))).to(DTYPE)
        ids, shares = layer.routed(guests, at)
        kind = draw.choice(("random", "one list", "pool's list", "padding", "some missing"))
        if kind == "one list" and guests:
            ids = torch.arange(k, device=DEVICE, dtype=torch.int32).repeat(guests, 1)
        elif kind == "pool's list":
            ids = layer.ids[int(pick[0])].repeat(guests, 1)
        elif kind == "padding":
            ids.fill_(-1)
            x.fill_(float("nan"))
        elif kind == "some missing":
            ids[torch.rand(ids.shape, generator=at, device=DEVICE) < 0.7] = draw.choice((-1, experts, 1 << 30))
        if draw.random() < 0.3:
            x[::2] = float("nan")
        order = torch.randperm(own + guests, generator=at, device=DEVICE)
        got = run(layer, row, x=torch.cat([layer.x[pick], x])[order], ids=torch.cat([layer.ids[pick], ids])[order],
                  shares=torch.cat([layer.shares[pick], shares])[order])
        back = torch.empty_like(got)
        back[order] = got
        bad = (bits(back[:own]) != bits(want[pick])).any(1).nonzero().flatten().tolist()
        cases += own
        if bad:
            wrong.append(f"batch {batch} of seed {seed}: {own} tokens, {guests} guests ({kind}): {len(bad)} differ")
    return cases, wrong


def reference(layer: Layer, x: torch.Tensor | None = None, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The same layer expert by expert in plain torch, in float64; or in another type, rounded where the kernels do."""
    x = layer.x if x is None else x
    total = torch.zeros(*layer.ids.shape, x.shape[1], dtype=torch.float64, device=DEVICE)
    for expert in range(layer.sizes[0]):
        token, at = (layer.ids == expert).nonzero(as_tuple=True)
        if len(token):
            gate, up = (x[token].to(dtype) @ layer.gate_up[expert].to(dtype).T).double().chunk(2, 1)
            folded = (torch.nn.functional.silu(gate) * up).to(dtype)
            made = (folded @ layer.down[expert].to(dtype).T).double() * layer.shares[token, at].double()[:, None]
            total[token, at] = made.to(dtype).double()
    return total.sum(1).to(dtype).double()


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())

"""From logits to tokens: exact argmax, or seeded noise that belongs to a token and not to a place in a batch.

A random draw adds to each logit a Gumbel variable that is a function of (seed, position, token id) and takes the
largest sum, which is a draw from the softmax. Whatever else is in the batch, a request meets the same noise.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from detent.engines.interface import Sampling
from detent.runtime.errors import DetentError, brief_repr

if TYPE_CHECKING:
    from detent.engines.embedded.ops import Ops

MASK = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
COLDEST, HOTTEST = 1e-6, 1e6
"""Temperatures that logits in float32 can be divided by and neither overflow nor all vanish."""


def check(sampling: Sampling) -> None:
    """Raises DetentError for settings that make no distribution."""
    if sampling.temperature != 0 and not COLDEST <= sampling.temperature <= HOTTEST:
        raise DetentError(f"temperature is {brief_repr(sampling.temperature)}",
                          f"give 0 for greedy, or a number from {COLDEST} to {HOTTEST}")
    if not 0 < sampling.top_p <= 1:
        raise DetentError(f"top_p is {sampling.top_p}", "give a number above 0, at most 1 (1 is off)")
    if sampling.top_k < 0:
        raise DetentError(f"top_k is {sampling.top_k}", "give 0 (off) or more")


def sample(logits: Tensor, draws: Sequence[tuple[Sampling, int, int]], ops: Ops) -> tuple[list[int], list[bytes]]:
    """A token for each row of ``logits[M, V]``, and the bits of its log-probability in float32, as a big-endian double.

    ``draws``: of each row its sampling, its seed and the position its token will have. Log-probabilities are those of
    the model, before temperature and cuts.
    """
    logprobs = ops.log_softmax(logits)
    tokens = ops.argmax(logits)
    for row, (sampling, seed, position) in enumerate(draws):
        if sampling.temperature > 0:
            tokens[row] = _draw(logits[row], sampling, seed, position, ops)
    values = logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens.tolist(), [struct.pack(">d", value) for value in values.tolist()]


def _draw(logits: Tensor, sampling: Sampling, seed: int, position: int, ops: Ops) -> Tensor:
    """A token for one row ``[V]``, always computed alone, so that every shape is the same."""
    scaled = logits.float() / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        # Of equal logits the lower id comes first; what is cut is cut by rank.
        ranked, order = scaled.sort(descending=True, stable=True)
        if 0 < sampling.top_k < len(ranked):
            ranked[sampling.top_k:] = -torch.inf
        if sampling.top_p < 1:
            shares = ops.softmax(ranked.unsqueeze(0))[0].double().cpu()
            before = torch.cumsum(shares, 0) - shares  # on the CPU: a scan in one order
            ranked[(before >= sampling.top_p).to(ranked.device)] = -torch.inf
        scaled = torch.empty_like(scaled).scatter_(0, order, ranked)
    noisy = scaled.double() + gumbel(seed, position, len(scaled), scaled.device)
    return ops.argmax(noisy.unsqueeze(0))[0]


def gumbel(seed: int, position: int, vocabulary: int, device: torch.device | None = None) -> Tensor:
    """Standard Gumbel noise in float64 for every token id at a position: ``[V]``. Each value is a function of the
    seed, the position and the id."""
    key = mix(mix(seed & MASK) + position)
    state = torch.arange(1, vocabulary + 1, device=device) * _signed(GOLDEN) + _signed(key)
    state = (state ^ _shifted(state, 30)) * _signed(FIRST)
    state = (state ^ _shifted(state, 27)) * _signed(SECOND)
    state = state ^ _shifted(state, 31)
    # Neither 0 nor 1: 52 bits and a half are 53, all of which a double holds.
    uniform = (_shifted(state, 12).double() + 0.5) * 2.0 ** -52
    return -torch.log(-torch.log(uniform))


def mix(state: int) -> int:
    """One step of SplitMix64: 64 bits to 64 bits."""
    state = (state + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * FIRST) & MASK
    state = ((state ^ (state >> 27)) * SECOND) & MASK
    return state ^ (state >> 31)


def _signed(value: int) -> int:
    """The signed integer with the same 64 bits; torch's products wrap, as the generator's do."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)

"""The router's choice: the largest logits, ties to the lowest expert, and their softmax; a row on its own."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import DEVICE, GPU

from detent.kernels.moe import topk_softmax

TOKENS = 4000 if GPU else 8
TYPES = (torch.bfloat16, torch.float32) if GPU else (torch.float16, torch.float32)
SHAPES = ((128, 8), (128, 1), (60, 4), (512, 32), (3, 3), (1, 1)) if GPU else ((60, 4), (3, 3), (1, 1))


def logits_of(tokens: int, experts: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random, half of the rows in steps of a half, so that they have ties."""
    at = torch.Generator().manual_seed(seed)
    made = torch.randn(tokens, experts, generator=at) * 3
    made[::2] = (made[::2] * 2).round() / 2
    return made.to(DEVICE, dtype)


@pytest.mark.parametrize("renormalize", (True, False))
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("experts", "k"), SHAPES)
def test_choice(experts: int, k: int, dtype: torch.dtype, renormalize: bool) -> None:
    logits = logits_of(TOKENS, experts, dtype, seed=experts)
    shares, ids = topk_softmax(logits, k, renormalize=renormalize)
    want = torch.sort(logits.double(), descending=True, stable=True)[1][:, :k]
    assert torch.equal(ids.long(), want), "not the largest, or a tie that does not go to the lowest expert"
    exact = logits.double().softmax(1).gather(1, want)
    if renormalize:
        exact = exact / exact.sum(1, keepdim=True)
    assert float(((shares - exact).abs() / exact).max()) < 1e-5
    apart = torch.full((TOKENS, experts + 5), math.nan, dtype=dtype, device=DEVICE)
    apart[:, :experts] = logits
    order = torch.randperm(TOKENS, device=DEVICE)
    for rows in (order, order[:7], order[:1]):
        again, chosen = topk_softmax(apart[rows][:, :experts], k, renormalize=renormalize)
        assert torch.equal(again.view(torch.int32), shares[rows].view(torch.int32)) and torch.equal(chosen, ids[rows])


def test_rows_that_hold_no_number_still_name_experts() -> None:
    logits = torch.randn(4, 60).to(DEVICE)
    logits[0] = -math.inf
    logits[1] = math.nan
    logits[2, 5:] = -math.inf
    logits[3, 7] = math.nan
    shares, ids = topk_softmax(logits, 8, renormalize=True)
    assert all(len(set(row)) == 8 and 0 <= min(row) and max(row) < 60 for row in ids.tolist())
    assert ids[0].tolist() == list(range(8)) and ids[2, 5:].tolist() == [5, 6, 7]
    assert shares[1].isnan().all() and shares[3].isnan().all()
    assert abs(float(shares[2, :5].sum()) - 1) < 1e-6 and (shares[2, 5:] == 0).all()


@pytest.mark.parametrize(("logits", "k", "message"), [
    (torch.zeros(4), 1, "tokens, experts"),
    (torch.zeros(4, 600), 1, "600 experts"),
    (torch.zeros(4, 8), 9, "k 9"),
    (torch.zeros(4, 8), 0, "k 0"),
    (torch.zeros(4, 8, dtype=torch.float64), 1, "float64"),
    (torch.zeros(8, 4).T, 1, "not contiguous"),
])
def test_what_the_kernel_does_not_take_is_refused(logits: torch.Tensor, k: int, message: str) -> None:
    moved = logits.T.to(DEVICE).T if logits.dim() == 2 and logits.stride(1) != 1 else logits.to(DEVICE)
    with pytest.raises(ValueError, match=message):
        topk_softmax(moved, k, renormalize=True)

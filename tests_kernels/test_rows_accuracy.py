"""Errors against float64 beside those of PyTorch's own operations, in the 2-norm."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DEVICE, DTYPE, GPU
from moe_cases import error
from torch.nn import functional

from detent.kernels import rows

COUNT, WIDTH = (512, 4096) if GPU else (6, 512)
LOGITS = (64, 128256) if GPU else (3, 9000)


def cases() -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """By operation: ours, PyTorch's in the same type, and float64's."""
    at = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=at).to(DEVICE)

    x, weight, logits, half = normal(COUNT, WIDTH).to(DTYPE), normal(WIDTH).to(DTYPE), normal(*LOGITS) * 3, WIDTH // 2
    heads, turned = x.view(COUNT, -1, 128), []
    table, positions = normal(COUNT, 128), torch.arange(COUNT, device=DEVICE)
    for kind in (DTYPE, torch.float64):
        cos, sin = (part[:, None] for part in table.to(kind).split(64, 1))
        a, b = heads.to(kind).split(64, 2)
        turned.append(torch.cat([a * cos - b * sin, b * cos + a * sin], 2))
    rotated = heads.clone()
    rows.rotary(positions, rotated, rotated[:, :0], table)

    def norm(of: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(of, scale.shape, scale, 1e-5)

    def silu(of: torch.Tensor) -> torch.Tensor:
        return functional.silu(of[:, :half]) * of[:, half:]

    def gelu(of: torch.Tensor) -> torch.Tensor:
        return functional.gelu(of[:, :half], approximate="tanh") * of[:, half:]

    return {
        "rms_norm": (rows.rms_norm(x, weight, 1e-5), norm(x, weight), norm(x.double(), weight.double())),
        "head_norm": (rows.head_norm(heads, weight[:128], 1e-5), norm(heads, weight[:128]),
                      norm(heads.double(), weight[:128].double())),
        "silu_and_mul": (rows.silu_and_mul(x), silu(x), silu(x.double())),
        "gelu_and_mul": (rows.gelu_and_mul(x), gelu(x), gelu(x.double())),
        "rotary": (rotated, *turned),
        "softmax": (rows.softmax(logits), logits.softmax(-1), logits.double().softmax(-1)),
        "log_softmax": (rows.log_softmax(logits), logits.log_softmax(-1), logits.double().log_softmax(-1)),
    }


@pytest.mark.parametrize("name", ("rms_norm", "head_norm", "silu_and_mul", "gelu_and_mul", "rotary", "softmax",
                                  "log_softmax"))
def test_errors_are_at_most_twice_those_of_pytorch(name: str) -> None:
    got, stock, want = cases()[name]
    assert 0 < error(got, want) < 2 * error(stock, want)

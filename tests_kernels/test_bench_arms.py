"""What ``detent bench kernels`` times beside one another computes the same."""

from __future__ import annotations

import pytest
import torch
from attention_cases import DEVICE, DTYPE, GPU
from moe_cases import Layer, error, reference, row_dict, run

from detent.bench.gpu import moe, rows


@pytest.mark.parametrize("count", (1, 300) if GPU else (2,))
@pytest.mark.parametrize("name", [*rows.WIDE, *(name for name in rows.LONG if not name.startswith("sample"))])
def test_operations_on_rows(name: str, count: int) -> None:
    """Samples draw noise of their own; their rule has tests in ``test_rows``."""
    width = 1280 if name in rows.WIDE else 9000
    ours, stock = rows.arms(name, count, width, DTYPE, DEVICE)
    got, want = (arm(1) for arm in (ours, stock))
    assert got.shape == want.shape
    if name == "argmax":
        assert torch.equal(got, want)
    else:  # engines' roundings differ: twice in the gates and in the norm's weight
        assert error(got, want.double()) < (3e-2 if got.dtype != torch.float32 else 1e-5)
        assert float(want.double().norm()) > 0.1


def test_the_stand_in_for_vllms_experts() -> None:
    layer = Layer(200 if GPU else 5, seed=4)
    kind = torch.bfloat16  # PyTorch groups no other type
    got = moe.grouped(*(part.to(kind) for part in (layer.x, layer.gate_up, layer.down)), layer.ids, layer.shares)
    want = reference(layer)
    assert error(got, want) < 2e-2
    assert error(run(layer, row_dict("16/64/64/1/4/5" if GPU else "16/32/32/2/4/3")), want) < 2e-2
    assert error(got.flip(0), want) > 0.5

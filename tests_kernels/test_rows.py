"""A row's bits depend on the row: alone, at any place, among any number of others. On the CPU, in Triton's interpreter,
small; on a GPU thousands of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_cases import DEVICE, DTYPE, GPU
from rows_cases import ROUNDS, assert_rows_alone, assert_same, close, noise, spread, unit_of

from detent.kernels import rows

HIDDEN = (2048, 4096, 5120, 8192, 128, 96) if GPU else (96, 256)
WEIGHTS = (torch.bfloat16, torch.float32) if GPU else (torch.float16, torch.float32)


@pytest.mark.parametrize("weight_type", WEIGHTS)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_rms_norm(hidden: int, weight_type: torch.dtype) -> None:
    weight = noise(hidden, seed=1, dtype=weight_type)
    assert_rows_alone(lambda x, out: rows.rms_norm(x, weight, 1e-5, out=out), hidden, hidden, DTYPE)
    x = noise(7, hidden, seed=2)
    wide = x.double()
    want = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    close(rows.rms_norm(x, weight, 1e-5), want, unit_of(DTYPE))


@pytest.mark.parametrize("hidden", HIDDEN)
def test_rms_norm_with_residual_is_adding_first(hidden: int) -> None:
    """The residual becomes the rounded sum, and its norm has the bits of the norm of that sum; rows alone or not."""
    weight = noise(hidden, seed=3)
    for seed in range(ROUNDS):
        x, _ = spread(hidden, 1, seed)
        before = noise(*x.shape, seed=seed + 50)
        residual = before.clone()
        got = rows.rms_norm(x, weight, 1e-6, residual=residual, out=torch.full_like(before, math.nan))
        assert_same(residual, x + before, "the residual")
        assert_same(got, rows.rms_norm(x + before, weight, 1e-6), "the norm")
        last = before[-1:].clone()
        assert_same(rows.rms_norm(x[-1:], weight, 1e-6, residual=last), got[-1:], "the last row alone")
        kept, total = before.clone(), torch.full_like(before, math.nan)
        assert_same(rows.rms_norm(x, weight, 1e-6, residual=kept, total=total), got, "the norm beside a total")
        assert_same(total, residual, "the total")
        assert_same(kept, before, "a residual that is left alone")


@pytest.mark.parametrize(("heads", "dim"), ((32, 128), (8, 128), (1, 64), (3, 96)) if GPU else ((3, 64), (1, 96)))
def test_head_norm(heads: int, dim: int) -> None:
    """A slice of a projection, as engines pass it; each head as its own row, and in place."""
    weight = noise(dim, seed=4)
    for tokens in (1, 2, 5, 300, 1500) if GPU else (1, 5):
        wide = noise(tokens, (heads + 4) * dim, seed=tokens)
        x = wide[:, 2 * dim : (heads + 2) * dim].view(tokens, heads, dim)
        got = rows.head_norm(x, weight, 1e-6, out=torch.full((tokens, heads, dim), math.nan, device=DEVICE,
                                                             dtype=DTYPE))
        kept = wide.clone()
        token = tokens // 2
        for head in range(heads):
            alone = rows.head_norm(x[token : token + 1, head : head + 1].clone(), weight, 1e-6)
            assert_same(got[token, head][None], alone[:, 0], f"token {token} head {head} of {tokens}")
        double = x.double()
        want = double / (double.square().mean(2, keepdim=True) + 1e-6).sqrt() * weight.double()
        close(got, want, unit_of(DTYPE))
        rows.head_norm(x, weight, 1e-6, out=x)
        assert_same(x.contiguous(), got, "in place")
        assert_same(wide[:, : 2 * dim], kept[:, : 2 * dim], "columns before the heads")
        assert_same(wide[:, (heads + 2) * dim :], kept[:, (heads + 2) * dim :], "columns behind the heads")


@pytest.mark.parametrize("size", (2048, 4096, 14336, 1000, 8) if GPU else (1000, 8))
@pytest.mark.parametrize("gelu", (False, True))
def test_gated(size: int, gelu: bool) -> None:
    run = rows.gelu_and_mul if gelu else rows.silu_and_mul
    assert_rows_alone(lambda x, out: run(x, out=out), 2 * size, size, DTYPE)
    x = noise(9, 2 * size, seed=5, scale=3.0)
    gate, up = x.double().split(size, 1)
    approximate = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    close(run(x), approximate * up, unit_of(DTYPE) * 1.1)
    extreme = torch.tensor([-1e4, -50.0, -0.0, 0.0, 50.0, 6e4, 1.0, -1.0], device=DEVICE, dtype=DTYPE)
    assert not run(torch.cat([extreme, torch.ones_like(extreme)])[None]).isnan().any()


def turned(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    half = table.shape[1] // 2
    cos, sin = (part[:, None].double() for part in table[positions].split(half, 1))
    a, b, rest = x[..., :half].double(), x[..., half : 2 * half].double(), x[..., 2 * half :].double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "width"),
                         ((32, 8, 128, 128), (5, 1, 96, 96), (9, 3, 64, 32)) if GPU else ((9, 3, 64, 32),))
def test_rotary(heads: int, kv_heads: int, dim: int, width: int) -> None:
    angle = torch.arange(500)[:, None] / 10000 ** (torch.arange(width // 2) / (width // 2))
    table = torch.cat([angle.cos(), angle.sin()], 1).to(DEVICE, torch.float32)
    for tokens in (1, 3, 400) if GPU else (1, 3):
        qkv = noise(tokens, (heads + 2 * kv_heads) * dim, seed=tokens)
        q, k = (part.view(tokens, -1, dim) for part in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], 1)[:2])
        positions = torch.randint(0, 500, (tokens,), generator=torch.Generator().manual_seed(tokens)).to(DEVICE)
        want = [turned(part, positions, table) for part in (q, k)]
        alone = [part[-1:].clone() for part in (q, k)]
        rows.rotary(positions, q, k, table)
        for got, right in zip((q, k), want, strict=True):
            assert float((got.double() - right).abs().max()) < 4 * unit_of(DTYPE) * float(right.abs().max())
        rows.rotary(positions[-1:], alone[0], alone[1], table)
        assert_same(q[-1:].contiguous(), alone[0], "q of the last token alone")
        assert_same(k[-1:].contiguous(), alone[1], "k of the last token alone")
    lost = noise(2, 1, dim, seed=0)
    rows.rotary(torch.tensor([-1, 500], device=DEVICE), lost, lost[:, :0], table)
    assert lost[..., :width].isnan().all() and not lost[..., width:].isnan().any()


def test_other_parameters_give_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above would see, had a launch chosen its parameters from the number of rows."""
    x = noise(64 if GPU else 8, 9000, seed=10, dtype=torch.float32, scale=2.0)
    want = rows.softmax(x)
    monkeypatch.setattr(rows, "PART_LANES", 512)
    assert not torch.equal(rows.softmax(x), want)
    if GPU:  # the interpreter has no warps
        weight, x = noise(4096, seed=11), noise(64, 4096, seed=12, dtype=torch.float32)
        outs = [torch.empty_like(x) for _ in range(2)]
        for warps, out in zip((8, 2), outs, strict=True):
            rows.rms_norm(x, weight, 1e-5, out=out, warps=warps)
        assert not torch.equal(*outs)


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
def test_graph_replays_with_other_contents() -> None:
    x, weight = noise(33, 4096, seed=8), noise(4096, seed=9)
    out = torch.empty_like(x)
    rows.rms_norm(x, weight, 1e-5, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows.rms_norm(x, weight, 1e-5, out=out)
        first = rows.argmax(x.float())
        shares = rows.softmax(x)
    for seed in range(3):
        x.copy_(noise(33, 4096, seed=20 + seed))
        out.fill_(math.nan)
        graph.replay()
        assert_same(out, rows.rms_norm(x, weight, 1e-5), "a replayed graph")
        assert torch.equal(first, x.float().argmax(1))
        assert_same(shares, rows.softmax(x), "a replayed graph's softmax")


def x(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: rows.rms_norm(x(2, 3, 64), x(64), 1e-5), "rows, columns"),
    (lambda: rows.rms_norm(x(2, 64, dtype=torch.float64), x(64), 1e-5), "float64"),
    (lambda: rows.rms_norm(x(2, 64), x(32), 1e-5), "weight"),
    (lambda: rows.rms_norm(x(2, 64), x(64), math.nan), "eps"),
    (lambda: rows.rms_norm(x(2, 40000), x(40000), 1e-5), "more than"),
    (lambda: rows.rms_norm(x(2, 65)[:, 1:], x(64), 1e-5), "16 bytes"),
    (lambda: rows.rms_norm(x(2, 68)[:, :64], x(64), 1e-5), "16 bytes"),
    (lambda: rows.rms_norm(x(1, 72)[:, 1:65], x(64), 1e-5), "16 bytes"),
    (lambda: rows.rms_norm(x(64, 64).t(), x(64), 1e-5), "not contiguous"),
    (lambda: rows.rms_norm(x(1, 64).expand(3, 64), x(64), 1e-5), "apart"),
    (lambda: rows.rms_norm(x(2, 64), x(64), 1e-5, residual=x(2, 64, dtype=torch.float32)), "is not"),
    (lambda: rows.rms_norm(x(2, 64), x(64), 1e-5, out=x(3, 64)), "is not"),
    (lambda: rows.rms_norm(x(2, 64), x(64), 1e-5, residual=x(2, 64), total=x(3, 64)), "is not"),
    (lambda: rows.rms_norm(x(2, 64), x(64), 1e-5, total=x(2, 64)), "a total needs a residual"),
    (lambda: rows.rms_norm(x(2, 64), x(64), 1e-5, warps=18), "18 warps"),
    (lambda: rows.head_norm(x(2, 3, 64), x(64), 1e-5, warps=0), "0 warps"),
    (lambda: rows.head_norm(x(2, 64), x(64), 1e-5), "head dim"),
    (lambda: rows.head_norm(x(2, 1, 2048), x(2048), 1e-5), "more than"),
    (lambda: rows.silu_and_mul(x(2, 24)), "multiple of 8"),
    (lambda: rows.rotary(x(2, dtype=torch.int32), x(2, 1, 64), x(2, 1, 64), x(9, 64)), "positions"),
    (lambda: rows.rotary(x(2, dtype=torch.int64), x(2, 1, 64), x(3, 1, 64), x(9, 64)), "same tokens"),
    (lambda: rows.rotary(x(2, dtype=torch.int64), x(2, 1, 64), x(2, 1, 64), x(9, 128)), "rotated columns"),
    (lambda: rows.softmax(x(2, 64), out=x(2, 64)), "fp32"),
    (lambda: rows.argmax(x(2, 33)), "16 bytes"),
    (lambda: rows.sample(x(2, 64), x(2), x(2, dtype=torch.int64), x(2, dtype=torch.int64)), "temperature"),
    (lambda: rows.sample(x(2, 64), x(2, dtype=torch.float32), x(1, dtype=torch.int64), x(2, dtype=torch.int64)),
     "seeds"),
])
def test_what_the_kernels_do_not_take_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_no_rows_are_no_launch() -> None:
    assert rows.rms_norm(x(0, 64), x(64), 1e-5).shape == (0, 64)
    assert rows.argmax(x(0, 64)).shape == (0,) and rows.silu_and_mul(x(0, 64)).shape == (0, 32)

"""A row's bits depend on the row: alone, at any place, among any number of others. On the CPU, in Triton's interpreter,
small; on a GPU thousands of rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from attention_cases import DEVICE, DTYPE, GPU

from detent.kernels import rows, rows_triton

MASK = (1 << 64) - 1
HIDDEN = (2048, 4096, 5120, 8192, 128, 96) if GPU else (96, 256)
VOCABULARY = (128256, 151936, 32000, 40) if GPU else (9000, 40)
WEIGHTS = (torch.bfloat16, torch.float32) if GPU else (torch.float16, torch.float32)
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


@pytest.mark.parametrize("log", (False, True))
@pytest.mark.parametrize("size", VOCABULARY)
def test_softmax(size: int, log: bool) -> None:
    run = rows.log_softmax if log else rows.softmax
    count = min(MOST, 64)
    x = noise(count, size, seed=6, scale=4.0, dtype=torch.float32)
    x[1, 3:] = -math.inf
    x[-1] = torch.arange(size, device=DEVICE) / size * 80  # every block raises the maximum
    want = x.double().log_softmax(1) if log else x.double().softmax(1)
    got = run(x, out=torch.full_like(x, math.nan))
    assert not got.isnan().any()
    finite = torch.isfinite(want)
    assert float((got.double() - want)[finite].abs().max()) < (2e-5 if log else 1e-6)
    assert torch.equal(torch.isfinite(got), finite)
    for row in random.Random(size).sample(range(count), min(count, 8)):
        assert_same(run(x[row : row + 1].clone()), got[row : row + 1], f"row {row} of {count}")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert_same(run(x[order]), got[order], "rows in another order")
    half = x.to(DTYPE)
    assert_same(run(half), run(half.float()), "logits in 16 bits")


@pytest.mark.parametrize("size", VOCABULARY)
def test_argmax_takes_the_lowest_index(size: int) -> None:
    draw = random.Random(size)
    x = noise(6, size, seed=7, dtype=torch.float32).round()
    want = []
    for row in x:
        places = sorted(draw.sample(range(size), 3))
        row[places] = 50.0
        want.append(places[0])
    special = torch.full((4, size), -math.inf, device=DEVICE)
    special[1, size - 1] = -1e30
    special[2, 5], special[2, 7] = -0.0, 0.0
    special[3, 6], special[3, 9] = math.inf, math.nan
    assert rows.argmax(torch.cat([x, special])).tolist() == [*want, 0, size - 1, 5, 6]
    assert rows.argmax(x[2:3]).tolist() == want[2:3]


def mix(state: int) -> int:
    """One step of SplitMix64, in Python's integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def uniform(seed: int, position: int, token: int) -> float:
    key = mix((mix(seed & MASK) + position) & MASK)
    return ((mix((key + token * 0x9E3779B97F4A7C15) & MASK) >> 12) + 0.5) * 2.0**-52


@triton.jit
def store_uniform(OUT, SEED, POSITION, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    token = tl.arange(0, COUNT)
    seed, position = tl.load(SEED).to(tl.uint64), tl.load(POSITION).to(tl.uint64)
    tl.store(OUT + token, rows_triton.uniform(seed, position, token.to(tl.uint64)))


def test_noise_is_the_embedded_engines() -> None:
    """Bits of the uniform numbers, through a kernel that stores them."""
    for seed, position in ((0, 0), (1, 7), (-5, 40000), (2**63 - 1, 1), (-(2**63), 131071)):
        out = torch.zeros(64, dtype=torch.float64, device=DEVICE)
        arguments = [torch.tensor([value], dtype=torch.int64, device=DEVICE) for value in (seed, position)]
        store_uniform[(1,)](out, *arguments, 64)
        assert out.tolist() == [uniform(seed, position, token) for token in range(64)]


def test_noise_is_finite_at_both_ends() -> None:
    """At these positions token 0 of seed 0 has the generator's largest and least 64 bits."""
    for position, expected in ((4448109779506558328, 1 - 2.0**-53), (16410632667423199302 - (1 << 64), 2.0**-53)):
        assert uniform(0, position, 0) == expected
        out = torch.zeros(2, dtype=torch.float64, device=DEVICE)
        arguments = [torch.tensor([value], dtype=torch.int64, device=DEVICE) for value in (0, position)]
        store_uniform[(1,)](out, *arguments, 2)
        assert out[0].item() == expected


def sampled(logits: torch.Tensor, temperature: list[float], seeds: list[int], positions: list[int],
            **cuts: Any) -> torch.Tensor:
    return rows.sample(logits, torch.tensor(temperature, device=DEVICE), torch.tensor(seeds, device=DEVICE),
                       torch.tensor(positions, device=DEVICE), **cuts)


def drawn(logits: torch.Tensor, temperature: float, seed: int, position: int, top_k: int = 0,
          top_p: float = 1.0) -> int:
    """The same rule in Python and float64."""
    scaled = (logits.cpu().float() / temperature) if temperature else logits.cpu().float()
    ranked, order = scaled.sort(descending=True, stable=True)
    before = ranked[: top_k or None].double().softmax(0).cumsum(0).roll(1)
    before[0] = 0.0
    kept = order[: len(before)][before < top_p] if top_p < 1 else order[: len(before)]
    if temperature == 0:
        return int(kept[0])
    sums = {token: float(scaled[token]) - math.log(-math.log(uniform(seed, position, token)))
            for token in sorted(kept.tolist())}
    return max(sums, key=lambda token: sums[token])


@pytest.mark.parametrize("cuts", (False, True))
@pytest.mark.parametrize("size", (32000, 999, 40) if GPU else (2100, 40))
def test_sample(size: int, cuts: bool) -> None:
    """Tokens of the rule, greedy rows beside random ones; alone and in another order the same."""
    draw = random.Random(size + cuts)
    count = 40 if GPU else 5
    padded = torch.full((count, size + -size % 8), math.nan, device=DEVICE)
    logits = padded[:, :size]
    logits.copy_(noise(count, size, seed=size, dtype=torch.float32, scale=3.0))
    rule = [(draw.choice((0.0, 0.7, 1.0, 3.0)), draw.randrange(-(2**63), 2**63), draw.randrange(100000),
             draw.choice((0, 1, 5, size, 50)) if cuts else 0, draw.choice((1.0, 0.9, 0.3, 1e-9)) if cuts else 1.0)
            for _ in range(count)]

    def run(chosen: list[int]) -> list[int]:
        temperature, seeds, positions, top_k, top_p = (list(part) for part in zip(*(rule[i] for i in chosen),
                                                                                 strict=True))
        options = {"top_k": torch.tensor(top_k, dtype=torch.int32, device=DEVICE),
                   "top_p": torch.tensor(top_p, dtype=torch.float64, device=DEVICE)} if cuts else {}
        picked = padded[chosen][:, :size] if size % 8 else logits[chosen]
        return sampled(picked, temperature, seeds, positions, **options).tolist()

    got = run(list(range(count)))
    for row, (temperature, seed, position, top_k, top_p) in enumerate(rule):
        assert got[row] == drawn(logits[row], temperature, seed, position, top_k, top_p), rule[row]
    order = draw.sample(range(count), count)
    assert run(order) == [got[i] for i in order]
    assert [run([i])[0] for i in range(min(count, 6))] == got[: min(count, 6)]


def test_draws_follow_the_softmax() -> None:
    """Of many seeds every token comes as often as its share."""
    count = 20000 if GPU else 200
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, -math.inf, 0.5, 0.0, 1.5], device=DEVICE)
    picked = sampled(logits.repeat(count, 1), [1.0] * count, list(range(count)), [3] * count)
    shares = torch.bincount(picked, minlength=8).double().cpu() / count
    assert shares[4] == 0 and float((shares - logits.cpu().double().softmax(0)).abs().max()) < 3 / math.sqrt(count)


def test_other_parameters_give_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above would see, had a launch chosen its parameters from the number of rows."""
    x = noise(64 if GPU else 8, 9000, seed=10, dtype=torch.float32, scale=2.0)
    want = rows.softmax(x)
    monkeypatch.setattr(rows, "LANES", 1024)
    assert not torch.equal(rows.softmax(x), want)
    if GPU:  # the interpreter has no warps
        weight, x = noise(4096, seed=11), noise(64, 4096, seed=12, dtype=torch.float32)
        outs = [torch.empty_like(x) for _ in range(2)]
        for warps, out in zip((8, 2), outs, strict=True):
            rows_triton.rms_norm_kernel[(64,)](x, x, weight, out, 1e-5, 512, 512, 512, 4096, 4096, False,
                                               num_warps=warps, enable_fp_fusion=False)
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
    for seed in range(3):
        x.copy_(noise(33, 4096, seed=20 + seed))
        out.fill_(math.nan)
        graph.replay()
        assert_same(out, rows.rms_norm(x, weight, 1e-5), "a replayed graph")
        assert torch.equal(first, x.float().argmax(1))


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

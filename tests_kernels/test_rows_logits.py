"""Softmax, argmax and samples: a row's bits depend on the row, its tokens on its own noise. On the CPU, in Triton's
interpreter, small."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from attention_cases import DEVICE, DTYPE, GPU
from rows_cases import MOST, assert_same, noise

from detent.kernels import rows, rows_triton

MASK = (1 << 64) - 1
VOCABULARY = (128256, 151936, 32000, 40) if GPU else (9000, 40)


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
    over = x.clone()
    assert_same(run(over, out=over), got, "in place")
    few = x[: min(count, 3)].clone()  # another number of rows, which cuts the workspace elsewhere
    assert_same(run(few), got[: len(few)], f"{len(few)} rows of {count}")


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


def test_cuts_that_cut_nothing() -> None:
    """Rows that nobody cuts may skip the sort: their tokens are the same."""
    count, size = (64, 32000) if GPU else (4, 2104)
    logits = noise(count, size, seed=3, dtype=torch.float32, scale=3.0)
    parts = [0.0, 0.7, 1.0, 3.0] * (count // 4), list(range(count)), list(range(count))
    off = {"top_k": torch.zeros(count, dtype=torch.int32, device=DEVICE),
           "top_p": torch.ones(count, dtype=torch.float32, device=DEVICE)}
    whole = {**off, "top_k": off["top_k"] + size}
    want = sampled(logits, *parts)
    assert torch.equal(sampled(logits, *parts, **off), want) and torch.equal(sampled(logits, *parts, **whole), want)
    assert torch.equal(sampled(logits[1::4], *(part[1::4] for part in parts)), want[1::4])


def test_draws_follow_the_softmax() -> None:
    """Of many seeds every token comes as often as its share."""
    count = 20000 if GPU else 200
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, -math.inf, 0.5, 0.0, 1.5], device=DEVICE)
    picked = sampled(logits.repeat(count, 1), [1.0] * count, list(range(count)), [3] * count)
    shares = torch.bincount(picked, minlength=8).double().cpu() / count
    assert shares[4] == 0 and float((shares - logits.cpu().double().softmax(0)).abs().max()) < 3 / math.sqrt(count)


@pytest.mark.skipif(not GPU, reason="many rows need a GPU")
@pytest.mark.parametrize("size", (128256, 151936, 4096, 4097, 1000))
def test_softmax_among_any_number_of_rows(size: int) -> None:
    """Its second kernel starts while the first ends: a row among 1 to 300 rows, calls in a row without a wait."""
    padded = size + -size % 8
    x = noise(300, padded, seed=size, dtype=torch.float32, scale=4.0)[:, :size]
    whole = {log: (rows.log_softmax if log else rows.softmax)(x) for log in (False, True)}
    draw, made = random.Random(size), []
    for _ in range(60):
        first, log = draw.randrange(300), draw.random() < 0.5
        last = draw.randint(first + 1, min(300, first + draw.choice((1, 2, 9, 70, 300))))
        out = torch.full((last - first, padded), math.nan, device=DEVICE)[:, :size]
        made.append((first, last, log, (rows.log_softmax if log else rows.softmax)(x[first:last], out=out)))
    for first, last, log, got in made:
        assert_same(got, whole[log][first:last], f"rows {first} to {last} of {size}")

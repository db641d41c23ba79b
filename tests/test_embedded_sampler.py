"""Sampling: exact argmax, and noise that belongs to a request's token."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedded_support as support  # noqa: E402

from detent.engines.embedded import sampler  # noqa: E402
from detent.engines.interface import Sampling  # noqa: E402
from detent.runtime.errors import DetentError  # noqa: E402

GREEDY = Sampling()


def draw(logits: Any, *draws: tuple[Sampling, int, int]) -> list[int]:
    return sampler.sample(torch.tensor(logits, dtype=torch.float32), draws, support.ops())[0]


def logits(rows: int = 1, size: int = 50) -> Any:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(3))


def test_of_equal_logits_the_lowest_index_is_taken() -> None:
    assert draw([[1, 1, 0]], (GREEDY, 0, 5)) == [0]
    others = ((Sampling(1.0, seed=4), 4, 9), (Sampling(0.5, top_p=0.5, seed=1), 1, 2), (GREEDY, 0, 1))
    assert draw([[0, 2, 1], [1, 1, 0], [3, 3, 3], [0, 1, 1]], others[0], (GREEDY, 0, 5), *others[1:])[1::2] == [0, 1]
    assert draw([[5.0] * 1000], (GREEDY, 0, 0)) == [0]


def test_noise_is_that_of_the_generator() -> None:
    seed, position = 2 ** 63 + 5, 77
    key = sampler.mix(sampler.mix(seed) + position)
    noise = sampler.gumbel(seed, position, 1000)
    for token in (0, 1, 500, 999):
        state = sampler.mix((key + token * sampler.GOLDEN) & sampler.MASK)
        uniform = ((state >> 12) + 0.5) * 2.0 ** -52
        assert float(noise[token]) == pytest.approx(-math.log(-math.log(uniform)), rel=1e-14)


def place_of(state: int) -> int:
    """The position at which token 0 of seed 0 has this state: SplitMix64 backwards."""
    def back(value: int) -> int:
        for bits, factor in ((31, sampler.SECOND), (27, sampler.FIRST)):
            value = unshifted(value, bits) * pow(factor, -1, 1 << 64) & sampler.MASK
        return unshifted(value, 30)

    def unshifted(value: int, bits: int) -> int:
        found = value
        for _ in range(64 // bits):
            found = value ^ (found >> bits)
        return found

    key = (back(state) - sampler.GOLDEN) & sampler.MASK
    return (back(key) - sampler.GOLDEN - sampler.mix(0)) & sampler.MASK


@pytest.mark.parametrize(("state", "expected"), [(sampler.MASK, -math.log(-math.log1p(-2.0 ** -53))),
                                                 (0, -math.log(53 * math.log(2)))])
def test_noise_is_finite_at_both_ends(state: int, expected: float) -> None:
    position = place_of(state)
    assert sampler.mix(sampler.mix(sampler.mix(0) + position)) == state
    assert float(sampler.gumbel(0, position, 1)[0]) == pytest.approx(expected, rel=1e-14)


def test_splitmix_is_the_published_one() -> None:
    """The first outputs of the reference implementation begun at 1234567."""
    state, found = 1234567, []
    for _ in range(3):
        found.append(sampler.mix(state))
        state += sampler.GOLDEN
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_noise_of_a_token_does_not_hang_on_the_vocabulary() -> None:
    assert torch.equal(sampler.gumbel(7, 3, 1000)[:10], sampler.gumbel(7, 3, 40000)[:10])
    seen = {float(sampler.gumbel(seed, position, 4)[token])
            for seed in range(6) for position in range(6) for token in range(4)}
    assert len(seen) == 6 * 6 * 4


def test_a_seeded_row_keeps_its_token_beside_others() -> None:
    rows = logits(5)
    mine = (Sampling(0.9, top_p=0.9, top_k=30, seed=11), 11, 40)
    alone = [sampler.sample(rows[:1], [(mine[0], 11, position)], support.ops()) for position in range(40, 60)]
    others = [(GREEDY, 0, 3), (Sampling(2.0), 123, 40), (Sampling(1.0, top_p=0.2, seed=11), 11, 40),
              (Sampling(1.0, seed=11), 11, 40)]
    for place in range(5):
        order = [*range(1, place + 1), 0, *range(place + 1, 5)]
        for position, (token, logprob) in zip(range(40, 60), alone, strict=True):
            draws = [*others[:place], (mine[0], 11, position), *others[place:]]
            tokens, logprobs = sampler.sample(rows[order], draws, support.ops())
            assert (tokens[place], logprobs[place]) == (token[0], logprob[0])


def test_draws_follow_the_distribution() -> None:
    rows = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    temperature, count = 0.7, 4000
    tokens = [sampler.sample(rows, [(Sampling(temperature, seed=1), 1, position)], support.ops())[0][0]
              for position in range(count)]
    for token, share in enumerate(torch.softmax(rows[0] / temperature, 0).tolist()):
        assert abs(tokens.count(token) / count - share) < 4 * math.sqrt(share * (1 - share) / count)


def test_cuts_leave_out_what_they_should() -> None:
    rows = torch.tensor([[2.0, 3.0, 2.0, 2.0, 0.0]])  # shares 0.17, 0.46, 0.17, 0.17, 0.02

    def reached(sampling: Sampling) -> set[int]:
        return {sampler.sample(rows, [(sampling, 9, position)], support.ops())[0][0] for position in range(150)}

    assert reached(Sampling(1.0)) == {0, 1, 2, 3, 4}
    assert reached(Sampling(1.0, top_k=1)) == {1}
    assert reached(Sampling(1.0, top_k=2)) == {0, 1}  # of the equal ones the lowest id
    assert reached(Sampling(1.0, top_p=0.4)) == {1}
    assert reached(Sampling(1.0, top_p=0.6)) == {0, 1}
    assert reached(Sampling(1.0, top_p=0.7)) == {0, 1, 2}
    assert reached(Sampling(1.0, top_k=3, top_p=0.99)) == {0, 1, 2}
    assert reached(Sampling(1.0, top_k=100)) == {0, 1, 2, 3, 4}


def test_log_probabilities_are_the_models() -> None:
    rows = logits(2)
    tokens, found = sampler.sample(rows, [(GREEDY, 0, 0), (Sampling(3.0, top_k=5, seed=2), 2, 0)], support.ops())
    exact = torch.log_softmax(rows.double(), -1)
    for row, (token, bits) in enumerate(zip(tokens, found, strict=True)):
        value = struct.unpack(">d", bits)[0]
        assert value == pytest.approx(float(exact[row, token]), abs=1e-5)
        assert struct.unpack(">f", struct.pack(">f", value))[0] == value  # a float32, nothing rounded away


@pytest.mark.parametrize("sampling", [Sampling(-1.0), Sampling(math.nan), Sampling(math.inf), Sampling(top_p=0.0),
                                      Sampling(top_p=1.5), Sampling(top_p=math.nan), Sampling(top_k=-1)])
def test_settings_that_make_no_distribution_are_refused(sampling: Sampling) -> None:
    with pytest.raises(DetentError, match="temperature|top_p|top_k"):
        sampler.check(sampling)

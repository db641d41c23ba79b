"""Statistics against values from elsewhere, and the metrics of a run."""

from __future__ import annotations

import pytest

from detent.bench import statistics as bench
from detent.bench.load import in_flight
from detent.bench.metrics import growing, measured, percentiles
from detent.bench.workloads import LOADS, replay, traffic
from detent.engines.interface import Output
from detent.runtime.errors import DetentError


def test_wilson() -> None:
    found = bench.wilson(1236, 1319)  # GSM8K: "about ±1.3 percentage points"
    assert (found.value, found.low, found.high) == pytest.approx((0.93707, 0.92264, 0.94896), abs=5e-5)
    nothing = bench.wilson(0, 85)
    assert nothing.low == 0 and nothing.high == pytest.approx(1.96 ** 2 / (85 + 1.96 ** 2), abs=1e-4)
    assert bench.wilson(5, 5).high == 1


def test_mcnemar_is_the_binomial_test_of_the_pairs_that_differ() -> None:
    first = [True] * 8 + [False] * 2 + [True] * 30
    second = [False] * 8 + [True] * 2 + [True] * 30
    assert bench.mcnemar(first, second) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert bench.mcnemar(first, first) == 1


def test_the_ratio_of_medians_and_its_interval() -> None:
    base = [0.010 + 0.0001 * (i % 37) for i in range(300)]
    slower = [1.25 * value for value in base]
    same = bench.ratio_of_medians(slower, base)
    assert (same.value, same.low, same.high) == pytest.approx((1.25, 1.25, 1.25))  # drawn in pairs
    noisy = [value * (1.1 if i % 2 else 1.4) for i, value in enumerate(base)]
    found = bench.ratio_of_medians(noisy, base)
    assert 1.1 < found.low < found.value < found.high < 1.4
    assert found == bench.ratio_of_medians(noisy, base)
    assert bench.ratio_of_medians([2.0, 2.0], [1.0, 1.0]) == bench.Interval(2.0, 2.0, 2.0)


def test_without_the_extra_a_clear_line() -> None:
    with pytest.raises(DetentError, match=r"the bench needs nonesuch.*pip install 'detent\[bench\]'"):
        bench.load("nonesuch.part")


def test_percentiles_are_interpolated() -> None:
    found = percentiles([4.0, 1.0, 3.0, 2.0])
    assert (found["p50"], found["p90"], found["mean"]) == pytest.approx((2.5, 3.7, 2.5))
    assert percentiles([7.0]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0, "mean": 7.0}


def output(arrival: float, *times: float, cached: int | None = None) -> Output:
    return Output(tuple(range(len(times))), (b"x",) * len(times), cached=cached, arrival=arrival, times=times)


def test_a_run_in_numbers() -> None:
    source = traffic("W-A", 0.0001, 0)
    sent = replay(source, LOADS["A1"], rate=1.0, seed=0, salt="", vocabulary=10, special=())
    may = sent.shared
    outputs = [output(float(i), i + 2.0, i + 3.0, i + 5.0, i + 6.0, cached=may[i]) for i in range(len(may))]
    run = measured(sent, outputs)
    assert run.latency["p50"] == run.latency["p99"] == 1.5  # 6 seconds from arrival to the last of 4 tokens
    assert run.ttft["p50"] == 2.0
    assert (run.step["p50"], run.step["mean"]) == pytest.approx((1.0, 4 / 3))
    assert run.seconds == len(may) - 1 + 6 and run.tokens_per_s == 4 * len(may) / run.seconds
    assert run.cached == sum(may) / sum(len(r.prompt) for r in sent.requests)
    assert (run.beyond, run.bare) == (0, 0)
    more = [output(o.arrival, *o.times, cached=(o.cached or 0) + 3) for o in outputs]
    assert measured(sent, more).beyond == 3 * len(may)
    told = measured(sent, [output(0.0, 1.0), *outputs[1:]])
    assert told.cached is None and told.beyond is None
    assert told.digests[0] != run.digests[0] and told.digests[1:] == run.digests[1:]


def test_in_flight() -> None:
    assert in_flight([output(0.0, 2.0), output(1.0, 5.0), output(2.0, 3.0), output(4.0, 6.0)]) == [0, 1, 1, 1]


def test_a_growing_queue_is_told_from_a_busy_one() -> None:
    busy = [output(0.1 * i, 0.1 * i + 1.0 + (i % 7) / 10) for i in range(200)]
    late = [output(0.1 * i, 0.15 * i + 1.0) for i in range(200)]
    assert (growing(busy), growing(late)) == (False, True)
    assert not growing([output(0.0, 1.0 + i) for i in range(200)])  # all at once is no queue that grows

"""The measuring code: what it measures runs, and its numbers are what they are called. No time is judged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli_support import done, loaded

from detent.bench import compiler as bench
from detent.cli.bench import compiler, judging
from detent.passes.legality import Legality
from detent.runtime.cache import Store
from detent.runtime.errors import DetentError
from detent.runtime.selector import Selector
from detent.solver.solve import solve


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bench.Case]:
    return {case.name: case for case in bench.cases(compiler(), str(tmp_path_factory.mktemp("bench")))}


def test_all_that_the_issue_lists_is_measured(cases: dict[str, bench.Case]) -> None:
    assert {name: case.must_s for name, case in cases.items()} == {
        "cold-process": 2.5, "cold": 2.5, "judge": 0.05, "hit": 0.005, "hit-runtime": 0.08, "hit-command": 0.15,
        "repin": 0.001, "seen": 0.5e-6, "new": 20e-6}


def test_median_and_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 10.0, 12.0, 20.0, 26.0, 30.0, 38.0, 40.0, 50.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    seen: list[object] = []
    case = bench.Case("x", "x", 1.0, 5, lambda: "subject", seen.append, calls=2)
    result = bench.measure(case)
    assert (result.median, result.low, result.high, result.runs) == (3.0, 2.0, 4.0, 5)
    assert seen == ["subject"] * 6  # one run is not counted


def test_few_runs_spread_from_least_to_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 10.0, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    result = bench.measure(bench.Case("x", "x", 1.0, 5, lambda: None, lambda _: None), runs=2)
    assert (result.median, result.low, result.high) == (3.0, 2.0, 4.0)


def test_judging_judges_everything() -> None:
    solution = solve(bench.PROGRAM, bench.DEPLOYMENT)
    legality = judging(solution)()
    assert isinstance(legality, Legality)
    assert (legality.candidates, legality.legal) == (solution.candidates, solution.legal)


def test_the_trace_is_of_inputs_that_the_selector_takes(cases: dict[str, bench.Case]) -> None:
    trace = bench.decode_trace()
    assert len(trace) == bench.STEPS and trace == bench.decode_trace()
    assert 0.5 < len(set(trace)) / len(trace) < 1
    selector, steps = cases["seen"].prepare()
    assert isinstance(selector, Selector) and steps == trace
    fresh, distinct = cases["new"].prepare()
    assert len(distinct) == cases["new"].calls == len(set(trace))
    bench.measure(cases["new"], runs=1)
    assert [fresh(*step) for step in distinct[:100]] == [selector(*step) for step in distinct[:100]]


def test_repinning_gives_another_selector(cases: dict[str, bench.Case]) -> None:
    case = cases["repin"]
    selector = case.run(case.prepare())
    assert isinstance(selector, Selector)
    assert dict(selector.assignment) != solve(bench.PROGRAM, bench.DEPLOYMENT).default


def test_cold_and_hit_differ(cases: dict[str, bench.Case], tmp_path: Path) -> None:
    calls: list[bool] = []

    def watching(program: str, deployment: str, store: object) -> object:
        solution = solve(program, deployment, store=store)  # type: ignore[arg-type]
        calls.append(solution.cached)
        return solution

    own = bench.Compiler(watching, judging)  # type: ignore[arg-type]
    named = {case.name: case for case in bench.cases(own, str(tmp_path))}
    calls.clear()
    for name in ("cold", "hit", "hit-runtime"):
        named[name].run(named[name].prepare())
    assert calls == [False, True]


def test_a_process_that_fails_is_no_measurement(cases: dict[str, bench.Case], tmp_path: Path) -> None:
    with pytest.raises(DetentError, match="a measured process failed: .*not in the cache"):
        cases["hit-runtime"].run(Store(str(tmp_path / "empty")))


def test_command(cases: dict[str, bench.Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "cases", lambda *_: [cases[name] for name in ("judge", "hit-command", "repin")])
    found = loaded("bench", "compiler", "--runs", "1")
    assert [result["name"] for result in found["results"]] == ["judge", "hit-command", "repin"]
    assert all(result["low_s"] <= result["median_s"] <= result["high_s"] for result in found["results"])
    text = done("bench", "compiler", "--runs", "1")
    assert "median" in text and "repin" in text

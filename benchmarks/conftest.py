"""What is measured here is what ``detent bench compiler`` measures; pytest-benchmark keeps and compares the numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from detent.bench.compiler import Case, cases
from detent.cli.bench import compiler


@pytest.fixture(scope="session")
def named_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """All cases by name, on caches of their own."""
    return {case.name: case for case in cases(compiler(), str(tmp_path_factory.mktemp("bench")))}


@pytest.fixture
def run_case(benchmark: BenchmarkFixture, named_cases: dict[str, Case]) -> Callable[[str], None]:
    """Measure one case. Times are per run; ``extra_info`` says how many calls a run has and what one must reach."""

    def run(name: str) -> None:
        case = named_cases[name]
        benchmark.extra_info.update(what=case.what, calls=case.calls, must_s=case.must_s)
        benchmark.pedantic(  # type: ignore[no-untyped-call]
            case.run, setup=lambda: ((case.prepare(),), {}), rounds=case.runs, warmup_rounds=1)

    return run

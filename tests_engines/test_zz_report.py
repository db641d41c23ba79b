"""Last of all: every arm of every compared helper was taken; the report and the golden rows are what this run found."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import arms
import pytest
from compare import COMPARISONS, GOLDEN

from detent.tools import conformance

ROOT = Path(__file__).resolve().parents[1]
WHEELS = {"vllm": "0.26.0", "sglang": "0.5.17"}


def summary() -> dict[str, Any]:
    """What ``results/conformance.json`` says; nothing in it depends on the machine."""
    helpers = {helper for comparison in COMPARISONS for helper in comparison.helpers}
    return {
        "format": 1,
        "engines": WHEELS,
        "comparisons": [{
            "engine": c.engine, "function": c.theirs, "program": c.ours, "inputs": c.inputs, "at_edges": c.at_edges,
            "constants": c.constants, "points": c.points, "mismatches": c.mismatches} for c in COMPARISONS],
        "arms": [{
            "function": f"{helper.__module__.removeprefix('detent.')}.{helper.__name__}",
            "arms": 2 * len(arms.of(helper)),
            "taken": sum(count > 0 for arm in arms.of(helper) for count in arm.counts),
            "fewest": min((count for arm in arms.of(helper) for count in arm.counts), default=0),
        } for helper in sorted(helpers, key=lambda helper: (helper.__module__, helper.__name__)) if arms.of(helper)],
    }


@pytest.fixture(autouse=True)
def whole_run() -> None:
    if len(COMPARISONS) < 16:
        pytest.skip("only a part of the comparisons ran")


def test_every_arm_was_taken() -> None:
    missed = [(arm.module, arm.function, arm.line, arm.text, arm.counts)
              for arm in arms.of(*{helper for c in COMPARISONS for helper in c.helpers}) if 0 in arm.counts]
    assert not missed, missed


def test_the_report() -> None:
    found = summary()
    assert all(entry["mismatches"] == 0 for entry in found["comparisons"])
    path = ROOT / "results" / "conformance.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    conformance.main()


def test_golden_rows(request: pytest.FixtureRequest) -> None:
    """The ordinary suite's files are what this run would write."""
    for name, (header, rows) in sorted(GOLDEN.items()):
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--record"):
            with open(path, "w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([header, *rows])
        with open(path, encoding="utf-8", newline="") as file:
            assert list(csv.reader(file)) == [header, *([str(value) for value in row] for row in rows)], name

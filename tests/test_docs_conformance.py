"""docs/conformance.md has the tables of results/conformance.json, and those say that nothing differs."""

from __future__ import annotations

import json

import pytest

from detent.tools.conformance import PAGE, RESULTS, filled


def test_the_page_has_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, json.loads(RESULTS.read_text(encoding="utf-8"))) == page
    with pytest.raises(ValueError, match="the page has places for nothing; give it comparisons, arms"):
        filled("", {"comparisons": [], "arms": []})


def test_nothing_differs_and_every_arm_was_taken() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert results["engines"] == {"vllm": "0.26.0", "sglang": "0.5.17"}
    whole = [entry for entry in results["comparisons"] if "tests/golden" not in entry["function"]]
    assert len(whole) == 15 and {entry["engine"] for entry in whole} == {"vllm", "sglang"}
    assert all(entry["inputs"] >= 100_000 and entry["points"] >= entry["inputs"] for entry in whole)
    assert all(entry["at_edges"] * 2 >= entry["inputs"] for entry in whole if "every table" not in entry["function"])
    assert all(entry["mismatches"] == 0 for entry in results["comparisons"])
    assert all(entry["taken"] == entry["arms"] and entry["fewest"] > 0 for entry in results["arms"])

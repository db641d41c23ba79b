"""``detent explain``, ``select``, ``conform``, ``cache``, ``run``, ``programs`` and ``deployments``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from cli_support import DEPLOYMENT, done, invoke, loaded

from detent.runtime.deployment import known
from detent.runtime.sources import registry


def test_explain_shows_the_cut() -> None:
    text = done("explain", "moe", "-d", DEPLOYMENT)
    assert "num_tokens" in text and "programs/fused_moe.py:" in text and "Required (require)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_explain_one_pin_and_one_point() -> None:
    assert "Why row follows the batch" in done("explain", "moe", "-d", DEPLOYMENT, "--pin", "row")
    assert "rules out 1" in done("explain", "moe", "-d", DEPLOYMENT, "--point", "align")


def test_explain_as_dot_mermaid_and_page(tmp_path: Path) -> None:
    assert done("explain", "moe", "-d", DEPLOYMENT, "--dot").startswith('digraph "moe"')
    assert "flowchart LR" in done("explain", "moe", "-d", DEPLOYMENT, "--mermaid")
    page = tmp_path / "moe.html"
    assert done("explain", "moe", "-d", DEPLOYMENT, "--html", page).startswith(f"wrote {page}")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_select_unpinned_follows_the_batch() -> None:
    few, many = (loaded("select", "moe", "-d", DEPLOYMENT, "--inputs", f"num_tokens={n}") for n in (8, 4096))
    assert few["points"]["up.BLOCK_SIZE_M"] != many["points"]["up.BLOCK_SIZE_M"]
    assert few["inputs"] == {"num_tokens": 8} and few["assignment"] is None
    assert len(few["points"]) == 39
    condition = few["conditions"][0]
    assert list(condition) == ["kind", "text", "message", "source", "holds"]
    assert condition["kind"] == "assume" and condition["holds"] is True
    assert "unpinned: points follow the batch" in done("select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=8")


def test_select_reports_conditions_and_enforces_none() -> None:
    beyond = ["select", "moe", "-d", DEPLOYMENT, "--inputs", "num_tokens=10000"]
    found = loaded(*beyond)
    (broken,) = [c for c in found["conditions"] if not c["holds"]]
    assert broken["kind"] == "assume" and found["solved"] is False and len(found["points"]) == 39
    assert "  NO  " in done(*beyond) and "outside of what was solved" in done(*beyond)
    # Unpinned, the heuristic may split further than the fixed stride covers: a require says so.
    given = ["--inputs", "b=8,max_seqlen_q=1, max_seqlen_k=900", "--inputs", "total_q=8,table_width=57,in_graph=True"]
    found = loaded("select", "attention", "-d", DEPLOYMENT, *given)
    (broken,) = [c for c in found["conditions"] if not c["holds"]]
    assert broken["message"] == "the splits cover the longest request" and found["solved"] is True
    text = done("select", "attention", "-d", DEPLOYMENT, *given)
    assert "the splits cover the longest" in text and "outside of what was solved" not in text


def test_select_takes_inputs_of_every_type_in_pieces() -> None:
    given = ["--inputs", "b=8,max_seqlen_q=1, max_seqlen_k=900", "--inputs", "total_q=8,table_width=57,in_graph=True"]
    found = loaded("select", "attention", "-d", DEPLOYMENT, *given)
    assert found["inputs"] == {"b": 8, "max_seqlen_q": 1, "max_seqlen_k": 900, "total_q": 8, "table_width": 57,
                               "in_graph": True}


def test_select_under_a_tuple(tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", DEPLOYMENT, "--set", "moe.row=256", path)
    few, many = (loaded("select", "moe", "-d", DEPLOYMENT, "--tuple", path, "--inputs", f"num_tokens={n}")
                 for n in (8, 4096))
    assert few["assignment"] == {"align": "sort", "row": 256}
    assert few["points"] == many["points"]
    text = done("select", "moe", "-d", DEPLOYMENT, "--tuple", path, "--inputs", "num_tokens=8")
    assert "pinned: " in text and "pin row" in text


def test_conform(root: Path, tmp_path: Path) -> None:
    tiles = next(root.glob("**/golden/fa3_tiles_vllm-0.26.0.csv"))
    lines = tiles.read_text(encoding="utf-8").splitlines()[:200]
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert done("conform", "fa3-vllm-stock", good) == "796 points, 0 mismatches\n"
    table = list(csv.reader(lines))
    column = table[0].index("->kBlockM")
    for row in table[1:8]:
        row[column] = str(int(row[column]) + 1)
    bad.write_text("".join(",".join(row) + "\n" for row in table), encoding="utf-8")
    result = invoke("conform", "fa3-vllm-stock", bad)
    assert result.exit_code == 1
    first, *rest = result.stdout.splitlines()
    assert first == "796 points, 7 mismatches" and len(rest) == 5
    assert "line 2: ->kBlockM is" in rest[0]
    both = invoke("conform", "fa3-vllm-stock", good, bad, "--json")
    found = json.loads(both.stdout)
    assert both.exit_code == 1
    assert (found["points"], found["mismatches"], len(found["first"])) == (1592, 7, 5)
    assert [file["mismatches"] for file in found["files"]] == [0, 7]
    assert "1592 points, 7 mismatches" in invoke("conform", "fa3-vllm-stock", good, bad).stdout


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DETENT_CACHE_DIR", str(folder))
    assert "not in the cache" in done("cache", "why", "moe", "-d", DEPLOYMENT)
    done("solve", "moe", "-d", DEPLOYMENT)
    assert done("cache", "why", "moe", "-d", DEPLOYMENT) == f"moe on {DEPLOYMENT} is in the cache\n"
    missed = loaded("cache", "why", "moe", "-d", "qwen3-30b-a3b-tp4-h100")
    assert missed["hit"] is False and any(c["part"].startswith("facts.moe.table") for c in missed["changes"])
    ablated = loaded("cache", "why", "moe", "-d", DEPLOYMENT, "--ablate", "cse")
    assert {"part": "ablate", "before": "absent", "after": '"cse"'}.items() <= ablated["changes"][0].items() or (
        "ablate" in ablated["changes"][0]["part"])
    listed = loaded("cache", "list")
    assert listed["directory"] == str(folder) and {e["program"] for e in listed["entries"]} == {"moe"}
    assert "moe" in done("cache", "list")
    assert done("cache", "clear") == f"removed {len(listed['entries'])} entries from {folder}\n"
    assert loaded("cache", "list")["entries"] == []


def test_run_solves_both_models_and_says_what_does_not_apply() -> None:
    found = loaded("run")
    solved = [(s["program"], s["deployment"], s["candidates"]) for s in found["solutions"]]
    assert solved == [("attention", "llama-3.1-70b-tp4-h200", 7168), ("attention", DEPLOYMENT, 7168),
                      ("moe", DEPLOYMENT, 36)]
    (skipped,) = found["skipped"]
    assert (skipped["program"], skipped["deployment"]) == ("moe", "llama-3.1-70b-tp4-h200")
    assert "does not apply to this deployment" in skipped["reason"]
    text = done("run")
    assert text.count("does not apply") == 1 and "detent explain attention" in text
    assert max(map(len, text.splitlines())) <= 100 and "2,976 of 7,168" in text and " s\n" in text


def test_lists() -> None:
    assert {p["name"]: p["kind"] for p in loaded("programs")} == {
        name: "stock" if name.endswith("-stock") else "adapted" for name in registry()}
    assert [d["name"] for d in loaded("deployments")] == known()
    assert all(name in done("programs") for name in registry())
    assert all(name in done("deployments") for name in known())

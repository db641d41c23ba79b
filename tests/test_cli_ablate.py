"""``detent ablate`` and ``detent lint``: what they print, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from cli_support import done, invoke, loaded, refused

from detent.cli import ablate
from detent.cli.ablate import power
from detent.cli.options import ABLATIONS
from detent.solver import compiled

PROGRAM = """\
from detent.lang import Unpinnable, assume, knob, record, require, selection

@record
class Call:
    tokens: Unpinnable[int]

@selection(family="tiles")
def tiles(call: Call):
    assume(1 <= call.tokens <= 2000)
    unread = knob("unread", (1, 2), default=1)
    tile = next((size for size in (512, 1024, 2048, 4096) if call.tokens <= size), 4096)
    path = "few" if call.tokens < 100 else "many"
    require(call.tokens <= tile, "a tile covers the batch")
    return {"tile": tile, "path": path, "wide": tile > 600, "vector": 8}
"""
ROW = ["pins", "batch_dependent", "candidates", "legal"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "tiles.py").write_text(PROGRAM, encoding="utf-8")
    deployment = tmp_path / "mine.toml"
    deployment.write_text("[deployment]\nname = \"mine\"\n", encoding="utf-8")
    return f"{tmp_path / 'tiles.py'}:tiles", deployment


# ---- ablate ----------------------------------------------------------------------------------------------------


def test_ablate_json(files: tuple[str, Path]) -> None:
    found = loaded("ablate", files[0], "-d", files[1])
    assert found["paper"] == []
    (report,) = found["ablations"]
    assert (report["program"], report["deployment"]) == ("tiles", "mine")
    assert [report["full"][key] for key in ROW] == [2, 3, 3 * 2 * 2, 2 * 2]
    rows: dict[str, Any] = {row["name"]: row for row in report["without"]}
    assert list(rows) == list(ABLATIONS)
    assert [rows["ranges"][key] for key in ROW] == [2, 3, 4 * 2 * 2, 2 * 2 * 2]
    assert rows["ranges"]["choices"]["unused"] == {"tile": [4096]} and rows["ranges"]["choices"]["bypassing"] == 4
    assert {case["tile"] for case in rows["ranges"]["choices"]["assignments"]["bypassing"]} == {4096}
    assert [rows["cut"][key] for key in ROW] == [3, 3, 24, 8] and "wide" in rows["cut"]["pinned"]
    unsound = rows["control-dependence"]
    assert unsound["legal"] is None and unsound["problem"] and unsound["remark"].startswith("unsound: ")
    one, other = unsound["moved"]["inputs"]
    assert unsound["moved"]["values"][0] != unsound["moved"]["values"][1] and one != other
    names = rows["value-sets"]
    assert names["candidates"] is None and names["reached"]["legal"] > 0
    assert report["free"] == {"assignments": 3 * 2 * 2, "points": {"tile": 3, "path": 2, "wide": 2}}


def test_ablate_tables(files: tuple[str, Path]) -> None:
    text = done("ablate", files[0], "-d", files[1])
    assert max(map(len, text.splitlines())) <= 100 and "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == "tiles for mine"
    for name in ("nothing", *ABLATIONS):
        assert any(line.split()[:1] == [name] for line in lines), name
    assert "not finite" in text and "not judged" in text and "unsound" in text
    assert "never: bypassing" in text and "tile: 4096" in text
    assert "12 assignments, every point set freely (2 points 2 each, tile 3)" in text
    assert "Beside the paper" not in text


def test_gemm_has_nothing_to_cut() -> None:
    found = loaded("ablate", "gemm")
    assert len(found["ablations"]) == len(ablate.MAIN["gemm"])
    for report in found["ablations"]:
        assert {tuple(row[key] for key in ROW) for row in [report["full"], *report["without"]]} == {(0, 0, 5, 5)}
        assert report["full"]["choices"] is None
    assert found["paper"] == [{"program": "gemm", "what": "points, of which the batch reaches", "paper": "2, 0",
                               "ours": "2, 0", "how": ablate.MAIN["gemm"][0]}]


def test_moe_and_allreduce_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("moe", "allreduce"):
        monkeypatch.setitem(ablate.MAIN, name, ablate.MAIN[name][:1])
    (moe,) = loaded("ablate", "moe")["paper"]
    assert (moe["paper"], moe["ours"]) == ("3, 10", "3, 9")
    (row,) = loaded("ablate", "allreduce")["paper"]
    assert (row["paper"], row["ours"]) == ("all but one", "6 of 9")
    assert row["how"].endswith("without ranges: no message takes part 33554432, 67108864")


def test_attention_beside_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ablate.MAIN, "attention", ("qwen3-30b-a3b-tp4-h100-sglang",))
    with patch.dict(compiled.ABLATIONS, {"simplification": compiled.ABLATIONS["simplification"]}, clear=True):
        rows = {row["what"]: (row["paper"], row["ours"]) for row in loaded("ablate", "attention")["paper"]}
    assert rows == {
        "pins with constant folding alone": ("12", "3"),
        "assignments without the analysis": ("2^27 = 134,217,728", "7 × 2^25 = 234,881,024"),
        "template parameters, Boolean ones": ("19, 13", "19, 13"),
        "product of their values on sm_90": ("737,280", "491,520"),
        "forward kernels of a full build": ("4,720", "–"),
        "forward kernels for sm_90": ("3,280", "–"),
        "kernels × split counts on sm_90": ("332,464", "–"),
        "the same at head dim 128 in bf16": ("18,472", "512"),
    }
    # What the quoted counts are made of.
    assert 1_984 + 1_296 * 255 == 332_464 and 112 + 72 * 255 == 18_472 and 1_984 + 1_296 == 3_280


def test_without_a_program_families_that_do_not_apply_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablate, "MAIN", {name: ablate.MAIN[name] for name in ("moe", "gemm")})
    found = loaded("ablate", "-d", "llama-3.1-70b-tp4-h100")
    assert [report["program"] for report in found["ablations"]] == ["gemm"] and found["paper"] == []


def test_main_deployments_exist() -> None:
    from detent.runtime.deployment import known

    assert {name for names in ablate.MAIN.values() for name in names} <= set(known())


def test_ablate_refuses() -> None:
    assert refused("ablate", "norm").startswith("norm has no main deployment; give one with --deployment")
    assert refused("ablate", "mo").startswith("unknown program 'mo'")
    assert "has no facts [moe]" in refused("ablate", "moe", "-d", "llama-3.1-70b-tp4-h100")


def test_powers() -> None:
    assert [power(n) for n in (1, 36, 1023, 1024, 3 * 2**10, 2**27)] == [
        "1", "36", "1,023", "2^10 = 1,024", "3 × 2^10 = 3,072", "2^27 = 134,217,728"]


# ---- lint ------------------------------------------------------------------------------------------------------


def test_lint_json(files: tuple[str, Path]) -> None:
    found = loaded("lint", files[0], "--deployment", files[1])
    assert list(found) == ["program", "deployment", "warnings", "notes", "findings"]
    assert (found["program"], found["deployment"], found["warnings"]) == (files[0], str(files[1]), 1)
    assert found["notes"] == len(found["findings"]) - 1
    first = found["findings"][0]
    assert list(first) == ["rule", "severity", "subject", "place", "explanation", "details"]
    assert (first["rule"], first["severity"], first["subject"], first["place"]) == (
        "dead-knob", "warning", "knob unread", "tiles.py:10")
    assert {each["rule"] for each in found["findings"]} == {"dead-knob", "constant-point", "settled-point", "identical"}


def test_lint_table_and_exit_codes(files: tuple[str, Path]) -> None:
    text = done("lint", files[0], "-d", files[1])
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[0].startswith(f"{files[0][:20]}") and "1 warning, " in text
    assert "dead-knob" in text and "tiles.py:10" in text
    strict = invoke("lint", files[0], "-d", files[1], "--strict")
    assert strict.exit_code == 1 and strict.stdout == text
    assert invoke("lint", "gemm", "-d", "llama-3.1-70b-tp4-h100", "--strict").exit_code == 0


def test_lint_names_every_rule() -> None:
    from detent.solver.lint import RULES

    text = done("lint", "--help")
    assert all(name in text for name in RULES)


def test_lint_refuses_what_cannot_be_solved(tmp_path: Path) -> None:
    path = tmp_path / "open.py"
    path.write_text(PROGRAM.replace("    assume(1 <= call.tokens <= 2000)\n", ""), encoding="utf-8")
    (tmp_path / "mine.toml").write_text("", encoding="utf-8")
    assert "'tokens' has no" in refused("lint", f"{path}:tiles", "-d", tmp_path / "mine.toml")

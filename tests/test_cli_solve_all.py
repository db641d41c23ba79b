"""``detent solve --all``: families on deployments in several processes, beside the paper's pins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import done, invoke, loaded, refused

from detent.cli import overview as overview_module
from detent.cli.families import adapted
from detent.cli.overview import overview
from detent.cli.solve_all import SUMMED, paper
from detent.runtime.deployment import known, load
from detent.runtime.errors import CacheWarning

DENSE, EXPERTS = "gemma-7b-it-tp1-h100", "qwen3-30b-a3b-tp4-h100"
QUICK = ["--family", "gemm", "--family", "moe", "--family", "norm", "-d", DENSE, "-d", EXPERTS]
HEAVY = ("xdsl", "numpy", "networkx", "detent.dialects", "detent.lang", "detent.passes", "multiprocessing")


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, also for child processes."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DETENT_CACHE_DIR", os.fspath(folder))
    return folder


def found_of(document: Any) -> dict[tuple[str, str], tuple[list[str], int, int]]:
    return {(s["program"], s["deployment"]): (s["pins"], s["candidates"], s["legal"]) for s in document["solutions"]}


def test_processes_solve_what_the_cache_lacks_and_then_it_has_all(cold: Path, root: Path) -> None:
    first = loaded("solve", "--all", *QUICK)
    expected = {("gemm", DENSE): ([], 5, 5), ("norm", DENSE): ([], 1, 1), ("gemm", EXPERTS): ([], 5, 5),
                ("moe", EXPERTS): (["row", "align"], 36, 18), ("norm", EXPERTS): (["block"], 2, 2)}
    assert found_of(first) == expected
    assert {s["cache"] for s in first["solutions"]} == {"miss"}
    assert first["unsolved"] == [{"program": "moe", "deployment": DENSE, "reason": "no facts [moe]", "applies": False}]
    assert all(s["legality"]["sampled"] == 0 and s["values"] > 0 for s in first["solutions"])
    code = (f"import sys; from detent.cli import main; code = main(['solve', '--all', '--json', *{QUICK!r}]); "
            f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr); sys.exit(code)")
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    second = json.loads(run.stdout)
    assert run.stderr.split() == []  # also that MoE does not apply is known without solving
    assert found_of(second) == expected and second["unsolved"] == first["unsolved"]
    assert {s["cache"] for s in second["solutions"]} == {"hit"}
    assert [s["key"] for s in second["solutions"]] == [s["key"] for s in first["solutions"]]


def test_one_process_finds_the_same(cold: Path) -> None:
    steps: list[str] = []
    cells = overview(["gemm", "moe"], [load(DENSE), load(EXPERTS)], steps.append, workers=1)
    assert [(cell.program, cell.deployment.name, cell.status, cell.known) for cell in cells] == [
        ("gemm", DENSE, "solved", False), ("moe", DENSE, "absent", False), ("gemm", EXPERTS, "solved", False),
        ("moe", EXPERTS, "solved", False)]
    assert steps == [f"0 of 4, moe for {DENSE}", f"1 of 4, moe for {EXPERTS}", f"2 of 4, gemm for {DENSE}",
                     f"3 of 4, gemm for {EXPERTS}"]
    assert all(cell.known for cell in overview(["gemm", "moe"], [load(DENSE), load(EXPERTS)], steps.append))
    assert len(steps) == 4


def test_deployments_that_differ_in_nothing_a_program_reads_are_solved_once(cold: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[str] = []
    solve = overview_module._solve
    monkeypatch.setattr(overview_module, "_solve", lambda program, deployment, folder: (
        solved.append(deployment), solve(program, deployment, folder))[1])
    pair = ["llama-3.1-70b-tp4-h100", "llama-3.1-70b-tp4-h200"]
    cells = overview(["norm"], [load(name) for name in pair], lambda step: None, workers=1)
    assert [cell.known for cell in cells] == [False, True] and solved == pair[:1]
    assert cells[0].document is not None and cells[1].document is not None
    assert [cell.document["deployment"] for cell in cells if cell.document] == pair


def test_facts_that_change_are_looked_at_again(cold: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = Path(load(DENSE).path).read_text(encoding="utf-8").replace(DENSE, "mine")
    path.write_text(text, encoding="utf-8")
    assert loaded("solve", "--all", "--family", "moe", "-d", path)["unsolved"][0]["reason"] == "no facts [moe]"
    experts = re.search(r"\[moe\].*?\n\n", Path(load(EXPERTS).path).read_text(encoding="utf-8"), re.S)
    assert experts is not None
    moe = "".join(line for line in experts[0].splitlines(keepends=True) if not line.startswith("table"))
    path.write_text(text + "\n" + moe, encoding="utf-8")
    found = loaded("solve", "--all", "--family", "moe", "-d", path)
    assert found["unsolved"] == [] and len(found["solutions"]) == 1


def test_without_a_cache(cold: Path) -> None:
    cold.parent.chmod(0o700)
    cold.write_text("no folder", encoding="utf-8")
    with pytest.warns(CacheWarning, match="the cache is off"):
        cells = overview(["gemm", "moe"], [load(DENSE)], lambda step: None, workers=1)
    assert [(cell.status, cell.known) for cell in cells] == [("solved", False), ("absent", False)]


# ---- tables -------------------------------------------------------------------------------------------------------


def test_totals_stand_beside_the_papers() -> None:
    """The whole of it on two deployments; all of them are solved in test_programs_numbers.py."""
    text = done("solve", "--all", "-d", DENSE, "-d", EXPERTS, "-d", "smollm2-135m-tp1-h200")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert f"{DENSE} 3+0+0 (+0) 8+0+0 in SGLang attention -5" in lines
    assert f"{EXPERTS} 3+3+2 (+0) 3+3+3 in vLLM, SGLang MoE -1" in lines
    assert "smollm2-135m-tp1-h200 4+0+0 (+0) –" in lines
    assert "allreduce (paper, Qwen3-30B-A3B: 204 candidates, 3 legal)" in lines
    assert any(line.startswith(f"{EXPERTS} algorithm, source, part 208 3 ") for line in lines)
    assert f"does not apply, no facts [moe]: {DENSE}, smollm2-135m-tp1-h200" in lines
    assert max(map(len, text.splitlines())) <= 100 and "all proved" in lines[-1]


def test_the_papers_figures() -> None:
    figures = paper()
    assert set(figures["pins"]) <= set(known())
    sums = {"+".join(str(row[family]) for family in SUMMED) for row in figures["pins"].values()}
    assert sums == {"3+3+0", "3+3+3", "8+0+0", "2+0+0", "3+0+0"}
    assert {name: (row["candidates"], row["legal"]) for name, row in figures["assignments"].items()} == {
        "attention": (7168, 2976), "moe": (76, 36), "allreduce": (204, 3), "gemm": (5, 5)}
    for name, row in figures["pins"].items():
        assert set(row["engines"]) <= {"vllm", "sglang"}, name
        tensor_parallel = load(name).facts["parallel"]["tensor_parallel"]
        assert (row["allreduce"] > 0) == (tensor_parallel > 1) and (row["moe"] > 0) == ("moe" in load(name).facts)


def test_pins_in_json() -> None:
    found = loaded("solve", "--all", *QUICK)
    assert found["pins"] == [
        {"deployment": DENSE, "gemm": 0, "moe": 0, "norm": 0, "paper": paper()["pins"][DENSE]},
        {"deployment": EXPERTS, "gemm": 0, "moe": 2, "norm": 1, "paper": paper()["pins"][EXPERTS]}]
    assert found["paper"] == paper()["assignments"] and found["seconds"] > 0


def test_families_are_the_adapted_programs() -> None:
    assert set(adapted()) == {"allreduce", "attention", "gemm", "moe", "norm", "sampler"}


# ---- bad input ----------------------------------------------------------------------------------------------------


def test_a_refused_deployment_is_shown_and_ends_with_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = Path(load(DENSE).path).read_text(encoding="utf-8").replace(DENSE, "mine")
    path.write_text(text.replace("arch = 90", "arch = 100"), encoding="utf-8")
    result = invoke("solve", "--all", "--family", "norm", "--family", "gemm", "-d", path, "-d", DENSE)
    assert result.exit_code == 2
    assert " ".join(result.stdout.split()).count("the rules are those of sm_90") == 2 and DENSE in result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[1].strip() for line in errors] == ["gemm for mine", "norm for mine"]
    found = json.loads(invoke("solve", "--all", "--family", "norm", "-d", path, "--json").stdout)
    assert found["unsolved"][0]["applies"] is True and found["pins"][0]["norm"] is None


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--all", "--family", "moo"], ["unknown family 'moo'", "did you mean 'moe'?"]),
    (["--all", "-d", "gemma"], ["unknown deployment 'gemma'"]),
    (["moe", "--all"], ["moe and --all exclude each other"]),
    (["--all", "--ablate", "cut"], ["--ablate and --all exclude each other"]),
    (["moe", "--family", "moe", "-d", DENSE], ["--family needs --all"]),
    (["moe", "-d", DENSE, "-d", EXPERTS], ["2 deployments for one program", "--all"]),
    (["-d", DENSE], ["missing argument 'PROGRAM'"]),
    (["moe"], ["missing option '--deployment'", "see detent solve --help"]),
])
def test_bad_arguments(arguments: list[str], expected: list[str]) -> None:
    line = refused("solve", *arguments)
    for fragment in expected:
        assert fragment in line

"""Solutions through the cache: damage behind an entry's header, what ``cache why`` says, what is refuted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import done, invoke, loaded
from runtime_fixture import DEFAULT, Project

from detent.runtime.cache import Store
from detent.runtime.entry import Entry
from detent.runtime.errors import CacheWarning, NoCandidate, UnknownName
from detent.solver.solution import Solution
from detent.solver.solve import solve

PROGRAM = """
from detent.lang import Unpinnable, assume, record, require, selection

@record
class Call:
    tokens: Unpinnable[int]

@selection(family="small")
def small(call: Call):
    assume(1 <= call.tokens <= 512)
    blocks = 4 if call.tokens > 64 else 1
    require(call.tokens <= blocks * 128)
    return {"blocks": blocks}
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "small.py").write_text(PROGRAM)
    (tmp_path / "box.toml").write_text("[box]\nsize = 1\n")
    return f"{tmp_path}/small.py:small"


@pytest.mark.parametrize("use", [lambda s: s.graph, lambda s: s.unpinned()(65)])
@pytest.mark.parametrize("suffix", ["graph.json", "unpinned.py"])
def test_a_damaged_part_is_solved_again_at_once(
        program: str, tmp_path: Path, suffix: str, use: Callable[[Solution], Any]) -> None:
    store = Store(str(tmp_path / "cache"))
    first = solve(program, f"{tmp_path}/box.toml", store=store)
    (part,) = Path(store.directory).glob(f"solutions/*/*.{suffix}")
    part.write_bytes(b"{}")
    with pytest.warns(CacheWarning, match=f"its {suffix} does not match"):
        again = solve(program, f"{tmp_path}/box.toml", store=store)
    assert not again.cached and again.key == first.key
    assert use(again) is not None
    assert solve(program, f"{tmp_path}/box.toml", store=store).cached


def test_why_says_what_solve_does(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    box = f"{tmp_path}/box.toml"

    def agree(name: str, hit: bool) -> list[str]:
        told = loaded("cache", "why", name, "-d", box)
        assert told["hit"] is hit and bool(told["changes"]) is not hit
        assert loaded("solve", name, "-d", box)["cache"] == ("hit" if hit else "miss")
        return [change["part"] for change in told["changes"]]

    assert agree(program, False) == ["cache"]
    assert agree(program, True) == []
    (tmp_path / "other.py").write_text(PROGRAM.replace("64", "32"))
    assert agree(f"{tmp_path}/other.py:small", False) == ["file", "program text: other.py"]
    assert agree(f"{tmp_path}/other.py:small", True) == []
    for part in (tmp_path / "cache").glob("solutions/*/*.graph.json"):
        part.write_bytes(b"{}")
    result = invoke("cache", "why", program, "-d", box)
    assert "is not in the cache" in result.stdout and "its graph.json does not match" in result.stderr
    done("solve", program, "-d", box)
    assert agree(program, True) == []


def test_a_cache_that_cannot_be_used_costs_one_warning(
        program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "locks").write_text("a file")
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    result = invoke("solve", program, "-d", f"{tmp_path}/box.toml")
    assert result.exit_code == 0 and "blocks" in result.stdout
    assert result.stderr.count("the cache is off: ") == 1 and "locks is not a folder; remove it" in result.stderr


def test_refutation_refuses_what_is_no_candidate(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.put()
    entry = project.store().find_solution(project.program(), project.deployment())
    assert isinstance(entry, Entry)
    solution = Solution(entry, cached=True, seconds=0.0)
    assert solution.refutation(DEFAULT) is None
    found = solution.refutation({**DEFAULT, "splits": 2, "stride": 128})
    assert found is not None and found["condition"]["text"] == "call.rows <= splits * stride"
    assert found["witness"] == {"rows": 257, "masked": True}
    for value in (999, True, "4", [4]):
        with pytest.raises(NoCandidate, match="tile.splits: .* its values are 1, 2, 4"):
            solution.refutation({**DEFAULT, "splits": value})
    with pytest.raises(UnknownName, match="did you mean 'splits'"):
        solution.refutation({**DEFAULT, "split": 4})

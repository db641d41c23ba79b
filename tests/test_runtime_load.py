"""From a program's name to a selector: hits, misses, and what a hit may import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_fixture import DEFAULT, Project

import detent
from detent.runtime import load
from detent.runtime.cache import Store
from detent.runtime.deployment import Deployment
from detent.runtime.errors import CacheMiss, CacheWarning, NotLegal, SolveFailed, TupleMismatch
from detent.runtime.load import load_selector
from detent.runtime.tuple import CommitmentTuple


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def get(project: Project, assignment: object = None, on_miss: str = "stop") -> object:
    return load_selector(f"{project.main}:tile", str(project.toml), assignment,  # type: ignore[arg-type]
                         on_miss=on_miss, store=project.store())


def test_hit_with_default_assignment_and_tuple(project: Project) -> None:
    entry = project.put()
    for _ in range(2):
        selector = detent.load_selector(f"{project.main}:tile", project.deployment(), on_miss="stop",
                                        store=project.store())
        assert dict(selector.assignment) == DEFAULT and selector(3, True)["splits"] == 4
    tuple_ = CommitmentTuple.new("toy-h100", {"tile": entry.document}, {"tile.splits": "2"})
    assert get(project, tuple_)(3, True)["splits"] == 2  # type: ignore[operator]
    assert get(project, {**DEFAULT, "small": True})(3, True)["kernel"] == "short"  # type: ignore[operator]
    assert len(project.store().entries()) == 4


def test_illegal_values_and_foreign_tuples(project: Project) -> None:
    entry = project.put()
    with pytest.raises(NotLegal, match="tile.py:12: require"):
        get(project, {"small": True, "splits": 1, "stride": 128})
    tuple_ = CommitmentTuple.new("toy-h200", {"tile": {**entry.document, "program_key": "b" * 64}})
    with pytest.raises(TupleMismatch, match="deployment: the tuple has toy-h200, found toy-h100; tile.program") as told:
        get(project, tuple_)
    assert told.value.remedy.endswith(
        f"detent tuple new --deployment {project.toml} --program {project.main}:tile FILE")
    old = CommitmentTuple.new("toy-h100", {"tile": entry.document}, environment={"detent": "0.0.9"})
    with pytest.raises(TupleMismatch, match="environment.detent: the tuple has 0.0.9"):
        get(project, old)
    assert len(project.store().entries()) == 1


def test_no_legal_assignment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("runtime_fixture").DOCUMENT, "default", None)
    project.put()
    with pytest.raises(NotLegal, match="tile: no assignment is legal on toy-h100"):
        get(project)


def test_miss_stops_with_the_command(project: Project) -> None:
    project.put()
    project.edit(project.toml, "rows = 1024", "rows = 512")
    with pytest.raises(CacheMiss) as caught:
        get(project)
    assert caught.value.command == f"detent solve {project.main}:tile --deployment {project.toml}"
    assert f"(facts.limits.rows: 1024 -> 512); run: {caught.value.command}" in str(caught.value)
    with pytest.raises(ValueError, match="on_miss is 'solve' or 'stop'"):
        get(project, on_miss="ask")


def test_a_deployment_made_in_memory_cannot_be_solved_elsewhere(project: Project) -> None:
    with pytest.raises(CacheMiss):
        load_selector(f"{project.main}:tile", Deployment("d", project.deployment().facts), store=project.store())


def test_miss_solves_in_a_process(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def solve(arguments: list[str], cache: Store, command: str) -> None:
        ran.append(arguments)
        project.put()

    monkeypatch.setattr(load, "_run", solve)
    assert get(project, on_miss="solve")(3, True)["splits"] == 4  # type: ignore[operator]
    get(project, on_miss="solve")
    assert ran == [[sys.executable, "-P", "-m", "detent", "solve", f"{project.main}:tile", "--deployment",
                    str(project.toml), "--json"]]


def test_a_solve_that_fails_or_stores_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store = project.store()
    with pytest.raises(SolveFailed, match="detent solve x failed: last line; run it by hand"):
        load._run([sys.executable, "-c", "import sys; sys.exit('first\\nlast line')"], store, "detent solve x")
    with pytest.raises(SolveFailed, match="failed: exit code 3"):
        load._run([sys.executable, "-c", "import sys; sys.exit(3)"], store, "detent solve x")
    monkeypatch.setattr(load, "_run", lambda *_: None)
    with pytest.raises(SolveFailed, match="stored nothing that fits .cache: no solution"):
        get(project, on_miss="solve")
    monkeypatch.undo()
    monkeypatch.setattr(load, "SOLVE_LIMIT_S", 0.01)
    with pytest.raises(SolveFailed, match="took more than"):
        load._run([sys.executable, "-c", "import time; time.sleep(60)"], store, "detent solve x")


def test_the_process_finds_this_detent_and_this_cache(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    code = (f"import os, detent\nassert os.environ['DETENT_CACHE_DIR'] == {str(project.cache)!r}\n"
            f"assert os.path.samefile(detent.__file__, {detent.__file__!r})\n")
    load._run([sys.executable, "-P", "-c", code], project.store(), "x")


def test_a_document_damaged_behind_its_header_is_a_miss(project: Project) -> None:
    project.put()
    (path,) = project.cache.glob("solutions/*/*.solution")
    data = path.read_bytes()
    path.write_bytes(data[:-9] + b"x" * 9)
    with pytest.warns(CacheWarning, match="its body does not match"), pytest.raises(CacheMiss):
        get(project)


FRESH = """
import sys
before = set(sys.modules)
from detent.runtime import load_selector
selector = load_selector(sys.argv[1], sys.argv[2], on_miss="stop")
assert selector(3, True)["splits"] == 4
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded))
"""


def test_a_hit_in_a_fresh_process_imports_no_compiler(project: Project, root: Path) -> None:
    project.put()
    get(project)
    environment = {**os.environ, "DETENT_CACHE_DIR": str(project.cache), "PYTHONPATH": str(root)}
    for _ in range(2):
        command = [sys.executable, "-W", "error", "-P", "-c", FRESH, f"{project.main}:tile", str(project.toml)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        loaded = set(done.stdout.split())
        assert loaded.isdisjoint(("xdsl", "numpy", "networkx", "torch", "triton", "click", "rich"))
        assert loaded.isdisjoint(("ast", "dataclasses", "inspect", "subprocess", "difflib", "pathlib", "logging"))
        assert loaded.isdisjoint(("tomllib", "datetime", "typing"))  # the deployment's file is remembered
        assert "detent" in loaded


def test_names_of_the_package_are_lazy(root: Path) -> None:
    code = "import sys, detent.runtime as r\nassert 'json' not in sys.modules\nfor n in r.__all__: getattr(r, n)\n" \
           "try: r.nothing\nexcept AttributeError: pass\nelse: sys.exit(1)\n"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert subprocess.run([sys.executable, "-P", "-c", code], env=environment).returncode == 0

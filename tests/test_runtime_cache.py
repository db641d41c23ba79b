"""The cache: what must and must not cause a miss, why, damage, trust, concurrency, bounds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from runtime_fixture import DEFAULT, DOCUMENT, GRAPH, TEMPLATE, UNPINNED, Project

from detent.runtime import lock, place, records, shelf, sources
from detent.runtime.cache import Store
from detent.runtime.deployment import load
from detent.runtime.entry import Entry, Miss
from detent.runtime.errors import BadFile, CacheWarning, UnknownName, Violation
from detent.runtime.relocate import Source
from detent.runtime.repin import Repin


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def find(project: Project, **options: object) -> Entry | Miss:
    return project.store().find_solution(project.program(), project.deployment(), **options)  # type: ignore[arg-type]


def hit(project: Project) -> Entry:
    entry = find(project)
    assert isinstance(entry, Entry)
    return entry


def reasons(project: Project) -> list[str]:
    miss = find(project)
    assert isinstance(miss, Miss)
    return [str(change) for change in miss.reasons]


def test_what_is_put_is_found(project: Project) -> None:
    put = project.put()
    entry = hit(project)
    assert entry.document == put.document and entry.key == put.key == entry.document["key"]
    assert {**DOCUMENT, **{name: entry.document[name] for name in ("key", "program_key", "facts")}} == entry.document
    assert entry.graph() == GRAPH and entry.unpinned() == UNPINNED
    assert entry.document["facts"]["limits.rows"] == 1024 and entry.document["facts"]["moe.extra"] is None
    assert re.fullmatch("sha256:[0-9a-f]{64}", entry.document["facts"]["moe.table"])
    assert entry.document["facts"]["engine.version"] == "1.0"
    assert project.store().why(project.program(), project.deployment()) == []


def test_an_empty_cache_says_so(project: Project) -> None:
    assert reasons(project) == ["cache: no solution of tile is stored"]


# What must not cause a miss.

def reformat(project: Project) -> None:
    """Other comments, docstrings, quotes, spaces and lines; the same program."""
    body = project.main.read_text().split("import LIMIT\n")[1]
    for old, new in (('"""One selection."""', "# nothing"), ("1 <= call.rows <=", "1  <=  call.rows  <="),
                     ('"splits cover the rows"', "'splits cover the rows'")):
        assert old in body
        body = body.replace(old, new)
    project.main.write_text('# new\n\n"""Other words."""\nfrom helper import (\n    LIMIT,\n)\n\n' + body)


SAME: dict[str, Callable[[Project, pytest.MonkeyPatch], object]] = {
    "comment": lambda p, m: p.edit(p.main, "# the short kernel", "# another word"),
    "formatting": lambda p, m: reformat(p),
    "docstring of a helper": lambda p, m: p.edit(p.helper, "def unused(x):\n", 'def unused(x):\n    "Words."\n'),
    "home": lambda p, m: m.setenv("HOME", str(p.folder)),
    "working directory": lambda p, m: m.chdir(p.folder),
    "unread fact": lambda p, m: p.edit(p.toml, "num_sm = 132", "num_sm = 144"),
    "unread section": lambda p, m: p.edit(p.toml, "[gpu]\nnum_sm = 132\n", ""),
    "comment in the deployment": lambda p, m: p.edit(p.toml, "[gpu]", "# gpu\n[gpu]"),
    "another deployment's name": lambda p, m: p.edit(p.toml, "toy-h100", "toy-h200"),
}


@pytest.mark.parametrize("change", SAME)
def test_hit_after(project: Project, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    put = project.put()
    SAME[change](project, monkeypatch)
    entry = hit(project)
    assert entry.key == put.key and entry.document["program_key"] == put.document["program_key"]
    assert entry.document["deployment"] == project.deployment().name


def test_hit_after_the_project_moved_and_by_a_relative_path(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    put = project.put()
    moved = project.folder.parent / "elsewhere"
    project.folder.rename(moved)
    monkeypatch.chdir(moved)
    found = Store("cache").find_solution(sources.resolve("tile.py:tile"), load("toy.toml"))
    assert isinstance(found, Entry) and found.document == put.document


# What must cause a miss, and what is said about it.

ROW_1, ROW_64 = "1 = { warps = 4, stages = 2 }", "64 = { warps = 8, stages = 3 }"
MISSES: list[tuple[str, Callable[[Project], None], str]] = [
    ("constant", lambda p: p.edit(p.main, "call.rows <= 512", "call.rows <= 511"), "program text: tile.py changed"),
    ("string", lambda p: p.edit(p.main, '"short"', '"Short"'), "program text: tile.py changed"),
    ("constant of a helper", lambda p: p.edit(p.helper, "LIMIT = 64", "LIMIT = 65"), "program text: helper.py changed"),
    ("int for bool", lambda p: p.edit(p.helper, "x + 1", "x + True"), "program text: helper.py changed"),
    ("helper gone", lambda p: p.helper.unlink(), "program text: helper.py changed"),
    ("fact", lambda p: p.edit(p.toml, "rows = 1024", "rows = 512"), "facts.limits.rows: 1024 -> 512"),
    ("type of a fact", lambda p: p.edit(p.toml, "rows = 1024", "rows = 1024.0"), "facts.limits.rows: 1024 -> 1024.0"),
    ("fact gone", lambda p: p.edit(p.toml, "rows = 1024\n", ""), "facts.limits.rows: 1024 -> absent"),
    ("absent fact", lambda p: p.edit(p.toml, "[moe]\n", "[moe]\nextra = true\n"), "facts.moe.extra: absent -> true"),
    ("table value", lambda p: p.edit(p.toml, "warps = 8", "warps = 4"), "facts.moe.table[64][warps]: 8 -> 4"),
    ("table key", lambda p: p.edit(p.toml, "64 = {", "65 = {"),
     'facts.moe.table[64]: {"warps":8,"stages":3} -> absent; facts.moe.table[65]: absent -> {"warps":8,"stages":3}'),
    ("order of a table's keys", lambda p: p.edit(p.toml, f"{ROW_1}, {ROW_64}", f"{ROW_64}, {ROW_1}"),
     "facts.moe.table: order of keys: [1, 64] -> [64, 1]"),
    ("engine version gone", lambda p: p.edit(p.toml, 'version = "1.0"\n', ""), 'facts.engine.version: "1.0" -> absent'),
    ("engine version", lambda p: p.edit(p.toml, '"1.0"', '"1.1"'), 'facts.engine.version: "1.0" -> "1.1"'),
]


@pytest.mark.parametrize(("name", "change", "told"), MISSES, ids=[name for name, _, _ in MISSES])
def test_miss_after(project: Project, name: str, change: Callable[[Project], None], told: str) -> None:
    project.put()
    change(project)
    assert "; ".join(reasons(project)) == told


def test_miss_for_a_version_of_an_engine_that_was_not_named(project: Project) -> None:
    project.edit(project.toml, '[engine]\nname = "toyengine"\nversion = "1.0"\n', "")
    first = project.put()
    assert hit(project).key == first.key and "engine.version" not in first.document["facts"]
    project.edit(project.toml, "[gpu]", '[engine]\nversion = "1"\n[gpu]')
    assert reasons(project) == ['facts.engine.version: absent -> "1"']
    second = project.put()
    assert hit(project).key == second.key != first.key
    project.edit(project.toml, 'version = "1"', 'version = "2"')
    assert isinstance(find(project), Miss)


def test_miss_for_another_file(project: Project) -> None:
    project.put()
    copy = project.folder / "other.py"
    copy.write_text(project.main.read_text())
    program = sources.resolve(f"{copy}:tile")

    def told() -> list[str]:
        miss = project.store().find_solution(program, project.deployment())
        assert isinstance(miss, Miss)
        return [str(change) for change in miss.reasons]

    assert told() == ["file: tile.py -> other.py"]
    project.edit(copy, "call.rows <= 512", "call.rows <= 656")
    assert told() == ["file: tile.py -> other.py", "program text: other.py changed"]


def test_an_entry_has_the_name_that_was_asked_for(project: Project) -> None:
    project.put()
    program = sources.Program("tiles", str(project.main), "tile")
    found = project.store().find_solution(program, project.deployment())
    assert isinstance(found, Entry) and found.document["program"] == found.program == "tiles"
    assert project.store().why(program, project.deployment()) == []


def test_miss_after_any_change_of_detents_sources(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.put()
    for folder in sources.own_sources():
        with monkeypatch.context() as patch:
            patch.setattr(sources, "_own", {**sources.own_sources(), folder: "other"})
            assert reasons(project) == [f"detent sources: {folder} changed"]
    hit(project)


def test_miss_for_other_options_and_another_function(project: Project) -> None:
    project.put(parts=(("ablate", ["ranges"]),))
    assert reasons(project) == ['ablate: ["ranges"] -> absent']
    assert isinstance(find(project, parts=(("ablate", ["ranges"]),)), Entry)
    other = sources.Program("unused", str(project.main), "unused")
    assert isinstance(project.store().find_solution(other, project.deployment(), (("ablate", ["ranges"]),)), Miss)


def test_own_sources_hash_covers_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_text("1")
    seen = {sources.hash_sources(str(tmp_path))}
    for path, text in (("a.py", "2"), ("sub/b.py", ""), ("sub/b.py", "1"), ("c.py", "2")):
        (tmp_path / path).write_text(text)
        seen.add(sources.hash_sources(str(tmp_path)))
    (tmp_path / "notes.txt").write_text("not a source")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.py").write_text("not a source")
    assert len(seen) == 5 and sources.hash_sources(str(tmp_path)) in seen
    assert set(sources.own_sources()) == {"dialects", "lang", "passes", "runtime", "solver", "package"}


def test_several_facts_live_side_by_side(project: Project) -> None:
    first = project.put()
    project.edit(project.toml, "rows = 1024", "rows = 512")
    second = project.put()
    assert hit(project).key == second.key != first.key
    project.edit(project.toml, "rows = 512", "rows = 1024")
    assert hit(project).key == first.key


# Positions follow the formatting.

def test_places_move_with_the_text(project: Project) -> None:
    project.put()
    reformat(project)
    text = project.main.read_text()
    entry = hit(project)
    lines = text.splitlines()

    def line(part: str) -> int:
        return next(i for i, content in enumerate(lines, 1) if part in content)

    conditions, document = entry.document["conditions"], entry.document
    assert [c["source"]["line"] for c in conditions] == [line("assume("), line("require(")]
    assert conditions[0]["source"]["text"] == "assume(1  <=  call.rows  <= limits.rows)"
    assert document["pins"][0]["source"]["line"] == line("small =")
    assert f"(tile.py:{line('assume(')})" in document["template"] and "tile.py:8" not in document["template"]
    assert f"# tile.py:{line('require(')}\n" in (entry.unpinned() or "")
    graph = entry.graph()
    assert [row[:2] for row in graph["places"]] == [[0, line("assume(")], [0, line("small =")]]
    assert [lines[row[1] - 1][row[2]:].startswith(graph["strings"][row[3]]) for row in graph["places"]] == [True, True]
    selector = Repin(document)(DEFAULT)
    with pytest.raises(Exception, match=f"tile.py:{line('assume(')}: assume does not hold .1 <= call.rows"):
        selector(0, True)
    # Found as it is from now on, and the first formatting's entry is still there.
    assert hit(project).document == document
    Project(project.folder)
    assert hit(project).document["template"] == TEMPLATE


def test_columns_count_characters(project: Project) -> None:
    project.put()
    project.edit(project.main, "    small = call.rows <= LIMIT", '    wide, small = "äöü", call.rows <= LIMIT')
    assert reasons(project) == ["program text: tile.py changed"]
    source = Source('x = "äöü" + long_name\n')
    assert source.segment(source.number(1, 12, "long_name")) == "long_name"
    assert source.place(source.number(1, 12, "long_name"), "long_name") == (1, 12, "long_name")


# Damage.

FILES = ("solution", "graph.json", "unpinned.py", "places.json")


def stored(project: Project, suffix: str) -> Path:
    (path,) = (project.cache / "solutions").glob(f"*/*.{suffix}")
    return path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip_last(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))


def flip_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"\n") + 5] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [
    truncate, flip_last, flip_header, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(bytes(range(256)) * 4),
    lambda p: p.write_text("something else\n" * 9),
    lambda p: p.write_text(p.read_text().replace("detent-cache 1", "detent-cache 9"))])
def test_damaged_solutions_are_discarded(project: Project, damage: Callable[[Path], object]) -> None:
    project.put()
    damage(stored(project, "solution"))
    with pytest.warns(CacheWarning, match="cache entry discarded"):
        assert isinstance(find(project), Miss)
    assert not list((project.cache / "solutions").glob("*/*"))
    project.put()
    hit(project)


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize(("damage", "told"), [(flip_last, "does not match"), (Path.unlink, "is missing")])
@pytest.mark.parametrize("suffix", FILES[1:])
def test_damaged_payloads_are_discarded_with_their_entry(
        project: Project, suffix: str, damage: Callable[[Path], object], told: str, body: bool) -> None:
    project.put()
    damage(stored(project, suffix))
    with pytest.warns(CacheWarning, match=f"its {suffix} {told}"):
        found = find(project, body=body)
        assert isinstance(found, Miss) if body else isinstance(found, Entry) and found.payload(suffix) is None
    assert isinstance(find(project), Miss)
    assert not list((project.cache / "solutions").glob("*/*"))


def test_a_found_entry_outlives_its_files(project: Project) -> None:
    project.put()
    entry = hit(project)
    assert project.store().clear() == 1
    assert entry.graph() == GRAPH and entry.unpinned() == UNPINNED


@pytest.mark.parametrize("suffix", FILES[1:])
def test_damaged_payloads_stop_a_relocation(project: Project, suffix: str) -> None:
    project.put()
    flip_last(stored(project, suffix))
    reformat(project)
    with pytest.warns(CacheWarning, match=f"its {suffix} does not match"):
        assert isinstance(find(project), Miss)


def test_a_header_of_another_layout_is_discarded(project: Project) -> None:
    project.put()
    records.write(str(stored(project, "solution")), "solution", {"facts": {}}, b"{}")
    with pytest.warns(CacheWarning, match="its header lacks keys"):
        assert isinstance(find(project), Miss)


def test_an_entry_of_another_user_is_discarded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.put()
    store = project.store()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.warns(CacheWarning, match="another user owns it"):
        assert isinstance(store.find_solution(project.program(), project.deployment()), Miss)


def test_damaged_memo_is_only_parsed_again(project: Project) -> None:
    project.put()
    for memo in (project.cache / "normalised").iterdir():
        memo.write_text("0" * 64 + " " + "0" * 64)
    hit(project)


# Trust.

def test_directory_is_private(project: Project) -> None:
    project.put()
    assert project.cache.stat().st_mode & 0o777 == 0o700
    for path in project.cache.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_directory_that_others_can_write_is_not_used(project: Project, mode: int) -> None:
    project.cache.mkdir()
    project.cache.chmod(mode)
    with pytest.warns(CacheWarning, match="the cache is off: .* can be written by others; run chmod 700"):
        store = project.store()
    entry = project.put(store)
    assert entry.graph() == GRAPH and entry.unpinned() == UNPINNED and entry.document["key"]
    miss = store.find_solution(project.program(), project.deployment())
    assert isinstance(miss, Miss) and [str(r) for r in miss.reasons] == ["cache: on -> off"]
    with store.lock("x"):
        assert store.entries() == [] and store.clear() == 0
    assert not list(project.cache.iterdir())


def test_directory_of_another_user_is_not_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        assert not project.store().usable


def test_directory_that_cannot_be_made(project: Project) -> None:
    project.cache.write_text("a file")
    with pytest.warns(CacheWarning, match=r"cannot be made a cache directory \(.*\); set DETENT_CACHE_DIR") as told:
        assert not project.store().usable and not project.store().usable
    assert len(told) == 1


def spoil(monkeypatch: pytest.MonkeyPatch, path: Path, uid: int) -> None:
    """Make a folder look as if another user owned it."""
    real = os.stat

    def stat(name: str, **options: bool) -> os.stat_result:
        found = real(name, **options)
        if os.path.abspath(name) != str(path):
            return found
        return os.stat_result([uid if i == 4 else value for i, value in enumerate(found[:10])])

    monkeypatch.setattr(os, "stat", stat)


@pytest.mark.parametrize("folder", place.FOLDERS)
def test_a_folder_that_is_not_ours_switches_the_cache_off(
        project: Project, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    project.put()
    path = project.cache / folder
    path.mkdir(exist_ok=True)
    spoil(monkeypatch, path, 4711)
    with pytest.warns(CacheWarning, match=f"{folder} belongs to another user; remove it or set DETENT_CACHE_DIR"):
        store = project.store()
    assert isinstance(store.find_solution(project.program(), project.deployment()), Miss)
    with store.lock("x"):
        assert project.put(store).graph() == GRAPH
    monkeypatch.undo()
    path.chmod(0o770)
    with pytest.warns(CacheWarning, match=f"{folder} can be written by others"):
        assert not project.store().usable
    shutil.rmtree(path)
    path.write_text("a file")
    with pytest.warns(CacheWarning, match=f"{folder} is not a folder"):
        assert not project.store().usable


def test_folders_that_turn_unreadable_cost_only_warnings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store, scandir = project.store(), os.scandir

    def refuse(path: str) -> object:
        if path.startswith(store.shelf.solutions_folder):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.warns(CacheWarning, match="solutions/.*: not read .Permission denied.; remove it"):
        assert isinstance(store.find_solution(project.program(), project.deployment()), Miss)
    (project.cache / "locks").write_text("a file")
    with pytest.warns(CacheWarning, match="locks: no lock"), store.lock("x") as lock:
        assert lock.path is None


def test_where_the_directory_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("DETENT_CACHE_DIR", ""), ("XDG_CACHE_HOME", "relative"), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    assert Store().directory == str(tmp_path / ".cache/detent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Store().directory == str(tmp_path / "xdg/detent")
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "own"))
    assert Store().directory == str(tmp_path / "own")


def test_a_full_disk_costs_only_a_warning(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = project.store()
    monkeypatch.setattr(shelf, "replace_file", full)
    with pytest.warns(CacheWarning, match="the solution is not stored .No space left"):
        assert project.put(store).graph() == GRAPH


def test_missing_program_file(project: Project) -> None:
    program = project.program()
    project.main.unlink()
    with pytest.raises(BadFile, match="tile.py: No such file"):
        project.store().find_solution(program, project.deployment())


def test_a_program_that_does_not_parse_is_a_miss(project: Project) -> None:
    project.put()
    project.main.write_text("def tile(:\n")
    assert reasons(project) == ["program text: tile.py changed"]


# Listing, clearing, bounds.

def test_list_and_clear(project: Project) -> None:
    store, entry = project.store(), project.put()
    store.put_selector(entry, Repin(entry.document)(DEFAULT))
    solution, selector = store.entries()
    assert (solution["kind"], solution["program"], solution["deployment"]) == ("solution", "tile", "toy-h100")
    assert solution["bytes"] == sum(stored(project, suffix).stat().st_size for suffix in FILES)
    assert selector["kind"] == "selector" and selector["assignment"] == DEFAULT and selector["key"] == entry.key
    folder = stored(project, "solution").parent
    with store.lock("held") as lock:
        assert lock.path is not None
        Path(f"{folder}/{solution['path'].rpartition('/')[2]}.12.0123abcd.tmp").write_text("left by a killed process")
        mine = [project.cache / name for name in (
            "solutions/mine.txt", "locks/my.lock", "normalised/z", "normalised/mine.tmp", "mine.solution")]
        mine += [folder / "mine.solution", folder / "mine.selector", folder / "0.txt"]
        for path in mine:
            path.write_text("not Detent's")
        assert store.entries() == [solution, selector]
        assert store.clear() == 2 and store.entries() == []
        assert {path for path in project.cache.rglob("*") if path.is_file()} == set(mine)


def test_number_of_entries_is_bounded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "MAX_ENTRIES", 3)
    monkeypatch.setattr(shelf, "MAX_KEYS", 2)
    monkeypatch.setattr(shelf, "MAX_MEMOS", 4)
    before = "rows = 1024"
    for rows in range(6):
        project.edit(project.toml, before, before := f"rows = {rows}")
        project.put()
    assert len(project.store().entries()) == 3 and len(list(project.cache.glob("solutions/*/*"))) == 12
    before = "LIMIT\n\n"
    for number in range(5):
        project.edit(project.main, before, before := f"LIMIT\n\nX = {number}\n\n")
        project.put()
    assert len(list(project.cache.glob("solutions/*"))) == 2 and len(list(project.cache.glob("normalised/*"))) <= 4
    hit(project)


def test_selectors_are_found_again_and_bounded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store, entry = project.store(), project.put()
    monkeypatch.setattr(shelf, "MAX_SELECTORS", 2)
    make = Repin(entry.document)
    assert store.find_selector(entry, DEFAULT) is None
    for assignment in ({**DEFAULT, "stride": 128}, {**DEFAULT, "small": True}, DEFAULT):
        store.put_selector(entry, make(assignment))
    found = store.find_selector(hit(project), DEFAULT)
    assert found is not None and found.source == make(DEFAULT).source and found(3, True) == make(DEFAULT)(3, True)
    assert dict(found.assignment) == DEFAULT
    with pytest.raises(Violation, match=r"assume does not hold \[1 <= call.rows <= limits.rows\]"):
        found(0, True)
    assert len(list(project.cache.glob("solutions/*/*.selector"))) == 2
    assert len(list(project.cache.glob("solutions/*/*.code"))) == 2


def test_code_object_of_another_python_or_source_is_not_used(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store, entry = project.store(), project.put()
    store.put_selector(entry, Repin(entry.document)(DEFAULT))
    (code,) = project.cache.glob("solutions/*/*.code")
    assert sys.implementation.cache_tag in code.name
    monkeypatch.setattr(sys, "version", "3.99 (another)")
    found = store.find_selector(entry, DEFAULT)
    assert found is not None and found(3, True)["splits"] == 4
    monkeypatch.undo()
    code.write_bytes(b"junk")
    with pytest.warns(CacheWarning, match="no code entry"):
        assert store.find_selector(entry, DEFAULT) is None
    hit(project)


# Concurrency.

WRITER = """
import sys
from pathlib import Path
from runtime_fixture import DEFAULT, GRAPH, Project
from detent.runtime.repin import Repin
project = Project(Path(sys.argv[1]), write=False)
for _ in range(20):
    put = project.put()
    store = project.store()
    found = store.find_solution(project.program(), project.deployment())
    assert found.document == put.document and found.graph() == GRAPH
    store.put_selector(found, Repin(found.document)(DEFAULT))
    assert store.find_selector(found, DEFAULT) is not None
"""


def start(root: Path, code: str, *arguments: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(root), str(root / "tests")))}
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def finish(workers: list[subprocess.Popen[bytes]]) -> list[bytes]:
    """Their output; each must succeed."""
    output = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return output


def test_processes_that_write_the_same_entry(project: Project, root: Path) -> None:
    finish([start(root, WRITER, project.folder) for _ in range(4)])
    assert not list(project.cache.rglob("*.tmp")) and len(project.store().entries()) == 2


LOCKED = """
import os, sys, time
from detent.runtime.cache import Store
path = sys.argv[1]
for _ in range(5):
    with Store(sys.argv[2]).lock("one"):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        time.sleep(0.01)
        os.unlink(path)
"""


def test_lock_keeps_processes_apart(project: Project, root: Path) -> None:
    finish([start(root, LOCKED, project.folder / "inside", project.cache) for _ in range(4)])
    assert not list((project.cache / "locks").iterdir())


def test_lock_of_a_killed_process_is_free(project: Project, root: Path) -> None:
    code = ("import sys, time\nfrom detent.runtime.cache import Store\n"
            "with Store(sys.argv[1]).lock('one'):\n    print('in', flush=True)\n    time.sleep(600)\n")
    with start(root, code, project.cache) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == b"in\n"
        with pytest.warns(CacheWarning, match="locked for 0 s, going on without"):
            with project.store().lock("one", timeout_s=0):
                pass
        worker.kill()
    with project.store().lock("one", timeout_s=60) as held:
        assert held.path is not None and os.path.exists(held.path)


def test_lock_is_not_fooled_by_a_removed_file(project: Project) -> None:
    store = project.store()
    with store.lock("one") as outer:
        assert outer.path is not None
        os.unlink(outer.path)
        with store.lock("one", timeout_s=0) as inner:
            assert inner.path == outer.path and os.path.exists(outer.path)
    assert not os.path.exists(outer.path)


def test_a_file_system_without_locks(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock, "_wait", refuse)
    with pytest.warns(CacheWarning, match="no lock .No locks available"), project.store().lock("one"):
        pass


# Program texts.

def test_normalised_text_ignores_layout_and_nothing_else() -> None:
    normalise = sources.normalise
    text = 'def f(a, *, b=None):\n    return a["k"] if b is None else f"{a:>{b}}"\n'
    same = ('"""Doc."""\n# c\ndef f(a,*,b = None):\n    "doc"\n'
            '    return (a[\'k\']\n            if b is None else f"{a:>{b}}")\n')
    assert normalise(text) == normalise(same)
    for old, new in (("is None", "is 1"), ("=None", ""), ('"k"', "'l'"), ("is None", "== None"), (">{b}", "<{b}"),
                     ("*, ", "")):
        assert normalise(text.replace(old, new)) != normalise(text)
    values = ["1", "1.0", "True", "'1'", "b'1'", "-1", "None", "...", "1j", "x", "[1]", "(1,)", "", "[]", "()"]
    assert len({normalise(f"return_({value})") for value in values}) == len(values)
    assert normalise("def f():\n    return None") != normalise("def f():\n    return")
    assert normalise("x = 1\n'text'") != normalise("x = 1")


def test_program_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = sources.resolve("attention")
    assert (attention.name, attention.function, attention.id) == ("attention", "attention", "attention")
    assert sources.tag(attention.path, attention.path) == "detent:programs/attention.py"
    assert sources.tag(os.path.realpath(attention.path), attention.path) == "detent:programs/attention.py"
    assert sources.display_name(attention.path, attention.path) == "programs/attention.py"
    assert os.path.samefile(sources.untag("detent:programs/attention.py", "/x.py"), attention.path)
    assert sources.resolve("detent.programs.attention:attention").path == attention.path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("")
    own = sources.resolve("own.py:f")
    assert own.path == str(tmp_path / "own.py") and own.id == f"{own.path}:f" and own.name == "f"
    for bad in ("atention", "own.py", "other.py:f", "detent.programs.nothing:f", "own.py:"):
        with pytest.raises(UnknownName, match="known: .*path/to/file.py:function"):
            sources.resolve(bad)
    with pytest.raises(UnknownName, match="did you mean 'attention'"):
        sources.resolve("atention")


def test_the_document_is_read_once_and_late(project: Project) -> None:
    project.put()
    entry = find(project, body=False)
    assert isinstance(entry, Entry) and entry.header["default"] == DEFAULT
    assert entry.document is entry.document

"""Every rule of ``detent lint`` on a program that is just large enough to break it, and on one that does not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from detent.runtime.deployment import load
from detent.runtime.errors import DetentError
from detent.solver.lint import NOTE, RULES, WARNING, Finding, Subject, equivalent, lint
from detent.solver.lint.tables import uses
from detent.solver.solution import Solution
from detent.solver.solve import solve

HEAD = """\
from detent.lang import Request, Runtime, Table, Unpinnable, assume, knob, record, require, selection

@record
class Limits:
    low: int
    high: int

@record
class Tuned:
    table: Table | None
    spare: Table | None

@record
class Call:
    tokens: Unpinnable[int]
    max_len: Unpinnable[int]
    longest: Unpinnable[int]
    more: Unpinnable[int]
    graph: Runtime[bool]
    greedy: Request[bool]

def nearest(table, m):
    return min(table, key=lambda row: abs(row - m))

"""
SELECTION = """\
@selection(family="tiny")
def tiny(limits: Limits, tuned: Tuned, call: Call):
    assume(limits.low <= call.tokens <= limits.high)
    assume(1 <= call.max_len <= 64)
    assume(1 <= call.longest <= 64)
    assume(1 <= call.more <= 100000)
"""
LOOKUP = """\
    row = nearest(tuned.table, call.tokens)
    return {"tile": tuned.table[row]["tile"], "warps": tuned.table[row].get("warps", 4)}
"""


class Files:
    """Programs and deployments in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def program(self, body: str, before: str = "") -> str:
        path = self.folder / "tiny.py"
        path.write_text(HEAD + before + SELECTION + body, encoding="utf-8")
        return f"{path}:tiny"

    def deployment(self, low: int = 1, high: int = 64, **tables: tuple[int, ...]) -> str:
        """Tables are given by their keys; a row's tile is its place."""
        lines = [f"[limits]\nlow = {low}\nhigh = {high}\n[tuned]"]
        for name, keys in tables.items():
            rows = ", ".join(f"{key} = {{ tile = {place}{', warps = 8' if place % 2 else ''} }}"
                             for place, key in enumerate(keys))
            lines.append(f"{name} = {{ {rows} }}")
        path = self.folder / "mine.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)

    def lint(self, rule: str, body: str, before: str = "", **deployment: Any) -> list[Finding]:
        """What one rule finds."""
        found = lint(self.program(body, before), self.deployment(**deployment))
        assert all(each.rule in RULES and each.explanation and each.subject for each in found)
        return [each for each in found if each.rule == rule]

    def solution(self, body: str, before: str = "", **deployment: Any) -> Solution:
        return solve(self.program(body, before), self.deployment(**deployment))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def plain(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny_plain", path.rpartition(":")[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- tables ----------------------------------------------------------------------------------------------------


def test_unread_table(files: Files) -> None:
    (found,) = files.lint("unread-table", LOOKUP, table=(1, 16), spare=(1, 2, 4))
    assert (found.severity, found.subject) == (WARNING, "[tuned] spare")
    assert found.details == {"section": "tuned", "name": "spare", "rows": 3} and found.place.startswith("tiny.py:")
    assert files.lint("unread-table", LOOKUP, table=(1, 16)) == []


def test_a_table_is_not_read_by_asking_whether_there_is_one(files: Files) -> None:
    body = """\
    require(tuned.table is not None, "there is a table")
    return {"tile": 16 if call.tokens < 32 else 32}
"""
    (found,) = files.lint("unread-table", body, table=(1, 16))
    assert found.subject == "[tuned] table"
    assert files.lint("unread-table", "    return {'rows': len(tuned.table)}\n", table=(1, 16)) == []


def test_tables_of_other_records_are_no_matter(files: Files) -> None:
    program = files.folder / "other.py"
    program.write_text(HEAD + """\
@selection(family="other")
def other(limits: Limits, call: Call):
    assume(limits.low <= call.tokens <= limits.high)
    assume(1 <= call.max_len <= 64)
    assume(1 <= call.longest <= 64)
    assume(1 <= call.more <= 64)
    return {"wide": call.tokens > 8}
""", encoding="utf-8")
    assert not [f for f in lint(f"{program}:other", files.deployment(table=(1, 2))) if f.rule == "unread-table"]


@pytest.mark.parametrize(("low", "high", "keys"), [(1, 64, (1, 16, 64, 256)), (40, 64, (64, 1, 16)), (7, 7, (1, 8))])
def test_unreached_rows_are_those_that_plain_python_never_takes(files: Files, low: int, high: int,
                                                                keys: tuple[int, ...]) -> None:
    program = files.program(LOOKUP)
    module = plain(program)
    taken = {module.nearest(keys, m) for m in range(low, high + 1)}
    (found,) = files.lint("unreached-row", LOOKUP, low=low, high=high, table=keys)
    assert found.severity == WARNING and found.subject == "[tuned] table"
    assert found.details["rows"] == [key for key in keys if key not in taken] != []
    assert found.place == f"tiny.py:{HEAD[:HEAD.index('return min')].count(chr(10)) + 1}"


def test_reached_rows_are_not_found(files: Files) -> None:
    assert files.lint("unreached-row", LOOKUP, high=64, table=(1, 16, 64)) == []
    assert files.lint("unreached-row", LOOKUP, high=64, table=(1, 16, 256)) != []


def test_rows_beyond_reach_of_too_many_inputs_to_try(files: Files) -> None:
    body = LOOKUP.replace("call.tokens)", "call.tokens + call.more)")
    (found,) = files.lint("unreached-row", body, high=100_000, table=(1, 64, 10**6))
    assert found.details["rows"] == [10**6]
    assert files.lint("untuned-row", body, high=100_000, table=(1, 64, 10**6)) == []
    assert files.lint("tie", body, high=100_000, table=(1, 64, 10**6)) == []


def test_untuned_rows(files: Files) -> None:
    found = files.lint("untuned-row", LOOKUP, low=1, high=256, table=(16, 32, 64))
    assert [(f.severity, f.details["row"], f.details["inputs"]) for f in found] == [
        (NOTE, 16, [1, 15]), (NOTE, 64, [65, 256])]
    assert "row 64 also serves tokens 65-256" in found[1].explanation
    (only,) = files.lint("untuned-row", LOOKUP, low=100, high=256, table=(16, 32, 64))
    assert (only.severity, only.details["row"], only.details["only"]) == (WARNING, 64, True)
    assert files.lint("untuned-row", LOOKUP, low=16, high=64, table=(16, 32, 64)) == []


def test_keys_that_are_no_values_of_the_input_have_no_tuned_range(files: Files) -> None:
    body = LOOKUP.replace("nearest(tuned.table, call.tokens)", "1 if call.tokens > 40 else 2")
    assert files.lint("unreached-row", body, table=(1, 2, 3))[0].details["rows"] == [3]
    assert files.lint("untuned-row", body, low=1, high=256, table=(1, 2)) == []


@pytest.mark.parametrize(("keys", "severity"), [((8, 16, 64), NOTE), ((16, 8, 64), WARNING), ((64, 8, 16), WARNING)])
def test_ties(files: Files, keys: tuple[int, ...], severity: str) -> None:
    module = plain(files.program(LOOKUP))
    expected = [{"inputs": {"tokens": m}, "row": module.nearest(keys, m), "reversed": module.nearest(keys[::-1], m)}
                for m in range(1, 65) if module.nearest(keys, m) != module.nearest(keys[::-1], m)]
    (found,) = files.lint("tie", LOOKUP, table=keys)
    assert found.severity == severity and found.details["ties"] == expected
    assert {tie["inputs"]["tokens"] for tie in expected} == {12, 40}


def test_no_tie_between_an_odd_distance(files: Files) -> None:
    assert files.lint("tie", LOOKUP, table=(8, 15, 64)) == []


def test_two_tables_keep_apart(files: Files) -> None:
    body = """\
    row = nearest(tuned.table, call.tokens)
    other = nearest(tuned.spare, call.max_len)
    return {"tile": tuned.table[row]["tile"], "other": tuned.spare[other]["tile"]}
"""
    found = files.lint("unreached-row", body, table=(1, 512), spare=(2, 64, 1024))
    assert [(f.subject, f.details["rows"]) for f in found] == [("[tuned] table", [512]), ("[tuned] spare", [1024])]
    program, deployment = files.program(body), files.deployment(table=(1, 512), spare=(2, 64, 1024))
    subject = Subject(program, load(deployment), solve(program, deployment))
    assert [(use.name, subject.graph.names[use.key]) for use in uses(subject)] == [("table", "row"), ("spare", "other")]


def every_finding(files: Files, body: str, **tables: tuple[int, ...]) -> set[tuple[str, str]]:
    found = lint(files.program(body), files.deployment(high=256, **tables))
    return {(f.rule, f.subject) for f in found if f.subject.startswith("[tuned]")}


@pytest.mark.parametrize("keys", [(16, 32, 64), (16,)])
def test_a_table_like_another_that_nobody_reads_has_no_rows_to_speak_of(files: Files, keys: tuple[int, ...]) -> None:
    """Whatever holds of the one table's rows is not said of the other's, which has the same contents."""
    beside = every_finding(files, LOOKUP, table=keys, spare=keys)
    assert beside == every_finding(files, LOOKUP, table=keys) | {("unread-table", "[tuned] spare")}
    assert ("untuned-row", "[tuned] table") in beside or len(keys) == 1  # a single row is a constant


def test_tables_of_the_same_contents_are_told_apart(files: Files) -> None:
    body = """\
    row = nearest(tuned.table, call.tokens)
    other = nearest(tuned.spare, call.max_len)
    return {"tile": tuned.table[row]["tile"], "other": tuned.spare[other]["tile"]}
"""
    keys = (2, 64, 256)
    program, deployment = files.program(body), files.deployment(high=256, table=keys, spare=keys)
    subject = Subject(program, load(deployment), solve(program, deployment))
    assert [(use.name, subject.graph.names[use.key]) for use in uses(subject)] == [("table", "row"), ("spare", "other")]
    assert ("unreached-row", "[tuned] spare") in every_finding(files, body, table=keys, spare=keys)
    assert ("unreached-row", "[tuned] table") not in every_finding(files, body, table=keys, spare=keys)


# ---- knobs, pins, points ---------------------------------------------------------------------------------------


def test_dead_knobs(files: Files) -> None:
    body = """\
    size = knob("size", (1, 2, 4), default=1)
    unread = knob("unread", (1, 2), default=1)
    checked = knob("checked", (1, 2), default=1)
    returned = knob("returned", (1, 2), default=1)
    wide = call.tokens > 8 * size
    require(checked * call.tokens <= 100, "fits")
    return {"wide": wide, "returned": returned}
"""
    unread, behind = sorted(files.lint("dead-knob", body), key=lambda f: f.subject, reverse=True)
    assert (unread.subject, unread.severity, unread.details["pins"]) == ("knob unread", WARNING, [])
    assert (behind.subject, behind.details["pins"]) == ("knob size", ["wide"])
    assert "it enters only what the pin wide replaces" in behind.explanation


COUNT = """\
    stride = knob("stride", (16, 32, 64), default=16)
    splits = 1 if call.{input} < 16 else 2 if call.{input} < 32 else 4
    require({condition}, "enough")
    return {{"splits": splits, "stride": stride}}
"""


@pytest.mark.parametrize(("before", "input", "condition", "found"), [
    ("", "max_len", "True", True),
    ("", "max_len", "splits == 1 or splits * stride >= 64", False),  # the stride is the parts' size
    ("", "max_len", "64 <= stride * splits or splits == 1", False),
    ("", "max_len", "splits * stride <= 256", True),  # an upper bound says nothing about what is covered
    ("", "max_len", "splits * call.longest >= 1", True),  # nor does a size that moves
    ("", "max_len", "splits == 1", False),
    ("", "longest", "True", False),
    ("MAXIMA = ('longest',)\n\n", "longest", "True", True),
    ("", "tokens", "True", False),
])
def test_pinned_counts(files: Files, before: str, input: str, condition: str, found: bool) -> None:
    got = files.lint("pinned-count", COUNT.format(input=input, condition=condition), before)
    assert [(f.severity, f.subject, f.details["maxima"]) for f in got] == [(WARNING, "pin splits", [input])] * found


def test_a_pin_that_no_point_returns_is_no_count(files: Files) -> None:
    body = """\
    row = 16 if call.max_len < 32 else 64
    return {"a": row * 2, "b": row // 4}
"""
    assert [pin["name"] for pin in files.solution(body).pins] == ["row"]
    assert files.lint("pinned-count", body) == []


def test_constant_and_settled_points(files: Files) -> None:
    body = """\
    small = call.tokens < 8
    deep = call.tokens < 16
    require(not small or call.tokens < 8, "few tokens")
    return {"high": limits.high, "small": small, "deep": deep, "double": 2 if small else 1}
"""
    (constant,) = files.lint("constant-point", body)
    assert (constant.severity, constant.details["points"]) == (NOTE, {"high": 64})
    settled = files.lint("settled-point", body)
    assert [(f.subject, f.details["value"], f.details["controls"]) for f in settled] == [
        ("point small", False, ["small"]), ("point double", 1, ["small"])]
    free = "    return {'small': call.tokens < 8, 'greedy': call.greedy}\n"
    assert files.lint("constant-point", free) == files.lint("settled-point", free) == []


# ---- classes ---------------------------------------------------------------------------------------------------

CLASSES = """\
    stride = knob("stride", (16, 32, 64, 128), default=16)
    splits = 1 if call.tokens < 16 else 2 if call.tokens < 32 else 8
    require(splits == 1 or splits * stride >= limits.high, "the splits cover the longest")
    return {points}
"""
BEHAVIOUR = """\
def behaviour(points, facts):
    return 0 if points["splits"] == 1 else min(points["stride"], facts["limits"]["high"])

"""


def test_assignments_with_equal_points(files: Files) -> None:
    body = CLASSES.format(points="{'parts': 1 if splits == 1 else 2, 'stride': stride}")
    solution = files.solution(body)
    classes = equivalent(solution)
    assert sum(map(len, classes.values())) == solution.legal
    for key, members in classes.items():
        assert key == (1 if members[0]["splits"] == 1 else 2, members[0]["stride"])
        assert len({(m["splits"] == 1, m["stride"]) for m in members}) == 1
    (found,) = files.lint("identical", body)
    assert found.severity == NOTE and found.details["legal"] == solution.legal > len(classes)
    assert [each["size"] for each in found.details["classes"]] == [len(members) for members in classes.values()]


def test_no_classes_where_every_assignment_differs(files: Files) -> None:
    body = CLASSES.format(points="{'splits': splits, 'stride': stride}")
    assert files.lint("identical", body) == []
    assert len(equivalent(files.solution(body))) == files.solution(body).legal


def test_a_program_may_know_more(files: Files) -> None:
    body = CLASSES.format(points="{'splits': splits, 'stride': stride}")
    (found,) = files.lint("identical", body, BEHAVIOUR)
    assert len(found.details["classes"]) == 4  # unsplit, and strides of 16 (8 splits), 32 and at least 64
    assert found.details["classes"][0]["first"]["splits"] == 1
    solution = files.solution(body, BEHAVIOUR)
    behaviour = plain(files.program(body, BEHAVIOUR)).behaviour
    assert set(equivalent(solution, behaviour)) == {0, 16, 32, 64}
    # A solution does not say where a file of one's own is, so its behaviour has to be passed.
    assert len(equivalent(solution)) == solution.legal


def test_points_of_the_request_count_by_what_is_behind_them(files: Files) -> None:
    body = """\
    wide = call.tokens < 8
    side = knob("side", (1, 2), default=1)
    return {"a": (1 if wide else 2) if call.greedy else 0, "b": (3 if wide else 4) if call.greedy else 5, "c": side > 0}
"""
    solution = files.solution(body)
    assert [pin["name"] for pin in solution.pins] == ["wide"] and solution.points[0]["requests"] == ["greedy"]
    classes = equivalent(solution)
    assert list(classes) == [((False,), (False,), True), ((True,), (True,), True)]
    assert [len(members) for members in classes.values()] == [2, 2] and solution.legal == 4


@pytest.mark.parametrize(("deployment", "count"), [("qwen3-30b-a3b-tp4-h200", 16), ("llama-3.1-70b-tp4-h200", 14)])
def test_attention_behaves_in_few_ways(deployment: str, count: int) -> None:
    solution = solve("attention", deployment)
    classes = equivalent(solution)
    assert len(classes) == count and sum(map(len, classes.values())) == solution.legal
    context = load(deployment).facts["limits"]["max_context"]
    for members in classes.values():
        # One member's splits cover the longest request with the same boundaries as another's.
        used = {(m["one_wg"], m["pdl"], m["num_splits"] > 1,
                 m["num_splits"] > 1 and tuple(range(m["split_stride"], context, m["split_stride"]))) for m in members}
        assert len(used) == 1
    # The facts that the solution was made from are enough, also when it comes from the cache.
    assert solve("attention", deployment).cached and equivalent(solve("attention", deployment)) == classes


def test_a_file_that_is_called_like_a_program_of_detents(files: Files) -> None:
    path = files.folder / "attention.py"
    body = CLASSES.format(points="{'splits': splits, 'stride': stride}")
    path.write_text(HEAD + SELECTION.replace("tiny", "attention") + body, encoding="utf-8")
    solution = solve(f"{path}:attention", files.deployment())
    assert solution.program == "attention" and len(equivalent(solution)) == solution.legal


def test_too_many_assignments(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    solution = files.solution(CLASSES.format(points="{'splits': splits, 'stride': stride}"))
    from detent.solver.lint import classes

    monkeypatch.setattr(classes, "legal_assignments", lambda document: None)
    monkeypatch.setattr(classes, "MAX_ASSIGNMENTS", 3)
    with pytest.raises(DetentError, match="legal assignments are too many to compare"):
        equivalent(solution)
    (found,) = files.lint("identical", CLASSES.format(points="{'splits': splits, 'stride': stride}"))
    assert "not compared" in found.explanation


# ---- all together ----------------------------------------------------------------------------------------------


def test_warnings_come_first(files: Files) -> None:
    body = """\
    unread = knob("unread", (1, 2), default=1)
    return {"wide": call.tokens > 8, "high": limits.high}
"""
    found = lint(files.program(body), files.deployment())
    assert [f.severity for f in found] == [WARNING, NOTE, NOTE]
    assert [f.rule for f in found] == ["dead-knob", "constant-point", "identical"]


@pytest.mark.parametrize("program", ["moe", "gemm", "norm"])
def test_what_comes_with_detent_has_no_warnings(program: str) -> None:
    found = lint(program, "qwen3-30b-a3b-tp4-h200")
    assert [f.severity for f in found].count(WARNING) == 0 and found


def test_moe_notes() -> None:
    found: dict[str, Finding] = {f.rule: f for f in lint("moe", "qwen3-30b-a3b-tp4-h100")}
    assert found["untuned-row"].details == {"section": "moe", "name": "table", "row": 4096, "inputs": [4097, 8192],
                                            "only": False}
    ties = {tie["inputs"]["num_tokens"]: tie["row"] for tie in found["tie"].details["ties"]}
    assert {m: ties[m] for m in (3, 6, 12, 80, 384)} == {3: 2, 6: 4, 12: 8, 80: 64, 384: 256}
    assert len(found["identical"].details["classes"]) < found["identical"].details["legal"]


def test_rules_are_functions_of_a_subject() -> None:
    rules: list[Callable[[Subject], list[Finding]]] = list(RULES.values())
    assert len(set(rules)) == len(RULES) and all(rule.__doc__ for rule in rules)

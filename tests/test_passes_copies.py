"""What a condition reads: the true inputs, variables as pinned, and branches' tests as if they stood in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from end_support import Written
from test_end_traps import legal, pins

from detent.dialects.selir.source import SourceError
from detent.passes.check_failures import Reachable
from detent.passes.min_cut import InfeasibleCut

FIELDS = """t: Unpinnable[int]
    rows: Runtime[int]
    g: Runtime[bool]
    q: Unpinnable[int]"""
BOUNDS = """assume(1 <= call.t <= 100)
    assume(1 <= call.rows <= 8)
    assume(0 <= call.q <= 8)
    """


def written(folder: Path, body: str) -> Written:
    return Written(folder, FIELDS, BOUNDS + body)


@pytest.mark.parametrize("value", ["call.rows", "min(call.rows, 100)", "max(call.rows, 1)", "call.rows + 0",
                                   "call.rows * 1 if call.rows < 9 else 3", "int(call.rows)"])
def test_a_variable_that_equals_an_input_is_as_pinned(value: str, tmp_path: Path) -> None:
    found = written(tmp_path, f"""grid = {value}
    require(grid >= call.rows, "the grid covers every row")
    return {{"grid": grid}}""").solve()
    assert pins(found) == {"grid": [1, 2, 3, 4, 5, 6, 7, 8]} and legal(found) == {(8,)}


def test_so_is_a_bool_that_facts_leave_alone(tmp_path: Path) -> None:
    found = written(tmp_path, """page = 1
    hot = call.g and page == 1
    require(hot or not call.g, "a graph needs the hot kernel")
    return {"hot": hot}""").solve()
    assert legal(found) == {(True,)}


@pytest.mark.parametrize("value", ["max(call.t, 1)", "call.t * 1", "min(call.t, 100)"])
def test_a_value_that_equals_an_unpinnable_input_may_be_pinned(value: str, tmp_path: Path) -> None:
    found = written(tmp_path, f"""grid = {value}
    require(grid >= call.t, "the grid covers every token")
    return {{"grid": grid}}""").solve()
    assert list(pins(found)) == ["grid"] and legal(found) == {(100,)}


def test_an_unpinnable_input_may_not(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleCut):
        written(tmp_path, """grid = call.t
    return {"grid": grid}""").solve()


def test_naming_a_variable_that_holds_an_input_pins_nothing(tmp_path: Path) -> None:
    found = written(tmp_path, """rows = call.rows
    require(rows <= 8, "few rows")
    return {"tile": 16 if call.t < 50 else 64}""").solve()
    assert list(pins(found)) == ["tile"] and legal(found) == {(16,), (64,)}


def test_an_assume_reads_the_input_behind_a_variable(tmp_path: Path) -> None:
    found = Written(tmp_path, "rows: Runtime[int]", """rows = call.rows
    assume(1 <= rows <= 3)
    return {"rows": rows}""").solve()
    assert list(pins(found).values()) == [[1, 2, 3]]


@pytest.mark.parametrize(("branch", "expected"), [
    ("if call.t > 90:\n        require(tile >= 64)", {(64,)}),
    ("if not call.g:\n        require(tile >= 64)", {(64,)}),
    ("if call.t > 100:\n        require(tile >= 64)", {(16,), (64,)}),
    ("if call.t > 90:\n        if not call.g:\n            require(tile >= 64)", {(64,)}),
    ("if call.t <= 90:\n        pass\n    else:\n        require(tile >= 64)", {(64,)}),
    ("if tile >= 64:\n        require(call.t < 95)", {(16,)}),  # the test names the pinned tile
])
def test_a_require_under_a_branch_reads_the_true_inputs(branch: str, expected: set[Any], tmp_path: Path) -> None:
    found = written(tmp_path, f"""tile = 16 if call.t < 95 else 64
    {branch}
    return {{"tile": tile}}""").solve()
    assert list(pins(found)) == ["tile"] and legal(found) == expected


def test_a_require_behind_an_early_return(tmp_path: Path) -> None:
    found = written(tmp_path, """tile = 16 if call.t < 95 else 64
    if call.g:
        return {"tile": tile}
    require(tile >= 64, "eager needs a tile of 64")
    return {"tile": tile}""").solve()
    assert list(pins(found)) == ["tile"] and legal(found) == {(64,)}


def test_a_branch_guards_what_its_require_computes(tmp_path: Path) -> None:
    body = """tile = 2 if call.t < 50 else 1
    {}require(10 // call.q >= tile, "wide enough")
    return {{"tile": tile}}"""
    found = written(tmp_path, body.format("if call.q != 0:\n        ")).solve()
    assert legal(found) == {(1,)}
    with pytest.raises(Reachable, match="division by zero at .*q=0"):
        written(tmp_path, body.format("")).solve()


@pytest.mark.parametrize("value", ["call.g or 7", "call.g and 7", "(call.t > 5 and 16) or 64", "(call.t > 3 or 7) + 1",
                                   "call.t > 3 or call.q", "call.q or call.g", "call.g and None"])
def test_operands_of_two_types_are_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="one case gives .*, the other"):
        written(tmp_path, f"""return {{"x": {value}}}""").solve()


@pytest.mark.parametrize("test", ["call.g and call.q", "call.q or call.g", "not (call.g or call.q)",
                                  "bool(call.q and call.g)", "call.g and call.q and call.t > 3"])
def test_as_a_test_they_are_taken_for_their_truth(test: str, tmp_path: Path) -> None:
    program = written(tmp_path, f"""tile = 16 if {test} else 64
    return {{"tile": tile}}""")
    assert {name: set(values) for name, values in pins(program.solve()).items()} == {"tile": {16, 64}}


@pytest.mark.parametrize("value", ["max(call.g, call.t > 3)", "min(call.g, True)", "min((call.g, call.t > 3))"])
def test_the_extreme_of_bools_is_a_bool(value: str, tmp_path: Path) -> None:
    found = written(tmp_path, f"""x = {value}
    return {{"x": x}}""").solve()
    (values,) = pins(found).values()
    assert [type(each) for each in values] == [bool, bool]


@pytest.mark.parametrize(("name", "what"), [("t", "an input"), ("class", "a word of Python")])
def test_a_knob_has_a_name_of_its_own(name: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"'{name}' cannot name a knob: it is {what}"):
        written(tmp_path, f"""return {{"x": knob("{name}", (1, 2), default=1) + (call.t > 3)}}""").solve()


def test_branches_with_other_points(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="one branch gives the keys 'x', the other 'y'"):
        written(tmp_path, """if call.t > 3:
        return {"x": 1}
    return {"y": 1}""").solve()

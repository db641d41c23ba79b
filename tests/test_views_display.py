"""What tables look like in little room, and what the views say where nothing is legal or nothing is to assign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import done, invoke
from hypothesis import given
from hypothesis import strategies as st

import detent
from detent.solver.views import wording
from detent.solver.views.columns import column_widths, folded
from detent.solver.views.palette import COLOURS, FIXED_TINT, OTHER_TINT, TINTS
from detent.solver.views.sections import Table, render

PROGRAM = """\
from detent.lang import Unpinnable, assume, knob, record, require, selection

@record
class Call:
    tokens: Unpinnable[int]

def rows_for(tokens):
    waves = tokens / 8
    if waves < 0.8:
        return 1
    return 2

@selection(family="own")
def own(call: Call):
    assume(1 <= call.tokens <= 64)
    rows = rows_for(call.tokens)
    other = 8 if call.tokens < 16 else 16
    {condition}
    return {points}
"""


def written(folder: Path, condition: str, points: str = '{"rows": rows, "other": other}') -> tuple[str, str, str]:
    (folder / "own.py").write_text(PROGRAM.replace("{condition}", condition).replace("{points}", points),
                                   encoding="utf-8")
    (folder / "mine.toml").write_text("", encoding="utf-8")
    return f"{folder / 'own.py'}:own", "-d", str(folder / "mine.toml")


@pytest.mark.parametrize(("condition", "blamed"), [
    ('require(call.tokens > 100, "never")', "call.tokens > 100"),  # names no pin
    ('require(other == 3)', "other == 3"),  # names one, and the other pin has legal values of its own
    ('require(rows == 3)', "rows == 3")])
def test_nothing_is_legal_anywhere(condition: str, blamed: str, tmp_path: Path) -> None:
    arguments = written(tmp_path, condition)
    document = json.loads(done("solve", *arguments, "--json"))
    assert document["legal"] == 0 and document["default"] is None
    for command in (["solve", *arguments], ["explain", *arguments]):
        text = done(*command)
        assert f"nothing is legal because of own.py:18: require {blamed}" in text
        assert not any("1, 2" in line and "exact" in line for line in text.splitlines())
    for pin in ("rows", "other"):
        text = done("explain", *arguments, "--pin", pin)
        assert "legal:      none (0)" in text and blamed in text and "Ruled out" in text
        text = done("explain", *arguments, "--point", pin)
        assert "Values under legal assignments\n none: no assignment is legal" in text and blamed in text
    assert invoke("lint", *arguments).exit_code == 0


def test_an_early_return_is_replaced_by_its_decision(tmp_path: Path) -> None:
    text = done("explain", *written(tmp_path, "require(rows <= 2)"), "--pin", "rows")
    assert "replaces what 'if waves < 0.8' decides" in text
    assert wording.replaced("1 if x else\n 2") == "1 if x else 2"


def test_the_rows_of_a_path_are_counted(tmp_path: Path) -> None:
    text = done("explain", *written(tmp_path, "require(rows <= 2)"), "--point", "other")
    title, _, _, *rows = text[text.index("Why other"):].strip().splitlines()
    assert title == f"Why other follows the batch (shortest of the paths, {len(rows)} steps)"


def test_a_default_without_anything_to_assign(tmp_path: Path) -> None:
    text = done("solve", *written(tmp_path, "assume(call.tokens <= 32)", '{"fixed": 7}'))
    assert "Default assignment\n empty: there is nothing to pin and no knob to set" in text


def test_a_solution_says_what_it_is(tmp_path: Path) -> None:
    program, _, deployment = written(tmp_path, "require(rows <= 2)")
    assert repr(detent.solve(program, deployment)) == (
        "<Solution own for mine: pins rows, other; 4 of 4 assignments legal>")


def test_sets_are_not_coloured_like_boxes() -> None:
    hues = [*TINTS, FIXED_TINT, OTHER_TINT]
    assert len(set(hues)) == len(hues)
    assert not set(hues) & {colour for pair in COLOURS.values() for colour in pair}


# ---- columns ---------------------------------------------------------------------------------------------------

WORDS = st.text("abc-_/., ×", max_size=30)


@given(WORDS, st.integers(1, 20))
def test_folding_loses_only_blanks(text: str, width: int) -> None:
    lines = folded(text, width).split("\n")
    assert max(map(len, lines)) <= max(width, 1)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_folding_breaks_words_behind_punctuation_only_where_it_must() -> None:
    assert folded("programs/fused_moe.py:21 is here", 24) == "programs/fused_moe.py:21\nis here"
    assert folded("llama-3.1-70b-tp4", 12) == "llama-3.1-\n70b-tp4"
    assert folded("abcdefgh", 3) == "abc\ndef\ngh"


@given(st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=6), st.integers(10, 90), st.data())
def test_widths_fit(columns: list[list[str]], available: int, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns)))
    widths, which = column_widths(columns, kept, (available, available + 5))
    assert sum(widths) <= (available, available + 5)[which] and min(widths) >= 1


def test_names_are_kept_and_texts_give_way() -> None:
    rows = (("llama-3.1-70b-tp4-h200", "some words that may be folded anywhere between them", "1,234 of 5,678"),)
    text = render([Table("T", ("deployment", "text", "count"), rows, right=("count",), whole=("deployment",))], 66)
    assert "llama-3.1-70b-tp4-h200" in text and "1,234 of 5,678" in text
    assert max(map(len, text.splitlines())) <= 66

"""A captured global is a literal constant that is kept by value, or an error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest
from lang_support import build, ops_of, program, unmark, write

from detent.dialects.selir.scalar import ConstantOp
from detent.lang.builder import build_module
from detent.lang.errors import CapturedGlobal
from detent.lang.load import load_program

LITERALS = {
    "X = 3": 3,
    "X = -1.5e3": -1500.0,
    "X = 'text' 'more'": "textmore",
    "X = None": None,
    "X: int = 3": 3,
    "X = Y = 3": 3,
    "X, Y = 1, 2": 1,
    "Y, (X, [Z]) = 1, (2, [3])": 2,
    "K = 1024\nX = 50 * K * K": 50 * 1024 * 1024,
    "K = 7\nX = (K // 2, K / 2, K % 2, K ** 2, K - 1, -K, not K)": (3, 3.5, 1, 49, 6, -7, False),
    "X = [1, [2, True], {'a': (None,)}]": (1, (2, True), {"a": (None,)}),
    "K = 2\nX = {K: K < 3, 'b': K == 2} | {9: K != 2}": {2: True, "b": True, 9: False},
    "K = 'k'\nX = f'{K}-{1 + 1}'": "k-2",
    "Z = [X for X in (1, 2)]\nX = 5": 5,
    "X = 5\ndef other():\n    X = 6\n    return X": 5,
    "X = 5\nclass Other:\n    X = 6": 5,
}

NOT_LITERAL = {
    "computed": ("X = len('abc')", "len('abc') is not made of literals"),
    "assigned twice": ("X = 1\nX = 2", "not assigned exactly once"),
    "augmented": ("X = 1\nX += 1", "not assigned exactly once"),
    "in a branch": ("if True:\n    X = 1", "not assigned exactly once"),
    "in a try": ("try:\n    X = 1\nfinally:\n    pass", "not assigned exactly once"),
    "loop variable": ("for X in (1,):\n    pass", "not assigned exactly once"),
    "with": ("import io\nwith io.StringIO() as X:\n    pass", "not assigned exactly once"),
    "unpacked from a dict": ("X, Y = {1: 2, 3: 4}", "not assigned from a tuple"),
    "starred": ("*X, Y = 1, 2", "not assigned by a plain assignment"),
    "walrus": ("Y = (X := 3)", "not assigned by a plain assignment"),
    "global in a function": ("X = 1\ndef set_it():\n    global X\n    X = 1", "not assigned exactly once"),
    "never assigned": ("globals()['X'] = 1", "not assigned exactly once"),
    "deleted and set": ("X = 1\ndel X\nglobals()['X'] = 1", "not assigned exactly once"),
    "set from outside": ("X = 1\nglobals()['X'] = 2", "it holds 2 now, not 1 as assigned"),
    "changed type": ("X = 1\nglobals()['X'] = True", "it holds True now, not 1"),
    "mutated": ("X = {1: 2}\nX[3] = 4", "it holds {1: 2, 3: 4} now"),
    "list grown": ("X = [1]\nX.append(2)", "it holds (1, 2) now"),
    "holds another object": ("X = 1\nglobals()['X'] = object()", "it is a object"),
    "name that is not one": ("import os\nY = os.sep\nX = Y", "os.sep is not made of literals"),
    "set": ("X = {1, 2}", "{1, 2} is not made of literals"),
    "bytes": ("X = b'x'", "it is a bytes"),
    "bits": ("X = 1 << 3", "1 << 3 is not made of literals"),
    "double star": ("Y = {1: 2}\nX = {**Y}", "{**Y} is not made of literals"),
    "enum": ("import enum\nclass E(enum.Enum):\n    A = 1\nX = E.A", "E.A is not made of literals"),
    "star import": ("from consts import *", "not assigned exactly once"),
    "beside an import": ("from consts import X\nX = 3", "not assigned exactly once"),
}


@pytest.mark.parametrize("text", LITERALS)
def test_literal_constants_are_captured(text: str, tmp_path: Path) -> None:
    built = build(tmp_path, program("return {'x': len((X, 1))}", text))
    captured = {name: value for module, name, value in built.globals if module == "choose"}
    assert repr(captured["X"]) == repr(LITERALS[text])
    (op,) = [op for op in ops_of(built, ConstantOp) if op.res.name_hint == "X"]
    assert repr(op.value.data) == repr(LITERALS[text])


@pytest.mark.parametrize("case", NOT_LITERAL)
def test_anything_else_is_refused(case: str, tmp_path: Path) -> None:
    (tmp_path / "consts.py").write_text("X = 3\n")
    before, reason = NOT_LITERAL[case]
    text, marked = unmark(program("return {'x': «X»}", before))
    path = write(tmp_path, text)
    with pytest.raises(CapturedGlobal) as caught:
        build_module(load_program(path))
    assert caught.value.span == marked._replace(file=str(path))
    assert caught.value.message.startswith("'X' is not a literal constant: ")
    assert reason in caught.value.message
    assert "deployment fact" in caught.value.help


def test_constants_that_a_constant_is_made_of_are_captured_too(tmp_path: Path) -> None:
    built = build(tmp_path, program("return {'x': X}", "K = 2\nUNUSED = 9\nX = (K, 3)"))
    assert set(built.globals) == {("choose", "K", 2), ("choose", "X", (2, 3))}


def test_a_change_after_loading_is_seen(tmp_path: Path) -> None:
    function = load_program(write(tmp_path, program("return {'x': X}", "X = 1")))
    build_module(function)
    function.__globals__["X"] = 5
    with pytest.raises(CapturedGlobal, match="it holds 5 now, not 1 as assigned"):
        build_module(function)


def test_imported_constants_follow_the_rule_of_their_module(tmp_path: Path) -> None:
    (tmp_path / "consts.py").write_text("from more import DEEP as FAR\nNEAR = 4\nBAD = len('x')\n")
    (tmp_path / "more.py").write_text("DEEP = (1, 2)\n")
    before = "import consts\nfrom consts import NEAR as N, FAR, BAD"
    built = build(tmp_path, program("return {'x': N, 'y': FAR[0], 'z': consts.NEAR}", before))
    assert set(built.globals) == {("consts", "NEAR", 4), ("more", "DEEP", (1, 2))}
    assert [Path(file).name for file in built.files] == ["choose.py", "consts.py", "more.py"]
    with pytest.raises(CapturedGlobal, match="'BAD' is not a literal constant: len"):
        build(tmp_path, program("return {'x': BAD}", before))


def test_constants_of_packages_are_found(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import A\n")
    (package / "inner.py").write_text("from . import deep\nfrom .deep import B\nA = 3\n")
    (package / "deep.py").write_text("B = 4\n")
    body = "return {'x': A, 'y': inner.B, 'z': inner.deep.B}"
    built = build(tmp_path, program(body, "from pack import A, inner"))
    assert set(built.globals) == {("pack.inner", "A", 3), ("pack.deep", "B", 4)}


def test_a_constant_of_a_helper_is_that_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("LIMIT = 5\ndef f(x, most=LIMIT):\n    return min(x, most, LIMIT)\n")
    built = build(tmp_path, program("return {'x': f(LIMIT)}", "from other import f\nLIMIT = 7"))
    assert set(built.globals) == {("other", "LIMIT", 5), ("choose", "LIMIT", 7)}


def test_messages_and_defaults_count_as_captured(tmp_path: Path) -> None:
    before = "A = 'text'\nB = 2\ndef f(x, y=B):\n    return x + y"
    built = build(tmp_path, program("require(facts.on, A)\nreturn {'x': f(1)}", before))
    assert set(built.globals) == {("choose", "A", "text"), ("choose", "B", 2)}


def test_constants_of_modules_without_text_are_refused(tmp_path: Path) -> None:
    text, marked = unmark(program("return {'x': «math.pi»}"))
    path = write(tmp_path, text)
    with pytest.raises(CapturedGlobal, match="no Python text") as caught:
        build_module(load_program(path))
    assert caught.value.span == marked._replace(file=str(path))


def test_variables_of_an_enclosing_function_are_refused(tmp_path: Path) -> None:
    text = program("return {'x': «limit»}")
    header, _, selection = text.partition("@selection")
    nested = "\n".join(f"    {line}" for line in f"@selection{selection}".rstrip().split("\n"))
    plain, marked = unmark(f"{header}\ndef make():\n    limit = 3\n{nested}\n    return choose\nmade = make()\n")
    path = write(tmp_path, plain)
    with pytest.raises(CapturedGlobal, match="'limit' is a variable of an enclosing function") as caught:
        build_module(load_program(path))
    assert caught.value.span == marked._replace(file=str(path))

"""Programs that nest beyond Python's own limits end in one error that says where and that they are to be split."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import refused
from lang_support import program, write

from detent.lang.builder import build_module
from detent.lang.errors import ProgramFailed, UnsupportedSyntax
from detent.lang.load import load_program

DEEP = {
    "sum": " + ".join(["facts.n"] * 3_000),
    "unary": "-" * 3_000 + "facts.n",
    "ternary": "".join(f"{n} if facts.n < {n} else " for n in range(1_500)) + "0",
    "fields": "facts" + ".n" * 3_000,
    "short sum": " + ".join(["facts.n"] * 500),  # Python itself can still read this one
    "and": " and ".join(f"facts.n > {n}" for n in range(600)),
}


@pytest.mark.parametrize("name", DEEP)
def test_the_deep_statement_is_named(name: str, tmp_path: Path) -> None:
    text = program(f"x = {{'a': facts.n}}\ny = {DEEP[name]}\nreturn {{'x': y}}")
    line = next(number for number, row in enumerate(text.split("\n"), 1) if row.startswith("    y = "))
    with pytest.raises(UnsupportedSyntax, match="nests too deeply") as caught:
        build_module(load_program(write(tmp_path, text)))
    assert caught.value.help.startswith("split it")
    assert caught.value.span is not None
    if name != "and":  # short as an expression: what is deep is what it becomes
        assert caught.value.span.line == line


@pytest.mark.parametrize("name", DEEP)
def test_every_command_ends_in_one_line(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, program(f"return {{'x': {DEEP[name]}}}"))
    (tmp_path / "mine.toml").write_text("[facts]\nn = 7\nm = 3\non = true\nratio = 0.5\nword = 'w'\n", encoding="utf-8")
    for command in ("solve", "explain", "lint"):
        line = refused(command, f"{path}:choose", "-d", tmp_path / "mine.toml")
        assert "choose.py" in line and "nests too deeply" in line and "split it" in line


def test_a_deep_helper_is_the_one_to_blame(tmp_path: Path) -> None:
    text = program("return {'x': f(facts.n)}", f"def f(n):\n    m = n\n    return {' + '.join(['m'] * 500)}")
    with pytest.raises(UnsupportedSyntax, match="'f' nests too deeply") as caught:
        build_module(load_program(write(tmp_path, text)))
    assert caught.value.span is not None and caught.value.span.text.startswith("return m + m")


def test_a_deep_module_that_is_imported(tmp_path: Path) -> None:
    write(tmp_path, f"n = 1\nx = {' + '.join(['n'] * 5_000)}\n", "beside.py")
    path = write(tmp_path, "import beside\n")
    with pytest.raises(ProgramFailed, match="nests too deeply") as caught:
        load_program(path)
    assert caught.value.span is not None and caught.value.span.text == "import beside"
    assert caught.value.help.startswith("split it")

"""What ``detent-opt`` says about a wrong command line or file: one line, with the place and the remedy."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from detent.tools import opt

INVALID = """\
// a comment
selir.program "types" family "demo" {
  %b = selir.input "b" runtime : !selir.int
  %f = selir.constant <1.0> : !selir.float
  %s = selir.add %b, %f : (!selir.int, !selir.float) -> !selir.int
  selir.points ["s"] %s : !selir.int
}
"""


def refused(*arguments: str) -> str:
    """The one line of a run that must fail and print nothing else."""
    out, err = io.StringIO(), io.StringIO()
    assert opt.run(arguments, out, err) == 1
    (line,) = err.getvalue().splitlines()
    assert out.getvalue() == "" and line.startswith("error: ")
    return line.removeprefix("error: ")


def test_a_wrong_command_line() -> None:
    assert refused("--bad") == "unrecognized arguments: --bad; see detent-opt --help"
    assert "selir-python" in refused("-t", "nope")
    line = refused("-p", "selir-ds")
    assert line.startswith("unknown pass 'selir-ds'; did you mean 'selir-dce'? known: selir-partial-eval, ")
    assert line.endswith(", canonicalize, cse, dce")


@pytest.mark.parametrize(("pipeline", "message"), [
    ("builtin.module(dce", "a '(' has no ')'"), ("dce)", "a ')' has no '('"), ("builtin.module(a(b))", "do not nest")])
def test_parentheses_of_a_pipeline(pipeline: str, message: str) -> None:
    assert message in refused("--pass-pipeline", pipeline)


def test_files_that_are_no_selir(tmp_path: Path) -> None:
    binary, other = tmp_path / "a.mlir", tmp_path / "a.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    other.write_text("", encoding="utf-8")
    assert refused(str(binary)).startswith(f"{binary}: is not text")
    assert refused(str(other)).startswith(f"{other}: unknown kind of file; its name ends in .mlir or .py")


def test_a_verifier_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text(INVALID, encoding="utf-8")
    assert refused(str(path)).startswith(f"{path}:5:")
    path.write_text(f'"test.op"() : () -> ()\n// -----\n{INVALID}', encoding="utf-8")
    assert refused("--split-input-file", str(path), "-o", str(tmp_path / "out")).startswith(f"{path}:7:")


def test_a_program_that_nests_too_deeply_to_print(tmp_path: Path) -> None:
    path, deep = tmp_path / "a.mlir", 2_000
    path.write_text('"test.op"() ({\n' * deep + "}) : () -> ()\n" * deep, encoding="utf-8")
    assert "nests too deeply; split it" in refused(str(path))


def test_names_of_passes_stay_whole_in_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    assert opt.run(["--help"], out, out) == 0
    words = out.getvalue().split()
    assert "selir-partial-eval," in words and "selir-check-failures," in words

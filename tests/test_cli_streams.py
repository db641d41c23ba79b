"""Standard output that is full, closed, narrow or printed into by a program; interrupts, also while importing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest
from cli_support import DEPLOYMENT, done, invoke

from detent.cli import main
from detent.tools import opt

SELIR = '"test.op"() : () -> ()\n'
NOISY = """\
from detent.lang import Unpinnable, assume, record, selection

print("imported")

@record
class Call:
    tokens: Unpinnable[int]

@selection(family="noisy")
def noisy(call: Call):
    assume(1 <= call.tokens <= 8)
    return {"rows": 4 if call.tokens > 4 else 1}

def row(given):
    print("a row")
    return (4 if given["tokens"] > 4 else 1,)

def behaviour(points, facts):
    print("behaves")
    return points["rows"]

CONFORM = ((("tokens",), ("rows",), row),)
"""


def run(arguments: list[str], root: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=root, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize(("module", "arguments", "code"), [
    ("detent", ["programs"], 2), ("detent", ["programs", "--json"], 2), ("detent.tools.opt", ["{ir}"], 1)])
def test_a_full_or_closed_standard_output_is_one_line(module: str, arguments: list[str], code: int, root: Path,
                                                      tmp_path: Path) -> None:
    ir = tmp_path / "a.mlir"
    ir.write_text(SELIR, encoding="utf-8")
    command = ["-m", module, *(argument.format(ir=ir) for argument in arguments)]
    with open("/dev/full", "w", encoding="utf-8") as full:
        filled = run(command, root, stdout=full)
    assert (filled.returncode, filled.stderr) == (
        code, "error: standard output: No space left on device; write to where there is room\n")
    closed = run(command, root, preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (
        code, "error: standard output is closed; redirect it to a file, or to /dev/null\n")


@pytest.fixture
def noisy(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "noisy.py").write_text(NOISY, encoding="utf-8")
    (tmp_path / "mine.toml").write_text("", encoding="utf-8")
    (tmp_path / "rows.csv").write_text("tokens,->rows\n3,1\n", encoding="utf-8")
    return f"{tmp_path / 'noisy.py'}:noisy", str(tmp_path / "mine.toml")


def test_what_a_program_prints_is_no_answer(noisy: tuple[str, str], tmp_path: Path) -> None:
    program, deployment = noisy
    solved = invoke("solve", program, "-d", deployment, "--json")
    assert json.loads(solved.stdout)["legal"] == 2 and "imported" in solved.stderr
    conformed = invoke("conform", program, tmp_path / "rows.csv", "--json")
    assert json.loads(conformed.stdout)["mismatches"] == 0 and "a row" in conformed.stderr
    linted = invoke("lint", program, "-d", deployment, "--json")
    assert json.loads(linted.stdout)["program"] == program and "behaves" in linted.stderr


def test_columns_sets_the_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = ("explain", "moe", "-d", DEPLOYMENT)
    widths = {}
    for columns in (None, "72", "120", "wide"):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        widths[columns] = max(map(len, done(*explain).splitlines()))
    assert widths[None] == widths["wide"] <= 100 < widths["120"] <= 120 and widths["72"] <= 72


def test_names_stay_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = done("run").splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" llama-3.1-70b-tp4-h200 ") for line in lines)


class Interrupting(MetaPathFinder):
    """Ctrl-C at the moment when a module is looked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == self.name:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("command", "name"), [(main, "detent.cli.app"), (opt.main, "detent.tools.driver")])
def test_an_interrupt_while_importing(command: Any, name: str, monkeypatch: pytest.MonkeyPatch,
                                      capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(name), *sys.meta_path])
    assert command(["--help"]) == 130
    assert capfd.readouterr().err == "interrupted\n"


def test_detent_opt_imports_nothing_heavy(root: Path) -> None:
    script = "import sys, detent.tools.opt; print([m for m in ('xdsl', 'click', 'rich') if m in sys.modules])"
    assert run(["-c", script], root, stdout=subprocess.PIPE).stdout == "[]\n"

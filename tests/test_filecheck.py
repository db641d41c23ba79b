"""Runs every RUN line of tests/filecheck in this process: what lit does, without starting Python for each stage.

A RUN line is a pipeline of ``detent-opt`` and ``filecheck``, each stage with an optional leading ``not`` and
trailing ``2>&1``. ``%s`` is the test file and ``%t`` a scratch path. Every stage must succeed (or fail, after ``not``).
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from filecheck.matcher import Matcher
from filecheck.options import parse_argv_options

from detent.tools import opt
from detent.universe import PREFIX, UNIVERSE

FOLDER = Path(__file__).parent / "filecheck"
FILES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".mlir", ".py"))


def run_lines(text: str) -> list[str]:
    """The commands of a test file, with lines that end in a backslash joined to the next RUN line."""
    lines = re.findall(r"^\s*(?://|#)\s*RUN:\s*(.*?)\s*$", text, re.MULTILINE)
    return re.sub(r"\\\n", " ", "\n".join(lines)).splitlines()


def stages(command: str, path: Path, scratch: Path) -> list[list[str]]:
    result: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word == "|":
            result.append([])
        else:
            result[-1].append(word.replace("%s", str(path)).replace("%t", str(scratch)))
    return result


def run_stage(words: list[str], stdin: str) -> tuple[int, str, str]:
    """Exit code, what goes into the pipe, and what does not."""
    out, err = io.StringIO(), io.StringIO()
    if words[-1] == "2>&1":
        words, err = words[:-1], out
    with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")):
        match words:
            case ["detent-opt", *arguments]:
                code = opt.run(arguments, out, err)
            case ["filecheck", *arguments]:
                with redirect_stdout(out), redirect_stderr(err):
                    code = Matcher.from_opts(parse_argv_options(["filecheck", *arguments])).run()
            case _:
                raise ValueError(f"a RUN line may use detent-opt and filecheck, not {shlex.join(words)}")
    return code, out.getvalue(), err.getvalue()


def execute(command: str, path: Path, scratch: Path) -> None:
    text = ""
    for words in stages(command, path, scratch):
        wanted_failure = words[0] == "not"
        code, text, rest = run_stage(words[wanted_failure:], text)
        assert (code != 0) == wanted_failure, f"{shlex.join(words)}\nexit code {code}\n{rest}{text}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(FOLDER).as_posix())
def test_file(path: Path, tmp_path: Path) -> None:
    commands = run_lines(path.read_text(encoding="utf-8"))
    assert commands, f"{path} has no RUN line"
    for command in commands:
        execute(command, path, tmp_path / "t")


@pytest.mark.parametrize(
    ("run", "body"),
    [
        ("detent-opt %s | filecheck %s", "// CHECK: nowhere"),
        ("not detent-opt %s", ""),
        ("detent-opt %s -p nonsense", ""),
        ("detent-opt %s -p nonsense | filecheck %s", "// CHECK-NOT: module"),
        ("not detent-opt %s -p nonsense | filecheck %s", "// CHECK: error: Unrecognized"),  # stderr is not in the pipe
    ],
)
def test_a_wrong_file_fails(run: str, body: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text(f'// RUN: {run}\n{body}\n"test.op"() : () -> ()\n', encoding="utf-8")
    with pytest.raises(AssertionError, match="exit code"):
        test_file(path, tmp_path)


def test_output_file_is_written_only_on_success(tmp_path: Path) -> None:
    good, bad, output = tmp_path / "good.mlir", tmp_path / "bad.mlir", tmp_path / "out.mlir"
    good.write_text('"test.op"() : () -> ()\n', encoding="utf-8")
    bad.write_text('"test.op"(\n', encoding="utf-8")
    streams = io.StringIO(), io.StringIO()
    assert opt.run([str(bad), "-o", str(output)], *streams) == 1
    assert not output.exists()
    assert opt.run([str(good), "-o", str(output)], *streams) == 0
    assert '"test.op"' in output.read_text(encoding="utf-8")


LOADERS: dict[str, Callable[[], Any]] = {
    **UNIVERSE.all_dialects,
    **UNIVERSE.all_passes,
    **UNIVERSE.all_targets,
    **UNIVERSE.all_frontends,
}


@pytest.mark.parametrize("name", LOADERS)
def test_registered_name_is_the_loaded_name(name: str) -> None:
    assert LOADERS[name]().name == name


def test_every_pass_is_registered_and_has_a_file_of_its_name(root: Path) -> None:
    written = {
        name
        for path in (root / "passes").glob("*.py")
        for name in re.findall(r'^    name = "(selir-[\w-]+)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert written == set(UNIVERSE.all_passes)
    stems = {path.stem for path in (FOLDER / "passes").iterdir()}
    assert {name.removeprefix(PREFIX).replace("-", "_") for name in written} <= stems

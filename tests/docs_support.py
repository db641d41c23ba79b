"""Runs the fenced blocks of a document in order, in one scratch folder: what the pages show is what happens.

The info string behind a fence's language says what is checked::

    python file=norm.py     the block is written to that file (any language may)
    python part-of=FILE     the block stands in that file just so
    python check            the block is executed; blocks of a page share their variables
    pycon check             the block is a session: what it prints must be as shown (doctest; ... stands for anything)
    console check           commands behind "$ " with their output; ... stands for anything, a line of it for lines
    python examples         paragraphs of statements: each is solved inside the page's frame (``file=frame.py``) and
                            compared with plain Python
    python refused          the same, but each must fail with the message in its first line's comment
    mlir check              the block is parsed, verified, printed and read back
    mlir after=PASSES       what the last mlir block becomes under these passes (with of=FILE: what that file becomes)
"""

from __future__ import annotations

import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import detent
from detent.cli import main as detent_command
from detent.dialects.selir.source import SourceError
from detent.lang import report
from detent.lang.load import load_program
from detent.passes.errors import AnalysisError
from detent.runtime import load_deployment
from detent.tools import opt

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
                   re.MULTILINE | re.DOTALL)
WORD = re.compile(r"(?:\{[^}]*\}|\S)+")
INPUTS = [(tokens, in_graph, seed) for tokens in (1, 5, 64, 100, 8192) for in_graph in (False, True) for seed in (0, 3)]
"""Where the examples are compared: values of the frame's inputs."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is where its text starts in the page."""

    language: str
    info: tuple[str, ...]
    text: str
    line: int

    def option(self, name: str) -> str | None:
        """The value of ``name=value`` in the info string."""
        return next((word.partition("=")[2] for word in self.info if word.startswith(f"{name}=")), None)


def blocks_of(page: str) -> list[Block]:
    return [Block(found["language"], tuple(WORD.findall(found["info"])), dedent(found["text"]),
                  page.count("\n", 0, found.start("text")) + 1) for found in FENCE.finditer(page)]


def matches(shown: str, real: str) -> bool:
    """Whether an output is as a page shows it, whatever the width of its columns; ``...`` stands for anything."""
    pattern = []
    for line in shown.strip("\n").split("\n"):
        if line.strip() == "...":
            pattern.append(r"(?:.*\n)*?")
        else:
            pattern.append(".*".join(re.escape(squeezed(part)) for part in re.split(r"\.\.\.", squeezed(line))) + "\n")
    text = "".join(f"{squeezed(line)}\n" for line in real.strip("\n").split("\n"))
    return re.fullmatch("".join(pattern), text) is not None


def squeezed(line: str) -> str:
    """A line without leading and trailing spaces, with single ones inside, and without what only draws a table."""
    return re.sub(r"\s+", " ", line).strip()


@dataclass
class Page:
    """The state that a page's blocks share."""

    folder: Path
    variables: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    mlir: str = ""
    solved: list[str] = field(default_factory=list)

    def run(self, block: Block) -> None:
        """Check one block; raises AssertionError that shows what is different."""
        name = block.option("file")
        if name is not None:
            (self.folder / name).write_text(block.text, encoding="utf-8")
            if block.language == "mlir":
                self.mlir = block.text
            return
        whole = block.option("part-of")
        if whole is not None:
            assert block.text in (self.folder / whole).read_text(encoding="utf-8"), f"{whole} reads differently"
            return
        after = block.option("after")
        if after is not None:
            self.after(after, block.option("of"), block.text)
            return
        kind = block.info[0] if block.info else ""
        steps: dict[tuple[str, str], Callable[[str], None]] = {
            ("python", "check"): self.execute,
            ("python", "examples"): self.examples,
            ("python", "refused"): self.refused,
            ("pycon", "check"): self.session,
            ("console", "check"): self.console,
            ("mlir", "check"): self.parse,
        }
        assert (block.language, kind) in steps, f"a {block.language} block that nothing checks: {block.info}"
        steps[block.language, kind](block.text)

    # ---- Python ------------------------------------------------------------------------------------------------

    def execute(self, text: str) -> None:
        exec(compile(text, "<page>", "exec"), self.variables)

    def session(self, text: str) -> None:
        test = doctest.DocTestParser().get_doctest(text, self.variables, "page", None, 0)
        out = io.StringIO()
        runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
        runner.run(test, out=out.write, clear_globs=False)
        self.variables.update(test.globs)
        assert not out.getvalue(), out.getvalue()

    def framed(self, example: str) -> str:
        """The path of a program with the example's statements in the page's frame."""
        frame = (self.folder / "frame.py").read_text(encoding="utf-8")
        (line,) = [line for line in frame.split("\n") if line.strip() == "..."]
        indent = line[: len(line) - len(line.lstrip())]
        body = "\n".join(indent + line for line in example.strip("\n").split("\n"))
        path = self.folder / f"example{len(self.solved)}.py"
        path.write_text(frame.replace(line, body), encoding="utf-8")
        self.solved.append(example)
        return f"{path}:examples"

    def examples(self, text: str) -> None:
        for example in paragraphs(text):
            program = self.framed(example)
            try:
                select = detent.solve(program, "frame.toml").unpinned()
            except (SourceError, AnalysisError) as error:
                raise AssertionError(f"{example}\n{error}") from error
            function = load_program(program)
            facts = function.__globals__["Facts"](**load_deployment("frame.toml").facts["facts"])
            for inputs in INPUTS:
                call = function.__globals__["Call"](**dict(zip(select.inputs, inputs, strict=True)))
                with report():
                    assert function(facts, call) == dict(select(*inputs)[0]), f"{example}\nat {inputs}"

    def refused(self, text: str) -> None:
        for example in paragraphs(text):
            first, _, body = example.partition("\n")
            try:
                detent.solve(self.framed(body), "frame.toml")
            except (SourceError, AnalysisError) as error:
                assert first.removeprefix("# ") in error.message, f"{example}\n{error.message}"
            else:
                raise AssertionError(f"{example}\nis not refused")

    # ---- commands ----------------------------------------------------------------------------------------------

    def console(self, text: str) -> None:
        for command, shown in commands(text):
            code, real = self.command(shlex.split(command))
            assert matches(shown, real), f"$ {command}\n{real}\nshown:\n{shown}"
            assert (code != 0) == ("error: " in shown), f"$ {command}\nexit code {code}"

    def command(self, words: list[str]) -> tuple[int, str]:
        """Exit code and everything that a command prints; Detent's own run in this process."""
        out = io.StringIO()
        match words:
            case ["detent", *arguments]:
                with redirect_stdout(out), redirect_stderr(out):
                    code = detent_command(arguments)
            case ["detent-opt", *arguments]:
                code = opt.run(arguments, out, out)
            case ["cat", name]:
                return 0, (self.folder / name).read_text(encoding="utf-8")
            case ["python", *arguments]:
                done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=self.folder)
                return done.returncode, done.stdout + done.stderr
            case _:
                raise AssertionError(f"a page may run detent, detent-opt, python and cat, not {shlex.join(words)}")
        return code, out.getvalue()

    # ---- SelIR -------------------------------------------------------------------------------------------------

    def opt(self, text: str, *arguments: str) -> str:
        """What ``detent-opt`` prints for a text."""
        path = self.folder / "block.mlir"
        path.write_text(text, encoding="utf-8")
        return printed(str(path), *arguments)

    def parse(self, text: str) -> None:
        self.mlir = text
        once = self.opt(text)
        assert self.opt(once) == once
        assert self.opt(self.opt(text, "--print-op-generic")) == once

    def after(self, passes: str, file: str | None, shown: str) -> None:
        self.mlir = self.opt(self.mlir, "-p", passes) if file is None else printed(file, "-p", passes)
        real = without_module(self.mlir)
        assert matches(without_comments(shown), real), f"{passes}\n{real}"


def printed(*arguments: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    assert opt.run(arguments, out, err) == 0, err.getvalue()
    return out.getvalue()


def paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip("\n")) if part]


def commands(text: str) -> list[tuple[str, str]]:
    """Commands, continued lines joined, each with the output shown below it."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.replace("\\\n", " ").partition("\n")
        found.append((command, shown))
    return found


def without_module(text: str) -> str:
    lines = text.strip("\n").split("\n")
    if lines[0] == "builtin.module {":
        lines = [line.removeprefix("  ") for line in lines[1:-1]]
    return "\n".join(lines)


def without_comments(text: str) -> str:
    return re.sub(r"\s*// .*$", "", text, flags=re.MULTILINE)

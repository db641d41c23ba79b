"""The targets of ``detent-opt``: Python, DOT, Mermaid and HTML after any pass, and one line where none fits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from detent.runtime.selector import load_code
from detent.tools.opt import run

PROGRAM = """\
from detent.lang import Unpinnable, assume, knob, record, require, selection

@record
class Layer:
    hidden: int

@record
class Call:
    tokens: Unpinnable[int]

@selection(family="norm")
def norm(layer: Layer, call: Call):
    assume(1 <= call.tokens <= 4096)
    if call.tokens < 256:
        threads = 1024
    else:
        threads = 256
    unroll = knob("unroll", (1, 2, 4), default=1)
    require(threads * unroll <= 2048, "a block covers at most 2048 elements")
    return {"threads": threads, "unroll": unroll, "vector": 8 if layer.hidden % 8 == 0 else 1}
"""
STEPS = ("selir-control-dependence", "selir-simplify", "selir-dce", "selir-min-cut", "selir-value-ranges")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text("[layer]\nhidden = 4096\n", encoding="utf-8")
    path = tmp_path / "norm.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def printed(program: Path, steps: int, target: str) -> str:
    """The target's text after partial evaluation and the first ``steps`` of STEPS."""
    passes = [f'selir-partial-eval{{deployment="{program.with_name("mine.toml")}"}}', *STEPS[:steps]]
    out, err = io.StringIO(), io.StringIO()
    code = run([str(program), "-p", ",".join(passes), "-t", target], out, err)
    assert (code, err.getvalue()) == (0, "")
    return out.getvalue()


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_python_after_every_pass(program: Path, steps: int) -> None:
    source = printed(program, steps, "selir-python")
    select = load_code(compile(source, "<selector>", "exec"))
    if "selir-min-cut" not in STEPS[:steps]:
        assert select(100) == ({"threads": 1024, "unroll": 1, "vector": 8}, [])
        assert select(300, unroll=4) == ({"threads": 256, "unroll": 4, "vector": 8}, [])
        assert select(100, unroll=4) == ({"threads": 1024, "unroll": 4, "vector": 8}, [1])
    else:
        # The default assignment: most inputs have 256 threads.
        assert select(100) == select(300) == {"threads": 256, "unroll": 1, "vector": 8}


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_views_after_every_pass(program: Path, steps: int) -> None:
    assert printed(program, steps, "selir-dot").startswith('digraph "norm"')
    flowchart = printed(program, steps, "selir-mermaid")
    assert "flowchart LR" in flowchart
    assert (":::pin" in flowchart) == ("selir-min-cut" in STEPS[:steps])
    assert (":::moving" in flowchart) != (":::pin" in flowchart)
    assert printed(program, steps, "selir-html").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("target", ["selir-python", "selir-dot", "selir-mermaid", "selir-html"])
def test_an_unbound_program_is_one_line(program: Path, target: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run([str(program), "-t", target], out, err) == 1
    (line,) = err.getvalue().splitlines()
    assert line.startswith("error: ") and "norm.py:12" in line and "run selir-partial-eval" in line


def test_a_module_without_a_program_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "empty.mlir"
    path.write_text("builtin.module {}\n", encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    assert run([str(path), "-t", "selir-python"], out, err) == 1
    assert err.getvalue() == "error: this target prints one selir.program; the module has 0: none\n"


def test_no_legal_assignment_is_one_line(program: Path) -> None:
    program.write_text(PROGRAM.replace("<= 2048", "<= 10"), encoding="utf-8")
    passes = [f'selir-partial-eval{{deployment="{program.with_name("mine.toml")}"}}', *STEPS]
    out, err = io.StringIO(), io.StringIO()
    assert run([str(program), "-p", ",".join(passes), "-t", "selir-python"], out, err) == 1
    assert err.getvalue().startswith("error: norm: no assignment of the pins is legal")

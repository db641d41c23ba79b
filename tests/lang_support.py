"""Programs as text for the front end's tests: written to a file, loaded, built, bound, run as Python."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from detent.dialects.selir.dialect import SELIR
from detent.dialects.selir.scalar import ConstantOp
from detent.dialects.selir.source import Span
from detent.dialects.selir.structure import PointsOp, ProgramOp
from detent.dialects.selir.unbound import FuncOp
from detent.lang.builder import Built, build_module
from detent.lang.load import load_program
from detent.passes.partial_eval import Binding, bind

HEADER = """\
from __future__ import annotations
import math
from detent.lang import F32, Request, Runtime, Unpinnable, assume, ceil, f32, floor, knob, record, require, selection

@record
class Facts:
    n: int
    m: int
    on: bool
    ratio: float
    word: str
    table: dict[int, dict[str, int]]
    missing: int | None

@record
class Call:
    tokens: Unpinnable[int]
    graph: Runtime[bool]
"""

FACTS: dict[str, Any] = {
    "n": 7,
    "m": 3,
    "on": True,
    "ratio": 0.5,
    "word": "wide",
    "table": {1: {"a": 16, "b": 2}, 8: {"a": 32, "b": 4}, 64: {"a": 64, "b": 8}},
    "missing": None,
}


def program(body: str, before: str = "", parameters: str = "facts: Facts") -> str:
    """A file with one selection, ``choose``, whose statements are ``body``, behind the lines ``before``."""
    lines = "\n".join(f"    {line}" if line else "" for line in dedent(body).strip("\n").split("\n"))
    return f'{HEADER}\n{dedent(before)}\n@selection(family="test")\ndef choose({parameters}):\n{lines}\n'


def write(folder: Path, text: str, name: str = "choose.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def build(folder: Path, text: str, name: str = "choose.py") -> Built:
    """The SelIR of the only selection in a text, checked by xDSL's own verifier."""
    built = build_module(load_program(write(folder, text, name)))
    built.module.verify()
    return built


def unmark(text: str) -> tuple[str, Span]:
    """A text without its « and », and the span that they were around (its file is left empty)."""
    start, end = text.index("«"), text.index("»")
    line = text.count("\n", 0, start) + 1
    column = start - (text.rfind("\n", 0, start) + 1) + 1
    return text.replace("«", "").replace("»", ""), Span("", line, column, text[start + 1 : end])


def bound_points(built: Built, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The selection points that facts alone decide, by partial evaluation."""
    ops = list(built.module.ops)
    functions = {op.sym_name.data: op for op in ops if isinstance(op, FuncOp)}
    (unbound,) = [op for op in ops if isinstance(op, ProgramOp)]
    points = bind(unbound, functions, Binding({"facts": facts})).block.last_op
    assert isinstance(points, PointsOp)
    found: dict[str, Any] = {}
    for name, value in zip(points.names, points.values, strict=True):
        assert isinstance(value.owner, ConstantOp), "facts decide every point"
        found[name.data] = value.owner.value.data
    return found


def printed(module: ModuleOp, *, generic: bool = False, locations: bool = False) -> str:
    stream = io.StringIO()
    Printer(stream, print_generic_format=generic, print_debuginfo=locations).print_op(module)
    return stream.getvalue()


def parsed(text: str) -> ModuleOp:
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(SELIR)
    return Parser(context, text).parse_module()


def ops_of(built: Built, kind: type[Any]) -> list[Any]:
    return [op for op in built.module.walk() if isinstance(op, kind)]


def names_of(op: Operation) -> list[str | None]:
    return [result.name_hint for result in op.results]

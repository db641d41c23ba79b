"""What ``detent-opt`` and stock ``xdsl-opt`` print besides SelIR: ``-t selir-python``, ``selir-dot``,
``selir-mermaid`` and ``selir-html``.

All take a module with one program that is bound, after whichever pass: branches that are left are turned into
selects of a copy first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException
from xdsl.utils.target import Target

from detent.dialects.selir.structure import ProgramOp
from detent.passes.control_dependence import flatten_branches
from detent.passes.errors import AnalysisError
from detent.passes.flatten import Flattened
from detent.passes.graph import Graph
from detent.passes.input_domains import input_domains
from detent.passes.lowering import pinned_template, unpinned_source
from detent.passes.rules import Options
from detent.passes.sweep import programs_of, value_sets
from detent.solver.compiled import Pinned, failing_nodes, judge_program
from detent.solver.defaults import default_of
from detent.solver.document import checked, name_of


def straight_line(module: ModuleOp) -> ProgramOp:
    """A copy of the module's one program without branches. Raises DiagnosticException if there are more or none."""
    programs = programs_of(module)
    if len(programs) != 1:
        found = ", ".join(program.sym_name.data for program in programs) or "none"
        raise DiagnosticException(f"this target prints one selir.program; the module has {len(programs)}: {found}")
    program = programs[0].clone()
    flatten_branches(program.block)
    return program


def graph_of(module: ModuleOp) -> Graph:
    """The graph of the module's one program. Raises DiagnosticException if it is not bound."""
    try:
        return Flattened(straight_line(module)).graph
    except AnalysisError as error:
        raise DiagnosticException(str(error)) from None


def selector_source(module: ModuleOp) -> str:
    """Python source of the program's selector.

    With pins: under the default assignment, as the solver would compile it. Without: the program as it stands,
    every operation in its total form, because nothing is proved half-way through the passes.
    """
    try:
        program = straight_line(module)
        graph = Flattened(program).graph
        if not graph.of_kind("pin"):
            return unpinned_source(graph, range(len(graph)))
        return _pinned(program)
    except AnalysisError as error:
        raise DiagnosticException(str(error)) from None


def _pinned(program: ProgramOp) -> str:
    sets = value_sets(program, Options())
    flat = Flattened(program)
    graph, fails = flat.graph, failing_nodes(flat, sets)
    compiled = judge_program(Pinned(program, flat, input_domains(graph), sets, [False] * len(graph), fails, [],
                                    flat.points_location, {}))
    default = default_of(compiled)
    if default is None:
        raise DiagnosticException(f"{graph.name}: no assignment of the pins is legal; run selir-value-ranges to see "
                                  "their candidates")
    source = pinned_template(graph, checked(compiled), fails)
    for node, value in default.items():
        source = source.replace(f"⟦{name_of(graph, node)}⟧", repr(value))
    return source


@dataclass(frozen=True)
class PythonTarget(Target):
    """The selector: under the default assignment if there are pins, else the program as it is."""

    name = "selir-python"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        output.write(selector_source(module))


@dataclass(frozen=True)
class DotTarget(Target):
    """The cut view for Graphviz."""

    name = "selir-dot"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from detent.solver.views.dot import dot

        output.write(dot(None, graph_of(module)))


@dataclass(frozen=True)
class MermaidTarget(Target):
    """The cut view as a Mermaid flowchart."""

    name = "selir-mermaid"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from detent.solver.views.mermaid import mermaid

        output.write(mermaid(None, graph_of(module)))


@dataclass(frozen=True)
class HtmlTarget(Target):
    """The whole graph as one page."""

    name = "selir-html"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from detent.solver.views.page import page

        output.write(page(None, graph_of(module)))

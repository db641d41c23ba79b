"""``selir-check-failures``: prove that nothing Python would refuse is ever used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from detent.dialects.selir.scalar import LookupOp, ScalarOp
from detent.dialects.selir.semantics import SEMANTICS
from detent.dialects.selir.source import span_of
from detent.dialects.selir.structure import ProgramOp
from detent.dialects.selir.types import type_name
from detent.passes.domains import Abstract, may_fail, too_large
from detent.passes.errors import AnalysisError
from detent.passes.flatten import Flattened
from detent.passes.graph import Graph, Location
from detent.passes.input_domains import input_domains, relations
from detent.passes.rules import Options
from detent.passes.sweep import programs_of, value_sets
from detent.passes.witness import Proved, prove


class Reachable(AnalysisError):
    """An operation fails at some input that the assumes allow."""


def check_failures(program: ProgramOp, sets: Mapping[SSAValue, Abstract]) -> None:
    """Raise Reachable for the first operation whose failure the assumes do not exclude.

    The operation's value sets usually exclude it at once. Where they do not, "its guard implies that it
    does not fail" is proved like a condition, on the program without pins.
    """
    _check_magnitudes(program, sets)
    suspects = [op for op in program.walk() if isinstance(op, (ScalarOp, LookupOp)) and _suspect(op, sets)]
    if not suspects:
        return
    flat = Flattened(program)
    graph = flat.graph
    domains = input_domains(graph)
    related = relations(graph, domains)
    for op in suspects:
        node = flat.nodes[op.results[0]]
        root = _safe(graph, node)
        verdict = prove(graph, root, domains, related)
        if isinstance(verdict, Proved):
            continue
        what = _what(graph, node)
        location = graph.locations[node]
        if isinstance(verdict, dict):
            at = ", ".join(f"{graph.data[i].name}={value!r}" for i, value in verdict.items())
            raise Reachable(f"{what} at {at}", location, "exclude it by an assume, or guard it by a condition")
        raise Reachable(f"cannot exclude {what}", location, "exclude it by an assume, or guard it by a condition")


def _check_magnitudes(program: ProgramOp, sets: Mapping[SSAValue, Abstract]) -> None:
    for op in program.walk():
        if isinstance(op, ScalarOp) and too_large([sets.get(v) for v in op.scalars], type_name(op.results[0].type)):
            span = span_of(op)
            location = span and Location(span.file, span.line, span.column - 1, span.text)
            raise Reachable("an int too large for a float", location, "bound its inputs by assumes")


def _suspect(op: Operation, sets: Mapping[SSAValue, Abstract]) -> bool:
    if isinstance(op, LookupOp):
        keys = sets.get(op.key)
        return not isinstance(keys, frozenset) or not keys <= {k for k, _ in op.table.data}
    assert isinstance(op, ScalarOp)
    if SEMANTICS[op.kind].fails is None:
        return False
    return may_fail(op.kind, [sets.get(v) for v in op.scalars])


def _safe(graph: Graph, node: int) -> int:
    """Append to the graph the bool "if this node's guard holds, it does not fail"."""
    kind, args = graph.kinds[node], graph.args[node]
    if kind == "lookup":
        safe = -1
        for key, _ in graph.data[node]:
            equal = graph.add("eq", (args[0], graph.add("constant", (), key, graph.types[args[0]])), type="bool")
            safe = equal if safe < 0 else graph.add("or", (safe, equal), type="bool")
    elif SEMANTICS[kind].fails == "zero":
        zero = 0 if graph.types[args[1]] == "int" else 0.0
        safe = graph.add("ne", (args[1], graph.add("constant", (), zero, graph.types[args[1]])), type="bool")
    else:
        # A finite x is one that x - x == 0 holds for.
        rest = graph.add("sub", (args[0], args[0]), type=graph.types[args[0]])
        safe = graph.add("eq", (rest, graph.add("constant", (), 0.0, graph.types[args[0]])), type="bool")
    guard = graph.guards.get(node)
    if guard is None:
        return safe
    return graph.add("or", (graph.add("not", (guard,), type="bool"), safe), type="bool")


def _what(graph: Graph, node: int) -> str:
    kind = graph.kinds[node]
    if kind == "lookup":
        return "a key that the table does not have"
    if SEMANTICS[kind].fails == "zero":
        return "division by zero"
    return f"{kind} of a number that is not finite"


@dataclass(frozen=True)
class CheckFailures(ModulePass):
    """Prove that no division by zero, missing key or rounding of an infinity is ever used; runs before the cut."""

    name = "selir-check-failures"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs_of(op):
            try:
                check_failures(program, value_sets(program, Options()))
            except AnalysisError as error:
                raise PassFailedException(str(error)) from None

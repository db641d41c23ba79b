"""``selir-check-failures``: prove that nothing Python would refuse is ever used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from detent.passes.boxes import Domain, apply, piece
from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.domains import Abstract, Interval, may_fail, too_large
from detent.passes.errors import AnalysisError
from detent.passes.flatten import Flattened
from detent.passes.graph import Condition, Graph, Location
from detent.passes.input_domains import input_domains, relations
from detent.passes.rules import Options
from detent.passes.sweep import programs_of, value_sets
from detent.passes.witness import Proved, prove

REMEDY = "exclude it by an assume, or guard it by a condition"


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
        if _asked_before(graph, node):
            continue
        root = _safe(graph, node, guard=graph.guards.get(node))
        verdict = prove(graph, root, domains, related)
        if isinstance(verdict, Proved):
            continue
        location = graph.locations[node]
        what = _what(graph, node) + ("" if location else f" in {graph.kinds[node]} {graph.names[node]}".rstrip())
        if isinstance(verdict, dict):
            at = ", ".join(f"{graph.data[i].name}={value!r}" for i, value in verdict.items())
            raise Reachable(f"{what} at {at}" if at else what, location, REMEDY)
        raise Reachable(f"cannot exclude {what}", location, REMEDY)


def _check_magnitudes(program: ProgramOp, sets: Mapping[SSAValue, Abstract]) -> None:
    for op in program.walk():
        if isinstance(op, ScalarOp) and too_large([sets.get(v) for v in op.scalars], type_name(op.results[0].type)):
            span = span_of(op)
            location = span and Location(span.file, span.line, span.column - 1, span.text)
            raise Reachable("an int too large for a float", location, "bound its inputs by assumes")


def _suspect(op: Operation, sets: Mapping[SSAValue, Abstract]) -> bool:
    if isinstance(op, LookupOp):
        return not _has_all(op.table.data, sets.get(op.key))
    assert isinstance(op, ScalarOp)
    if SEMANTICS[op.kind].fails is None:
        return False
    return may_fail(op.kind, [sets.get(v) for v in op.scalars])


def _has_all(table: Sequence[tuple[Any, Any]], keys: Abstract) -> bool:
    """Whether a table has a row for each of some keys."""
    rows = {key for key, _ in table}
    if isinstance(keys, Interval) and isinstance(keys.low, int) and isinstance(keys.high, int):
        return keys.high - keys.low < len(rows) and rows.issuperset(range(keys.low, keys.high + 1))
    return isinstance(keys, frozenset) and keys <= rows


def _asked_before(graph: Graph, node: int) -> bool:
    """Whether a lookup's guard itself says that the key is one of the table's, as that of ``get`` with a default."""
    guard = graph.guards.get(node)
    if graph.kinds[node] != "lookup" or guard is None:
        return False
    rows = {key for key, _ in graph.data[node]}

    def is_row(part: int) -> bool:
        if graph.kinds[part] != "eq" or graph.args[node][0] not in graph.args[part]:
            return False
        others = [arg for arg in graph.args[part] if arg != graph.args[node][0]]
        return len(others) == 1 and graph.kinds[others[0]] == "constant" and graph.data[others[0]] in rows

    return any(all(is_row(part) for part in _parts(graph, term, "or")) for term in _parts(graph, guard, "and"))


def _parts(graph: Graph, node: int, kind: str) -> list[int]:
    """The terms of a conjunction or a disjunction."""
    if graph.kinds[node] != kind:
        return [node]
    return [part for arg in graph.args[node] for part in _parts(graph, arg, kind)]


def require_no_failures(graph: Graph, pin_sets: Mapping[int, Abstract], domains: Mapping[int, Domain]) -> None:
    """Add a require for each operation behind the pins that some assignment could make fail.

    Unpinned, no operation fails. Pins are set apart from each other, so one that is computed from several of them
    may: an assignment that makes it fail is not legal. ``pin_sets`` are the pins' value sets by pin node.
    """
    live = graph.slice([*(node for _, node in graph.points), *(c.root for c in graph.conditions)])
    sets: dict[int, Abstract] = {}
    suspects = []
    for node in live:
        kind, operands = graph.kinds[node], [sets[a] for a in graph.operands(node)]
        if kind == "pin":
            sets[node] = pin_sets.get(node)
        elif kind == "input":
            sets[node] = piece(domains[node])
        elif kind == "knob":
            sets[node] = frozenset(graph.data[node].values)
        elif kind == "constant":
            sets[node] = frozenset((graph.data[node],))
        elif kind == "lookup":
            sets[node] = frozenset(value for _, value in graph.data[node])
        else:
            sets[node] = apply(kind, operands, graph.types[node])
        if graph.scopes[node] == 0 and _may_fail_on(graph, node, operands):
            suspects.append(node)
    for node in suspects:
        root = _safe(graph, node, len(graph.conditions) + 1, _settled(graph, graph.guards.get(node)))
        graph.conditions.append(Condition("require", f"no {_what(graph, node)}", root, graph.locations[node]))


def _may_fail_on(graph: Graph, node: int, operands: list[Abstract]) -> bool:
    kind = graph.kinds[node]
    if kind == "lookup":
        return not _has_all(graph.data[node], operands[0])
    return kind in SEMANTICS and may_fail(kind, operands)


def _settled(graph: Graph, guard: int | None) -> int | None:
    """A guard that pins decide; one that still moves with the batch says nothing about an assignment."""
    if guard is not None and any(graph.kinds[leaf] == "input" and graph.data[leaf].source in BATCH_DEPENDENT
                                 for leaf in graph.leaves([guard])):
        return None
    return guard


def _safe(graph: Graph, node: int, scope: int = 0, guard: int | None = None) -> int:
    """Append to the graph the bool "if this guard holds, the node's operation does not fail"."""
    kind, args = graph.kinds[node], graph.args[node]

    def add(kind: str, operands: tuple[int, ...], type: str = "bool", data: Any = None) -> int:
        return graph.add(kind, operands, data, type, scope=scope)

    if kind == "lookup":
        safe = -1
        for key, _ in graph.data[node]:
            equal = add("eq", (args[0], add("constant", (), graph.types[args[0]], key)))
            safe = equal if safe < 0 else add("or", (safe, equal))
    elif SEMANTICS[kind].fails == "zero":
        zero = 0 if graph.types[args[1]] == "int" else 0.0
        safe = add("ne", (args[1], add("constant", (), graph.types[args[1]], zero)))
    else:
        # A finite x is one that x - x == 0 holds for.
        kind = graph.types[args[0]]
        safe = add("eq", (add("sub", (args[0], args[0]), kind), add("constant", (), kind, 0.0)))
    return safe if guard is None else add("or", (add("not", (guard,)), safe))


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

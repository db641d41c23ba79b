"""Why a value follows the batch: a shortest path from a batch-dependent input, as source lines."""

from __future__ import annotations

from dataclasses import dataclass

from detent.passes.cut import why as shortest_path
from detent.passes.graph import Graph
from detent.solver.views import wording
from detent.solver.views.cut_view import leaf_kind, leaf_name
from detent.solver.views.sections import Paragraph, Section, Table


@dataclass(frozen=True)
class Step:
    """One value on the path. ``role`` says how the previous value enters: ``input`` (the path's start),
    ``operand``, ``decides`` (as the condition of a choice) or ``pinned`` (here the path is cut)."""

    node: int
    role: str
    name: str
    type: str
    file: str
    line: int
    expression: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


def find(graph: Graph, name: str) -> int:
    """The node of a point, or of a pin where no point has that name. Raises LookupError that lists both."""
    for point, node in graph.points:
        if point == name:
            return node
    for pin in graph.of_kind("pin"):
        if graph.data[pin] == name:
            return pin
    pins = [str(graph.data[pin]) for pin in graph.of_kind("pin")]
    raise wording.unknown("point or pin", name, dict.fromkeys([*pins, *(point for point, _ in graph.points)]))


def why(graph: Graph, target: str | int) -> list[Step]:
    """The path from a batch-dependent input to a point, pin (by name) or node (by number), through pins.

    Empty when no batch-dependent input leads there. Raises LookupError for an unknown name.
    """
    path = shortest_path(graph, find(graph, target) if isinstance(target, str) else target, through_pins=True)
    return [_step(graph, node, before) for before, node in zip([None, *path], path, strict=False)]


def _step(graph: Graph, node: int, before: int | None) -> Step:
    kind, location = graph.kinds[node], graph.locations[node]
    role = "operand"
    if before is None:
        role = "input"
    elif kind == "pin":
        role = "pinned"
    elif kind == "select" and before not in graph.args[node][1:]:
        role = "decides"
    name = leaf_name(graph, node) if kind in ("input", "knob", "pin") else graph.names[node]
    text = wording.one_line(location.text) if location is not None else ""
    return Step(node, role, name, graph.types[node], location.file if location is not None else "",
                location.line if location is not None else 0, text or name or kind)


def why_sections(graph: Graph, name: str) -> list[Section]:
    """The path as a table, one row a source expression."""
    steps = why(graph, name)
    if not steps:
        return [Paragraph((f"{name} does not depend on the batch: no Runtime or Unpinnable input leads to it.",))]
    start = f"{leaf_kind(graph, steps[0].node)} input {steps[0].name}"
    rows: list[tuple[str, str, str]] = []
    for step in steps:
        note = _note(step, start)
        if rows and rows[-1][:2] == (step.place, step.expression):
            notes = [n for n in (rows[-1][2], note) if n]
            rows[-1] = (step.place, step.expression, "; ".join(dict.fromkeys(notes)))
        else:
            rows.append((step.place, step.expression, note))
    title = f"Why {name} follows the batch (shortest of the paths, {wording.count(len(rows), 'step')})"
    return [Table(title, ("source", "expression", "value"), tuple(rows), whole=("source",))]


def _note(step: Step, start: str) -> str:
    if step.role == "input":
        return start
    if step.role == "pinned":
        return f"cut here: pin {step.name}"
    named = f"{step.name} ({step.type})" if step.name and step.name != step.expression else ""
    return f"decides {named or 'which value is taken'}" if step.role == "decides" else named

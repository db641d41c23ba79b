"""Knobs, pins and points that do nothing, or not what they seem to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.graph import Graph
from detent.solver.document import name_of
from detent.solver.lint.finding import NOTE, WARNING, Finding
from detent.solver.lint.subject import Subject
from detent.solver.views.legal import entry, legal_values, outcomes
from detent.solver.views.wording import compress, place

MAXIMUM = "max_"
"""Inputs whose name begins so are maxima over the batch, as are those a program lists in ``MAXIMA``."""


def dead_knobs(subject: Subject) -> list[Finding]:
    """Knobs on which neither a point nor a condition hangs once pins are constants.

    A knob that only enters a value which is pinned is dead too: the pin stands in its way.
    """
    graph = subject.solution.graph
    alive = set(graph.slice([*(node for _, node in graph.points), *(c.root for c in graph.conditions)]))
    found = []
    for node in graph.of_kind("knob"):
        if node not in alive:
            name = graph.data[node].name
            behind = [name_of(graph, pin) for pin in graph.of_kind("pin")
                      if node in graph.slice([graph.args[pin][0]], through_pins=True)]
            reason = (f"it enters only what the pin{'s' if len(behind) > 1 else ''} {', '.join(behind)} replace"
                      f"{'' if len(behind) > 1 else 's'}" if behind else "nothing reads it")
            found.append(Finding("dead-knob", WARNING, f"knob {name}", _source(subject, "knobs", name),
                                 f"no point and no condition hangs on it: {reason}; its "
                                 f"{len(graph.data[node].values)} values multiply the assignments for nothing",
                                 {"knob": name, "pins": behind}))
    return found


def pinned_counts(subject: Subject) -> list[Finding]:
    """Pins that fix into how many parts the work is divided, while the batch still decides how large the parts are.

    A pin is taken for such a count if it is an int that a selection point returns as it is, and the value it replaces
    derives from a maximum over the batch (an input called ``max_...``, or listed in the program's ``MAXIMA``). It does
    no harm where one part is the only legal number, or where a ``require`` bounds from below its product with knobs and
    pins alone: these then are the parts' size, and the condition says that the parts cover the whole.
    """
    document, graph = subject.solution.document, subject.solution.graph
    declared = subject.globals.get("MAXIMA", ())
    returned = {node for _, node in graph.points}
    found = []
    for node in graph.of_kind("pin"):
        name = name_of(graph, node)
        origins = [graph.data[leaf].name for leaf in graph.leaves([graph.args[node][0]], through_pins=True)
                   if graph.kinds[leaf] == "input" and graph.data[leaf].source in BATCH_DEPENDENT]
        maxima = [origin for origin in origins if origin.startswith(MAXIMUM) or origin in declared]
        values = legal_values(document, name)
        if graph.types[node] != "int" or node not in returned or not maxima or values in ([], [1]) \
                or _has_size(graph, node):
            continue
        found.append(Finding(
            "pinned-count", WARNING, f"pin {name}", _source(subject, "pins", name),
            f"the number of parts is fixed, but no point fixes their size: divided by {name}, "
            f"{_listed(maxima)}, a maximum over the batch, still moves the boundaries between parts; return a size and "
            f"require {name} * size to cover the longest request, or let only 1 be legal",
            {"pin": name, "maxima": maxima, "legal": values}))
    return found


def _has_size(graph: Graph, pin: int) -> bool:
    """Whether some require bounds from below the product of the pin with knobs and pins alone."""
    for condition in graph.conditions:
        if condition.kind != "require":
            continue
        for node in graph.slice([condition.root]):
            if graph.kinds[node] not in ("ge", "gt", "le", "lt"):
                continue
            greater = graph.args[node][0 if graph.kinds[node] in ("ge", "gt") else 1]
            if graph.kinds[greater] == "mul" and pin in graph.args[greater]:
                leaves = list(graph.leaves(arg for arg in graph.args[greater] if arg != pin))
                if leaves and all(graph.kinds[leaf] in ("knob", "pin") for leaf in leaves):
                    return True
    return False


def constant_points(subject: Subject) -> list[Finding]:
    """Points that facts alone decide: they are part of no assignment."""
    points = [point for point in subject.solution.points if point["is_constant"]]
    if not points:
        return []
    named = ", ".join(f"{point['name']}={point['constant']!r}" for point in points)
    return [Finding("constant-point", NOTE, _points(len(points)), place(points[0]["source"]),
                    f"never change on this deployment: {named}",
                    {"points": {point["name"]: point["constant"] for point in points}})]


def settled_points(subject: Subject) -> list[Finding]:
    """Points that pins or knobs stand behind, but that have one value under every legal assignment."""
    solution = subject.solution
    nodes, found = dict(solution.graph.points), []
    for point in solution.points:
        if point["is_constant"]:
            continue
        values = outcomes(solution.document, solution.graph, nodes[point["name"]])
        if values is None or len(values) != 1:
            continue
        ((value, _),) = values
        controls = [*point["pins"], *point["knobs"]]
        found.append(Finding("settled-point", NOTE, f"point {point['name']}", place(point["source"]),
                             f"is {value!r} under every legal assignment: {_why(solution.document, controls)}",
                             {"point": point["name"], "value": value, "controls": controls}))
    return found


def _why(document: Mapping[str, Any], controls: Iterable[str]) -> str:
    parts = []
    for name in controls:
        values = legal_values(document, name)
        parts.append(f"{name} has the legal {'value' if len(values) == 1 else 'values'} {compress(values)}")
    return " and ".join(parts) or "nothing is left to choose"


def _source(subject: Subject, section: str, name: str) -> str:
    found = entry(subject.solution.document, section, name)
    return place(found["source"] if found is not None else None)


def _listed(names: list[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"

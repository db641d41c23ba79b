"""The cut view: inputs, pins and selection points; everything between them is collapsed into edges.

Points that hang on the same pins, knobs and inputs share a box, or a family's 26 points would hide
its three pins. DOT, Mermaid and the tables are written from this one structure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from detent.passes.graph import Graph
from detent.solver.views import wording
from detent.solver.views.legal import Document, entry, legal_values

TEXT_WIDTH = 44
"""Characters a line of a box may take before it is folded."""


@dataclass(frozen=True)
class Box:
    """One box. ``kind``: ``runtime``, ``unpinnable``, ``request``, ``knob``, ``pin``, ``points`` (depend on
    pins, knobs or request inputs), ``moving`` (points that a batch-dependent input reaches), ``constant``."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass
class CutView:
    """Boxes, the edges between them as index pairs, and for each group of points what it hangs on."""

    title: str
    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    groups: list[PointGroup] = field(default_factory=list)
    constants: list[tuple[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class PointGroup:
    """Selection points with the same pins, knobs and inputs before them; ``moving``: one is batch-dependent."""

    pins: tuple[str, ...]
    knobs: tuple[str, ...]
    inputs: tuple[str, ...]
    moving: bool
    points: tuple[str, ...]

    @property
    def hangs_on(self) -> tuple[str, ...]:
        return self.pins + self.knobs + self.inputs


def cut_view(document: Document | None, graph: Graph) -> CutView:
    """The collapsed graph. Without a document (a graph between passes) boxes show what the graph itself knows."""
    view = CutView(headline(document, graph))
    numbers: dict[int, int] = {}
    for node in _shown_leaves(graph):
        numbers[node] = len(view.boxes)
        view.boxes.append(_leaf_box(document, graph, node))
    for pin in graph.of_kind("pin"):
        view.edges += [(numbers[leaf], numbers[pin]) for leaf in graph.leaves(graph.args[pin])]
    for hanging, names in _grouped_points(graph).items():
        group = _group(graph, hanging, names)
        view.groups.append(group)
        number = len(view.boxes)
        view.boxes.append(Box("moving" if group.moving else "points", wording.count(len(names), "point"),
                              tuple(wording.packed(names, TEXT_WIDTH, 16))))
        view.edges += [(numbers[leaf], number) for leaf in hanging]
    view.constants = [(name, graph.data[node]) for name, node in graph.points if graph.kinds[node] == "constant"]
    if view.constants:
        lines = wording.packed((f"{name} = {value!r}" for name, value in view.constants), TEXT_WIDTH, 6)
        view.boxes.append(Box("constant", wording.count(len(view.constants), "constant point"), tuple(lines)))
    return view


def headline(document: Document | None, graph: Graph) -> str:
    """``attention for qwen3-30b-a3b-tp4-h100: 3,105 values, 9 inputs, 26 points, 3 pins``."""
    subject = f"{document['program']} for {document['deployment']}" if document else graph.name
    values = document["values"] if document else len(graph)
    sizes = [wording.count(values, "value"), wording.count(len(graph.of_kind("input")), "input"),
             wording.count(len(graph.points), "point"), wording.count(len(graph.of_kind("pin")), "pin")]
    return f"{subject}: {', '.join(sizes)}"


def leaf_name(graph: Graph, node: int) -> str:
    """Name of an input, knob or pin node."""
    data = graph.data[node]
    return str(data if graph.kinds[node] == "pin" else data.name)


def leaf_kind(graph: Graph, node: int) -> str:
    """``pin``, ``knob``, or an input's ``runtime``, ``unpinnable`` or ``request``."""
    return str(graph.data[node].source) if graph.kinds[node] == "input" else graph.kinds[node]


def leaf_place(graph: Graph, node: int) -> str:
    """``file:line`` of a node, or empty."""
    location = graph.locations[node]
    return str(location) if location is not None else ""


def _shown_leaves(graph: Graph) -> list[int]:
    """Inputs and knobs before a pin or a point, then the pins; each in node order."""
    roots = [*graph.of_kind("pin"), *(node for _, node in graph.points)]
    reaching = graph.leaves(roots, through_pins=True)
    return [*reaching, *graph.of_kind("pin")]


def _leaf_box(document: Document | None, graph: Graph, node: int) -> Box:
    name, kind = leaf_name(graph, node), leaf_kind(graph, node)
    where = leaf_place(graph, node)
    lines = [where] if where else []
    if kind == "pin":
        lines += pin_lines(document, name)
    elif kind == "knob":
        values = legal_values(document, name) if document else list(graph.data[node].values)
        lines.append(f"knob: {wording.compress(values, 6)}")
    else:
        known = entry(document, "inputs", name) if document else None
        lines.append(f"{kind} {graph.types[node]}" + (f", {wording.domain(known['domain'])}" if known else ""))
    return Box(kind, name, tuple(lines))


def pin_lines(document: Document | None, name: str) -> list[str]:
    """Number of candidates and the legal values of a pin; nothing for a graph that was not solved."""
    pin = entry(document, "pins", name) if document else None
    if document is None or pin is None:
        return []
    legal = legal_values(document, name)
    return [wording.count(len(pin["candidates"]), "candidate"), f"legal: {wording.compress(legal, 6)}"]


def _grouped_points(graph: Graph) -> dict[tuple[int, ...], list[str]]:
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, node in graph.points:
        if graph.kinds[node] != "constant":
            groups.setdefault(tuple(graph.leaves([node])), []).append(name)
    return dict(sorted(groups.items()))


def _group(graph: Graph, leaves: Iterable[int], names: Iterable[str]) -> PointGroup:
    by_kind: dict[str, list[str]] = {"pin": [], "knob": [], "input": []}
    moving = False
    for leaf in leaves:
        by_kind[graph.kinds[leaf]].append(leaf_name(graph, leaf))
        moving |= leaf_kind(graph, leaf) in ("runtime", "unpinnable")
    return PointGroup(tuple(by_kind["pin"]), tuple(by_kind["knob"]), tuple(by_kind["input"]), moving, tuple(names))

"""Whether legal assignments are ones that the selection itself would make, and how many there would be unanalysed.

Legality says what is right, not what the selection was tuned for: an assignment may be right and yet hold a value
that the selection's own rules and tables give no input at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detent.passes.boxes import Domain
from detent.passes.graph import Graph
from detent.passes.witness import EXHAUSTIVE_LIMIT
from detent.solver.document import name_of
from detent.solver.trials import every_input, tuple_function

MAX_ASSIGNMENTS = 200_000
"""Assignments that are looked at one by one."""


@dataclass(frozen=True)
class Choices:
    """How the legal assignments of a program compare with what its selection does unpinned, knobs at equal settings.

    ``together``: at some input the selection has all these values at once. ``apart``: it has each of them at some
    input, but never all at once. ``bypassing``: some value it has at no input; ``unused`` lists such values by pin.
    """

    together: list[dict[str, Any]]
    apart: list[dict[str, Any]]
    bypassing: list[dict[str, Any]]
    unused: dict[str, list[Any]]

    @property
    def legal(self) -> int:
        """Number of legal assignments."""
        return len(self.together) + len(self.apart) + len(self.bypassing)


def legal_assignments(document: Mapping[str, Any], limit: int = MAX_ASSIGNMENTS) -> list[dict[str, Any]] | None:
    """Every legal assignment of a document's pins and knobs by name; None if there are more than ``limit``.

    Names are in the order of the document's components, assignments ascend with the first name slowest.
    """
    if document["legal"] > limit:
        return None
    names = [name for part in document["components"] for name in part["names"]]
    rows = itertools.product(*(part["legal"] for part in document["components"]))
    return [dict(zip(names, itertools.chain.from_iterable(row), strict=True)) for row in rows]


def own_choices(document: Mapping[str, Any], graph: Graph, domains: Mapping[int, Domain]) -> Choices | None:
    """Compare with the selection at every input; None without pins, or where inputs or assignments are too many."""
    legal = legal_assignments(document)
    pins = graph.of_kind("pin")
    reads = [leaf for leaf in graph.leaves((graph.args[pin][0] for pin in pins), through_pins=True)]
    points = every_input(graph, domains, reads) if pins and legal is not None else None
    if points is None or legal is None:
        return None
    names = [name_of(graph, pin) for pin in pins]
    knobs = [i for i, leaf in enumerate(reads) if graph.kinds[leaf] == "knob"]
    settings = [name_of(graph, reads[i]) for i in knobs]
    values_at = tuple_function(graph, pins, reads)
    whole = {(tuple(point[i] for i in knobs), values_at(*point)) for point in points}
    single = {(setting, name, value) for setting, values in whole for name, value in zip(names, values, strict=True)}
    found = Choices([], [], [], {})
    unused: dict[str, set[Any]] = {}
    for assignment in legal:
        setting = tuple(assignment[name] for name in settings)
        never = [name for name in names if (setting, name, assignment[name]) not in single]
        for name in never:
            unused.setdefault(name, set()).add(assignment[name])
        met = (setting, tuple(assignment[name] for name in names)) in whole
        (found.bypassing if never else found.together if met else found.apart).append(assignment)
    found.unused.update({name: sorted(values) for name, values in unused.items()})
    return found


def free_choices(document: Mapping[str, Any], graph: Graph) -> dict[str, int]:
    """For each selection point that could be set by hand, the number of values: what is left without any analysis.

    Nobody then knows which points the batch reaches or which values can occur together, so each is free: a bool has
    two values, whether facts settle it or not; any other point has as many as it takes over the candidates of the
    pins and knobs behind it. Numbers and names that facts alone give (shapes, types, the GPU) are left out. The number
    of assignments is the product.
    """
    values: dict[str, list[Any]] = {pin["name"]: pin["candidates"] for pin in document["pins"]}
    values |= {knob["name"]: list(knob["values"]) for knob in document["knobs"]}
    free: dict[str, int] = {}
    for name, node in graph.points:
        if graph.types[node] == "bool":
            free[name] = 2
            continue
        leaves = list(graph.leaves([node]))
        if not leaves or any(graph.kinds[leaf] == "input" for leaf in leaves):
            continue
        choices = [values[name_of(graph, leaf)] for leaf in leaves]
        if math.prod(map(len, choices)) <= EXHAUSTIVE_LIMIT:
            value_at = tuple_function(graph, [node], leaves)
            free[name] = len({value_at(*row) for row in itertools.product(*choices)})
    return free

"""Questions about a document's legal assignments.

The legal set is the product of the document's components (groups of pins and knobs that share a
condition). A pin in no component keeps all its candidates and a knob all its values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detent.passes.graph import Graph
from detent.passes.interpret import interpret

Document = Mapping[str, Any]

MAX_EVALUATIONS = 400_000
"""Operations evaluated to list the values a point takes; about half a second."""


def entry(document: Document, section: str, name: str) -> Mapping[str, Any] | None:
    """The entry called ``name`` in one of the document's lists, or None."""
    found: Mapping[str, Any] | None = next((e for e in document[section] if e["name"] == name), None)
    return found


def nothing_legal(document: Document) -> bool:
    """Whether every assignment is ruled out (``legal`` is None where nobody could judge)."""
    return bool(document["legal"] == 0)


def blamed(document: Document) -> list[int]:
    """The conditions to look at where no assignment is legal: those of the groups in which nothing is."""
    empty = [set(group["names"]) for group in document["components"] if not group["legal"]]
    return [i for i, c in enumerate(document["conditions"]) if c["fails"]
            and any(names >= {*c["pins"], *c["knobs"]} for names in empty)]


def component(document: Document, name: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names that are decided together with ``name``, and their legal combinations in document order.

    None is legal where no assignment is, whichever condition is to blame.
    """
    for group in document["components"]:
        if name in group["names"]:
            return list(group["names"]), [tuple(case) for case in group["legal"] if not nothing_legal(document)]
    if nothing_legal(document):
        return [name], []
    pin, knob = entry(document, "pins", name), entry(document, "knobs", name)
    values = pin["candidates"] if pin is not None else knob["values"] if knob is not None else []
    return [name], [(value,) for value in values]


def legal_values(document: Document, name: str) -> list[Any]:
    """Values of a pin or knob that some legal assignment uses, in the order of its component."""
    names, cases = component(document, name)
    at = names.index(name)
    listed = list(dict.fromkeys(case[at] for case in cases))
    pin = entry(document, "pins", name)
    order = {value: i for i, value in enumerate(pin["candidates"])} if pin is not None else {}
    return sorted(listed, key=lambda value: order.get(value, 0))


def default(document: Document, name: str) -> str:
    """The default assignment's value of a pin or knob as text; a dash where no assignment is legal."""
    values = document["default"] or {}
    return repr(values[name]) if name in values else "–"


def combinations(document: Document, names: Sequence[str], limit: int) -> list[dict[str, Any]] | None:
    """Every legal combination of some pins and knobs; None when there are more than ``limit``."""
    wanted = list(names)
    parts: list[tuple[list[str], list[tuple[Any, ...]]]] = []
    while wanted:
        together, cases = component(document, wanted[0])
        kept = [n for n in together if n in wanted]
        indices = [together.index(n) for n in kept]
        parts.append((kept, list(dict.fromkeys(tuple(case[i] for i in indices) for case in cases))))
        wanted = [n for n in wanted if n not in kept]
    if math.prod(len(cases) for _, cases in parts) > limit:
        return None
    order = [n for kept, _ in parts for n in kept]
    return [dict(zip(order, itertools.chain(*choice), strict=True))
            for choice in itertools.product(*(cases for _, cases in parts))]


def outcomes(document: Document, graph: Graph, node: int) -> list[tuple[Any, list[dict[str, Any]]]] | None:
    """What a node evaluates to over the legal assignments: each value with the assignments that give it.

    Numbers ascend; other values come in the order of the first assignment that gives them.
    None when the value also depends on an input, or when listing would take too long.
    """
    order = graph.slice([node])
    leaves = {i: _leaf_name(graph, i) for i in order if graph.kinds[i] in ("input", "knob", "pin")}
    if any(graph.kinds[i] == "input" for i in leaves):
        return None
    cases = combinations(document, list(dict.fromkeys(leaves.values())), MAX_EVALUATIONS // len(order))
    if cases is None:
        return None
    results: dict[Any, list[dict[str, Any]]] = {}
    for case in cases:
        values = interpret(graph, {leaf: case[name] for leaf, name in leaves.items()}, [node])
        results.setdefault(values[node], []).append(case)
    ordered = isinstance(next(iter(results), None), int | float)
    return sorted(results.items(), key=lambda item: item[0]) if ordered else list(results.items())


def _leaf_name(graph: Graph, node: int) -> str:
    data = graph.data[node]
    return str(data if graph.kinds[node] == "pin" else data.name)


def by_equal(rows: Iterable[tuple[Any, Any]]) -> list[tuple[list[Any], list[Any]]]:
    """Group ``(value, partner)`` pairs: values that share exactly the same partners stand together."""
    partners: dict[Any, dict[Any, None]] = {}
    for value, partner in rows:
        partners.setdefault(value, {})[partner] = None
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for value, seen in partners.items():
        groups.setdefault(tuple(seen), []).append(value)
    return [(values, list(seen)) for seen, values in groups.items()]

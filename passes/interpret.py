"""The reference evaluator of a :class:`Graph`: one node after the other, by the table of semantics.

Emitted Python and value ranges are checked against it, so it takes no shortcut of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detent.dialects.selir.semantics import evaluate, look_up
from detent.passes.graph import Graph


def interpret(graph: Graph, leaves: Mapping[int, Any], roots: Iterable[int] | None = None) -> dict[int, Any]:
    """Values of the roots and of everything they are computed from (of all nodes when ``roots`` is None).

    ``leaves`` maps input, knob and pin nodes to values. A pin that is not among them has its operand's
    value; an input or knob that is needed and missing is a :class:`KeyError` with its name.
    """
    values: dict[int, Any] = {}
    for node in range(len(graph)) if roots is None else _needed(graph, leaves, roots):
        kind = graph.kinds[node]
        if node in leaves:
            values[node] = leaves[node]
        elif kind == "constant":
            values[node] = graph.data[node]
        elif kind in ("input", "knob"):
            raise KeyError(f"no value for {kind} {graph.data[node].name}")
        elif kind == "pin":
            values[node] = values[graph.args[node][0]]
        elif kind == "lookup":
            values[node] = look_up(graph.data[node], values[graph.args[node][0]])
        else:
            values[node] = evaluate(kind, [values[a] for a in graph.args[node]], graph.types[node])
    return values


def _needed(graph: Graph, leaves: Mapping[int, Any], roots: Iterable[int]) -> list[int]:
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            if node not in leaves:
                stack.extend(graph.args[node])
    return sorted(seen)

"""The values a pin may be given before legality is judged: its value set in the optimised graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from detent.dialects.selir.semantics import COMPARISONS, NEGATED, SWAPPED, evaluate
from detent.passes.domains import MAX_SET, Abstract, Interval, hull
from detent.passes.errors import AnalysisError
from detent.passes.graph import Graph
from detent.passes.input_domains import conjuncts


class UnboundedPin(AnalysisError):
    """A pin without a finite set of candidates."""


class Candidates(NamedTuple):
    """``values`` ascending; ``exact``: the value set itself, else every value between its bounds."""

    values: list[Any]
    exact: bool


def ordered(values: frozenset[Any]) -> list[Any]:
    """Ascending: numbers by value, False before True, strings lexicographically."""
    return sorted(values)


def candidates(graph: Graph, sets: Mapping[int, Abstract]) -> dict[int, Candidates]:
    """Candidates of every pin and knob node; ``sets`` gives the value set of each pin's operand.

    A pin whose set is not finite, or larger than 4,096 values, is bounded by the conjuncts of requires
    that compare it with a constant; raises UnboundedPin where that leaves too many.
    """
    found: dict[int, Candidates] = {}
    for node in graph.of_kind("knob"):
        found[node] = Candidates(ordered(frozenset(graph.data[node].values)), True)
    for node in graph.of_kind("pin"):
        values = sets.get(graph.args[node][0])
        if isinstance(values, frozenset) and any(isinstance(v, float) and not math.isfinite(v) for v in values):
            raise UnboundedPin(f"pin '{graph.data[node]}' could be infinite", graph.locations[node],
                               "exclude infinities before they reach a selection point")
        if isinstance(values, frozenset) and len(values) <= MAX_SET:
            found[node] = Candidates(ordered(values), True)
        else:
            found[node] = _bounded(graph, node, hull(values))
    return found


def _bounded(graph: Graph, node: int, bounds: Interval | None) -> Candidates:
    low, high = bounds if bounds is not None else (None, None)
    members: set[Any] | None = None
    comparisons: list[tuple[str, Any]] = []
    for condition in graph.conditions:
        if condition.kind != "require":
            continue
        for literal, wanted in conjuncts(graph, condition.root, True):
            named = _membership(graph, literal, node) if wanted else None
            if named is not None:
                members = named if members is None else members & named
            compared = _comparison(graph, literal, node)
            if compared is not None:
                kind, constant = compared
                kind = kind if wanted else NEGATED[kind]
                comparisons.append((kind, constant))
                if graph.types[node] == "int":
                    low, high = _narrow(kind, constant, low, high)
    if members is not None:
        kept = [v for v in sorted(members) if all(evaluate(k, (v, c), "bool") for k, c in comparisons)
                and (bounds is None or bounds.low <= v <= bounds.high)]
        return Candidates(kept, False)
    name, location = graph.data[node], graph.locations[node]
    if graph.types[node] != "int" or low is None or high is None:
        raise UnboundedPin(f"pin '{name}' has no finite set of values", location,
                           f"bound it: require(low <= {name} <= high) or require({name} in (...))")
    if high - low + 1 > MAX_SET:
        raise UnboundedPin(f"pin '{name}' has {high - low + 1:,} candidates from {low} to {high}", location,
                           f"at most {MAX_SET:,}: bound it by require(low <= {name} <= high)")
    return Candidates(list(range(int(low), int(high) + 1)), False)


def _comparison(graph: Graph, node: int, pin: int) -> tuple[str, Any] | None:
    if graph.kinds[node] not in COMPARISONS:
        return None
    left, right = graph.args[node]
    if left == pin and graph.kinds[right] == "constant":
        return graph.kinds[node], graph.data[right]
    if right == pin and graph.kinds[left] == "constant":
        return SWAPPED[graph.kinds[node]], graph.data[left]
    return None


def _membership(graph: Graph, root: int, pin: int) -> set[Any] | None:
    values, stack = set(), [root]
    while stack:
        node = stack.pop()
        if graph.kinds[node] == "or":
            stack.extend(graph.args[node])
            continue
        compared = _comparison(graph, node, pin)
        if compared is None or compared[0] != "eq":
            return None
        values.add(compared[1])
    return values


def _narrow(kind: str, constant: Any, low: Any, high: Any) -> tuple[Any, Any]:
    if kind in ("le", "lt", "eq"):
        top = constant - 1 if kind == "lt" else constant
        high = top if high is None else min(high, top)
    if kind in ("ge", "gt", "eq"):
        bottom = constant + 1 if kind == "gt" else constant
        low = bottom if low is None else max(low, bottom)
    return low, high

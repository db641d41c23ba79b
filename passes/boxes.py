"""Abstract evaluation of a slice over boxes: one domain piece for every input at once.

The transfer rules are those of :mod:`detent.passes.domains`; added here is what a search over shrinking
boxes needs: lookups, operations whose divisor spans zero (every operation is total), congruence inside
one period, and re-evaluation of only what a changed leaf reaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from detent.dialects.selir.semantics import COMPARISONS
from detent.passes.domains import Abstract, Interval, excludes_zero, hull, is_finite, join, transfer
from detent.passes.graph import Graph

Domain = range | tuple[Any, ...]
"""A finite, ascending set of input values; ranges have a positive step."""

SMALL_RANGE = 4
SMALL_TUPLE = 16
LEAVES = ("input", "knob", "pin")


def size(domain: Domain) -> int:
    """Number of values; unlike ``len`` it has no upper limit."""
    if isinstance(domain, range):
        return max(0, (domain.stop - domain.start + domain.step - 1) // domain.step)
    return len(domain)


def halves(domain: Domain) -> tuple[Domain, Domain]:
    """The lower and the upper half of a domain of at least two values."""
    middle = (size(domain) + 1) // 2
    return domain[:middle], domain[middle:]


def piece(domain: Domain) -> Abstract:
    """A domain as an abstract value: an exact set where it is small or not ordered, else its hull."""
    if isinstance(domain, range):
        return frozenset(domain) if size(domain) <= SMALL_RANGE else Interval(domain[0], domain[-1])
    if len(domain) <= SMALL_TUPLE or isinstance(domain[0], str):
        return frozenset(domain)
    return Interval(domain[0], domain[-1])


def width(value: Abstract) -> float:
    """How much an abstract value leaves open: 0 for one value, infinity for the unknown."""
    bounds = hull(value)
    if bounds is None:
        return len(value) - 1.0 if isinstance(value, frozenset) else math.inf
    return bounds.high - bounds.low  # type: ignore[no-any-return]


class Region:
    """Everything some roots are computed from, in evaluation order, with pins as leaves.

    ``kinds``, ``types``, ``data`` and ``operands`` are those of the graph, by position in ``nodes``. A *memo*
    is a list of abstract values, by position too; it is never changed in place, so a search keeps one per box.
    """

    def __init__(self, graph: Graph, roots: Iterable[int]) -> None:
        self.nodes = graph.slice(roots)
        self.leaves = [node for node in self.nodes if graph.kinds[node] in LEAVES]
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.kinds = [graph.kinds[node] for node in self.nodes]
        self.types = [graph.types[node] for node in self.nodes]
        self.data = [graph.data[node] for node in self.nodes]
        self.operands = [tuple(self.position[arg] for arg in graph.operands(node)) for node in self.nodes]
        self._users: list[list[int]] = [[] for _ in self.nodes]
        for i, operands in enumerate(self.operands):
            for operand in set(operands):
                self._users[operand].append(i)

    def value(self, memo: Sequence[Abstract], node: int) -> Abstract:
        """The abstract value of a node in a memo."""
        return memo[self.position[node]]

    def evaluate(self, leaves: Mapping[int, Abstract]) -> list[Abstract]:
        """The memo of a box; a leaf that is not given is unknown."""
        memo: list[Abstract] = []
        for i, node in enumerate(self.nodes):
            if self.kinds[i] in LEAVES:
                memo.append(leaves.get(node))
            elif self.kinds[i] == "constant":
                memo.append(frozenset((self.data[i],)))
            else:
                memo.append(self._apply(i, memo))
        return memo

    def moved(self, memo: Sequence[Abstract], leaves: Mapping[int, Abstract]) -> list[Abstract]:
        """The memo after some leaves changed; only what they reach is computed again."""
        memo = list(memo)
        pending: list[int] = []  # a heap, so that operands come before their users
        for node, value in leaves.items():
            position = self.position[node]
            if memo[position] != value:
                memo[position] = value
                pending.extend(self._users[position])
        heapify(pending)
        last = -1
        while pending:
            i = heappop(pending)
            if i == last:
                continue
            last = i
            value = self._apply(i, memo)
            if value != memo[i]:
                memo[i] = value
                for user in self._users[i]:
                    heappush(pending, user)
        return memo

    def open_comparisons(self, memo: Sequence[Abstract], roots: Iterable[int]) -> list[int]:
        """Positions of the undecided comparisons that undecided roots still hang on."""
        stack = [self.position[root] for root in roots]
        seen: set[int] = set()
        found = []
        while stack:
            i = stack.pop()
            value = memo[i]
            if i in seen or (isinstance(value, frozenset) and len(value) == 1):
                continue
            seen.add(i)
            if self.kinds[i] in COMPARISONS:
                found.append(i)
            stack.extend(self.operands[i])
        return found

    def openness(self, memo: Sequence[Abstract], position: int) -> float:
        """How far an undecided comparison is from being decided: its operands' widths."""
        value = memo[position]
        if isinstance(value, frozenset) and len(value) == 1:
            return 0.0
        return sum(width(memo[operand]) for operand in self.operands[position])

    def _apply(self, i: int, memo: Sequence[Abstract]) -> Abstract:
        operands = [memo[operand] for operand in self.operands[i]]
        if self.kinds[i] == "sub" and self.operands[i][0] == self.operands[i][1] and is_finite(operands[0]):
            return frozenset((0 if self.types[i] == "int" else 0.0,))  # how finiteness itself is asked
        value = _look_up(self.data[i], operands[0]) if self.kinds[i] == "lookup" else apply(
            self.kinds[i], operands, self.types[i])
        if value is None and self.types[i] == "bool":
            return frozenset((False, True))
        return value


def apply(kind: str, operands: Sequence[Abstract], result_type: str) -> Abstract:
    """:func:`detent.passes.domains.transfer`, sharper where a divisor spans zero or a remainder does not wrap.

    A result that may be infinite is unknown here: infinities are where intervals lose a NaN.
    """
    try:
        if kind in ("div", "floordiv", "mod") and not excludes_zero(operands[1]):
            value = _by_divisor_sign(kind, operands, result_type)
        else:
            value = _within_one_period(operands) if kind == "mod" and result_type == "int" else None
            value = transfer(kind, operands, result_type) if value is None else value
    except OverflowError:  # an int beyond every double
        return None
    if result_type in ("float", "f32") and value is not None:
        bounds = hull(value)
        if bounds is None or not (math.isfinite(bounds.low) and math.isfinite(bounds.high)):
            return None
    return value


def _by_divisor_sign(kind: str, operands: Sequence[Abstract], result_type: str) -> Abstract:
    """A total division over a divisor that may be zero: below zero, zero (the result is 0), above zero."""
    dividend, divisor = operands
    if not isinstance(divisor, Interval) or result_type != "int":
        return transfer(kind, operands, result_type)
    value: Abstract = frozenset((0,))
    if divisor.low < 0:
        value = join(value, apply(kind, (dividend, Interval(divisor.low, -1)), result_type))
    if divisor.high > 0:
        value = join(value, apply(kind, (dividend, Interval(1, divisor.high)), result_type))
    return value


def _within_one_period(operands: Sequence[Abstract]) -> Abstract:
    """``a % m`` for one m > 0 and an interval that crosses no multiple of it; None if that is not the case."""
    dividend, divisor = operands
    if not isinstance(dividend, Interval) or not isinstance(divisor, frozenset) or len(divisor) != 1:
        return None
    (modulus,) = divisor
    if modulus > 0 and dividend.low // modulus == dividend.high // modulus:
        return Interval(dividend.low % modulus, dividend.high % modulus)
    return None


def _look_up(table: Sequence[tuple[Any, Any]], key: Abstract) -> Abstract:
    """Values a key can reach; a key outside the table reaches the first value, as evaluation does."""
    if key is None:
        return frozenset(value for _, value in table)
    if isinstance(key, frozenset):
        inside = {k: value for k, value in table if k in key}
        complete = len(inside) == len(key)
    else:
        inside = {k: value for k, value in table if key.low <= k <= key.high}
        complete = isinstance(key.low, int) and len(inside) > key.high - key.low
    reached = set(inside.values())
    return frozenset(reached if complete else reached | {table[0][1]})

"""How one ``require`` is decided for one combination of the pins and knobs it reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable
from typing import Any

from detent.passes.boxes import size
from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.errors import UnpinnedValue
from detent.passes.graph import Graph
from detent.passes.question import Question, Unknown, Witness, evaluator
from detent.passes.witness import FEW_BOXES, Assumes, Proved

COMPLETIONS = 64
"""Violating points whose completion to a whole input is tried one by one before searching for all at once."""
POOL = 32
"""Witnesses of one condition that are tried on its next combinations."""
TOTAL_BUDGETS = 10
"""Searches of one condition may use so many budgets; later combinations get a few boxes each."""

Values = tuple[Any, ...]


class ConditionJudge:
    """One ``require``: how a combination of its controls is decided.

    The deciding methods return a whole input that violates the condition, or how it was found to hold.
    """

    def __init__(self, assumes: Assumes, index: int, controls: Container[int], limit: int, budget: int,
                 sample: Callable[[], list[Witness]]) -> None:
        self.assumes, self.budget, self.sample = assumes, budget, sample
        self.root = self.assumes.graph.conditions[index].root
        leaves = list(self.assumes.graph.leaves((self.root,)))
        self.controls = [leaf for leaf in leaves if leaf in controls]
        self.inputs = [leaf for leaf in leaves if leaf in self.assumes.domains]
        if len(self.controls) + len(self.inputs) < len(leaves):
            raise ValueError(f"a leaf of condition {index} has neither candidates nor a domain")
        self.points = math.prod(size(self.assumes.domains[leaf]) for leaf in self.inputs)
        self.room = limit
        reference = assumes.reference or not leaves  # a constant is not worth compiling
        self.check = evaluator(assumes.graph, [self.root], self.controls + self.inputs, reference)
        self._admitted: list[Values] | None = None
        self._completed: dict[Values, Witness | Unknown | None] = {}
        self._question: Question | None = None
        self._pool: list[Witness] = []

    def try_all(self, values: Values) -> Witness | str:
        """Try every point of the condition's own inputs; a violating one counts if it extends to a whole input."""
        if self._admitted is None:
            self._admitted = self._admit()
        check, failed = self.check, 0
        for point in self._admitted:
            if check(*values, *point):
                continue
            whole = self._complete(point)
            if isinstance(whole, dict):
                return whole
            failed += 1
            if failed == COMPLETIONS or whole is not None:
                return self.search(values)  # asks for the violation and the whole input at once
        return "exhaustive"

    def search(self, values: Values) -> Witness | str:
        """Earlier witnesses, branch and prune, every point if there is room for it, and at last the sample."""
        known = self._violated(values, self._pool)
        if known is not None:
            return known
        if self._question is None:
            self._question = self.assumes.violation(self.root, self.controls)
        question, budget = self._question, self.budget
        fixed = dict(zip(self.controls, values, strict=True))
        left = TOTAL_BUDGETS * budget - question.looked
        outcome = self.assumes.refute(question, fixed, budget if left > 0 else min(budget, FEW_BOXES), self.room)
        if isinstance(outcome, Proved):
            self.room -= question.points() if outcome.method == "exhaustive" else 0
            return outcome.method
        found = outcome if isinstance(outcome, dict) else self._violated(values, self.sample())
        if found is None:
            return "sampled"
        self._pool = [found, *self._pool[:POOL - 1]]
        return found

    def _violated(self, values: Values, witnesses: Iterable[Witness]) -> Witness | None:
        return next((known for known in witnesses
                     if not self.check(*values, *[known[leaf] for leaf in self.inputs])), None)

    def _admit(self) -> list[Values]:
        """Points of the condition's inputs that the relations among these alone allow."""
        points = itertools.product(*(self.assumes.domains[leaf] for leaf in self.inputs))
        own = [index for index, read in self.assumes.inputs.items() if read <= set(self.inputs)]
        if not own:
            return list(points)
        roots = [self.assumes.graph.conditions[index].root for index in own]
        admits = evaluator(self.assumes.graph, roots, self.inputs, self.assumes.reference)
        wanted = True if len(roots) == 1 else (True,) * len(roots)
        return [point for point in points if admits(*point) == wanted]

    def _complete(self, point: Values) -> Witness | Unknown | None:
        if point not in self._completed:
            fixed = dict(zip(self.inputs, point, strict=True))
            self._completed[point] = self.assumes.complete(fixed, self.budget)
        return self._completed[point]


def check_pinned(graph: Graph, index: int) -> None:
    """Raise :class:`UnpinnedValue` if a condition reads a batch-dependent value of the selection that is no pin."""
    condition = graph.conditions[index]
    reads = graph.slice((condition.root,))
    # What the condition itself names, not what that was computed from: the author finds it in the condition's text.
    named = {condition.root}.union(*(graph.operands(node) for node in reads if graph.scopes[node]))
    moving: set[int] = set()
    for node in reads:
        origin = graph.origin(node)
        if graph.kinds[origin] == "input":
            if graph.data[origin].source in BATCH_DEPENDENT:
                moving.add(node)
        elif any(operand in moving for operand in graph.operands(node)):
            moving.add(node)
            if graph.scopes[node] == 0 and node in named:
                place = graph.locations[node]
                name = graph.names[node] or (place.text if place is not None else "") or graph.kinds[node]
                raise UnpinnedValue(
                    f"this {condition.kind} reads {name!r}, a value of the selection that moves with the batch and "
                    "is not pinned", condition.location or place,
                    "compute it from the inputs inside the condition, or let the cut pin it")

"""Witnesses: whole inputs that satisfy every assume, and violate a condition or agree with given values.

:class:`Assumes` joins a question about a condition with the relations between inputs that bear on it, and
completes the point found with the inputs the question never read. A witness is a dict from every input
node to its value.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detent.passes.boxes import Domain
from detent.passes.graph import Graph
from detent.passes.question import BUDGET, Goal, Question, Unknown, Witness, choose

FEW_BOXES = 16
EXHAUSTIVE_LIMIT = 262_144
"""Points that are simply all tried, about 0.1 s of compiled evaluation."""


@dataclass(frozen=True)
class Proved:
    """No input satisfies all assumes and violates the condition; ``method`` is exhaustive or interval."""

    method: str


class Assumes:
    """The inputs' domains with the relations (condition indices) between them."""

    def __init__(self, graph: Graph, domains: Mapping[int, Domain], relations: Sequence[int],
                 reference: bool = False) -> None:
        self.graph, self.domains, self.reference = graph, domains, reference
        self.relations = list(relations)
        self.inputs = {index: frozenset(graph.leaves((graph.conditions[index].root,))) for index in relations}
        self._groups: dict[frozenset[int], list[Question]] = {}

    def linked(self, inputs: Iterable[int], fixed: Iterable[int] = ()) -> list[int]:
        """Relations that share an input with the given ones, directly or through other relations."""
        known, reached = frozenset(fixed), set(inputs)
        reached -= known
        found: set[int] = set()
        grew = True
        while grew:
            grew = False
            for index, read in self.inputs.items():
                if index not in found and read & reached:
                    found.add(index)
                    reached |= read - known
                    grew = True
        return sorted(found)

    def groups(self, fixed: frozenset[int]) -> list[Question]:
        """One question for each set of relations that share inputs, once the ``fixed`` ones have values."""
        if fixed not in self._groups:
            questions, left = [], list(self.relations)
            while left:
                group = self.linked(self.inputs[left[0]], fixed) or left[:1]
                questions.append(self._question(group, (), fixed))
                left = [index for index in left if index not in group]
            self._groups[fixed] = questions
        return self._groups[fixed]

    def complete(self, fixed: Mapping[int, Any], budget: int = BUDGET,
                 rng: random.Random | None = None) -> Witness | None | Unknown:
        """An input that agrees with the fixed input values and satisfies every assume."""
        point = {leaf: value for leaf, value in fixed.items() if leaf in self.domains}
        if any(value not in self.domains[leaf] for leaf, value in point.items()):
            return None
        unknown: Unknown | None = None
        for question in self.groups(frozenset(point)):
            found = question.ask(point, budget, rng)
            if found is None:
                return None
            if isinstance(found, Unknown):
                unknown = found
            else:
                point.update(found)
        return unknown or {leaf: point[leaf] if leaf in point else choose(domain, rng)
                           for leaf, domain in self.domains.items()}

    def violation(self, root: int, given: Iterable[int] = ()) -> Question:
        """The question whether ``root`` can be false, with the relations that bear on it."""
        known = list(given)
        own = [leaf for leaf in self.graph.leaves((root,)) if leaf in self.domains]
        return self._question(self.linked(own, known), [(root, False)], known)

    def refute(self, question: Question, fixed: Mapping[int, Any], budget: int = BUDGET,
               limit: int = 0) -> Witness | Proved | Unknown:
        """A witness of a :meth:`violation`; what a few boxes leave open is tried at all of up to ``limit`` points."""
        few, method = question.points() <= limit, "interval"
        found = question.ask(fixed, min(budget, FEW_BOXES) if few else budget)
        if few and isinstance(found, Unknown):
            found, method = question.exhaust(fixed), "exhaustive"
        if isinstance(found, Unknown):
            return found
        whole = None if found is None else self.complete({**fixed, **found}, budget)
        return Proved(method) if whole is None else whole  # nothing to complete to: no input satisfies the assumes

    def _question(self, relations: Iterable[int], goals: Sequence[Goal], given: Iterable[int]) -> Question:
        assumed = [(self.graph.conditions[index].root, True) for index in relations]
        return Question(self.graph, [*goals, *assumed], self.domains, given, self.reference)


def complete(graph: Graph, domains: Mapping[int, Domain], relations: Sequence[int], fixed: Mapping[int, Any],
             budget: int = BUDGET) -> Witness | None | Unknown:
    """A full input that agrees with ``fixed`` and satisfies every assume; None if there certainly is none."""
    return Assumes(graph, domains, relations).complete(fixed, budget)


def refute(graph: Graph, root: int, domains: Mapping[int, Domain], relations: Sequence[int],
           fixed: Mapping[int, Any], budget: int = BUDGET) -> Witness | Proved | Unknown:
    """A full input that satisfies every assume and makes ``root`` false, with pins, knobs and inputs as fixed."""
    assumes = Assumes(graph, domains, relations)
    return assumes.refute(assumes.violation(root, fixed), fixed, budget)


def prove(graph: Graph, root: int, domains: Mapping[int, Domain], relations: Sequence[int],
          budget: int = BUDGET) -> Proved | Witness | Unknown:
    """Whether ``root`` (no pin in its slice) holds at every input the assumes allow, and every knob setting.

    A witness then names the knobs' values too.
    """
    knobs = {node: tuple(sorted(graph.data[node].values)) for node in graph.leaves((root,))
             if graph.kinds[node] == "knob"}
    assumes = Assumes(graph, {**domains, **knobs}, relations)
    return assumes.refute(assumes.violation(root), {}, budget, EXHAUSTIVE_LIMIT)

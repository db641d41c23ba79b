"""Branch and prune over the inputs' domains: find a point with given properties, or prove there is none.

A :class:`Question` asks for a point at which some bool nodes have wanted values. It keeps boxes of
domain pieces: a box whose abstract values decide the question is dropped or answered, any other is
tried at its corners and then halved along the input that narrows the undecided comparisons most.
What corners and boxes cannot settle within a budget is :class:`Unknown`, never guessed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detent.passes.boxes import Domain, Region, halves, piece, size
from detent.passes.domains import Abstract
from detent.passes.graph import Graph
from detent.passes.input_domains import conjuncts
from detent.passes.interpret import interpret
from detent.passes.linear import contradicts
from detent.passes.lowering import expression_function

BUDGET = 2_000
"""Boxes a question may look at."""
ALL_CORNERS = 4
"""Boxes of at most so many open inputs are tried at every corner."""
RANDOM_POINTS = 8
LINEAR_BOXES = 8
"""The first, large boxes are also searched for a linear contradiction."""

Witness = dict[int, Any]
Goal = tuple[int, bool]
Box = dict[int, Domain]


@dataclass(frozen=True)
class Unknown:
    """Neither a witness nor a proof after looking at so many boxes."""

    boxes: int


def draw(rng: random.Random, domain: Domain) -> Any:
    """A uniform value of a domain; relies on ``getrandbits`` alone, whose stream no Python version changes."""
    count = size(domain)
    bits = (count - 1).bit_length()
    while (index := rng.getrandbits(bits)) >= count:
        pass
    return domain[index]


def evaluator(graph: Graph, roots: Sequence[int], leaves: Sequence[int], reference: bool) -> Callable[..., Any]:
    """A function of leaf values, in order, that returns the roots' values, a tuple unless there is one root.

    It is compiled, or with ``reference`` runs the interpreter.
    """
    if not reference:
        return expression_function(graph, roots, leaves)[1]

    def values(*point: Any) -> Any:
        results = interpret(graph, dict(zip(leaves, point, strict=True)), roots)
        return results[roots[0]] if len(roots) == 1 else tuple(results[root] for root in roots)

    return values


class Question:
    """Is there a point of the domains at which the goals ``(bool node, wanted value)`` all hold?

    ``given`` are the leaves (pins, knobs, inputs) whose values each :meth:`ask` fixes; the other inputs
    the goals read are the variables.
    """

    def __init__(self, graph: Graph, goals: Iterable[Goal], domains: Mapping[int, Domain],
                 given: Iterable[int] = (), reference: bool = False) -> None:
        self.graph, self.domains = graph, domains
        self.goals = list(dict.fromkeys(part for goal in goals for part in conjuncts(graph, *goal)))
        self.region = Region(graph, [node for node, _ in self.goals])
        known = set(given)
        self.given = [leaf for leaf in self.region.leaves if leaf in known]
        self.variables = [leaf for leaf in self.region.leaves if leaf not in known]
        for leaf in self.variables:
            if leaf not in domains:
                raise ValueError(f"node {leaf} ({graph.names[leaf]!r}) has neither a value nor a domain")
        wanted = tuple(wanted for _, wanted in self.goals)
        self._wanted = wanted[0] if len(wanted) == 1 else wanted
        self.looked = 0  # boxes, over all calls
        self._reference = reference
        self._compiled: Callable[..., Any] | None = None
        self._start: list[Abstract] | None = None

    def points(self) -> int:
        """Number of points of the variables' domains."""
        return math.prod(size(self.domains[leaf]) for leaf in self.variables)

    def admits(self, point: Mapping[int, Any]) -> bool:
        """Whether the goals hold at a point that gives every leaf a value."""
        return self._hold(*[point[leaf] for leaf in self.given], *[point[leaf] for leaf in self.variables])

    def exhaust(self, fixed: Mapping[int, Any]) -> Witness | None:
        """The first point at which the goals hold, trying all of them in order."""
        given = [fixed[leaf] for leaf in self.given]
        for point in itertools.product(*(self.domains[leaf] for leaf in self.variables)):
            if self._hold(*given, *point):
                return dict(zip(self.variables, point, strict=True))
        return None

    def ask(self, fixed: Mapping[int, Any], budget: int = BUDGET,
            rng: random.Random | None = None) -> Witness | None | Unknown:
        """A point at which the goals hold, None if there certainly is none, or :class:`Unknown`.

        Low corners come first, so witnesses are small; with ``rng`` the choices are random instead.
        """
        given = tuple(fixed[leaf] for leaf in self.given)
        if self._start is None:
            self._start = self.region.evaluate({leaf: piece(self.domains[leaf]) for leaf in self.variables})
        box: Box = {leaf: self.domains[leaf] for leaf in self.variables}
        memo = self.region.moved(self._start, {leaf: frozenset((fixed[leaf],)) for leaf in self.given})
        verdict = self._verdict(memo)
        if verdict is not None:
            return _pick(box, rng) if verdict else None
        stack = [(box, memo)]
        looked = 0
        while stack:
            if looked == budget:
                return Unknown(looked)
            box, memo = stack.pop()
            looked += 1
            self.looked += 1
            for point in _trials(box, rng):
                if self._hold(*given, *point):
                    return dict(zip(self.variables, point, strict=True))
            if looked <= LINEAR_BOXES and contradicts(self.region, memo, self.goals):
                continue
            children = self._split(box, memo)
            if rng is not None and rng.getrandbits(1):
                children.reverse()
            for child, values in children:
                if self._verdict(values):
                    return _pick(child, rng)
            stack.extend(reversed(children))
        return None

    def _hold(self, *point: Any) -> bool:
        if self._compiled is None:
            self._compiled = evaluator(self.graph, [node for node, _ in self.goals], self.given + self.variables,
                                       self._reference)
        return bool(self._compiled(*point) == self._wanted)

    def _verdict(self, memo: Sequence[Abstract]) -> bool | None:
        """True: the goals hold all over the box; False: nowhere in it."""
        everywhere = True
        for node, wanted in self.goals:
            value = self.region.value(memo, node)
            if value == frozenset((not wanted,)):
                return False
            everywhere = everywhere and value == frozenset((wanted,))
        return True if everywhere else None

    def _split(self, box: Box, memo: list[Abstract]) -> list[tuple[Box, list[Abstract]]]:
        """The undecided or certain halves of a box, along the input that leaves least open; none of a point."""
        open_roots = [node for node, wanted in self.goals if self.region.value(memo, node) != frozenset((wanted,))]
        comparisons = self.region.open_comparisons(memo, open_roots)
        before = [self.region.openness(memo, comparison) for comparison in comparisons]
        best: list[tuple[Box, list[Abstract]]] = []
        best_rank: tuple[float, int] | None = None
        for leaf, domain in box.items():
            if size(domain) == 1:
                continue
            children, left_open = [], 0.0
            for half in halves(domain):
                values = self.region.moved(memo, {leaf: piece(half)})
                if self._verdict(values) is not False:
                    children.append(({**box, leaf: half}, values))
                    left_open += sum(_ratio(self.region.openness(values, comparison), whole)
                                     for comparison, whole in zip(comparisons, before, strict=True))
            rank = (left_open, -size(domain))
            if best_rank is None or rank < best_rank:
                best, best_rank = children, rank
        return best


def _ratio(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    if whole == math.inf:
        return 1.0 if part == math.inf else 0.5
    return 1.0 if part >= whole else part / whole


def choose(domain: Domain, rng: random.Random | None) -> Any:
    """The lowest value, or a random one."""
    return domain[0] if rng is None else draw(rng, domain)


def _pick(box: Box, rng: random.Random | None) -> Witness:
    return {leaf: choose(domain, rng) for leaf, domain in box.items()}


def _trials(box: Box, rng: random.Random | None) -> Iterator[tuple[Any, ...]]:
    """Points of a box worth trying before it is split."""
    if rng is not None:
        return (tuple(draw(rng, domain) for domain in box.values()) for _ in range(RANDOM_POINTS))
    ends = [(domain[0], domain[-1]) if size(domain) > 1 else (domain[0],) for domain in box.values()]
    if sum(len(pair) > 1 for pair in ends) <= ALL_CORNERS:
        return itertools.product(*ends)
    low, high = tuple(pair[0] for pair in ends), tuple(pair[-1] for pair in ends)
    flipped = ((*base[:i], pair[-1] if base is low else pair[0], *base[i + 1:])
               for base in (low, high) for i, pair in enumerate(ends))
    return itertools.chain((low, high), flipped)

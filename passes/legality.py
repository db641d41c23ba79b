"""Legality: which values the pins and knobs may jointly take.

An assignment is legal if every ``require`` holds at every input that the assumes allow. With pins as
leaves, a condition reads a few controls (pins and knobs) and inputs, so each is judged over its own
controls only, never over the product of all. Per combination of its controls a condition

* is tried at every point of its inputs' domains where those are few (*exhaustive*),
* else is searched for a violation by branch and prune (*interval*),
* else is tried on a stored sample (*sampled*), the only verdict that is no proof.

Controls that share a condition form a *component*; the legal assignments are the components' product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detent.passes.boxes import Domain
from detent.passes.defaults import draw_inputs
from detent.passes.errors import EmptyDomain, TooManyCombinations, UndecidedAssumes
from detent.passes.graph import Graph
from detent.passes.input_domains import relations
from detent.passes.legality_condition import ConditionJudge, Values, check_pinned
from detent.passes.question import BUDGET, Witness
from detent.passes.witness import EXHAUSTIVE_LIMIT, Assumes

MAX_COMBINATIONS = 2_000_000
SAMPLES = 4_096
SEED = 20_260

Assignment = Mapping[int, Any]


@dataclass(frozen=True)
class Refutation:
    """What one ``require`` rules out: values of its controls, each with a witness's index."""

    condition: int
    nodes: tuple[int, ...]
    cases: dict[Values, int]


@dataclass
class Legality:
    """The outcome of :func:`judge`. Nodes are pins and knobs; an assignment gives each a value.

    ``components``: ``(nodes, legal value tuples)``, both ascending, first node slowest; the legal
    assignments are their product (a condition without controls that fails adds ``((), [])``).
    ``verdicts``: by index of each ``require``, ``constant``, ``exhaustive``, ``interval`` or ``sampled``.
    ``proved`` + ``sampled`` = ``candidates``; a legal assignment is sampled if one of its combinations
    held on the sample only. ``witnesses`` are whole inputs that satisfy every assume.
    """

    candidates_of: dict[int, list[Any]]
    components: list[tuple[tuple[int, ...], list[Values]]] = field(default_factory=list)
    verdicts: dict[int, str] = field(default_factory=dict)
    refutations: list[Refutation] = field(default_factory=list)
    witnesses: list[Witness] = field(default_factory=list)
    candidates: int = 0
    legal: int = 0
    proved: int = 0
    sampled: int = 0

    def explain(self, assignment: Assignment) -> tuple[int, Witness] | None:
        """The first ``require`` that rules an assignment out, and an input that violates it; None if legal."""
        for refutation in self.refutations:
            case = refutation.cases.get(tuple(assignment[node] for node in refutation.nodes))
            if case is not None:
                return refutation.condition, self.witnesses[case]
        return None

    def is_legal(self, assignment: Assignment) -> bool:
        """Whether a whole assignment takes candidates only and is ruled out by nothing."""
        return (all(assignment[node] in values for node, values in self.candidates_of.items())
                and self.explain(assignment) is None)

    def smallest(self, fixed: Assignment) -> dict[int, Any] | None:
        """The smallest legal assignment that agrees with some fixed values; None if there is none."""
        if all(node in fixed for node in self.candidates_of):
            return {node: fixed[node] for node in self.candidates_of} if self.is_legal(fixed) else None
        chosen: dict[int, Any] = {}
        for nodes, legal in self.components:
            wanted = [(i, fixed[node]) for i, node in enumerate(nodes) if node in fixed]
            found = next((values for values in legal if all(values[i] == value for i, value in wanted)), None)
            if found is None:
                return None
            chosen.update(zip(nodes, found, strict=True))
        return {node: chosen[node] for node in self.candidates_of}

    def default(self, rank: Iterable[Assignment]) -> dict[int, Any] | None:
        """The first of ``rank`` (partial assignments, best first) that extends to a legal one, smallest values
        elsewhere; else the smallest legal assignment, or None if nothing is legal."""
        return next((whole for fixed in rank if (whole := self.smallest(fixed)) is not None), self.smallest({}))


def judge(graph: Graph, candidates: Mapping[int, Sequence[Any]], domains: Mapping[int, Domain], *,
          reference: bool = False, exhaustive_limit: int = EXHAUSTIVE_LIMIT, budget: int = BUDGET,
          samples: int = SAMPLES) -> Legality:
    """Judge every combination of the pins' and knobs' candidates against every ``require``.

    ``candidates`` maps each pin and knob node to its possible values, ascending. ``exhaustive_limit`` bounds
    the evaluations of one condition, ``budget`` the boxes of one search. With ``reference`` every evaluation
    runs on the interpreter. Raises :class:`EmptyDomain` or :class:`UndecidedAssumes` if no input satisfying
    the assumes exists or is found, :class:`UnpinnedValue` and :class:`TooManyCombinations`.
    """
    assumes = Assumes(graph, domains, relations(graph, dict(domains)), reference)
    first = assumes.complete({}, budget)
    if not isinstance(first, dict):
        index = assumes.relations[0]
        raise (EmptyDomain if first is None else UndecidedAssumes)(
            "no input satisfies all assumes" if first is None else "found no input that satisfies all assumes",
            graph.conditions[index].location, "loosen or simplify the assumes that relate inputs")
    judging = _Judging(assumes, {node: list(candidates[node]) for node in sorted(candidates)},
                       exhaustive_limit, budget, samples)
    judging.witness(first)
    for index, condition in enumerate(graph.conditions):
        if condition.kind == "require":
            judging.condition(index)
    return judging.result()


class _Judging:
    """The state of one :func:`judge`: verdicts so far, and witnesses that later conditions may share."""

    def __init__(self, assumes: Assumes, candidates: dict[int, list[Any]], limit: int, budget: int,
                 samples: int) -> None:
        self.assumes, self.graph, self.candidates = assumes, assumes.graph, candidates
        self.limit, self.budget, self.samples = limit, budget, samples
        self.found = Legality(candidates)
        self._doubts: list[tuple[tuple[int, ...], set[Values]]] = []
        self._witness_at: dict[Values, int] = {}
        self._sample: list[Witness] | None = None

    def witness(self, point: Witness) -> int:
        """The index of a witness, which is stored once."""
        key = tuple([point[leaf] for leaf in self.assumes.domains])
        if key not in self._witness_at:
            self._witness_at[key] = len(self.found.witnesses)
            self.found.witnesses.append(point)
        return self._witness_at[key]

    def sample(self) -> list[Witness]:
        """The stored sample of inputs, drawn when first needed."""
        if self._sample is None:
            self._sample = draw_inputs(self.assumes, self.samples, SEED)
        return self._sample

    def condition(self, index: int) -> None:
        """Judge one ``require`` over its own controls."""
        check_pinned(self.graph, index)
        judged = ConditionJudge(self.assumes, index, self.candidates, self.limit, self.budget, self.sample)
        controls = tuple(judged.controls)
        choices = [self.candidates[node] for node in controls]
        combinations = math.prod(map(len, choices))
        if combinations > MAX_COMBINATIONS:
            raise _too_many(self.graph, controls, combinations)
        few = judged.points == 1 or judged.points * combinations <= self.limit
        decide = judged.try_all if few else judged.search
        refuted: dict[Values, int] = {}
        doubted: set[Values] = set()
        methods = set()
        for values in itertools.product(*choices):
            outcome = decide(values)
            if isinstance(outcome, dict):
                refuted[values] = self.witness(outcome)
                continue
            methods.add(outcome)
            if outcome == "sampled":
                doubted.add(values)
        if refuted:
            self.found.refutations.append(Refutation(index, controls, refuted))
        if doubted:
            self._doubts.append((controls, doubted))
        weakest = [method for method in ("sampled", "interval", "exhaustive") if method in methods]
        self.found.verdicts[index] = ("constant" if not controls and not judged.inputs
                                      else weakest[0] if weakest else "exhaustive" if few else "interval")

    def result(self) -> Legality:
        """Join the controls into components, enumerate their legal values and count."""
        found = self.found
        legal = certain = 1
        for nodes in self._components():
            values = self._enumerate(nodes)
            found.components.append((nodes, values))
            legal, certain = legal * len(values), certain * self._undoubted(nodes, values)
        if any(not refutation.nodes for refutation in found.refutations):
            found.components.append(((), []))
            legal = certain = 0
        if any(not nodes for nodes, _ in self._doubts):
            certain = 0
        found.candidates = math.prod(len(values) for values in self.candidates.values())
        found.legal, found.sampled = legal, legal - certain
        found.proved = found.candidates - found.sampled
        return found

    def _components(self) -> list[tuple[int, ...]]:
        """Controls tied by what some condition rules out or leaves in doubt."""
        group = {node: {node} for node in self.candidates}
        for tied in itertools.chain((refutation.nodes for refutation in self.found.refutations),
                                    (nodes for nodes, _ in self._doubts)):
            joined = set().union(*(group[node] for node in tied))
            for node in joined:
                group[node] = joined
        return sorted({tuple(sorted(nodes)) for nodes in group.values()})

    def _enumerate(self, nodes: tuple[int, ...]) -> list[Values]:
        """A component's legal combinations, ascending; a condition is asked once its last control has a value."""
        due: list[list[tuple[tuple[int, ...], dict[Values, int]]]] = [[] for _ in nodes]
        for refutation in self.found.refutations:
            if refutation.nodes and refutation.nodes[0] in nodes:
                places = tuple(nodes.index(node) for node in refutation.nodes)
                due[max(places)].append((places, refutation.cases))
        partial: list[Values] = [()]
        for node, checks in zip(nodes, due, strict=True):
            grown = len(partial) * len(self.candidates[node])
            if grown > MAX_COMBINATIONS:
                raise _too_many(self.graph, nodes, grown)
            partial = [(*values, value) for values in partial for value in self.candidates[node]]
            for places, cases in checks:
                partial = [values for values in partial if tuple([values[i] for i in places]) not in cases]
        return partial

    def _undoubted(self, nodes: tuple[int, ...], legal: list[Values]) -> int:
        """How many of a component's legal combinations are proved."""
        doubts = [(tuple(nodes.index(node) for node in tied), cases) for tied, cases in self._doubts
                  if tied and tied[0] in nodes]
        return sum(all(tuple([values[i] for i in places]) not in cases for places, cases in doubts)
                   for values in legal) if doubts else len(legal)


def _too_many(graph: Graph, nodes: Sequence[int], combinations: int) -> TooManyCombinations:
    names = ", ".join(repr(graph.names[node] or str(graph.data[node])) for node in nodes)
    return TooManyCombinations(
        f"conditions tie {names} together: {combinations} combinations to judge, at most {MAX_COMBINATIONS}",
        next((graph.locations[node] for node in nodes if graph.locations[node] is not None), None),
        "bound one of them by a require of its own, or split the condition that names them all")

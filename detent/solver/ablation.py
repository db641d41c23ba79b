"""Ablations: the same program solved with one analysis switched off, beside the whole solver.

An ablation only reports. It may find pins that nobody can judge (no finite candidates, conditions that still
move with the batch); that is its result and no error. Where pins leave a point moving, two inputs show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detent.passes.errors import AnalysisError
from detent.passes.graph import Graph
from detent.runtime.cache import Store
from detent.runtime.deployment import Deployment, load
from detent.solver.solution import Solution
from detent.solver.solve import Progress, name_files, program_of, solve, switches_of

if TYPE_CHECKING:
    from detent.passes.boxes import Domain
    from detent.solver.choices import Choices
    from detent.solver.compiled import Pinned

SAMPLES = 1_024
ASSIGNMENTS = 64
"""Assignments of the pins under which the sample is tried."""
SEED = 4_711


@dataclass(frozen=True)
class Counts:
    """One row of the comparison. ``moving``: points that would follow the batch without pins, as far as the
    analysis sees. ``candidates`` and ``legal`` are None where they are not finite or cannot be judged."""

    pins: int
    moving: int
    candidates: int | None
    legal: int | None


@dataclass(frozen=True)
class Moved:
    """A point that took two values under the same values of the pins, at two inputs that satisfy every assume."""

    point: str
    values: tuple[Any, Any]
    inputs: tuple[dict[str, Any], dict[str, Any]]
    pins: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """``document`` is the ablated program's, with None for what could not be judged; ``problem`` says why.

    ``ablated`` is None in that case. ``off`` says in words what ``name`` switches off. ``reached`` is the document
    that is got where a pin without finite candidates may take every constant that reaches it; None if no pin lacks
    them, or if that does not bound it either.
    """

    name: str
    off: str
    full: Solution
    ablated: Solution | None
    document: Mapping[str, Any]
    problem: str
    moved: Moved | None
    reached: Mapping[str, Any] | None
    choices: Choices | None

    @property
    def rows(self) -> tuple[Counts, Counts]:
        """The counts of the whole solver and of the ablated one."""
        return counts(self.full.document), counts(self.document)

    @property
    def remark(self) -> str:
        """In words: what is unsound, what could not be judged and why; empty where the numbers say all."""
        parts = []
        if self.moved is not None:
            one, other = self.moved.values
            parts.append(f"unsound: {self.moved.point} is {one!r} or {other!r} under the same pins")
        if self.problem and self.document["candidates"] is None:
            parts.append(f"{self.problem.partition('; ')[0]}, which the analysis that is off would give")
            if self.reached is not None:
                parts.append(f"of the constants that reach the pins, {self.reached['candidates']:,} assignments can be "
                             f"made, {self.reached['legal']:,} of them legal")
        elif self.problem:
            parts.append(f"not judged: {self.problem.partition('; ')[0]}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Ablations:
    """A program solved as it is (``full``) and with each analysis off in turn.

    ``choices``: how the legal assignments of the whole solver compare with the selection (None: see
    :func:`own_choices`). ``free``: values by point where nothing is analysed (see :func:`free_choices`).
    """

    full: Solution
    comparisons: list[Comparison]
    choices: Choices | None
    free: dict[str, int]


def counts(document: Mapping[str, Any]) -> Counts:
    """The numbers an ablation is judged by."""
    moving = sum(point["batch_dependent"] for point in document["points"])
    return Counts(len(document["pins"]), moving, document["candidates"], document["legal"])


def compare_all(program: str | Callable[..., Any], deployment: str | Deployment, *, store: Store | None = None,
                progress: Progress = lambda step: None) -> Ablations:
    """:func:`compare` with every ablation in turn."""
    from detent.passes.input_domains import input_domains
    from detent.solver.choices import free_choices, own_choices
    from detent.solver.compiled import ABLATIONS

    facts = load(deployment) if isinstance(deployment, str) else deployment
    full = solve(program, facts, store=store, progress=progress)

    def off(name: str) -> Progress:
        return lambda step: progress(f"without {name}: {step}")

    comparisons = [compare(program, facts, name, store=store, progress=off(name)) for name in ABLATIONS]
    domains = input_domains(full.graph)
    return Ablations(full, comparisons, own_choices(full.document, full.graph, domains),
                     free_choices(full.document, full.graph))


def compare(program: str | Callable[..., Any], deployment: str | Deployment, name: str, *,
            store: Store | None = None, progress: Progress = lambda step: None) -> Comparison:
    """Solve a program as it is and with the ablation ``name`` (see ``ABLATIONS``).

    Raises UnknownName for another ablation, and what :func:`detent.solver.solve.solve` raises for the program as
    it is. An ablation that leaves no cut at all is an AnalysisError too.
    """
    switches_of(name)
    from detent.passes.input_domains import input_domains
    from detent.solver.choices import own_choices
    from detent.solver.compiled import ABLATIONS

    facts = load(deployment) if isinstance(deployment, str) else deployment
    full = solve(program, facts, store=store, progress=progress)
    problem, reached = "", None
    document: Mapping[str, Any]
    try:
        ablated: Solution | None = solve(program, facts, ablate=name, store=store, progress=progress)
    except AnalysisError as error:
        ablated, problem = None, str(error)
    if ablated is not None:
        document, graph = ablated.document, ablated.graph
    else:
        progress("count the pins")
        document, reached, graph = _unjudged(program, facts, name)
    progress("look for a point that moves")
    domains = input_domains(graph)
    moved = find_moved(graph, domains)
    judged = document if ablated is not None else reached
    choices = None if judged is None else own_choices(judged, graph, domains)
    return Comparison(name, ABLATIONS[name][0], full, ablated, document, problem, moved, reached, choices)


def _unjudged(program: str | Callable[..., Any], deployment: Deployment,
              name: str) -> tuple[dict[str, Any], dict[str, Any] | None, Graph]:
    """The document and graph of an ablated program up to its cut, for one that cannot be judged.

    Between them the document of :attr:`Comparison.reached`.
    """
    from detent.lang.builder import build_module
    from detent.lang.load import load_program
    from detent.passes.candidates import Candidates
    from detent.passes.legality import Legality
    from detent.passes.value_ranges import pin_candidates
    from detent.solver.compiled import Compiled, pin_program
    from detent.solver.document import document

    target = program_of(program)
    built = build_module(load_program(program if callable(program) else target.id))
    pinned = pin_program(built.module, deployment.facts, deployment.name, switches_of(name))
    name_files(pinned, built.texts, target)
    graph, named = pinned.graph, {"program": target.name, "deployment": deployment.name}
    total: int | None
    reached: dict[str, Any] | None = None
    try:
        found = pin_candidates(pinned.flat, pinned.sets)
        total = math.prod(len(each.values) for each in found.values())
    except AnalysisError:
        found, total = {node: Candidates([], False) for node in graph.of_kind("pin")}, None
        by_constants = _judge_constants(pinned)
        reached = None if by_constants is None else {**document(by_constants, None), **named}
    verdicts = dict.fromkeys(range(len(graph.conditions)), "not judged")
    compiled = Compiled(pinned, found, Legality({}, verdicts=verdicts))
    unknown = {"candidates": total, "legal": None, "legality": {"proved": None, "sampled": None}}
    return {**document(compiled, None), **unknown, **named}, reached, graph


def _judge_constants(pinned: Pinned) -> Any:
    """The program judged with every constant that reaches a pin as a candidate; None where that is not finite."""
    from detent.passes.candidates import Candidates, ordered
    from detent.passes.legality import judge
    from detent.solver.compiled import Compiled

    graph = pinned.graph
    sets = reaching_constants(graph)
    found = {node: Candidates(ordered(frozenset(graph.data[node].values)), True) for node in graph.of_kind("knob")}
    for node in graph.of_kind("pin"):
        values = sets[graph.args[node][0]]
        if values is None:
            return None
        found[node] = Candidates(ordered(values), False)
    try:
        return Compiled(pinned, found, judge(graph, {n: c.values for n, c in found.items()}, pinned.domains))
    except AnalysisError:
        return None


def reaching_constants(graph: Graph) -> list[frozenset[Any] | None]:
    """For each node every constant that can become its value on some way through selects, ``min``, ``max`` and lookups.

    A bool has both values. None: the value is computed, or has more than 4,096 constants.
    """
    from detent.passes.domains import BOOLS, MAX_SET

    found: list[frozenset[Any] | None] = []
    for node, kind in enumerate(graph.kinds):
        args = graph.args[node]
        values: frozenset[Any] | None = BOOLS if graph.types[node] == "bool" else None
        if kind == "constant":
            values = frozenset((graph.data[node],))
        elif kind == "knob":
            values = frozenset(graph.data[node].values)
        elif kind == "lookup":
            values = frozenset(value for _, value in graph.data[node])
        elif kind in ("select", "min", "max", "pin"):
            arms = [found[arg] for arg in (args[1:] if kind == "select" else args)]
            known = [arm for arm in arms if arm is not None]
            values = frozenset().union(*known) if len(known) == len(arms) else values
        found.append(values if values is None or len(values) <= MAX_SET else None)
    return found


def find_moved(graph: Graph, domains: Mapping[int, Domain]) -> Moved | None:
    """A point that moves although every pin is a constant, found on a seeded sample; None for a sound cut.

    Pins have values that the program itself computes at a sampled input, knobs their defaults, and request inputs
    agree at the two inputs.
    """
    from detent.passes.cut import BATCH_DEPENDENT
    from detent.passes.defaults import sample_inputs
    from detent.passes.input_domains import relations
    from detent.solver.document import moving_points, name_of
    from detent.solver.trials import tuple_function

    nodes = dict(graph.points)
    points = [name for name, _ in moving_points(graph)]
    if not points:
        return None
    inputs, pins = graph.of_kind("input"), graph.of_kind("pin")
    knobs = {node: graph.data[node].default for node in graph.of_kind("knob")}
    samples = sample_inputs(graph, domains, relations(graph, dict(domains)), SAMPLES, SEED)
    rows = [(*(sample[node] for node in inputs), *knobs.values()) for sample in samples]
    requests = [i for i, node in enumerate(inputs) if graph.data[node].source not in BATCH_DEPENDENT]
    own_pins = tuple_function(graph, pins, [*inputs, *knobs])
    point_values = tuple_function(graph, [nodes[name] for name in points], [*inputs, *knobs, *pins])
    for fixed in list(dict.fromkeys(own_pins(*row) for row in rows))[:ASSIGNMENTS]:
        first: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in rows:
            start = first.setdefault(tuple(row[i] for i in requests), row)
            for name, old, new in zip(points, point_values(*start, *fixed), point_values(*row, *fixed), strict=True):
                if old != new:
                    at = [{name_of(graph, node): value for node, value in zip(inputs, point, strict=False)}
                          for point in (start, row)]
                    return Moved(name, (old, new), (at[0], at[1]),
                                 {name_of(graph, node): value for node, value in zip(pins, fixed, strict=True)})
    return None

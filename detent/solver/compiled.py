"""From a Python function and a deployment to a judged graph: the pipeline of passes as plain calls.

``detent-opt`` runs the same passes one by one on text; here they share what they learnt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from detent.dialects.selir.scalar import LookupOp, ScalarOp
from detent.dialects.selir.semantics import SEMANTICS
from detent.dialects.selir.structure import ProgramOp
from detent.dialects.selir.unbound import FuncOp
from detent.passes.candidates import Candidates
from detent.passes.check_failures import check_failures, require_no_failures
from detent.passes.control_dependence import flatten_branches
from detent.passes.cut import batch_dependent
from detent.passes.dce import delete_dead
from detent.passes.domains import Abstract, may_fail
from detent.passes.flatten import Flattened
from detent.passes.graph import Graph, Location
from detent.passes.input_domains import input_domains
from detent.passes.legality import Legality, judge
from detent.passes.min_cut import insert_pins
from detent.passes.partial_eval import Binding, bind
from detent.passes.rules import Options
from detent.passes.sweep import Simplifier, program_domains
from detent.passes.value_ranges import pin_candidates, pin_sets

Progress = Callable[[str], None]
Domain = range | tuple[Any, ...]


@dataclass(frozen=True)
class Switches:
    """What an ablation switches off; all on is the solver."""

    options: Options = Options()
    keep_keys: bool = True
    control: bool = True
    cut: bool = True


ABLATIONS: dict[str, tuple[str, Switches]] = {
    "ranges": ("range facts", Switches(Options(ranges=False))),
    "value-sets": ("value sets", Switches(Options(value_sets=False))),
    "equal-arms": ("equal arms of a branch", Switches(Options(equal_arms=False))),
    "boolean": ("boolean algebra", Switches(Options(boolean=False))),
    "identities": ("arithmetic identities", Switches(Options(identities=False))),
    "cse": ("merging equal values", Switches(Options(cse=False))),
    "lookup": ("table lookups that keep their key", Switches(keep_keys=False)),
    "simplification": ("everything but constant folding",
                       Switches(Options(False, False, False, False, False, False), keep_keys=False)),
    "control-dependence": ("branch conditions as dependences", Switches(control=False)),
    "cut": ("the minimum cut: every batch-dependent sink is pinned itself", Switches(cut=False)),
}
"""Names of ``--ablate`` with what each switches off."""


@dataclass
class Pinned:
    """A program for one deployment with its pins, before anything is judged.

    ``domains``: by input node. ``sets``: what each value can take. ``moves``: which nodes depended on the batch
    before they were pinned. ``fails``: nodes whose operation could fail on its operands' value sets and is
    therefore evaluated in its total form. ``timings``: seconds by step.
    """

    program: ProgramOp
    flat: Flattened
    domains: dict[int, Domain]
    sets: Mapping[SSAValue, Abstract]
    moves: list[bool]
    fails: set[int]
    facts_read: list[str]
    points_location: Location | None
    timings: dict[str, float]

    @property
    def graph(self) -> Graph:
        """The graph with ``pin`` nodes."""
        return self.flat.graph

    def moves_point(self, node: int) -> bool:
        """Whether a point's value depends on the batch as long as nothing is pinned."""
        pinned = self.graph.kinds[node] == "pin"
        return self.moves[self.graph.args[node][0] if pinned else node]


@dataclass
class Compiled:
    """A program with pins, their candidates by node, and which assignments are legal."""

    pinned: Pinned
    candidates: dict[int, Candidates]
    legality: Legality

    @property
    def graph(self) -> Graph:
        """The graph with ``pin`` nodes."""
        return self.pinned.graph


def split_module(module: ModuleOp) -> tuple[ProgramOp, dict[str, FuncOp]]:
    """The one program of a front-end module and its helper functions by name."""
    ops = list(module.body.block.ops)
    (program,) = [op for op in ops if isinstance(op, ProgramOp)]
    return program, {op.sym_name.data: op for op in ops if isinstance(op, FuncOp)}


class _Clock:
    """Seconds by step, and progress for who waits."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress, self._last, self._started = progress, "", 0.0

    def step(self, name: str) -> None:
        now = time.perf_counter()
        if self._last:
            self.seconds[self._last] = now - self._started
        self._last, self._started = name, now
        self._progress(name)


def pin_program(module: ModuleOp, facts: Mapping[str, Mapping[str, Any]], deployment: str,
                switches: Switches = Switches(), progress: Progress = lambda step: None) -> Pinned:
    """Bind, simplify and cut.

    Raises SourceError for what the program does with these facts, AnalysisError for what the analyses
    refuse; both name the place and the remedy.
    """
    clock = _Clock(progress)
    clock.step("bind facts")
    program, functions = split_module(module)
    binding = Binding(facts, deployment)
    bound = bind(program, functions, binding, keep_keys=switches.keep_keys, equal_arms=switches.options.equal_arms)
    clock.step("simplify")
    flatten_branches(bound.block)
    sweep = Simplifier(bound, switches.options, program_domains(bound))
    sweep.run()
    if switches == Switches():
        # An ablation only reports; that no operation fails is proved once, with everything on, and before
        # dead values go: Python computes those too.
        check_failures(bound, sweep.sets)
    delete_dead(bound.block)
    clock.step("cut")
    before = Flattened(bound)
    moving = dict(zip(before.values, batch_dependent(before.graph, switches.control), strict=True))
    insert_pins(bound, control=switches.control, cut=switches.cut, flat=before)
    flat = Flattened(bound)
    domains = input_domains(flat.graph)
    if switches == Switches():
        require_no_failures(flat.graph, pin_sets(flat, sweep.sets), domains)
    clock.step("judge")
    return Pinned(bound, flat, domains, sweep.sets,
                  [moving.get(value, False) for value in flat.values], failing_nodes(flat, sweep.sets),
                  [f"{s}.{n}" for s, n in binding.read], flat.points_location, clock.seconds)


def judge_program(pinned: Pinned) -> Compiled:
    """Find the pins' candidates and judge them. Raises AnalysisError where a pin has no finite set of them."""
    started = time.perf_counter()
    found = pin_candidates(pinned.flat, pinned.sets)
    legality = judge(pinned.graph, {node: c.values for node, c in found.items()}, pinned.domains)
    pinned.timings["judge"] = time.perf_counter() - started
    return Compiled(pinned, found, legality)


def compile_program(module: ModuleOp, facts: Mapping[str, Mapping[str, Any]], deployment: str,
                    switches: Switches = Switches(), progress: Progress = lambda step: None) -> Compiled:
    """Bind, simplify, cut and judge; raises as :func:`pin_program` and :func:`judge_program` do."""
    return judge_program(pin_program(module, facts, deployment, switches, progress))


def failing_nodes(flat: Flattened, sets: Mapping[SSAValue, Abstract]) -> set[int]:
    """Nodes that must be evaluated in their total form."""
    found = set()
    for node, value in enumerate(flat.values):
        op = value.owner
        if isinstance(op, ScalarOp) and SEMANTICS[op.kind].fails is not None:
            if may_fail(op.kind, [sets.get(v) for v in op.scalars]):
                found.add(node)
        elif isinstance(op, LookupOp):
            keys = sets.get(op.key)
            if not isinstance(keys, frozenset) or not keys <= {k for k, _ in op.table.data}:
                found.add(node)
    return found


def relabel(pinned: Pinned, name: Callable[[str], str]) -> None:
    """Rename the files in all locations, so that they do not depend on a directory."""
    names: dict[str, str] = {}

    def rename(file: str) -> str:
        if file not in names:
            names[file] = name(file)
        return names[file]

    graph, returned = pinned.graph, pinned.points_location
    pinned.points_location = returned and returned._replace(file=rename(returned.file))
    graph.locations = [loc and loc._replace(file=rename(loc.file)) for loc in graph.locations]
    graph.conditions = [c if c.location is None else c._replace(location=c.location._replace(
        file=rename(c.location.file))) for c in graph.conditions]


def without_pins(graph: Graph) -> Graph:
    """The graph with every pin replaced by the value it stands for: what an unpinned program computes."""
    target = list(range(len(graph)))
    for node in graph.of_kind("pin"):
        target[node] = target[graph.args[node][0]]
    return replace(
        graph,
        args=[tuple(target[a] for a in args) for args in graph.args],
        guards={node: target[guard] for node, guard in graph.guards.items()},
        points=[(name, target[node]) for name, node in graph.points],
        conditions=[c._replace(root=target[c.root]) for c in graph.conditions])

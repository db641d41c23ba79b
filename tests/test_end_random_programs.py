"""Random programs: plain Python, interpreter and emitted source agree, after every pass and after pinning."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from end_sources import Source, sources
from end_support import (
    FAILURES,
    Emitted,
    Facts,
    Outcome,
    Plain,
    Point,
    admitted,
    bound,
    compiled,
    controls,
    evaluated,
    exact,
    executed,
    leaves_of,
    load_text,
    product,
    typed,
)
from hypothesis import HealthCheck, Phase, given, settings

from detent.dialects.selir.source import SourceError
from detent.lang import Violation
from detent.passes.candidates import UnboundedPin
from detent.passes.check_failures import Reachable
from detent.passes.constant_fold import FOLD_ONLY
from detent.passes.control_dependence import flatten_branches
from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.dce import delete_dead
from detent.passes.errors import EmptyDomain, TooManyCombinations
from detent.passes.flatten import flatten
from detent.passes.graph import Graph
from detent.passes.interpret import interpret
from detent.passes.min_cut import InfeasibleCut
from detent.passes.rules import Options
from detent.passes.sweep import Simplifier, program_domains
from detent.runtime.repin import Repin
from detent.solver.compiled import Compiled, Switches, without_pins
from detent.solver.defaults import default_of
from detent.solver.document import document, moving_points

FEW_POINTS = 12
FEW_ASSIGNMENTS = 24


@dataclass
class Trial:
    """A program run at every input: outcomes where the assumes hold, their messages where not, and what it raised."""

    source: Source
    plain: Plain
    outcomes: list[tuple[Point, Mapping[str, Any], Outcome]] = field(default_factory=list)
    refused: list[tuple[Point, str]] = field(default_factory=list)
    raised: list[tuple[Point, BaseException]] = field(default_factory=list)

    def run(self) -> None:
        steps = [{"step": step} for step in (2, 1, 4)] if 'knob("step"' in self.source.text else [{}]
        for point in product(self.source.inputs):
            self._try(point, steps)
        for name, value in self.source.outside.items():
            self._try({**{name: values[0] for name, values in self.source.inputs.items()}, name: value}, steps)

    def _try(self, point: Point, steps: Sequence[Mapping[str, Any]]) -> None:
        for setting in steps:
            try:
                self.outcomes.append((point, setting, self.plain(point, setting)))
            except Violation as violation:
                self.refused.append((point, violation.message))
                return
            except FAILURES as error:
                self.raised.append((point, error))

    @property
    def admissible(self) -> list[Point]:
        """Inputs that satisfy every assume."""
        return [point for point, setting, _ in self.outcomes if setting.get("step", 2) == 2]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """About so many of the items, the first and the last included."""
    return list(items) if len(items) <= count else [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def test_every_way_of_running_a_program_agrees(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=90, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False,
              suppress_health_check=list(HealthCheck))
    @given(sources())
    def check(source: Source) -> None:
        check_program(source, tmp_path, counts)

    check()
    # Otherwise the programs would show nothing.
    assert counts["solved"] > 50 and counts["runs"] > 1500 and counts["failing"] > 0
    assert counts["2 pins"] + counts["3 pins"] > 15 and min(counts["legal"], counts["illegal"]) > 80
    # A proof may be given up, but hardly ever.
    assert counts["not excluded"] < 2


def check_program(source: Source, folder: Path, counts: Counter[str]) -> None:
    """Everything that must hold for one program; ``counts`` says what happened."""
    counts["programs"] += 1
    function = load_text(source.text, folder, f"program{counts['programs']}")
    trial = Trial(source, Plain(function, source.facts))
    trial.run()
    try:
        found = compiled(function, source.facts)
    except Exception as error:
        counts[refusal(trial, error)] += 1
        if isinstance(error, (UnboundedPin, TooManyCombinations)):
            check_unpinned(trial, function)
        return
    assert not trial.raised, "an operation fails and is not refused"
    counts["solved"] += 1
    counts["runs"] += len(trial.outcomes)
    check_domains(trial, found)
    check_emitted(trial, found)
    check_unpinned(trial, function)
    check_pinned(trial, found, counts)


def refusal(trial: Trial, error: Exception) -> str:
    """Whether the error is right, and what kind it is."""
    name = type(error).__name__
    if isinstance(error, Reachable):
        assert trial.raised or "cannot exclude" in str(error), "refused although nothing fails"
        return "failing" if trial.raised else "not excluded"
    if isinstance(error, EmptyDomain):
        assert not trial.outcomes and not trial.raised
    elif isinstance(error, InfeasibleCut):
        unpinnable = [name for name in trial.source.inputs if f"{name}: Unpinnable" in trial.source.text]
        assert any(all(points[point][1] == exact(inputs[name])[1] for inputs, _, (points, _) in trial.outcomes)
                   for name in unpinnable for point in trial.outcomes[0][2][0]), "no point is an input itself"
    elif isinstance(error, SourceError):
        if "does not hold for the deployment's facts" in str(error):
            assert not [o for o in trial.outcomes if not o[2][1]]
            return "facts refused"
        assert "division by zero" in str(error) or "is missing" in str(error) or "of inf" in str(error), error
        return "failing" if trial.raised else "failing on a path not taken"
    else:
        assert isinstance(error, (UnboundedPin, TooManyCombinations)), error
    return name


def check_domains(trial: Trial, found: Compiled) -> None:
    """Domains are exactly what each input's bounds allow, and hold every admissible value."""
    related = "'relation" in trial.source.text
    for node, domain in found.pinned.domains.items():
        name = found.graph.data[node].name
        seen = {point[name] for point in trial.admissible}
        assert seen <= set(domain) <= set(trial.source.inputs[name])
        assert related or set(domain) == set(trial.source.inputs[name])


def check_emitted(trial: Trial, found: Compiled) -> None:
    """The optimised graph and the emitted selector at every input, types and bits included."""
    emitted = Emitted(found)
    steps = found.graph.of_kind("knob")
    for point, setting, outcome in trial.outcomes:
        assert evaluated(emitted.graph, point, {node: setting["step"] for node in steps}) == outcome
        assert emitted(point, setting if steps else None) == outcome
    for point, message in trial.refused:
        assert admitted(emitted.graph, point) == message
        try:
            emitted(point)
        except Violation as violation:
            assert (violation.kind, violation.message) == ("assume", message)
        else:
            raise AssertionError(f"{message} is not checked")


# ---- after every pass ------------------------------------------------------------------------------------------

SWITCHED = [replace(Options(), **{option: False}) for option in vars(Options())]


def variants(function: Any, facts: Facts) -> Iterator[tuple[str, Graph]]:
    """Graphs after single passes on the program with branches flattened, and with each option of one off."""
    for keep_keys in (True, False):
        program = bound(function, facts, Switches(keep_keys=keep_keys, options=Options(equal_arms=keep_keys)))
        flatten_branches(program.block)
        program.verify()
        yield f"keep_keys={keep_keys}", flatten(program)
    for options in (FOLD_ONLY, replace(FOLD_ONLY, cse=True), *SWITCHED):
        copy = program.clone()
        if options in SWITCHED:
            Simplifier(copy, options, program_domains(copy)).run()
        else:
            Simplifier(copy, options, {}).run()
        copy.verify()
        yield str(options), flatten(copy)
        delete_dead(copy.block)
        yield f"{options}, dead values deleted", flatten(copy)


def check_unpinned(trial: Trial, function: Any) -> None:
    few = spread([o for o in trial.outcomes if o[1].get("step", 2) == 2], FEW_POINTS)
    for name, graph in variants(function, trial.source.facts):
        for point, _, outcome in few:
            assert evaluated(graph, point) == outcome, name


# ---- after pinning ---------------------------------------------------------------------------------------------


def check_pinned(trial: Trial, found: Compiled, counts: Counter[str]) -> None:
    graph, legality = found.graph, found.legality
    pins = graph.of_kind("pin")
    counts[f"{min(len(pins), 3)} pins"] += 1
    assert moving_points(graph) == [] and set(legality.verdicts.values()) <= {"constant", "exhaustive", "interval"}
    assert (legality.proved, legality.sampled) == (legality.candidates, 0)
    check_own_values(trial, found)
    check_moves(trial, found)
    names = list(legality.candidates_of)
    every = list(itertools.islice(itertools.product(*legality.candidates_of.values()), 20_000))
    default = default_of(found)
    repin = Repin({**document(found, default), "program": "program", "deployment": "test"})
    legal = 0
    for values in spread(every, FEW_ASSIGNMENTS):
        assignment = dict(zip(names, values, strict=True))
        broken = check_still(trial, graph, assignment, repin.source(controls(graph, assignment)))
        legal += not broken
        counts["legal" if not broken else "illegal"] += 1
        assert legality.is_legal(assignment) == (not broken), controls(graph, assignment)
        check_witness(found, assignment, trial)
    if len(every) <= FEW_ASSIGNMENTS:
        assert (legality.candidates, legality.legal) == (len(every), legal)
    assert (default is None) == (legality.legal == 0)
    assert default is None or legality.is_legal(default)


def check_own_values(trial: Trial, found: Compiled) -> None:
    """A pin's own value at an input is a candidate, and pinned to it nothing changes at this input."""
    graph = found.graph
    plain = without_pins(graph)
    sources = {node: graph.args[node][0] for node in graph.of_kind("pin")}
    steps = graph.of_kind("knob")
    for point, setting, outcome in trial.outcomes:
        fixed = {node: setting["step"] for node in steps}
        values = interpret(plain, leaves_of(plain, point) | fixed, sources.values())
        own = {node: values[source] for node, source in sources.items()}
        assert all(own[node] in found.candidates[node].values for node in own)
        assert evaluated(graph, point, own | fixed) == outcome


def check_moves(trial: Trial, found: Compiled) -> None:
    """A point that moves with the batch is said to."""
    for name, node in found.graph.points:
        if not found.pinned.moves_point(node):
            seen = {(requests(found.graph, point), tuple(setting.values()), outcome[0][name])
                    for point, setting, outcome in trial.outcomes}
            assert len(seen) == len({key[:2] for key in seen}), f"{name} moves"


def requests(graph: Graph, point: Point) -> tuple[Any, ...]:
    """The values of the inputs of one request."""
    return tuple(point[data.name] for data in map(graph.data.__getitem__, graph.of_kind("input"))
                 if data.source not in BATCH_DEPENDENT)


def check_still(trial: Trial, graph: Graph, assignment: Mapping[int, Any], source: str) -> set[str]:
    """No point moves over the batch, and the pinned selector agrees; messages of the requires that break."""
    select, kinds = executed(source), {name: graph.types[node] for name, node in graph.points}
    names = [graph.data[node].name for node in graph.of_kind("input")]
    seen: dict[Any, Any] = {}
    broken: set[str] = set()
    for point in trial.admissible:
        points, here = evaluated(graph, point, assignment)
        broken |= here
        assert seen.setdefault(requests(graph, point), points) == points, "a point moves"
    for point in spread(trial.admissible, FEW_POINTS):
        emitted = select(*[point[name] for name in names])
        assert {name: typed(value, kinds[name]) for name, value in emitted.items()} == seen[requests(graph, point)]
    return broken


def check_witness(found: Compiled, assignment: Mapping[int, Any], trial: Trial) -> None:
    """What rules an assignment out is a require that an admissible input breaks."""
    explained = found.legality.explain(assignment)
    if explained is not None:
        index, witness = explained
        graph = found.graph
        point = {graph.data[node].name: value for node, value in witness.items()}
        assert point in trial.admissible
        assert graph.conditions[index].kind == "require"
        root = graph.conditions[index].root
        assert not interpret(graph, {**leaves_of(graph, point), **assignment}, [root])[root]

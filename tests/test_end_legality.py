"""Legality of whole programs: never contradicted by plain Python, neither on small domains nor on many inputs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from end_support import (
    EVERYTHING,
    Emitted,
    Pinned,
    Point,
    Written,
    compiled,
    controls,
    evaluated,
    load_text,
    named,
    tried,
)

from detent.dialects.selir.source import SourceError
from detent.lang import Violation
from detent.lang.load import load_program
from detent.passes.candidates import UnboundedPin
from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.errors import EmptyDomain
from detent.passes.lowering import expression_function
from detent.passes.min_cut import InfeasibleCut
from detent.passes.rules import Options
from detent.runtime.deployment import load
from detent.solver.compiled import Compiled, Switches

HEADER = '''from __future__ import annotations

from detent.lang import Request, Runtime, Unpinnable, assume, knob, require, record, selection


@record
class Call:
'''
SMALL = 60
"""Random programs."""
MOST = 60
"""Assignments of a program that are tried one by one."""


# ---- small random programs -------------------------------------------------------------------------------------


@dataclass
class Small:
    """A program whose values all have names: one operation a line, no two of the same values."""

    text: str
    inputs: dict[str, tuple[Any, ...]]


def small(rng: random.Random) -> Small:
    """A random program over two or three small inputs, ints, bools and strings."""
    inputs: dict[str, tuple[Any, ...]] = {}
    fields, lines, kinds = [], [], {}
    for name in ("a", "b", "c")[:rng.randint(2, 3)]:
        low = rng.randint(-1, 2)
        inputs[name] = tuple(range(low, low + rng.randint(2, 5)))
        fields.append(f"    {name}: {rng.choice(('Runtime', 'Unpinnable', 'Unpinnable', 'Request'))}[int]")
        lines.append(f"    assume({inputs[name][0]} <= call.{name} <= {inputs[name][-1]})")
        kinds[f"{name}_pin"] = "int"
    if rng.random() < 0.4:
        lines.append(f"    assume(call.a {rng.choice(('<=', '!=', '>='))} call.b)")
    lines += [f"    {name}_pin = call.{name}" for name in inputs]
    if rng.random() < 0.5:
        lines.append('    k = knob("k", (1, 2, 3), default=2)')
        kinds["k"] = "int"
    points = [{f"{name}_pin": value for name, value in zip(inputs, values, strict=True)} | {"k": step}
              for values in itertools.product(*inputs.values()) for step in (1, 2, 3)]
    columns = {column(points, name) for name in kinds}
    own: list[str] = []
    while len(own) < 6 and (len(own) < 2 or rng.random() < 0.9):
        kind, text = operation(rng, kinds)
        found = column(points, text)
        if len(set(found)) > 1 and found not in columns:
            columns.add(found)
            own.append(f"v{len(own)}")
            kinds[own[-1]] = kind
            lines.append(f"    {own[-1]} = {text}")
            for point in points:
                point[own[-1]] = eval(text, dict(point))
    for index in range(rng.choice((1, 1, 2))):
        lines.append(f"    require({condition(rng, kinds, list(inputs))}, 'rule {index}')")
    chosen = rng.sample(own, rng.randint(2, min(4, len(own))))
    lines.append(f"    return {{{', '.join(f'{name!r}: {name}' for name in chosen)}}}")
    head = '\n\n@selection(family="small")\ndef program(call: Call):\n'
    return Small("\n".join([HEADER + "\n".join(fields), head + "\n".join(lines), ""]), inputs)


def column(points: Sequence[Point], text: str) -> tuple[str, ...]:
    """The values of an expression at all points."""
    return tuple(repr(eval(text, dict(point))) for point in points)


def operand(rng: random.Random, kinds: dict[str, str], kind: str) -> str:
    names = [name for name, other in kinds.items() if other == kind]
    constants = {"int": ("0", "1", "2", "3"), "bool": ("True",), "str": ("'x'", "'y'")}
    return rng.choice(names) if names and rng.random() < 0.75 else rng.choice(constants[kind])


def operation(rng: random.Random, kinds: dict[str, str]) -> tuple[str, str]:
    """One operation on named values: its type and text."""
    kind = rng.choice(("int", "int", "bool", "bool", "str"))

    def one(part: str = "int") -> str:
        return operand(rng, kinds, part)

    test = rng.choice([name for name, other in kinds.items() if other == "bool"] or [f"{one()} <= {one()}"])
    if rng.random() < 0.35 or kind == "str":
        return kind, f"{one(kind)} if {test} else {one(kind)}"
    if kind == "int":
        return kind, rng.choice((f"{one()} + {one()}", f"{one()} - {one()}", f"{one()} * {one()}", f"{one()} // 2",
                                 f"min({one()}, {one()})", f"max({one()}, {one()})", f"{one()} % 3"))
    return kind, rng.choice((f"{one()} <= {one()}", f"{one()} == {one()}", f"{one()} > {one()}", f"not {one('bool')}",
                             f"{one('bool')} and {one('bool')}", f"{one('bool')} or {one('bool')}"))


def condition(rng: random.Random, kinds: dict[str, str], inputs: Sequence[str]) -> str:
    """A condition on values of the selection and on the true inputs, often with a test the selection has too."""
    values = {name: kind for name, kind in kinds.items() if not name.endswith("_pin")}
    name, kind = rng.choice(list(values.items()))
    named_test = {"int": f"{name} {rng.choice(('<=', '>=', '!='))} {rng.randint(0, 4)}", "str": f"{name} != 'x'",
                  "bool": rng.choice((name, f"not {name}"))}[kind]
    input_ = rng.choice(inputs)
    true_test = f"call.{input_} {rng.choice(('<=', '>', '=='))} {rng.randint(0, 4)}"
    other = operand(rng, values, "int")
    return rng.choice((f"{named_test} or {true_test}", f"{named_test} or {true_test}", named_test, true_test,
                       f"{other} <= call.{input_} + {rng.randint(2, 6)}", f"not ({named_test}) or {true_test}",
                       f"{named_test} or {other} < {rng.randint(1, 5)}"))


def admissible(plain: Pinned, inputs: dict[str, tuple[Any, ...]]) -> list[Point]:
    points: list[Point] = []
    for values in itertools.product(*inputs.values()):
        point = dict(zip(inputs, values, strict=True))
        try:
            plain.under({}, point)
        except Violation:
            continue
        points.append(point)
    return points


LITERAL = Switches(Options(equal_arms=False, boolean=False, identities=False, cse=False))
"""Nothing that computes a value from others than its text says."""


@pytest.mark.parametrize("switches", [LITERAL, EVERYTHING], ids=["literal", "everything"])
def test_trying_everything_in_plain_python_agrees(tmp_path: Path, switches: Switches) -> None:
    """An assignment is legal exactly if every require holds at every admissible input with the values pinned."""
    rng = random.Random(11)
    tried_programs = judged = legal = illegal = rewritten = pins = 0
    while tried_programs < SMALL:
        program = small(rng)
        function = load_text(program.text, tmp_path, f"small{rng.getrandbits(40)}")
        plain = Pinned(function, {})
        points = admissible(plain, program.inputs)
        try:
            found = compiled(function, {}, switches)
        except EmptyDomain:
            assert not points
            continue
        except SourceError as error:
            assert "this require does not hold" in str(error) and all(plain.under({}, point)[1] for point in points)
            continue
        except (InfeasibleCut, UnboundedPin):
            continue
        names = {found.graph.data[node] for node in found.graph.of_kind("pin")}
        if not names:
            continue
        tried_programs += 1
        nodes = found.legality.candidates_of
        every = list(itertools.product(*nodes.values()))
        if not names <= plain.variables:  # a pin on something that the text gives no name
            continue
        judged += 1
        pins += len(names)
        for values in rng.sample(every, MOST) if len(every) > MOST else every:
            assignment = dict(zip(nodes, values, strict=True))
            wanted = controls(found.graph, assignment)
            broken: set[str] = set()
            as_graph = True
            for point in points:
                plainly, graphed = plain.under(wanted, point), evaluated(found.graph, point, assignment)
                as_graph = as_graph and plainly == graphed
                broken |= plainly[1]
            if not as_graph and switches is EVERYTHING:
                rewritten += 1  # simplification computes a point from other values than the text does
                continue
            assert as_graph, (program.text, wanted)
            assert found.legality.is_legal(assignment) == (not broken), (program.text, wanted, broken)
            check_explained(found, plain, assignment, points)
            legal, illegal = legal + (not broken), illegal + bool(broken)
    assert judged > 0.8 * tried_programs and pins > 1.3 * judged
    assert legal > 300 and illegal > 300 and rewritten < 0.1 * (legal + illegal)


def check_explained(found: Compiled, plain: Pinned, assignment: dict[int, Any], points: Sequence[Point]) -> None:
    explained = found.legality.explain(assignment)
    if explained is not None:
        index, witness = explained
        point = named(found.graph, witness)
        assert point in points
        assert found.graph.conditions[index].message in plain.under(controls(found.graph, assignment), point)[1]


def test_only_whole_inputs_are_violations(tmp_path: Path) -> None:
    """``a`` may be 5 by its own bounds, but no input has it then: an assume ties it to ``b``."""
    found = Written(tmp_path, "a: Unpinnable[int]\n    b: Unpinnable[int]", """assume(0 <= call.a <= 5)
    assume(0 <= call.b <= 3)
    assume(call.a <= call.b)
    large = call.b > 1
    require(large or call.a <= 3, "few")
    return {"large": large}""").solve()
    assert (found.legality.candidates, found.legality.legal) == (2, 2)


# ---- the programs that come with Detent ------------------------------------------------------------------------

QWEN = ["qwen3-30b-a3b-tp4-h100", "qwen3-30b-a3b-tp4-h200", "qwen3-30b-a3b-tp4-h100-sglang"]
LLAMA = ["llama-3.1-70b-tp4-h100", "llama-3.1-70b-tp4-h200"]
CASES = [*(("attention", d, 200_000) for d in (*LLAMA, *QWEN)), *(("moe", d, 100_000) for d in QWEN),
         ("fa3-vllm-stock", QWEN[0], 100_000)]


@pytest.mark.parametrize(("program", "deployment", "count"), CASES)
def test_no_random_input_contradicts_a_proof(program: str, deployment: str, count: int) -> None:
    """Legal assignments at random inputs, by the compiled conditions; each illegal one at its witness."""
    found = compiled(load_program(program), load(deployment).facts)
    graph, legality = found.graph, found.legality
    assert legality.sampled == 0
    nodes, inputs = list(legality.candidates_of), graph.of_kind("input")
    requires = [c.root for c in graph.conditions if c.kind == "require" and graph.kinds[c.root] != "constant"]
    assert requires
    _, hold = expression_function(graph, requires, [*nodes, *inputs])
    emitted, pool = Emitted(found), []
    for point in tried(found, 800):
        try:
            emitted(named(graph, point))
        except Violation:
            continue
        pool.append(tuple(point[node] for node in inputs))
    rng = random.Random(3)
    components = [rows for _, rows in legality.components]
    places = [nodes.index(node) for part, _ in legality.components for node in part]
    wanted = True if len(requires) == 1 else (True,) * len(requires)
    legal = set()
    for _ in range(count):
        flat = [value for rows in components for value in rng.choice(rows)]
        values = tuple(flat[places.index(i)] for i in range(len(nodes)))
        legal.add(values)
        assert hold(*values, *rng.choice(pool)) == wanted, values
    assert len(legal) >= min(legality.legal, 16)
    check_witnesses(found, nodes)


def check_witnesses(found: Compiled, nodes: Sequence[int]) -> None:
    """Every illegal assignment has an input that satisfies all assumes and breaks the named require."""
    graph, legality = found.graph, found.legality
    inputs = graph.of_kind("input")
    admit = expression_function(graph, [c.root for c in graph.conditions if c.kind == "assume"], inputs)[1]
    admitted = [set(found.pinned.domains) == set(point) and admit(*(point[node] for node in inputs)) in (True, (
        True,) * sum(c.kind == "assume" for c in graph.conditions)) for point in legality.witnesses]
    assert all(admitted)
    checks = {index: expression_function(graph, [graph.conditions[index].root], [*nodes, *inputs])[1]
              for index in {refutation.condition for refutation in legality.refutations}}
    illegal = 0
    for values in itertools.product(*legality.candidates_of.values()):
        explained = legality.explain(dict(zip(nodes, values, strict=True)))
        if explained is not None:
            index, witness = explained
            illegal += 1
            assert graph.conditions[index].kind == "require"
            assert checks[index](*values, *(witness[node] for node in inputs)) is False
    assert illegal == legality.candidates - legality.legal


@pytest.mark.parametrize(("program", "deployment"), [("attention", LLAMA[0]), ("attention", QWEN[2]), ("moe", QWEN[0]),
                                                     ("moe", QWEN[2]), ("fa3-vllm-stock", QWEN[1])])
def test_the_source_with_pinned_variables_agrees(program: str, deployment: str) -> None:
    """Plain Python whose variables are pinned: points as in the graph and still, no require broken where legal, and
    the named one broken at the witness where not."""
    found = compiled(load_program(program), load(deployment).facts)
    plain, graph, legality = Pinned(load_program(program), load(deployment).facts), found.graph, found.legality
    assert {graph.data[node] for node in graph.of_kind("pin")} <= plain.variables
    rng = random.Random(5)
    points = []
    for point in rng.sample(tried(found, 100), 60):
        try:
            plain.under({}, named(graph, point))
        except Violation:
            continue
        points.append(named(graph, point))
    every = list(itertools.product(*legality.candidates_of.values()))
    legal = [values for values in every if legality.is_legal(dict(zip(legality.candidates_of, values, strict=True)))]
    for values in [*rng.sample(legal, min(4, len(legal))), *rng.sample(every, 12)]:
        assignment = dict(zip(legality.candidates_of, values, strict=True))
        wanted, seen, broken = controls(graph, assignment), {}, set()
        for point in rng.sample(points, 15):
            outcome = plain.under(wanted, point)
            assert outcome == evaluated(graph, point, assignment)
            own = tuple(point[data.name] for data in map(graph.data.__getitem__, graph.of_kind("input"))
                        if data.source not in BATCH_DEPENDENT)
            assert seen.setdefault(own, outcome[0]) == outcome[0]
            broken |= outcome[1]
        explained = legality.explain(assignment)
        if explained is None:
            assert not broken
        else:
            message = graph.conditions[explained[0]].message
            assert message in plain.under(wanted, named(graph, explained[1]))[1]

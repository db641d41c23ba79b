"""Emitted Python means what the interpreter computes, bit for bit, in every form; it is lazy, flat and readable."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.dialects.selir.semantics import SEMANTICS, TypeMismatch, round32
from detent.passes.graph import Condition, Graph, Input, Knob, Location
from detent.passes.interpret import interpret
from detent.passes.lowering import GLOBALS, expression_function, pinned_template, unpinned_source

VALUES: dict[str, list[Any]] = {
    "int": [0, 1, 2, 3, -1, 7, 128, 1000],
    "float": [0.0, -0.0, 1.5, 0.85, -2.25, 1e300, math.inf, -math.inf, math.nan],
    "f32": [0.0, -0.0, 0.5, 3.0, round32(0.8), round32(1e38), math.inf, math.nan],
    "bool": [True, False],
    "str": ["", "a", "it's \"⟦pin⟧\"\n"],
    "none": [None],
}
KINDS = [*SEMANTICS, *["select"] * 9, *["and", "or"] * 4, *["lookup", "pin"] * 2]
NAMES = ["", "", "", "", "best", "class", "x", "max", "t", "a.b", "9"]


class Violation(Exception):
    """What a selector raises."""


def random_graph(rng: random.Random, size: int) -> Graph:
    """Operations of all kinds and types over inputs with awkward names; three conditions and four points."""
    graph = Graph("random", "test")
    for index in range(5):
        graph.add("input", data=Input(["max", "x", "float", "i3", "broken"][index], "runtime"), type=a_type(rng))
    graph.add("knob", data=Knob("k", (1, 2), 2))
    for kind, values in VALUES.items():
        for value in rng.sample(values, min(3, len(values))):
            graph.add("constant", data=value, type=kind)
    grow(rng, graph, size, 0)
    graph.points = [(f"p{index}", rng.randrange(len(graph))) for index in range(4)]
    for index, kind in enumerate(rng.choices(("assume", "require"), k=3)):
        grow(rng, graph, rng.randint(1, 6), index + 1)
        bools = [node for node in range(len(graph)) if graph.types[node] == "bool"]
        where = Location("random.py", index, 0, f"condition {index}\n  ⟦other⟧")
        graph.conditions.append(Condition(kind, "it's ⟦k⟧", rng.choice(bools[-3:]), where))
    return graph


def a_type(rng: random.Random) -> str:
    return rng.choice(("int", "int", "float", "f32", "bool", "bool", "str"))


def pick(rng: random.Random, graph: Graph) -> int:
    """A node, more often a recent one, so that graphs get deep."""
    return rng.randrange(max(0, len(graph) - 12) if rng.random() < 0.6 else 0, len(graph))


def grow(rng: random.Random, graph: Graph, count: int, scope: int) -> None:
    for _ in range(count):
        kind, name = rng.choice(KINDS), rng.choice(NAMES)
        if kind == "pin":
            operand = pick(rng, graph)
            graph.add("pin", (operand,), data=f"pin{len(graph)}", type=graph.types[operand])
        elif kind == "lookup":
            key, result = pick(rng, graph), a_type(rng)
            keys, values = VALUES[graph.types[key]], VALUES[result]
            rows = [(rng.choice(keys), rng.choice(values)) for _ in range(rng.randint(1, 4))]
            graph.add("lookup", (key,), tuple(rows), result, name, scope=scope)
        else:
            for _ in range(20):
                args = tuple(pick(rng, graph) for _ in range(SEMANTICS[kind].arity))
                try:
                    result = SEMANTICS[kind].result(*(graph.types[a] for a in args))
                except TypeMismatch:
                    continue
                graph.add(kind, args, type=result, name=name, scope=scope)
                break


def bits(value: Any) -> Any:
    """A key equal only for values of one type with the same bits; all NaN are one."""
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("d", value)
    return type(value), value


def given_values(rng: random.Random, graph: Graph, kinds: tuple[str, ...]) -> dict[int, Any]:
    return {n: rng.choice(VALUES[graph.types[n]]) for n in range(len(graph)) if graph.kinds[n] in kinds}


def may_fail(graph: Graph) -> set[int]:
    return {node for node, kind in enumerate(graph.kinds) if kind in SEMANTICS and SEMANTICS[kind].fails}


def selector(source: str) -> Callable[..., Any]:
    space = {**GLOBALS, "Violation": Violation}
    exec(compile(source, "selector", "exec"), space)
    select: Callable[..., Any] = space["select"]
    return select


def pinned(template: str, graph: Graph, values: dict[int, Any]) -> str:
    """The template with placeholders replaced, as the runtime does it."""
    for node in (*graph.of_kind("pin"), *graph.of_kind("knob")):
        name = graph.data[node] if graph.kinds[node] == "pin" else graph.data[node].name
        template = template.replace(f"⟦{name}⟧", ascii(values[node]))
    assert "⟦" not in template
    return template


@settings(max_examples=250)
@given(st.integers(0, 2**32), st.integers(5, 150))
def test_functions_equal_the_interpreter(seed: int, size: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, size)
    roots = [rng.randrange(len(graph)) for _ in range(rng.randint(1, 4))]
    given = [*graph.of_kind("input"), *graph.of_kind("knob"), *(n for n in graph.of_kind("pin") if rng.random() < 0.5)]
    source, function = expression_function(graph, roots, given)
    for _ in range(6):
        values = {n: rng.choice(VALUES[graph.types[n]]) for n in given}
        try:
            expected = interpret(graph, values, roots)
        except OverflowError:  # an int beyond the range of floats
            continue
        got = function(*(values[n] for n in given))
        got = got if len(roots) > 1 else (got,)
        assert [bits(v) for v in got] == [bits(expected[n]) for n in roots], source


@settings(max_examples=250)
@given(st.integers(0, 2**32), st.integers(5, 120), st.booleans())
def test_selectors_equal_the_interpreter(seed: int, size: int, unpinned: bool) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, size)
    inputs = {graph.data[n].name: n for n in graph.of_kind("input")}
    if unpinned:
        source = unpinned_source(graph, may_fail(graph))
        select = selector(source)
    else:
        source = pinned_template(graph, [0, 1, 2], may_fail(graph))
    for _ in range(6):
        values = given_values(rng, graph, ("input", "knob") if unpinned else ("input", "knob", "pin"))
        fixed = {n: v for n, v in values.items() if graph.kinds[n] != "input"}
        if any(isinstance(v, float) and not math.isfinite(v) for v in fixed.values()):
            continue  # no literal stands for these
        try:
            expected = interpret(graph, values)
        except OverflowError:
            continue
        if not unpinned:
            select = selector(pinned(source, graph, values))
        checked = [c for c in graph.conditions if c.kind == "assume" or not unpinned]
        violated = [c for c in checked if not expected[c.root]]
        arguments = {name: values[n] for name, n in inputs.items()}
        if unpinned:
            arguments["k"] = values[graph.of_kind("knob")[0]]
        if violated:
            with pytest.raises(Violation) as error:
                select(**arguments)
            assert error.value.args == (violated[0].kind, "it's ⟦k⟧", str(violated[0].location))
            continue
        points = select(**arguments)
        if unpinned:
            points, broken = points
            assert broken == [i for i, c in enumerate(graph.conditions) if c.kind == "require" and not expected[c.root]]
        assert list(points) == [name for name, _ in graph.points]
        assert [bits(v) for v in points.values()] == [bits(expected[n]) for _, n in graph.points], source


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_plain_forms_equal_the_interpreter_where_nothing_fails(seed: int) -> None:
    rng = random.Random(seed)
    graph = Graph("plain", "test")
    numbers = {kind: [graph.add("input", data=Input(f"{kind}{i}", "runtime"), type=kind) for i in range(3)]
               for kind in ("int", "float", "f32")}
    low, high = ({kind: graph.add("constant", data=bound if kind == "int" else float(bound), type=kind)
                  for kind in numbers} for bound in (-64, 64))
    for _ in range(60):
        kind = rng.choice(("div", "floordiv", "mod", "int", "ceil", "floor", "add", "mul"))
        operand = rng.choice([k for k in numbers if k != "f32" or kind not in ("floordiv", "mod")])
        a, b = rng.choice(numbers[operand]), rng.choice(numbers[operand])
        finite = graph.add("min", (high[operand], graph.add("max", (low[operand], a), type=operand)), type=operand)
        nonzero = graph.add("max", (high[operand], b), type=operand)
        args = (finite, nonzero)[:SEMANTICS[kind].arity]
        result = SEMANTICS[kind].result(*(graph.types[n] for n in args))
        numbers[result].append(graph.add(kind, args, type=result))
    graph.points = [(f"p{n}", n) for n in range(len(graph) - 40, len(graph))]
    source = unpinned_source(graph, set())
    assert " if " not in source
    for _ in range(5):
        values = given_values(rng, graph, ("input",))
        expected = interpret(graph, values)
        points, _ = selector(source)(*(values[n] for n in graph.of_kind("input")))
        assert [bits(v) for v in points.values()] == [bits(expected[n]) for _, n in graph.points], source


def test_interpret_pins_and_missing_values() -> None:
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    pin = graph.add("pin", (tokens,), data="tokens")
    point = graph.add("neg", (pin,))
    assert interpret(graph, {tokens: 3}) == {tokens: 3, pin: 3, point: -3}
    assert interpret(graph, {tokens: 3, pin: 4})[point] == -4
    assert interpret(graph, {pin: 4}, [point]) == {pin: 4, point: -4}
    with pytest.raises(KeyError, match="input tokens"):
        interpret(graph, {}, [point])
    with pytest.raises(ValueError, match="input tokens"):
        expression_function(graph, [point], [])
    assert expression_function(graph, [point], [pin])[1](4) == -4


class Maker:
    """A graph with constants shared and types given by the semantics table."""

    def __init__(self) -> None:
        self.graph = Graph("made", "test")
        self.known: dict[Any, int] = {}

    def __call__(self, kind: str, *operands: Any, name: str = "", scope: int = 0) -> int:
        args = tuple(n if type(n) is int else self.constant(n[0]) for n in operands)
        result = SEMANTICS[kind].result(*(self.graph.types[a] for a in args))
        return self.graph.add(kind, args, type=result, name=name, scope=scope)

    def constant(self, value: Any, kind: str = "") -> int:
        kind = kind or {bool: "bool", int: "int", float: "float", str: "str"}[type(value)]
        if (kind, value) not in self.known:
            self.known[kind, value] = self.graph.add("constant", data=value, type=kind)
        return self.known[kind, value]

    def input(self, name: str, kind: str = "int") -> int:
        return self.graph.add("input", data=Input(name, "runtime"), type=kind)


def chain(make: Maker, x: int, shape: str, depth: int) -> int:
    """A value of one of the deep shapes that unrolled reductions and early returns give."""
    value = make("mul", x, (3,))
    for index in range(depth):
        item = make("sub", (index,), x)
        test = make("eq", make("mod", x, (depth + 1,)), (index,))
        if shape == "max left":
            value = make("max", value, item)
        elif shape == "max right":
            value = make("max", item, value)
        elif shape == "sum":
            value = make("add", value, item)
        elif shape == "else":
            value = make("select", test, (index,), value)
        elif shape == "then":
            value = make("select", make("not", test), value, (index,))
        elif shape == "both":
            other = make("select", make("gt", x, (index,)), make("mul", x, (index,)), (7,))
            value = make("select", test, other, value) if index % 2 else make("select", test, value, other)
        elif shape == "inside":
            value = make("select", test, make("add", value, (1,)), (0,))
        elif shape == "condition":
            value = make("select", make("lt", value, item), (index,), item)
        elif shape == "shared":
            value = make("select", test, make("mul", value, value), make("add", value, item))
    return value


SHAPES = ("max left", "max right", "sum", "else", "then", "both", "inside", "condition", "shared")


@pytest.mark.parametrize("outer", sorted(SEMANTICS))
def test_every_operation_inside_every_other_keeps_its_meaning(outer: str) -> None:
    """Parentheses are dropped where Python's precedence allows; here in the forms that Python users would write."""
    types = ("int", "float", "f32", "bool", "str")
    for inner in SEMANTICS:
        for slot in range(SEMANTICS[outer].arity):
            for operands in itertools.product(types, repeat=SEMANTICS[inner].arity):
                make = Maker()
                inputs = [make.input(f"i{n}", kind) for n, kind in enumerate(operands)]
                try:
                    value = make(inner, *inputs)
                    inside = make.graph.types[value]
                    others = [make.input(f"o{n}", "bool" if outer == "select" and n == 0 else
                                         inside if slot or outer != "select" else "int")
                              for n in range(SEMANTICS[outer].arity)]
                    root = make(outer, *(value if n == slot else other for n, other in enumerate(others)))
                except TypeMismatch:
                    continue
                make.graph.points = [("root", root)]
                leaves = make.graph.of_kind("input")
                for values in zip(*([SOME[make.graph.types[n]][(3 * n + k) % 4] for k in range(4)] for n in leaves),
                                  strict=True):
                    expected = interpret(make.graph, dict(zip(leaves, values, strict=True)))
                    source = unpinned_source(make.graph, failing(make.graph, expected))
                    assert bits(selector(source)(*values)[0]["root"]) == bits(expected[root]), source


SOME: dict[str, list[Any]] = {
    "int": [7, -3, 2, 5], "float": [1.5, -0.75, 4.0, 3.25], "f32": [0.5, -2.0, 3.0, round32(0.8)],
    "bool": [True, False, False, True], "str": ["a", "b", "", "a"],
}


def failing(graph: Graph, values: dict[int, Any]) -> set[int]:
    """The nodes whose operation Python would refuse at these values."""
    fails = {node: SEMANTICS[kind].fails for node, kind in enumerate(graph.kinds) if kind in SEMANTICS}
    return {node for node, why in fails.items() if (why == "zero" and not values[graph.args[node][1]])
            or (why == "nonfinite" and not math.isfinite(values[graph.args[node][0]]))}


@pytest.mark.parametrize("shape", SHAPES)
def test_deep_shapes_compile_and_agree(shape: str) -> None:
    make = Maker()
    depth = 12 if shape == "shared" else 1200
    root = chain(make, make.input("x"), shape, depth)
    make.graph.points = [("root", root)]
    source = unpinned_source(make.graph, may_fail(make.graph))
    assert source.count("elif") <= 24 * source.count("    if")
    select = selector(source)
    for x in (0, 1, 2, 5, depth - 1, depth, depth + 1, -3):
        assert select(x)[0]["root"] == interpret(make.graph, {0: x})[root]


@pytest.mark.parametrize("kind", ["and", "or"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_deep_logic_compiles_and_agrees(kind: str, side: str) -> None:
    make = Maker()
    x = make.input("x")
    items = [make("ne" if kind == "and" else "eq", make("mod", x, (700,)), (index,)) for index in range(600)]
    root = items[0]
    for item in items[1:]:
        root = make(kind, root, item) if side == "left" else make(kind, item, root)
    make.graph.points = [("root", root)]
    select = selector(unpinned_source(make.graph, set()))
    assert [select(x)[0]["root"] for x in (0, 599, 600, 699, 1300)] == [x >= 600 if kind == "and" else x < 600
                                                                       for x in (0, 599, 600, 699, 600)]


def test_loops_within_loops_stay_within_what_python_nests() -> None:
    make = Maker()
    x = make.input("x")
    value = make("neg", x)
    for level in range(40):
        for index in range(5):  # each test needs a statement of its own, so the chain becomes a loop
            shared = make("add", x, (100 * level + index,), name="shared")
            value = make("select", make("gt", make("mul", shared, shared), (10**7,)), shared, value)
        value = make("select", make("gt", x, (level,)), make("add", value, (1,)), (level,))
    make.graph.points = [("root", value)]
    source = unpinned_source(make.graph, set())
    assert source.count("while True:") > 5
    assert max(len(line) - len(line.lstrip()) for line in source.splitlines()) < 4 * 90
    for number in (-4000, -1, 0, 20, 41, 3000):
        assert selector(source)(number)[0]["root"] == interpret(make.graph, {0: number})[value]


def heuristic(splits: int) -> Graph:
    """A search for the smallest split count of 85 % of the best efficiency, skipped when the GPU is full."""
    make = Maker()
    blocks, limit = make.input("blocks"), make.input("limit")
    width = make.constant(132.0, "f32")
    waves = [make("div", make("f32", make("mul", blocks, (s,))), width, name="waves") for s in range(1, splits + 1)]
    efficiency = [make("div", wave, make("f32", make("ceil", wave)), name="efficiency") for wave in waves]
    allowed = [make("le", (s,), limit) for s in range(1, splits + 1)]
    best = make("f32", (0,))
    for ok, value in zip(allowed, efficiency, strict=True):
        best = make("max", best, make("select", ok, value, make.constant(0.0, "f32")))
    threshold = make("mul", (0.85,), make("float", best))
    found = make.constant(1)
    for s in range(splits, 0, -1):
        good = make("ge", make("float", efficiency[s - 1]), threshold)
        found = make("select", make("and", allowed[s - 1], good), (s,), found)
    full = make("ge", make("f32", blocks), make.constant(100.0, "f32"))
    count = make("select", full, (1,), make("select", make("le", limit, (4,)), (1,), found), name="num_splits")
    make.graph.points = [("num_splits", count), ("split", make("gt", count, (1,)))]
    return make.graph


def test_a_graph_of_five_thousand_values() -> None:
    graph = heuristic(380)
    assert len(graph) > 5000
    select = selector(unpinned_source(graph, set()))
    for blocks, limit in ((1, 300), (17, 380), (99, 5), (100, 300), (3, 4)):
        expected = interpret(graph, {0: blocks, 1: limit})
        points, broken = select(blocks, limit)
        assert points == {name: expected[node] for name, node in graph.points} and broken == []


def calls(source: str, *arguments: Any) -> int:
    """How often a selector rounds to f32 for these arguments."""
    count = 0

    def counting(value: Any) -> float:
        nonlocal count
        count += 1
        return round32(value)

    space = {**GLOBALS, "f32": counting}
    exec(compile(source, "selector", "exec"), space)
    space["select"](*arguments)
    return count


def test_what_one_arm_needs_is_computed_only_there_and_once() -> None:
    source = unpinned_source(heuristic(256), set())
    assert calls(source, 100, 300) == 1
    assert calls(source, 99, 4) == 1
    assert calls(source, 99, 300) == 2 + 4 * 256


def test_short_circuits_skip_their_second_operand() -> None:
    make = Maker()
    x = make.input("x")
    wave = make("f32", x, name="wave")
    costly = make("ge", make("mul", wave, wave), make.constant(4.0, "f32"))
    make.graph.points = [("both", make("and", make("gt", x, (0,)), costly))]
    source = unpinned_source(make.graph, set())
    assert calls(source, 0) == 0
    assert calls(source, 3) == 2
    assert selector(source)(3)[0] == {"both": True}


def test_arms_too_long_for_one_line_stay_lazy() -> None:
    make = Maker()
    x = make.input("x")
    arms = []
    for start in (0, 100):
        arm = make("f32", x)
        for n in range(4):
            arm = make("add", arm, make.constant(float(start + n), "f32"))
        arms.append(arm)
    make.graph.points = [("long", make("select", make("gt", x, (0,)), *arms))]
    source = unpinned_source(make.graph, set())
    assert [calls(source, 1), calls(source, -1)] == [5, 5]


def test_a_value_of_both_arms_is_computed_once_before_them() -> None:
    make = Maker()
    x = make.input("x")
    shared = make("f32", x, name="shared")
    zero = make.constant(0.0, "f32")
    inner = make("select", make("gt", x, (5,)), make("max", shared, zero), make("neg", shared))
    make.graph.points = [("outer", make("select", make("gt", x, (0,)), inner, zero))]
    source = unpinned_source(make.graph, set())
    assert source.count("f32(") == 1
    assert [calls(source, 0), calls(source, 3), calls(source, 7)] == [0, 1, 1]


def test_what_is_used_twice_is_computed_once() -> None:
    """A choice that is an arm and a point as well, and a divisor that the total form of a division repeats."""
    make = Maker()
    x, y = make.input("x"), make.input("y", "f32")
    zero = make.constant(0.0, "f32")
    inner = make("select", make("gt", x, (5,)), make("f32", x), zero)
    outer = make("select", make("gt", x, (0,)), inner, y)
    ratio = make("div", y, make("add", y, y))
    make.graph.points = [("inner", inner), ("outer", outer), ("ratio", ratio)]
    source = unpinned_source(make.graph, {ratio})
    assert source.count("f32(x)") == 1 and source.count("y + y") == 1
    assert selector(source)(7, 2.0)[0] == {"inner": 7.0, "outer": 7.0, "ratio": 0.5}
    assert selector(source)(7, 0.0)[0]["ratio"] == 0.0


def test_a_running_maximum_is_one_call() -> None:
    make = Maker()
    x, y = make.input("x"), make.input("y")
    most = make("max", make("max", make("max", x, y), (3,)), make("max", y, (5,)))
    make.graph.points = [("most", most), ("mixed", make("min", make("max", x, y), (3,)))]
    source = unpinned_source(make.graph, set())
    assert "'most': max(x, y, 3, max(y, 5))" in source
    assert "'mixed': min(max(x, y), 3)" in source


def test_an_assume_that_does_not_hold_is_reported_before_anything_can_fail() -> None:
    make = Maker()
    x, y = make.input("x"), make.input("y")
    aligned = make("eq", make("mod", x, y, scope=1), (0,), scope=1)
    positive = make("gt", y, (0,), scope=2)
    make.graph.points = [("ratio", make("floordiv", x, y))]
    make.graph.conditions = [Condition("assume", "aligned", aligned, None), Condition("assume", "", positive, None)]
    for source in (unpinned_source(make.graph, set()), pinned_template(make.graph, [0, 1], set())):
        assert "'ratio': x // y" in source
        with pytest.raises(Violation, match="aligned"):
            selector(source)(1, 2)
        with pytest.raises(Violation) as error:
            selector(source)(1, 0)
        assert error.value.args == ("assume", "", "")


def test_conditions_that_are_constants() -> None:
    make = Maker()
    make.graph.points = [("x", make.input("x"))]
    make.graph.conditions = [Condition("assume", "", make.constant(True), None),
                             Condition("require", "never", make.constant(False), None)]
    assert selector(unpinned_source(make.graph, set()))(3) == ({"x": 3}, [1])
    assert selector(pinned_template(make.graph, [0], set()))(3) == {"x": 3}
    with pytest.raises(Violation, match="never"):
        selector(pinned_template(make.graph, [0, 1], set()))(3)


def test_lookups_take_the_first_of_equal_keys_and_the_first_row_for_a_missing_one() -> None:
    graph = Graph("g", "test")
    key = graph.add("input", data=Input("key", "runtime"), type="float")
    rows = ((2.0, "two"), (0.0, "zero"), (-0.0, "minus"), (math.nan, "nan"))
    lookup = graph.add("lookup", (key,), rows, "str")
    function = expression_function(graph, [lookup], [key])[1]
    assert [function(v) for v in (2.0, 0.0, -0.0, 5.0, math.nan)] == ["two", "zero", "zero", "two", "two"]


def test_a_long_table_is_filled_into_lines() -> None:
    graph = Graph("g", "test")
    key = graph.add("input", data=Input("key", "runtime"))
    lookup = graph.add("lookup", (key,), tuple((n, n * n) for n in range(60)), name="square")
    graph.points = [("square", lookup)]
    source = unpinned_source(graph, set())
    assert source.startswith("SQUARE = {\n    0: 0, 1: 1, 2: 4, ")
    assert max(map(len, source.splitlines())) <= 100 and len(source.splitlines()) < 20
    assert [selector(source)(n)[0]["square"] for n in (0, 59, 60)] == [0, 59 * 59, 0]


def test_parameters_keep_the_names_of_functions_that_the_text_calls() -> None:
    make = Maker()
    top, other = make.input("max", "float"), make.input("float", "float")
    make.graph.points = [("m", make("max", make("max", top, other), (math.inf,))), ("c", make("ceil", other))]
    source = unpinned_source(make.graph, may_fail(make.graph))
    assert selector(source)(max=2.0, float=1.5) == ({"m": math.inf, "c": 2}, [])


def test_a_pin_named_like_an_input_gives_way() -> None:
    graph = Graph("g", "test")
    width = graph.add("input", data=Input("width", "runtime"))
    pin = graph.add("pin", (width,), data="width")
    root = graph.add("eq", (width, pin), type="bool", scope=1)
    graph.points = [("width", pin)]
    graph.conditions = [Condition("require", "width stays", root, None)]
    select = selector(pinned(pinned_template(graph, [0], set()), graph, {pin: 4}))
    assert select(4) == {"width": 4}
    with pytest.raises(Violation):
        select(5)


GOLDEN = """\
BLOCK_M = {1: 16, 64: 64, 4096: 128}

def select(num_tokens, own_tokens):
    row = ⟦row⟧
    small = ⟦small⟧
    tile = ⟦tile⟧
    # assume 1 <= call.num_tokens <= limits.max_tokens  (programs/moe.py:12)
    if not (1 <= num_tokens and num_tokens <= 8192):
        raise Violation('assume', '', 'programs/moe.py:12')
    # require not small or call.num_tokens <= 8  (programs/moe.py:20)
    if not (not small or num_tokens <= 8):
        raise Violation('require', 'few tokens', 'programs/moe.py:20')
    block_m = BLOCK_M.get(row, 16)
    if small:
        mode = 'short'
    else:
        wide = block_m * 2
        if wide * wide > 64:
            mode = 'full'
        else:
            mode = 'middle'
    return {
        'block_m': block_m,
        'mode': mode,
        'warps': 4 if block_m == 16 else 8,
        'blocks': -(-own_tokens // block_m),
        'tile': tile,
        'kind': 'moe',
    }
"""


def test_the_template_reads_well() -> None:
    make = Maker()
    graph = make.graph
    tokens, own = make.input("num_tokens"), make.input("own_tokens")
    tile = graph.add("knob", data=Knob("tile", (1, 2), 1))
    row = graph.add("pin", (tokens,), data="row")
    small = graph.add("pin", (make("le", tokens, (8,)),), data="small", type="bool")
    block_m = graph.add("lookup", (row,), ((1, 16), (64, 64), (4096, 128)), name="block_m")
    wide = make("mul", block_m, (2,), name="wide")
    otherwise = make("select", make("gt", make("mul", wide, wide), (64,)), ("full",), ("middle",))
    mode = make("select", small, ("short",), otherwise, name="mode")
    bounds = make("and", make("le", (1,), tokens, scope=1), make("le", tokens, (8192,), scope=1), scope=1)
    few = make("or", make("not", small, scope=2), make("le", tokens, (8,), scope=2), scope=2)
    fits = make("le", make("mul", block_m, tile, scope=3), (256,), scope=3)
    for kind, message, root, line, text in (
            ("assume", "", bounds, 12, "1 <= call.num_tokens <= limits.max_tokens"),
            ("require", "few tokens", few, 20, "not small or\n    call.num_tokens <= 8"),
            ("require", "fits", fits, 21, "block_m * tile <= 256")):
        graph.conditions.append(Condition(kind, message, root, Location("programs/moe.py", line, 4, text)))
    warps = make("select", make("eq", block_m, (16,)), (4,), (8,))
    blocks = make("neg", make("floordiv", make("neg", own), block_m))
    graph.points = [("block_m", block_m), ("mode", mode), ("warps", warps), ("blocks", blocks), ("tile", tile),
                    ("kind", make.constant("moe"))]
    assert pinned_template(graph, [0, 1], set()) == GOLDEN


@pytest.mark.parametrize("kind", ["add", "max", "and"])
def test_long_expressions_become_short_lines(kind: str) -> None:
    make = Maker()
    x = make.input("x")
    leaves = [make("gt", x, (n,)) if kind == "and" else make("mul", x, (n,)) for n in range(256)]
    left = leaves[0]
    for leaf in leaves[1:]:
        left = make(kind, left, leaf)
    while len(leaves) > 1:
        leaves = [make(kind, a, b) for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
    make.graph.points = [("left", left), ("tree", leaves[0])]
    lines = unpinned_source(make.graph, set()).splitlines()
    assert max(map(len, lines)) <= 120
    assert len(lines) < 3 * 256

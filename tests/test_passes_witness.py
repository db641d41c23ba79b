"""Branch and prune: what it proves is never contradicted, what it finds holds, what it cannot settle it says."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes_expressions import number, truth
from passes_graphs import Build, Value

from detent.dialects.selir.semantics import evaluate
from detent.passes.boxes import Region, apply, halves, piece, size
from detent.passes.domains import Interval, hull
from detent.passes.graph import Graph
from detent.passes.input_domains import input_domains, relations
from detent.passes.interpret import interpret
from detent.passes.question import Unknown
from detent.passes.witness import Proved, complete, prove, refute

BIG = 2**31 - 1


def analysed(build: Build) -> tuple[Graph, dict[int, Any], list[int]]:
    domains = input_domains(build.graph)
    return build.graph, domains, relations(build.graph, domains)


def refuted(build: Build, root: Value, budget: int = 2_000, **fixed: Any) -> Any:
    graph, domains, related = analysed(build)
    return refute(graph, root.node, domains, related, {build[name]: value for name, value in fixed.items()}, budget)


def proved(build: Build, root: Value) -> Any:
    graph, domains, related = analysed(build)
    return prove(graph, root.node, domains, related)


def satisfied(graph: Graph, point: dict[int, Any]) -> bool:
    roots = [condition.root for condition in graph.conditions if condition.kind == "assume"]
    values = interpret(graph, point, roots)
    return all(values[root] for root in roots)


# ---- abstract evaluation --------------------------------------------------------------------------------------


def abstract(build: Build, root: Value, **leaves: Any) -> Any:
    region = Region(build.graph, [root.node])
    return region.value(region.evaluate({build[name]: value for name, value in leaves.items()}), root.node)


def test_division_spanning_zero_and_remainders_stay_bounded() -> None:
    build = Build()
    x, y = build.input("x"), build.input("y")
    assert abstract(build, x // y, x=Interval(10, 20), y=Interval(-2, 5)) == Interval(-20, 20)
    assert abstract(build, x // y, x=Interval(10, 20), y=Interval(0, 1)) == Interval(0, 20)
    assert abstract(build, x % 128, x=Interval(130, 140)) == Interval(2, 12)
    assert abstract(build, x % 128, x=Interval(120, 130)) == Interval(0, 127)


def test_lookups_reach_the_keys_in_the_box() -> None:
    build = Build()
    found = build.lookup([(1, 10), (2, 20), (4, 40)], build.input("x"))
    assert abstract(build, found, x=frozenset((2, 4))) == {20, 40}
    assert abstract(build, found, x=Interval(1, 2)) == {10, 20}
    assert abstract(build, found, x=Interval(2, 4)) == {20, 40, 10}  # 3 is missing: the first value
    assert abstract(build, found, x=None) == {10, 20, 40}


def test_possible_infinities_are_unknown() -> None:
    build = Build()
    x = build.op("f32", build.input("x")) * build.constant(3e38, "f32")
    assert abstract(build, x, x=Interval(0, 10)) is None  # inf * 0 would be no number
    finite = build.op("f32", build.input("y")) * build.constant(2.0, "f32")
    assert abstract(build, (finite - finite).eq(build.constant(0.0, "f32")), y=Interval(0, 10)) == {True}
    assert abstract(build, (x - x).eq(build.constant(0.0, "f32")), x=Interval(0, 10)) == {False, True}


def test_domains_beyond_every_machine_word() -> None:
    low, high = halves(range(0, 2**70, 2))
    assert size(low) == size(high) == 2**68
    assert (low[-1] + 2, high[-1]) == (high[0], 2**70 - 2)


@given(st.data())
def test_boxes_contain_every_value_and_moving_is_evaluating(data: st.DataObject) -> None:
    build = Build()
    leaves = [build.input(name) for name in "xyz"]
    root = (number if data.draw(st.booleans()) else truth)(data.draw, build, leaves, 3)
    boxes = [range(low, low + data.draw(st.integers(1, 8))) for low in data.draw(st.tuples(*[st.integers(-4, 4)] * 3))]
    region = Region(build.graph, [root.node])
    memo = region.evaluate({leaf.node: piece(box) for leaf, box in zip(leaves, boxes, strict=True)})
    point = {leaf.node: data.draw(st.sampled_from(box)) for leaf, box in zip(leaves, boxes, strict=True)}
    concrete = interpret(build.graph, point, [root.node])
    for node in region.nodes:
        value = region.value(memo, node)
        assert (value is None or (value.low <= concrete[node] <= value.high if isinstance(value, Interval)
                                  else concrete[node] in value)), (build.graph.kinds[node], value, concrete[node])
    inside = {leaf: frozenset((point[leaf],)) for leaf in region.leaves}
    assert region.moved(memo, inside) == region.evaluate(inside)


@pytest.mark.parametrize("kind", ["floordiv", "div", "mod"])
def test_a_divisor_of_both_signs_without_zero(kind: str) -> None:
    kind_type = "float" if kind == "div" else "int"
    found = hull(apply(kind, [Interval(1, 5), frozenset((-1, 1, 2))], kind_type))
    values = [evaluate(kind, (a, b), kind_type) for a in range(1, 6) for b in (-1, 1, 2)]
    assert found is None or (found.low <= min(values) and max(values) <= found.high)
    assert kind == "mod" or found == (min(values), max(values))


# ---- completing -----------------------------------------------------------------------------------------------


def serving() -> Build:
    build = Build()
    b, q, total = build.bounded("b", 1, 1024), build.bounded("q", 1, 8192), build.bounded("total", 1, 8192)
    k, width = build.bounded("k", 1, 131072), build.bounded("width", 1, 8192)
    build.input("graph", "bool")
    build.assume(lambda: (b <= total) & (q <= total))
    build.assume(lambda: (q <= k) & (k <= width * 16))
    return build


def test_completion_agrees_with_what_is_fixed_and_satisfies_every_assume() -> None:
    build = serving()
    for fixed in ({}, {"q": 5000}, {"k": 131072, "b": 900}, {"width": 1}, {"q": 77, "k": 77, "graph": True}):
        wanted = {build[name]: value for name, value in fixed.items()}
        point = complete(*analysed(build), wanted)
        assert isinstance(point, dict) and satisfied(build.graph, point)
        assert set(point) == set(build.graph.of_kind("input")) and wanted.items() <= point.items()
    assert complete(*analysed(build), {})[build["graph"]] is False  # what no relation reads is lowest


def test_completion_of_the_impossible_is_none() -> None:
    build = serving()
    for fixed in ({"q": 9000}, {"q": 17, "width": 1}, {"b": 5, "total": 4}, {"q": 20, "k": 19}):
        assert complete(*analysed(build), {build[name]: value for name, value in fixed.items()}) is None


def test_completion_says_when_the_budget_ends() -> None:
    build = Build()
    x, y = build.bounded("x", 2, 10**6), build.bounded("y", 2, 10**6)
    build.assume(lambda: (x * y).eq(1_000_003 * 999_983))  # a product of two primes
    assert complete(*analysed(build), {}, 5) == Unknown(5)


# ---- refuting -------------------------------------------------------------------------------------------------


def test_a_witness_satisfies_all_assumes_and_violates_the_root() -> None:
    build = serving()
    q, k, b = (Value(build, build[name]) for name in ("q", "k", "b"))
    for root in (k <= 131071, q + b <= 9000, ((k + 15) // 16 <= 700) | (b > 3), (k % 4096).ne(4095)):
        point = refuted(build, root)
        assert satisfied(build.graph, point) and not interpret(build.graph, point)[root.node]


def test_relations_between_large_inputs_prove_what_follows_from_them() -> None:
    build = Build()
    x, y, z, flag = (*(build.bounded(name, 1, BIG) for name in "xyz"), build.input("flag", "bool"))
    build.assume(lambda: x <= y)
    build.assume(lambda: y < z)
    build.assume(lambda: ~flag | (z <= 1000))
    for root in (x <= y, x < z, z - x > 0, (x // 16) <= (z // 16), ~(x > y) & (y + 1 <= z), x.ne(z),
                 ~flag | (x <= 999), build.minimum(x, z) <= y, build.maximum(x, z) >= y,
                 (x * 2).ne(y * 2 + 1), build.select(flag, x, y) < z, build.select(flag, x, 1) <= 999,
                 (y % 7) <= (z - 1)):
        assert refuted(build, root) == Proved("interval")
    assert isinstance(refuted(build, x + 1 < z), dict)
    assert isinstance(refuted(build, build.maximum(x, 9).eq(9)), dict)
    assert isinstance(refuted(build, (x // 16) < (z // 16)), dict)


def test_fixed_leaves_take_part() -> None:
    build = Build()
    k = build.bounded("k", 1, 131072)
    splits, stride = build.pin(k // 256, "splits"), build.knob("stride", (256, 512))
    covers = splits * stride >= k
    assert refuted(build, covers, splits=256, stride=512) == Proved("interval")
    found = refuted(build, covers, splits=255, stride=512)
    assert found[k.node] > 255 * 512
    assert refuted(build, covers, splits=255, stride=512, k=1) == Proved("interval")


def test_relations_count_through_each_other() -> None:
    build = Build()
    x, y, z = build.bounded("x", 1, 500), build.bounded("y", 1, 500), build.bounded("z", 100, 200)
    build.assume(lambda: x <= y)
    build.assume(lambda: y >= z)
    assert refuted(build, x >= 5) == {x.node: 1, y.node: 500, z.node: 100}
    assert complete(*analysed(build), {z.node: 500}) is None


def test_like_values_of_different_tables_are_told_apart() -> None:
    build = Build()
    x = build.bounded("x", 0, 99)
    same, other = ([(key, 9 if key == odd else key * 3 % 7) for key in range(100)] for odd in (None, 37))
    assert refuted(build, build.lookup(same, x).eq(build.lookup(other, x))) == {x.node: 37}


def test_contradictory_assumes_prove_everything() -> None:
    build = Build()
    x, y, z = (build.bounded(name, 1, BIG) for name in "xyz")
    build.assume(lambda: x < y)
    build.assume(lambda: y < x)
    assert isinstance(refuted(build, z.eq(5)), Proved)


def test_unknown_is_said_not_guessed() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 10**6), build.bounded("y", 1, 10**6)
    assert refuted(build, (x * x).ne(y * y * 7 + 3), budget=40) == Unknown(40)


@settings(max_examples=250)
@given(st.data(), st.integers(1, 60))
def test_no_proof_is_contradicted_by_trying_everything(data: st.DataObject, budget: int) -> None:
    build = Build()
    highs = [data.draw(st.integers(2, 7)) for _ in range(3)]
    leaves = [build.bounded(name, 0, high) for name, high in zip("xyz", highs, strict=True)]
    for _ in range(data.draw(st.integers(0, 2))):
        build.assume(lambda: truth(data.draw, build, leaves, 1))
    root = truth(data.draw, build, leaves, 2)
    nodes = [leaf.node for leaf in leaves]
    points = [dict(zip(nodes, values, strict=True))
              for values in itertools.product(*(range(high + 1) for high in highs))]
    allowed = [point for point in points if satisfied(build.graph, point)]
    hypothesis.assume(allowed)  # else input_domains or relations may refuse, which is tested there
    violating = [point for point in allowed if not interpret(build.graph, point, [root.node])[root.node]]
    found = refuted(build, root, budget)
    if isinstance(found, Proved):
        assert not violating
    elif isinstance(found, dict):
        assert found in violating
    whole = complete(*analysed(build), {}, budget)
    assert isinstance(whole, Unknown) or whole in allowed


# ---- obligations of the unpinned program ----------------------------------------------------------------------


def test_guards_prove_their_divisors() -> None:
    build = Build()
    x, y = build.bounded("x", 0, BIG), build.bounded("y", 0, BIG)
    build.assume(lambda: x >= y)
    guarded = ~(y > 3) | (x - 3).ne(0)
    assert proved(build, guarded) == Proved("interval")
    loose = ~(y >= 3) | (x - 3).ne(0)
    assert proved(build, loose) == {x.node: 3, y.node: 3}


def test_small_obligations_are_tried_whole() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 300), build.bounded("y", 1, 300)
    root = (x * x - y * y * 2).ne(0)  # the root of two is irrational
    assert proved(build, root) == Proved("exhaustive")
    root = (x * x - y * y * 2).ne(1)  # but near 3/2, and nearer at 17/12
    found = proved(build, root)
    assert found[x.node] ** 2 - 2 * found[y.node] ** 2 == 1


def test_obligations_hold_for_every_knob_setting() -> None:
    build = Build()
    x, stride = build.bounded("x", 0, 100), build.knob("stride", (8, 4, 0))
    root = (x < 50) | stride.ne(0)
    found = proved(build, root)
    assert (found[x.node] >= 50, found[stride.node]) == (True, 0)

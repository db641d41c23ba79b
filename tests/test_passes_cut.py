"""The cut: separates, is minimum (networkx as oracle), latest (brute force), and independent of node order."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.passes.cut import Infeasible, batch_dependent, latest_min_cut, sinks, why
from detent.passes.graph import Condition, Graph, Input, Knob

SOURCES = ("runtime", "unpinnable", "request")


def random_graph(rng: random.Random, inputs: int, values: int, points: int) -> Graph:
    """Inputs of every source, then operations that prefer recent operands; points are never unpinnable inputs."""
    graph = Graph("random", "test")
    for index in range(inputs):
        graph.add("input", data=Input(f"i{index}", rng.choice(SOURCES)))
    graph.add("knob", data=Knob("knob", (1, 2), 1))
    graph.add("constant", data=7)
    for _ in range(values):
        recent = range(max(0, len(graph) - 6), len(graph))
        pool = recent if rng.random() < 0.7 else range(len(graph))
        kind = rng.choice(("add", "select", "abs"))
        graph.add(kind, tuple(rng.choice(pool) for _ in range({"add": 2, "select": 3, "abs": 1}[kind])))
    eligible = [n for n in range(len(graph)) if not unpinnable(graph, n)]
    for index in range(points):
        graph.points.append((f"p{index}", rng.choice(eligible[-2 * points - 2:])))
    return graph


@st.composite
def graphs(draw: st.DrawFn, inputs: int = 5, values: int = 30, points: int = 5) -> Graph:
    rng = draw(st.randoms(use_true_random=False))
    return random_graph(rng, draw(st.integers(1, inputs)), draw(st.integers(1, values)), draw(st.integers(1, points)))


def unpinnable(graph: Graph, node: int) -> bool:
    return graph.kinds[node] == "input" and graph.data[node].source == "unpinnable"


def edges(graph: Graph, control: bool = True) -> list[tuple[int, int]]:
    return [(a, node) for node in range(len(graph)) for index, a in enumerate(graph.args[node])
            if control or graph.kinds[node] != "select" or index]


def separates(graph: Graph, cut: set[int], control: bool = True) -> bool:
    """Whether no point moves once the cut's values are fixed; written without the code under test."""
    moves: set[int] = set()
    for node in range(len(graph)):
        source = graph.kinds[node] == "input" and graph.data[node].source in ("runtime", "unpinnable")
        if node not in cut and (source or any(a in moves for a, user in edges(graph, control) if user == node)):
            moves.add(node)
    return not moves & {node for _, node in graph.points}


def oracle(graph: Graph, control: bool = True) -> int:
    """The size of a minimum vertex cut by networkx on the split graph."""
    flow = nx.DiGraph()
    flow.add_nodes_from("ST")
    for node in range(len(graph)):
        if unpinnable(graph, node):
            flow.add_edge((node, 0), (node, 1))
        else:
            flow.add_edge((node, 0), (node, 1), capacity=1)
        if graph.kinds[node] == "input" and graph.data[node].source != "request":
            flow.add_edge("S", (node, 0))
    flow.add_edges_from(((a, 1), (b, 0)) for a, b in edges(graph, control))
    flow.add_edges_from(((node, 1), "T") for _, node in graph.points)
    return int(nx.minimum_cut_value(flow, "S", "T"))


def points_of(graph: Graph) -> list[int]:
    return [node for _, node in graph.points]


@settings(max_examples=300)
@given(graphs(), st.booleans())
def test_separates_and_is_minimum(graph: Graph, control: bool) -> None:
    cut = latest_min_cut(graph, points_of(graph), control=control)
    assert separates(graph, set(cut.nodes), control)
    assert len(cut.nodes) == oracle(graph, control)
    for node in cut.nodes:
        assert graph.kinds[node] not in ("knob", "constant")
        assert graph.kinds[node] != "input" or graph.data[node].source == "runtime"


@settings(max_examples=40)
@given(graphs(inputs=12, values=150, points=14))
def test_minimum_on_larger_graphs(graph: Graph) -> None:
    cut = latest_min_cut(graph, points_of(graph))
    assert separates(graph, set(cut.nodes))
    assert len(cut.nodes) == oracle(graph)


@settings(max_examples=200)
@given(graphs(inputs=3, values=6, points=3))
def test_is_the_latest(graph: Graph) -> None:
    """No other cut of that size has a total longest distance to the points that is as small."""
    cut = latest_min_cut(graph, points_of(graph)).nodes
    far = distances(graph)
    cuttable = [n for n in sorted(far) if not unpinnable(graph, n) and graph.kinds[n] not in ("knob", "constant")]
    for smaller in range(len(cut)):
        assert not any(separates(graph, set(c)) for c in itertools.combinations(cuttable, smaller))
    for other in itertools.combinations(cuttable, len(cut)):
        if other != cut and separates(graph, set(other)):
            assert sum(far[n] for n in cut) < sum(far[n] for n in other)


def distances(graph: Graph) -> dict[int, int]:
    """Edges on the longest path to a point, for each node that reaches one."""
    far = {n: 0 for n in points_of(graph)}
    for a, user in sorted(edges(graph), key=lambda edge: -edge[1]):
        if user in far:
            far[a] = max(far.get(a, 0), far[user] + 1)
    return far


@settings(max_examples=150)
@given(graphs(), st.randoms(use_true_random=False))
def test_unchanged_by_the_order_of_nodes_and_operands(graph: Graph, rng: random.Random) -> None:
    cut = latest_min_cut(graph, points_of(graph))
    number: dict[int, int] = {}
    other = Graph("random", "test")
    waiting = set(range(len(graph)))
    while waiting:
        node = rng.choice(sorted(n for n in waiting if all(a in number for a in graph.args[n])))
        waiting.remove(node)
        args = [number[a] for a in graph.args[node]]
        rng.shuffle(args)
        number[node] = other.add(graph.kinds[node], tuple(args), graph.data[node])
    again = latest_min_cut(other, rng.sample([number[n] for n in points_of(graph)], len(graph.points)))
    assert set(again.nodes) == {number[n] for n in cut.nodes}
    assert set(again.sinks) == {number[n] for n in cut.sinks}


@settings(max_examples=150)
@given(graphs(), st.booleans())
def test_batch_dependence_and_why_agree(graph: Graph, control: bool) -> None:
    moves = batch_dependent(graph, control)
    flow = nx.DiGraph(edges(graph, control))
    flow.add_nodes_from(range(len(graph)))
    inputs = [n for n in graph.of_kind("input") if graph.data[n].source != "request"]
    reached = set(inputs).union(*(nx.descendants(flow, n) for n in inputs))
    assert [n in reached for n in range(len(graph))] == moves
    if not control:
        return
    for node in range(len(graph)):
        path = why(graph, node)
        assert bool(path) == moves[node]
        if path:
            assert path[0] in inputs and path[-1] == node
            assert all(a in graph.args[b] for a, b in itertools.pairwise(path))
            assert len(path) == 1 + min(nx.shortest_path_length(flow, n, node) for n in inputs
                                        if nx.has_path(flow, n, node))


def test_a_point_itself_is_pinned_when_nothing_later_is_fewer() -> None:
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    small = graph.add("le", (tokens, graph.add("constant", data=8)), type="bool")
    graph.points = [("small", small)]
    assert latest_min_cut(graph, sinks(graph)) == ((small,), (small,))


def test_a_runtime_input_is_pinned_where_it_feeds_two_points_directly() -> None:
    graph = Graph("g", "test")
    width = graph.add("input", data=Input("width", "runtime"))
    graph.points = [("a", graph.add("abs", (width,))), ("b", graph.add("neg", (width,)))]
    assert latest_min_cut(graph, sinks(graph)).nodes == (width,)
    graph.data[width] = Input("width", "unpinnable")
    assert latest_min_cut(graph, sinks(graph)).nodes == tuple(points_of(graph))


def test_request_inputs_and_knobs_pass_through() -> None:
    graph = Graph("g", "test")
    length = graph.add("input", data=Input("length", "request"))
    unroll = graph.add("knob", data=Knob("unroll", (1, 2), 1))
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    own = graph.add("mul", (length, unroll))
    mixed = graph.add("add", (own, graph.add("abs", (tokens,))))
    graph.points = [("own", own), ("length", length), ("unroll", unroll), ("mixed", mixed)]
    assert not batch_dependent(graph)[own]
    assert latest_min_cut(graph, sinks(graph)) == ((mixed,), (mixed,))
    assert why(graph, own) == []


def test_an_unpinnable_input_as_a_point_is_infeasible() -> None:
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    graph.points = [("half", graph.add("abs", (tokens,))), ("tokens", tokens)]
    with pytest.raises(Infeasible) as error:
        latest_min_cut(graph, sinks(graph))
    assert error.value.path == [tokens]


def test_values_that_conditions_name_are_sinks() -> None:
    """`require(not small or ...)` reads `small` above the point; the cut may not fall below it."""
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    limit = graph.add("constant", data=16)
    small = graph.add("le", (tokens, limit), type="bool")
    mode = graph.add("select", (small, graph.add("constant", data="short", type="str"),
                                graph.add("constant", data="full", type="str")), type="str")
    knob = graph.add("knob", data=Knob("limit", (1, 2), 1))
    fits = graph.add("le", (tokens, knob), type="bool", scope=1)
    root = graph.add("or", (graph.add("not", (small,), type="bool", scope=1), fits), type="bool", scope=1)
    graph.points = [("mode", mode)]
    graph.conditions = [Condition("require", "", root, None)]
    assert latest_min_cut(graph, [mode]).nodes == (mode,)
    assert sinks(graph) == [small, mode]
    assert latest_min_cut(graph, sinks(graph)).nodes == (small,)
    assert not batch_dependent(graph)[root]


def test_a_selection_value_that_is_itself_the_condition_is_a_sink() -> None:
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    flag = graph.add("input", data=Input("flag", "runtime"), type="bool")
    small = graph.add("le", (tokens, graph.add("constant", data=8)), type="bool")
    graph.conditions = [Condition("require", "", small, None), Condition("require", "", flag, None)]
    assert sinks(graph) == [small]


def test_pins_end_dependence_and_why_can_look_through_them() -> None:
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"))
    small = graph.add("abs", (tokens,))
    pin = graph.add("pin", (small,), data="small")
    point = graph.add("neg", (pin,))
    graph.points = [("point", point)]
    assert batch_dependent(graph) == [True, True, False, False]
    assert latest_min_cut(graph, sinks(graph)) == ((), ())
    assert why(graph, point) == []
    assert why(graph, point, through_pins=True) == [tokens, small, pin, point]


def test_without_control_a_condition_is_no_dependence() -> None:
    graph = Graph("g", "test")
    tokens = graph.add("input", data=Input("tokens", "unpinnable"), type="bool")
    knob = graph.add("knob", data=Knob("k", (1, 2), 1))
    point = graph.add("select", (tokens, knob, graph.add("constant", data=3)))
    graph.points = [("point", point)]
    assert latest_min_cut(graph, sinks(graph)).nodes == (point,)
    assert latest_min_cut(graph, sinks(graph), control=False) == ((), ())


def test_a_graph_of_thousands_of_values_with_a_narrow_waist() -> None:
    """Layers wide and deep, then four values that everything runs through, then points behind them."""
    rng = random.Random(5)
    graph = Graph("g", "test")
    layer = [graph.add("input", data=Input(f"i{i}", rng.choice(SOURCES[:2]))) for i in range(9)]
    for _ in range(100):
        layer = [graph.add("add", (rng.choice(layer), rng.choice(layer))) for _ in range(80)]
    waist = [graph.add("max", (a, b)) for a, b in zip(layer[:4], layer[4:8], strict=True)]
    graph.points = [(f"p{i}", graph.add("add", (waist[i % 4], waist[(i + 1) % 4]))) for i in range(26)]
    assert latest_min_cut(graph, sinks(graph)).nodes == tuple(waist)

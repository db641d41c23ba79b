"""Legality: numbers of the attention family, the traps, and agreement with trying every input."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from passes_expressions import truth
from passes_graphs import Build, Value

from detent.passes import legality as module
from detent.passes.errors import EmptyDomain, TooManyCombinations, UndecidedAssumes, UnpinnedValue
from detent.passes.graph import Graph
from detent.passes.input_domains import input_domains
from detent.passes.interpret import interpret
from detent.passes.legality import Legality, judge

STRIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)
FLAGS = [False, True]
COUNTS = list(range(1, 257))


def judged(build: Build, candidates: dict[str, list[Any]], **options: Any) -> Legality:
    graph = build.graph
    return judge(graph, {build[name]: values for name, values in candidates.items()}, input_domains(graph), **options)


def legal_values(found: Legality) -> set[tuple[Any, ...]]:
    """All legal assignments, values by ascending node."""
    nodes = [node for part, _ in found.components for node in part]
    order = sorted(range(len(nodes)), key=nodes.__getitem__)
    product = itertools.product(*(legal for _, legal in found.components))
    flat = (tuple(itertools.chain.from_iterable(parts)) for parts in product)
    return {tuple(values[i] for i in order) for values in flat}


def attention(context: int = 40_960, block: int = 128, max_seqs: int = 1024) -> tuple[Build, dict[str, list[Any]]]:
    """The adapted attention's conditions around the cut: a variant, a split count, the dependent launch, a stride."""
    build = Build()
    b, q = build.bounded("b", 1, max_seqs), build.bounded("q", 1, 8192, "unpinnable")
    stride = build.knob("stride", STRIDES)
    build.pin(q * 8 <= 64, "one_wg")
    splits = build.pin(build.minimum(q, 256), "splits")
    pdl = build.pin(b <= 992, "pdl")
    build.require(lambda: (splits >= 1) & (splits <= 256), "at most 256 splits")
    build.require(lambda: splits.eq(1) | (splits * stride >= context), "covers the context")
    build.require(lambda: (stride % block).eq(0) | (splits <= 1), "boundaries on blocks")
    build.require(lambda: ~pdl | (b <= 992), "one prepare block")
    return build, {"stride": list(STRIDES), "one_wg": FLAGS, "splits": COUNTS, "pdl": FLAGS}


@pytest.mark.parametrize("reference", [False, True])
def test_attention_has_the_papers_numbers(reference: bool) -> None:
    build, candidates = attention()
    found = judged(build, candidates, reference=reference)
    assert (found.candidates, found.legal, found.proved, found.sampled) == (7168, 2976, 7168, 0)
    assert set(found.verdicts.values()) == {"exhaustive"}
    assert [(part, len(legal)) for part, legal in found.components] == [
        ((build["stride"], build["splits"]), 1488), ((build["one_wg"],), 2), ((build["pdl"],), 1)]
    assert found.witnesses[1:] == [{build["b"]: 993, build["q"]: 1}]
    by_boxes = judged(build, candidates, reference=reference, exhaustive_limit=0)
    assert (by_boxes.legal, list(by_boxes.verdicts.values())) == (2976, ["exhaustive"] * 3 + ["interval"])
    assert judged(attention(131_072)[0], candidates).legal == 2090
    assert judged(attention(32_768)[0], candidates).legal == 3104


def test_every_illegal_assignment_is_explained_by_a_witness() -> None:
    build, candidates = attention()
    found, graph = judged(build, candidates), build.graph
    names = list(candidates)
    for values in itertools.product(*([v[0], v[len(v) // 2], v[-1]] for v in candidates.values())):
        assignment = {build[name]: value for name, value in zip(names, values, strict=True)}
        explained = found.explain(assignment)
        assert (explained is None) == found.is_legal(assignment) == (tuple(
            assignment[node] for node in sorted(assignment)) in legal_values(found))
        if explained is not None:
            index, witness = explained
            root = graph.conditions[index].root
            assert not holds(graph, {**assignment, **witness}, [root])
    assert not found.is_legal({build["stride"]: 256, build["one_wg"]: False, build["splits"]: 257, build["pdl"]: False})


# ---- the traps ------------------------------------------------------------------------------------------------


def test_a_conditions_own_test_is_not_the_pin_of_the_same_test() -> None:
    build = Build()
    b = build.bounded("b", 1, 1024)
    pdl = build.pin(b <= 992, "pdl")
    build.require(lambda: ~pdl | (b <= 992))  # the true b, not the pinned comparison: nothing is vacuous
    assert legal_values(judged(build, {"pdl": FLAGS})) == {(False,)}


def test_a_condition_that_names_a_value_above_the_cut_is_refused() -> None:
    def program(pin_small: bool, source: str = "unpinnable") -> Build:
        build = Build()
        tokens = build.bounded("tokens", 1, 8192, source)
        small = build.named(tokens <= 512, "small_batch")
        if pin_small:
            small = build.pin(small, "small")
        text = build.select(small, "short", "full")
        if not pin_small:
            build.pin(text, "text")
        build.require(lambda: ~small | (tokens <= 512), "the short kernel")
        return build

    for source in ("unpinnable", "runtime"):
        with pytest.raises(UnpinnedValue, match="program.py:101: this require reads 'small_batch'"):
            judged(program(False, source), {"text": ["full", "short"]})
    assert judged(program(False, "request"), {"text": ["full", "short"]}).legal == 2  # the request's own: true
    assert legal_values(judged(program(True), {"small": FLAGS})) == {(False,)}


def test_a_pinned_input_is_not_what_its_own_condition_checks() -> None:
    build = Build()
    b = build.bounded("b", 1, 1024)
    pinned = build.pin(b, "pinned_b")
    build.require(lambda: b <= 992)
    found = judged(build, {"pinned_b": [1, 500, 1024]})
    assert (found.legal, found.candidates, found.proved) == (0, 3, 3)
    assert found.explain({pinned.node: 1}) == (1, {b.node: 993})
    assert found.components[-1] == ((), [])  # so that the product of the components is empty too


def device_splits(limit: int) -> tuple[Build, Value, Value, Value]:
    """Stock FA3: the device counts splits itself, from float32 and the whole batch's blocks."""
    build = Build()
    b, own = build.bounded("b", 1, 1024), build.bounded("own_kv_len", 1, 40_960, "request")
    wide, narrow = (build.bounded(name, 1, 2**31 - 1, "unpinnable") for name in ("batch_blocks", "batch_blocks_one_wg"))
    q = build.bounded("q", 1, 8192, "unpinnable")

    def ceil_div(a: Value, c: Any) -> Value:
        return -(-a // c)

    build.assume(lambda: wide >= ceil_div(own, 128))
    build.assume(lambda: narrow >= ceil_div(own, 128))
    one_wg, static = build.pin(q <= 8, "one_wg"), build.pin(build.minimum(q, limit), "static")
    splits = build.pin(build.minimum(q, limit), "splits")

    def counted() -> Value:
        blocks = build.op("f32", build.select(one_wg, narrow, wide))
        scaled = blocks * build.constant(1.100000023841858, "f32") * build.constant(1.0, "f32")
        per_split = build.op("ceil", scaled / build.constant(132.0, "f32"))
        return build.maximum(build.minimum(ceil_div(ceil_div(own, 128), per_split), static), 1)

    build.require(lambda: splits.eq(counted()), "the device counts splits itself")
    build.require(lambda: static.eq(1) | (b <= 992), "above 992 sequences FA3 does not split")
    return build, one_wg, static, splits


def test_counts_of_the_device_leave_one_split_proved_by_intervals() -> None:
    build, *_ = device_splits(32)
    found = judged(build, {"one_wg": FLAGS, "static": COUNTS[:32], "splits": COUNTS[:32]})
    assert legal_values(found) == {(False, 1, 1), (True, 1, 1)}
    assert found.sampled == 0 and list(found.verdicts.values()) == ["interval", "exhaustive"]
    check_witnesses(build, found)


def test_unguarded_block_boundaries_leave_nothing_where_strides_are_no_multiple() -> None:
    build, candidates = attention(block=80)
    assert {values[2] for values in legal_values(judged(build, candidates))} == {1}  # guarded: the unsplit kernel
    stride = Value(build, build["stride"])
    build.require(lambda: (stride % 80).eq(0))
    assert judged(build, candidates).legal == 0


# ---- verdicts -------------------------------------------------------------------------------------------------


def test_constants_and_conditions_without_controls() -> None:
    build = Build()
    x = build.bounded("x", 1, 10)
    build.pin(x <= 3, "p")
    build.require(lambda: build.constant(True))
    build.require(lambda: x <= 10)
    found = judged(build, {"p": FLAGS})
    assert (found.verdicts, found.legal) == ({1: "constant", 2: "exhaustive"}, 2)
    build.require(lambda: build.constant(False), "never")
    found = judged(build, {"p": FLAGS})
    assert (found.verdicts[3], found.legal) == ("constant", 0)
    assert found.explain({build["p"]: True}) == (3, {x.node: 1})


@pytest.mark.parametrize(("high", "verdict"), [(64, "exhaustive"), (500, "interval")])
def test_points_that_no_input_completes_do_not_refute(high: int, verdict: str) -> None:
    build = Build()
    q, k, width = build.bounded("q", 1, high), build.bounded("k", 1, 10**6), build.bounded("width", 1, 2)
    build.assume(lambda: q <= k)
    build.assume(lambda: k <= width * 16)
    small = build.pin(q <= 32, "small")
    build.require(lambda: ~small | (q <= 32))  # q > 32 is in the domain, but no k and width go with it
    found = judged(build, {"small": FLAGS})
    assert (found.legal, found.proved, found.verdicts) == (2, 2, {5: verdict})


def test_points_whose_completion_is_open_leave_a_doubt() -> None:
    build = Build()
    x, y, mode = build.bounded("x", 2, 10**6), build.bounded("y", 2, 10**6), build.bounded("mode", 1, 2)
    build.assume(lambda: mode.eq(1) | (x * y).eq(1_000_003 * 999_983))
    fast = build.pin(mode.eq(1), "fast")
    build.require(lambda: ~fast | mode.eq(1))
    found = judged(build, {"fast": FLAGS}, budget=20, samples=20)
    assert (found.legal, found.sampled, found.verdicts) == (2, 1, {4: "sampled"})


def test_what_corners_and_boxes_leave_open_is_sampled_and_said_so() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 10**6), build.bounded("y", 1, 10**6)
    fast, other = build.pin(x <= 9, "fast"), build.pin(x <= 7, "other")
    build.require(lambda: ~fast | (x * x).ne(y * y * 7 + 3))
    found = judged(build, {"fast": FLAGS, "other": FLAGS}, budget=30, samples=50)
    assert (found.verdicts, found.legal, found.proved, found.sampled) == ({2: "sampled"}, 4, 2, 2)
    build.require(lambda: ~fast | other)
    found = judged(build, {"fast": FLAGS, "other": FLAGS}, budget=30, samples=50)
    assert (found.legal, found.proved, found.sampled) == (3, 3, 1)  # the refuted one is proved illegal
    build.require(lambda: (x * y).ne(1_000_003 * 999_983))
    found = judged(build, {"fast": FLAGS, "other": FLAGS}, budget=30, samples=50)
    assert (found.legal, found.proved, found.sampled) == (3, 1, 3)  # this one leaves every assignment in doubt


def test_the_sample_refutes_what_the_budget_misses() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 10**6), build.bounded("y", 1, 10**6)
    fast = build.pin(x <= 9, "fast")
    build.require(lambda: ~fast | (x * y % 1009).ne(5) & (x * y % 1013).ne(5))
    found = judged(build, {"fast": FLAGS}, budget=1)
    assert (found.legal, found.sampled) == (1, 0)
    check_witnesses(build, found)
    assert judged(build, {"fast": FLAGS}, budget=1, samples=1).sampled == 1


def test_contradictory_assumes_are_an_error() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 10**6), build.bounded("y", 1, 10**6)
    build.assume(lambda: x < y)
    build.assume(lambda: y < x)
    with pytest.raises(EmptyDomain, match="program.py:102: no input satisfies all assumes"):
        judged(build, {})
    build = Build()
    x, y = build.bounded("x", 2, 10**6), build.bounded("y", 2, 10**6)
    build.assume(lambda: (x * y).eq(1_000_003 * 999_983))
    with pytest.raises(UndecidedAssumes):
        judged(build, {}, budget=5)


def test_too_many_joint_values_are_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Build()
    x = build.bounded("x", 0, 4000)
    pins = [build.pin(x + i, f"p{i}") for i in range(3)]
    build.require(lambda: pins[0] <= pins[1])
    build.require(lambda: pins[1] <= pins[2])
    candidates = {f"p{i}": list(range(100)) for i in range(3)}
    assert judged(build, candidates).legal == 171_700
    monkeypatch.setattr(module, "MAX_COMBINATIONS", 400_000)
    with pytest.raises(TooManyCombinations, match="'p0', 'p1', 'p2' together: 505000 .*bound one of them"):
        judged(build, candidates)
    monkeypatch.setattr(module, "MAX_COMBINATIONS", 9_000)
    with pytest.raises(TooManyCombinations, match="'p0', 'p1' together: 10000 "):
        judged(build, candidates)


def test_leaves_without_candidates_are_a_mistake_of_the_caller() -> None:
    build, candidates = attention()
    del candidates["splits"]
    with pytest.raises(ValueError, match="neither candidates nor a domain"):
        judged(build, candidates)


# ---- agreement with trying everything -------------------------------------------------------------------------


def holds(graph: Graph, point: dict[int, Any], roots: list[int]) -> bool:
    values = interpret(graph, point, roots)
    return all(values[root] for root in roots)


def check_witnesses(build: Build, found: Legality) -> None:
    """Every refutation's witness is a whole input that satisfies all assumes and violates the condition."""
    graph = build.graph
    assumes = [condition.root for condition in graph.conditions if condition.kind == "assume"]
    for witness in found.witnesses:
        assert set(witness) == set(graph.of_kind("input"))
        assert holds(graph, witness, assumes)
    for refutation in found.refutations:
        root = graph.conditions[refutation.condition].root
        for values, index in refutation.cases.items():
            point = {**dict(zip(refutation.nodes, values, strict=True)), **found.witnesses[index]}
            assert not holds(graph, point, [root])


@settings(max_examples=150)
@given(st.data(), st.sampled_from((0, 30, 262_144)), st.sampled_from((2, 30, 2000)), st.booleans())
def test_no_proved_verdict_is_contradicted_by_trying_everything(data: st.DataObject, limit: int, budget: int,
                                                                reference: bool) -> None:
    build = Build()
    highs = {name: data.draw(st.integers(1, 5)) for name in "xyz"}
    inputs = [build.bounded(name, 0, high) for name, high in highs.items()]
    controls = [build.knob("k", (1, 2, 4)), *(build.pin(inputs[0], name) for name in ("p", "q"))]
    for _ in range(data.draw(st.integers(0, 2))):
        build.assume(lambda: truth(data.draw, build, inputs, 1))
    for _ in range(data.draw(st.integers(1, 3))):
        build.require(lambda: truth(data.draw, build, inputs + controls, 1))
    graph = build.graph
    assumes, requires = ([condition.root for condition in graph.conditions if condition.kind == kind]
                         for kind in ("assume", "require"))
    points = [dict(zip((leaf.node for leaf in inputs), values, strict=True))
              for values in itertools.product(*(range(high + 1) for high in highs.values()))]
    allowed = [point for point in points if holds(graph, point, assumes)]
    hypothesis.assume(allowed)
    candidates = {"k": [1, 2, 4], "p": [0, 2, 3], "q": [0, 5]}
    try:
        found = judged(build, candidates, exhaustive_limit=limit, budget=budget, reference=reference, samples=20)
    except UndecidedAssumes:
        hypothesis.assume(False)
    nodes = [control.node for control in controls]
    expected = {values for values in itertools.product(*candidates.values())
                if all(holds(graph, {**point, **dict(zip(nodes, values, strict=True))}, requires) for point in allowed)}
    assert expected <= legal_values(found) and found.legal == len(legal_values(found))
    assert len(legal_values(found)) - len(expected) <= found.sampled
    assert found.proved + found.sampled == found.candidates == 18
    check_witnesses(build, found)

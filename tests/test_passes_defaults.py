"""The default assignment and the sample it is taken from."""

from __future__ import annotations

from collections import Counter
from typing import Any

from passes_graphs import Build

from detent.passes.defaults import default_assignment, sample_inputs
from detent.passes.input_domains import input_domains, relations
from detent.passes.legality import Legality, judge


def pinned(*forbidden: tuple[int, str, int]) -> tuple[Build, Legality]:
    """Two pins and a knob; a require rules out the forbidden combinations."""
    build = Build()
    x = build.bounded("x", 1, 9)
    rows, order = build.pin(x, "rows"), build.pin(build.select(x < 3, "rows", "cols"), "order")
    width = build.knob("width", (2, 1))
    for row, text, size in forbidden:
        build.require(lambda row=row, text=text, size=size: ~(rows.eq(row) & order.eq(text) & width.eq(size)))
    candidates = {rows.node: [1, 2, 3], order.node: ["cols", "rows"], width.node: [1, 2]}
    return build, judge(build.graph, candidates, input_domains(build.graph))


def chosen(build: Build, legality: Legality, *sample: tuple[int, str], width: int = 2) -> Any:
    nodes = build["rows"], build["order"]
    found = default_assignment(legality, [dict(zip(nodes, values, strict=True)) for values in sample],
                               {build["width"]: width})
    return found and (found[nodes[0]], found[nodes[1]], found[build["width"]])


def test_the_most_frequent_jointly_legal_assignment_wins() -> None:
    sample = [(3, "rows"), (3, "rows"), (3, "cols"), (1, "cols"), (1, "cols"), (2, "cols"), (3, "rows")]
    assert chosen(*pinned(), *sample) == (3, "rows", 2)
    assert chosen(*pinned((3, "rows", 2)), *sample) == (1, "cols", 2)
    # The most frequent row is 3 and the most frequent order is cols, which are illegal together.
    assert chosen(*pinned((3, "rows", 2), (3, "cols", 2)), *sample) == (1, "cols", 2)


def test_ties_go_to_the_smallest() -> None:
    assert chosen(*pinned(), (3, "cols"), (2, "rows"), (2, "cols")) == (2, "cols", 2)


def test_without_a_legal_sampled_assignment_the_smallest_legal_one_is_taken() -> None:
    build, legality = pinned((1, "cols", 2), (1, "rows", 2), (3, "rows", 2))
    assert chosen(build, legality, (3, "rows"), (1, "cols")) == (2, "cols", 2)


def test_a_knob_default_that_allows_nothing_gives_way() -> None:
    every = [(row, text, 2) for row in (1, 2, 3) for text in ("cols", "rows")]
    assert chosen(*pinned(*every), (3, "rows")) == (1, "cols", 1)
    build, legality = pinned(*every, *((row, text, 1) for row, text, _ in every))
    assert chosen(build, legality, (3, "rows")) is None


def related() -> tuple[Build, dict[int, Any], list[int]]:
    build = Build()
    x, y = build.bounded("x", 1, 4), build.bounded("y", 1, 4)
    build.bounded("big", 1, 2**40)
    build.input("flag", "bool")
    build.assume(lambda: x <= y)
    domains = input_domains(build.graph)
    return build, domains, relations(build.graph, domains)


def test_samples_are_uniform_over_what_the_assumes_allow_and_stay_the_same() -> None:
    build, domains, between = related()
    sample = sample_inputs(build.graph, domains, between, 2000, 7)
    counts = Counter((point[build["x"]], point[build["y"]]) for point in sample)
    assert len(counts) == 10 and all(x <= y for x, y in counts)
    assert all(140 < count < 270 for count in counts.values())
    assert 900 < sum(point[build["flag"]] for point in sample) < 1100
    assert max(point[build["big"]] for point in sample) > 0.99 * 2**40
    assert sample == sample_inputs(build.graph, domains, between, 2000, 7)
    assert sample[:50] == sample_inputs(build.graph, domains, between, 50, 7) != sample_inputs(
        build.graph, domains, between, 50, 8)


def test_the_stream_is_the_same_in_every_python() -> None:
    build, domains, between = related()
    values = [tuple(point.values()) for point in sample_inputs(build.graph, domains, between, 3, 2026)]
    assert values == [(3, 4, 348403967002, True), (1, 4, 115762041418, True), (2, 4, 685481207070, True)]


def test_rare_inputs_are_searched_for() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 10**9), build.bounded("y", 1, 10**9)
    build.assume(lambda: (x - y).eq(12_345))
    domains = input_domains(build.graph)
    sample = sample_inputs(build.graph, domains, relations(build.graph, domains), 20, 1)
    assert all(point[x.node] - point[y.node] == 12_345 for point in sample)
    assert len({point[x.node] for point in sample}) > 10

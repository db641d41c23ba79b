"""Domains of inputs: which assumes bound an input, which relate inputs, and which are errors."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from passes_graphs import Build, Value

from detent.passes.errors import AssumeNamesSelection, EmptyDomain, UnboundedInput
from detent.passes.input_domains import input_domains, relations


def domain_of(*assumes: Any, type: str = "int") -> Any:
    build = Build()
    x = build.input("x", type)
    for assume in assumes:
        build.assume(lambda assume=assume: assume(x))
    domains = input_domains(build.graph)
    assert relations(build.graph, domains) == []
    return domains[x.node]


def between(low: int, high: int) -> Any:
    return lambda x: (x >= low) & (x <= high)


def test_bounds_of_every_spelling() -> None:
    assert domain_of(between(1, 9)) == range(1, 10)
    assert domain_of(lambda x: (x > 0) & (x < 10)) == range(1, 10)
    assert domain_of(lambda x: ~((x < 1) | (x > 9))) == range(1, 10)
    assert domain_of(lambda x: x.build.constant(1) <= x, lambda x: x.build.constant(9) >= x) == range(1, 10)
    assert domain_of(lambda x: (x > 0.5) & (x <= 9.5)) == range(1, 10)
    assert domain_of(lambda x: x.eq(7)) == (7,)
    assert domain_of(between(0, 2**70)) == range(2**70 + 1)


def test_several_assumes_intersect() -> None:
    assert domain_of(between(1, 9), between(5, 20)) == range(5, 10)
    assert domain_of(between(1, 9), lambda x: x.among((12, 8, 2))) == (2, 8)
    assert domain_of(lambda x: x.among((1, 2, 3)), lambda x: x.among((3, 2, 9))) == (2, 3)


def test_congruences_give_steps() -> None:
    assert domain_of(between(1, 50), lambda x: (x % 16).eq(0)) == range(16, 49, 16)
    assert domain_of(between(1, 50), lambda x: (x % -4).eq(-1)) == range(3, 51, 4)
    assert domain_of(lambda x: x.among((3, 4, 8)), lambda x: (x % 4).eq(0)) == (4, 8)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 11)), min_size=1, max_size=3))
def test_joined_congruences_are_what_filtering_gives(parts: list[tuple[int, int]]) -> None:
    expected = [n for n in range(-40, 200) if all(n % m == r for m, r in parts)]
    assumes = [lambda x, m=m, r=r: (x % m).eq(r) for m, r in parts]
    if expected:
        assert list(domain_of(between(-40, 199), *assumes)) == expected
    else:
        with pytest.raises(EmptyDomain):
            domain_of(between(-40, 199), *assumes)


def test_bools_strings_and_floats() -> None:
    assert domain_of(type="bool") == (False, True)
    assert domain_of(lambda x: x, type="bool") == (True,)
    assert domain_of(lambda x: ~x, type="bool") == (False,)
    assert domain_of(lambda x: x.ne(True), type="bool") == (False,)
    assert domain_of(lambda x: x.among(("nccl", "ar")), type="str") == ("ar", "nccl")
    assert domain_of(lambda x: x.among((0.5, 0.25, 2.0)), lambda x: x < 2, type="float") == (0.25, 0.5)
    assert domain_of(lambda x: x.among((0.1, 0.5)), type="f32") == (0.5,)  # no single equals the double 0.1


def test_relations_are_what_is_not_absorbed() -> None:
    build = Build()
    x, y = build.bounded("x", 1, 10), build.bounded("y", 1, 10)
    mixed = build.assume(lambda: (x <= 8) & (x <= y))
    build.assume(lambda: x + y <= 100)  # holds on the whole product: filters nothing
    hole = build.assume(lambda: y.ne(5))
    domains = input_domains(build.graph)
    assert domains == {x.node: range(1, 9), y.node: range(1, 11)}
    assert relations(build.graph, domains) == [mixed, hole]


def test_unbounded_inputs_are_named_with_the_remedy() -> None:
    build = Build()
    x = build.input("tokens")
    build.assume(lambda: x >= 1)
    with pytest.raises(UnboundedInput, match=r"program.py:1: input 'tokens' has no upper bound; "
                                             r"write assume\(low <= tokens <= high\)"):
        input_domains(build.graph)
    for type in ("str", "float"):
        build = Build()
        build.input("x", type)
        with pytest.raises(UnboundedInput, match=r"assume\(x in \(\.\.\.\)\)"):
            input_domains(build.graph)


def test_empty_domains_name_the_input_and_its_assumes() -> None:
    with pytest.raises(EmptyDomain, match=r"'x' .*program.py:100, program.py:101"):
        domain_of(between(1, 4), between(5, 9))
    with pytest.raises(EmptyDomain, match="'x'"):
        domain_of(between(1, 4), lambda x: (x % 4).eq(5))
    with pytest.raises(EmptyDomain, match="never holds"):
        domain_of(between(1, 4), lambda x: x.build.constant(False))
    with pytest.raises(EmptyDomain, match="nowhere"):
        domain_of(between(1, 4), lambda x: x * x > 16)


def test_assumes_name_inputs_and_facts_only() -> None:
    def pinned(build: Build, x: Value) -> Value:
        return build.pin(x <= 3, "small")

    def chosen(build: Build, x: Value) -> Value:
        return build.named(x <= 3, "small")

    for make, name in ((pinned, "small"), (chosen, "small"), (lambda build, x: build.knob("k", (True, False)), "k")):
        build = Build()
        x = build.bounded("x", 1, 4)
        value = make(build, x)
        build.assume(lambda value=value, x=x: value | (x < 2))
        with pytest.raises(AssumeNamesSelection, match=f"'{name}'.*use require") as refused:
            input_domains(build.graph)
        copy = pickle.loads(pickle.dumps(refused.value))
        assert (str(copy), copy.location.line, copy.remedy) == (str(refused.value), 101, "use require")

"""Hypothesis strategies for small random conditions over a :class:`passes_graphs.Build`."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from passes_graphs import Build, Value

Draw = Any
CONSTANTS = st.integers(-3, 9)


def number(draw: Draw, build: Build, leaves: list[Value], depth: int) -> Value:
    """A random int expression, divisions by possibly zero divisors and float32 steps included."""
    kind = draw(st.sampled_from(("leaf", "constant", "add", "sub", "mul", "floordiv", "mod", "min", "max", "neg", "abs",
                                 "select", "lookup", "ceil32") if depth else ("leaf", "leaf", "constant")))
    if kind == "leaf":
        return draw(st.sampled_from(leaves))
    if kind == "constant":
        return build.constant(draw(CONSTANTS))

    def inner() -> Value:
        return number(draw, build, leaves, depth - 1)

    if kind == "select":
        return build.select(truth(draw, build, leaves, depth - 1), inner(), inner())
    if kind == "lookup":
        keys = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
        return build.lookup([(key, draw(CONSTANTS)) for key in keys], inner())
    if kind == "ceil32":
        single = build.op("f32", inner()) * build.constant(1.100000023841858, "f32")
        return build.op("ceil", single / build.op("f32", inner()))
    if kind in ("neg", "abs"):
        return build.op(kind, inner())
    return build.op(kind, inner(), inner())


def truth(draw: Draw, build: Build, leaves: list[Value], depth: int) -> Value:
    """A random bool expression."""
    kind = draw(st.sampled_from(("compare", "and", "or", "not", "in") if depth else ("compare", "in")))
    if kind == "compare":
        comparison = draw(st.sampled_from(("lt", "le", "gt", "ge", "eq", "ne")))
        return build.op(comparison, number(draw, build, leaves, depth), number(draw, build, leaves, depth))
    if kind == "in":
        members = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
        return number(draw, build, leaves, depth).among(members)
    if kind == "not":
        return ~truth(draw, build, leaves, depth - 1)
    return build.op(kind, truth(draw, build, leaves, depth - 1), truth(draw, build, leaves, depth - 1))

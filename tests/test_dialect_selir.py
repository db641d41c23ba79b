"""The dialect: constants keep type and bits, the semantics table is total and agrees with Python and C."""

from __future__ import annotations

import io
import math
import struct
from ctypes import c_float
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.transforms.canonicalize import CanonicalizePass

from detent.dialects.selir import SELIR
from detent.dialects.selir.scalar import SCALAR_OPS, ConstantOp
from detent.dialects.selir.semantics import (
    NEGATED,
    SEMANTICS,
    SWAPPED,
    TypeMismatch,
    emit,
    evaluate,
    look_up,
    round32,
    type_of,
)
from detent.dialects.selir.source import SourceError, Span, make_location, span_of
from detent.dialects.selir.types import TYPES, ValueAttr, constant_key


def context() -> Context:
    ctx = Context()
    ctx.load_dialect(Builtin)
    ctx.load_dialect(SELIR)
    return ctx


def text_of(module: ModuleOp, generic: bool = False) -> str:
    out = io.StringIO()
    Printer(out, print_generic_format=generic).print_op(module)
    return out.getvalue()


def module_with(constants: list[Any]) -> ModuleOp:
    ops = [ConstantOp.create(result_types=[TYPES["any"]], properties={"value": ValueAttr(c)}) for c in constants]
    return ModuleOp(ops)


def singles() -> st.SearchStrategy[float]:
    return st.floats(width=32)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
constants = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.integers() | st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(constants, min_size=1, max_size=4), st.booleans())
def test_constants_round_trip_with_type_and_bits(values: list[Any], generic: bool) -> None:
    text = text_of(module_with(values), generic)
    parsed = Parser(context(), text).parse_module()
    found = [op.value.data for op in parsed.body.block.ops if isinstance(op, ConstantOp)]
    assert list(map(constant_key, found)) == list(map(constant_key, values))


def test_constants_of_equal_python_value_differ() -> None:
    different = [True, 1, 1.0, "1", (1,), (True,), {1: 1}, {1: True}, 0.0, -0.0]
    assert len({ValueAttr(v) for v in different}) == len(different)
    assert all(ValueAttr(a) != ValueAttr(b) for i, a in enumerate(different) for b in different[i + 1 :])
    assert ValueAttr(math.nan) == ValueAttr(math.nan)


def test_every_row_of_the_table_has_an_operation_and_back() -> None:
    assert set(SCALAR_OPS) == set(SEMANTICS)
    assert all(SCALAR_OPS[kind].name == f"selir.{kind}" for kind in SEMANTICS)
    assert set(SWAPPED) == set(NEGATED) == {"lt", "le", "gt", "ge", "eq", "ne"}


# ---- meaning ---------------------------------------------------------------------------------------------------

SAMPLES: dict[str, list[Any]] = {
    "int": [0, 1, -1, 2, -7, 7, 992, 2**31, 2**64 + 1],
    "float": [0.0, -0.0, 1.0, -2.5, 0.85, 1e300, math.inf, -math.inf],
    "f32": [0.0, -0.0, 1.0, round32(0.1), round32(1e30), -2.5, math.inf],
    "bool": [False, True],
    "str": ["", "a"],
}


def typed_operands(kind: str) -> list[tuple[str, ...]]:
    import itertools

    found = []
    for types in itertools.product(SAMPLES, repeat=SEMANTICS[kind].arity):
        try:
            SEMANTICS[kind].result(*types)
        except TypeMismatch:
            continue
        found.append(types)
    return found


def bits(value: Any) -> tuple[str, Any]:
    return type(value).__name__, struct.pack("d", value) if isinstance(value, float) and value == value else str(value)


@pytest.mark.parametrize("kind", SEMANTICS)
def test_emitted_total_form_is_the_meaning_everywhere(kind: str) -> None:
    import itertools

    space = {"f32": round32, "ceil": math.ceil, "floor": math.floor, "isfinite": math.isfinite}
    cases = 0
    for types in typed_operands(kind):
        result = SEMANTICS[kind].result(*types)
        names = ["a", "b", "c"][: len(types)]
        total = eval(f"lambda a=None, b=None, c=None: {emit(kind, names, result, may_fail=True)}", dict(space))
        plain = eval(f"lambda a=None, b=None, c=None: {emit(kind, names, result)}", dict(space))
        for values in itertools.product(*(SAMPLES[t] for t in types)):
            try:
                expected = evaluate(kind, values, result)
            except OverflowError:
                continue  # an int too large for a double: the solver refuses such ranges
            assert bits(total(*values)) == bits(expected), (kind, values)
            try:
                assert bits(plain(*values)) == bits(expected), (kind, values)
            except (ZeroDivisionError, OverflowError, ValueError):
                assert SEMANTICS[kind].fails is not None
            cases += 1
    assert cases


@given(singles(), singles())
def test_f32_arithmetic_is_cs(a: float, b: float) -> None:
    for kind, op in (("add", lambda: a + b), ("sub", lambda: a - b), ("mul", lambda: a * b)):
        assert bits(evaluate(kind, (a, b), "f32")) == bits(c_float(op()).value)
    if b:
        assert bits(evaluate("div", (a, b), "f32")) == bits(c_float(a / b).value)


@given(st.integers(), st.integers().filter(bool))
def test_integers_are_pythons(a: int, b: int) -> None:
    assert evaluate("floordiv", (a, b), "int") == a // b
    assert evaluate("mod", (a, b), "int") == a % b


def test_total_results_where_python_refuses() -> None:
    assert evaluate("floordiv", (5, 0), "int") == evaluate("mod", (5, 0), "int") == 0
    assert bits(evaluate("div", (5, 0), "float")) == bits(0.0)
    assert evaluate("ceil", (math.inf,), "int") == evaluate("floor", (-math.inf,), "int") == 0
    assert evaluate("int", (math.nan,), "int") == 0


def test_round32_overflows_to_infinity_as_c_does() -> None:
    assert round32(1e39) == math.inf and round32(-1e39) == -math.inf
    assert round32(0.1) == c_float(0.1).value


def test_lookup_takes_the_first_row_for_a_missing_key() -> None:
    assert look_up(((3, "x"), (1, "y")), 1) == "y"
    assert look_up(((3, "x"), (1, "y")), 2) == "x"


@pytest.mark.parametrize(
    ("kind", "types"),
    [("add", ("int", "float")), ("mod", ("f32", "f32")), ("lt", ("int", "f32")), ("and", ("int", "bool")),
     ("select", ("bool", "int", "bool")), ("eq", ("int", "str")), ("ceil", ("str",)), ("neg", ("bool",))],
)
def test_mixed_types_are_refused(kind: str, types: tuple[str, ...]) -> None:
    with pytest.raises(TypeMismatch):
        SEMANTICS[kind].result(*types)


def test_type_of_refuses_collections() -> None:
    assert [type_of(v) for v in (True, 1, 1.0, "a", None)] == ["bool", "int", "float", "str", "none"]
    with pytest.raises(TypeMismatch):
        type_of((1,))


# ---- xDSL's own canonicalizer uses the same table --------------------------------------------------------------


def test_canonicalize_folds_with_the_table() -> None:
    text = """
    selir.program "p" family "f" {
      %a = selir.constant <-7> : !selir.int
      %b = selir.constant <2> : !selir.int
      %q = selir.floordiv %a, %b : (!selir.int, !selir.int) -> !selir.int
      %l = selir.lookup %q in <[[1, "x"], [-4, "y"]]> : (!selir.int) -> !selir.str
      selir.points ["l"] %l : !selir.str
    }"""
    ctx = context()
    module = Parser(ctx, text).parse_module()
    CanonicalizePass().apply(ctx, module)
    assert '<"y">' in text_of(module) and "floordiv" not in text_of(module)


# ---- locations -------------------------------------------------------------------------------------------------


@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1))
def test_locations_keep_spans(text: str) -> None:
    span = Span("programs/x.py", 12, 5, text)
    assert span_of(make_location(span)) == span


def test_source_error_is_a_syntax_error_with_a_full_span() -> None:
    import pickle

    error = SourceError("no", Span("programs/x.py", 3, 5, "a +\n  b"), "write c")
    again = pickle.loads(pickle.dumps(error))
    for e in (error, again):
        assert isinstance(e, SyntaxError)
        assert (e.filename, e.lineno, e.offset, e.end_lineno, e.end_offset) == ("programs/x.py", 3, 5, 4, 4)
        assert e.one_line == "programs/x.py:3:5: no (write c)"
        assert "help: write c" in str(e)


def test_modules_are_parsed_back_equal() -> None:
    module = module_with([1, "a"])
    assert text_of(Parser(context(), text_of(module)).parse_module()) == text_of(module)

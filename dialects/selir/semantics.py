"""The one table of SelIR's semantics.

Constant folding, the interpreter, value ranges and the emission of Python all read this table, so
an operation cannot mean one thing while solving and another while serving.

Scalar types are named by strings here: ``int`` (unbounded), ``float`` (IEEE double), ``f32`` (IEEE
single, held as a Python float that is exactly representable in single precision), ``bool``, ``str``
and ``none``. Arithmetic takes operands of one numeric type; the front end inserts the casts ``f32``,
``float`` and ``int`` where Python or C would convert.

Every operation is total. A division by zero gives 0 and rounding a non-finite float gives 0. The
solver proves that no such result is ever used, or refuses the program; being total is what allows an
operation of one branch to be computed before the branch is decided.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Scalar = int | float | bool | str | None

NUMERIC = ("int", "float", "f32")
_pack, _unpack = struct.Struct("f").pack, struct.Struct("f").unpack


def round32(value: float) -> float:
    """Round to the nearest IEEE single, ties to even; overflow gives an infinity, as C does."""
    try:
        rounded: float = _unpack(_pack(value))[0]
        return rounded
    except OverflowError:
        return math.copysign(math.inf, value)


def _floordiv(a: Any, b: Any) -> Any:
    return a // b if b else type(a)(0)


def _mod(a: Any, b: Any) -> Any:
    return a % b if b else type(a)(0)


def _div(a: Any, b: Any) -> float:
    return a / b if b else 0.0


def _ceil(a: Any) -> int:
    return math.ceil(a) if isinstance(a, int) or math.isfinite(a) else 0


def _floor(a: Any) -> int:
    return math.floor(a) if isinstance(a, int) or math.isfinite(a) else 0


def _trunc(a: Any) -> int:
    return int(a) if isinstance(a, int) or math.isfinite(a) else 0


def _select(c: bool, a: Any, b: Any) -> Any:
    return a if c else b


class TypeMismatch(TypeError):
    """Operand types that an operation does not take."""


def _same_numeric(*types: str) -> str:
    if types[0] in NUMERIC and all(t == types[0] for t in types):
        return types[0]
    raise TypeMismatch(f"takes numbers of one type, not {', '.join(types)}")


def _division(a: str, b: str) -> str:
    kind = _same_numeric(a, b)
    return "f32" if kind == "f32" else "float"


def _integral(a: str, b: str) -> str:
    kind = _same_numeric(a, b)
    if kind == "f32":
        raise TypeMismatch("takes int or float operands; C has no such operator on f32")
    return kind


def _ordered(a: str, b: str) -> str:
    if a in NUMERIC and b in NUMERIC and {a, b} != {"int", "f32"}:
        return "bool"
    raise TypeMismatch(f"orders numbers, not {a} and {b}")


def _equality(a: str, b: str) -> str:
    if a == b or (a in NUMERIC and b in NUMERIC and {a, b} != {"int", "f32"}):
        return "bool"
    raise TypeMismatch(f"compares values of one type, not {a} and {b}")


def _logic(*types: str) -> str:
    if all(t == "bool" for t in types):
        return "bool"
    raise TypeMismatch(f"takes bool operands, not {', '.join(types)}")


def _any(a: str) -> str:
    return a


def _choice(c: str, a: str, b: str) -> str:
    if c == "bool" and a == b:
        return a
    raise TypeMismatch(f"takes a bool and two values of one type, not {c}, {a} and {b}")


def _cast(result: str, *allowed: str) -> Callable[..., str]:
    def check(a: str) -> str:
        if a in allowed:
            return result
        raise TypeMismatch(f"converts {' or '.join(allowed)}, not {a}")

    return check


@dataclass(frozen=True, slots=True)
class Semantics:
    """One scalar operation.

    ``result`` maps operand types to the result type or raises :class:`TypeMismatch`. ``fn`` is the
    total meaning for every type but ``f32``, whose result is rounded afterwards when ``rounds``.
    ``python`` is the expression emitted where failure is excluded, ``total`` where it is not.
    ``fails`` says when Python would raise: ``"zero"`` (second operand is 0) or ``"nonfinite"``.
    ``corners``: over a box of operands the extreme results lie at the box's corners (given that
    a ``"zero"`` operation's divisor range excludes 0).
    """

    name: str
    arity: int
    result: Callable[..., str]
    fn: Callable[..., Any]
    python: str
    total: str | None = None
    fails: str | None = None
    rounds: bool = False
    corners: bool = False
    commutes: bool = False


_TABLE = (
    Semantics("add", 2, _same_numeric, operator.add, "({0} + {1})", rounds=True, corners=True, commutes=True),
    Semantics("sub", 2, _same_numeric, operator.sub, "({0} - {1})", rounds=True, corners=True),
    Semantics("mul", 2, _same_numeric, operator.mul, "({0} * {1})", rounds=True, corners=True, commutes=True),
    Semantics("div", 2, _division, _div, "({0} / {1})", "({0} / {1} if {1} else 0.0)", "zero", True, True),
    Semantics("floordiv", 2, _integral, _floordiv, "({0} // {1})", "({0} // {1} if {1} else {zero})", "zero",
              corners=True),
    Semantics("mod", 2, _integral, _mod, "({0} % {1})", "({0} % {1} if {1} else {zero})", "zero"),
    Semantics("neg", 1, _same_numeric, operator.neg, "(-{0})", corners=True),
    Semantics("abs", 1, _same_numeric, abs, "abs({0})"),
    Semantics("min", 2, _same_numeric, min, "min({0}, {1})", corners=True),
    Semantics("max", 2, _same_numeric, max, "max({0}, {1})", corners=True),
    Semantics("lt", 2, _ordered, operator.lt, "({0} < {1})"),
    Semantics("le", 2, _ordered, operator.le, "({0} <= {1})"),
    Semantics("gt", 2, _ordered, operator.gt, "({0} > {1})"),
    Semantics("ge", 2, _ordered, operator.ge, "({0} >= {1})"),
    Semantics("eq", 2, _equality, operator.eq, "({0} == {1})", commutes=True),
    Semantics("ne", 2, _equality, operator.ne, "({0} != {1})", commutes=True),
    Semantics("and", 2, _logic, lambda a, b: a and b, "({0} and {1})", commutes=True),
    Semantics("or", 2, _logic, lambda a, b: a or b, "({0} or {1})", commutes=True),
    Semantics("not", 1, _logic, operator.not_, "(not {0})"),
    # The value itself under a name of its own, so that it can be pinned where what it copies may not or need not be.
    Semantics("copy", 1, _any, lambda a: a, "{0}", corners=True),
    Semantics("select", 3, _choice, _select, "({1} if {0} else {2})"),
    Semantics("f32", 1, _cast("f32", *NUMERIC), float, "f32({0})", rounds=True, corners=True),
    Semantics("float", 1, _cast("float", *NUMERIC), float, "float({0})", corners=True),
    Semantics("int", 1, _cast("int", "bool", *NUMERIC), _trunc, "int({0})", "int({0} if isfinite({0}) else 0)",
              "nonfinite", corners=True),
    Semantics("ceil", 1, _cast("int", *NUMERIC), _ceil, "ceil({0})", "(ceil({0}) if isfinite({0}) else 0)",
              "nonfinite", corners=True),
    Semantics("floor", 1, _cast("int", *NUMERIC), _floor, "floor({0})", "(floor({0}) if isfinite({0}) else 0)",
              "nonfinite", corners=True),
)

SEMANTICS: Mapping[str, Semantics] = {entry.name: entry for entry in _TABLE}

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def type_of(value: Scalar) -> str:
    """The SelIR type of a Python scalar; an ``f32`` constant must be typed by its operation."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    if isinstance(value, str):
        return "str"
    if value is None:
        return "none"
    raise TypeMismatch(f"{type(value).__name__} is not a scalar")


def evaluate(name: str, operands: Sequence[Any], result_type: str) -> Any:
    """The value of one operation; ``result_type`` decides whether the result is rounded to f32.

    Raises OverflowError where an int is too large to be a double; programs that could reach one are refused.
    """
    entry = SEMANTICS[name]
    value = entry.fn(*operands)
    return round32(value) if entry.rounds and result_type == "f32" else value


def look_up(table: Sequence[tuple[Any, Any]], key: Any) -> Any:
    """``selir.lookup``: the value beside ``key``; total, so a missing key gives the first value."""
    for candidate, value in table:
        if candidate == key:
            return value
    return table[0][1]


def emit(name: str, operands: Sequence[str], result_type: str, may_fail: bool = False) -> str:
    """The operation as a Python expression over operand expressions (names or literals)."""
    entry = SEMANTICS[name]
    template = entry.total if may_fail and entry.total is not None else entry.python
    text = template.format(*operands, zero="0.0" if result_type == "float" else "0")
    return f"f32{text}" if entry.rounds and result_type == "f32" and name != "f32" else text

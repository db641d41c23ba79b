"""Values a scalar can take: finite sets and closed intervals, over the domains that assumes give.

An abstract value is a ``frozenset`` of scalars of one type, an :class:`Interval` of numbers, or None
(nothing is known). Sets are exact as sets of what the operation's operands allow independently; they
ignore correlation between operands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from detent.dialects.selir.semantics import COMPARISONS, SEMANTICS, evaluate

BOOLS = frozenset((False, True))
MAX_SET = 4096
"""A value set larger than this becomes an interval (design: at most 4,096 candidates a pin)."""
LARGEST = 2**1023
"""Ints below this in magnitude are doubles without overflow."""
MAX_PRODUCT = 20_000
"""Operand combinations tried to get an exact value set."""


class Interval(NamedTuple):
    """All numbers from ``low`` to ``high``, both included."""

    low: Any
    high: Any


Abstract = frozenset[Any] | Interval | None


def hull(value: Abstract) -> Interval | None:
    """The smallest interval around a set of numbers; None for strings, None values and the unknown."""
    if isinstance(value, frozenset):
        if not value or any(isinstance(v, str) or v is None for v in value):
            return None
        return Interval(min(value), max(value))
    return value


def join(a: Abstract, b: Abstract) -> Abstract:
    """Values that are in ``a`` or in ``b``."""
    if isinstance(a, frozenset) and isinstance(b, frozenset):
        union = a | b
        if len(union) <= MAX_SET:
            return union
    x, y = hull(a), hull(b)
    if x is None or y is None:
        return None
    return Interval(min(x.low, y.low), max(x.high, y.high))


def excludes_zero(value: Abstract) -> bool:
    """Whether 0 is certainly not among the values."""
    if isinstance(value, frozenset):
        return 0 not in value
    return value is not None and (value.low > 0 or value.high < 0)


def is_finite(value: Abstract) -> bool:
    """Whether every value is certainly a finite number."""
    bounds = hull(value)
    return bounds is not None and math.isfinite(bounds.low) and math.isfinite(bounds.high)


def too_large(operands: Sequence[Abstract], result_type: str) -> bool:
    """Whether an int among the operands of an operation with a float result may exceed every double."""
    if result_type not in ("float", "f32"):
        return False
    for value in operands:
        bounds = hull(value)
        if bounds is not None and any(isinstance(b, int) and abs(b) >= LARGEST for b in bounds):
            return True
    return False


def may_fail(kind: str, operands: Sequence[Abstract]) -> bool:
    """Whether Python's operation could raise on these operand values."""
    fails = SEMANTICS[kind].fails if kind in SEMANTICS else None
    if fails == "zero":
        return not excludes_zero(operands[1])
    if fails == "nonfinite":
        return not is_finite(operands[0])
    return False


def transfer(kind: str, operands: Sequence[Abstract], result_type: str) -> Abstract:
    """Abstract value of an operation of the semantics table, over independent operands.

    None where some operands make an int too large to be a double.
    """
    if kind == "select":
        condition, on_true, on_false = operands
        if condition == frozenset((True,)):
            return on_true
        if condition == frozenset((False,)):
            return on_false
        return join(on_true, on_false)
    try:
        exact = _by_sets(kind, operands, result_type)
        if exact is not None:
            return exact
        divisor = operands[-1]
        if SEMANTICS[kind].fails == "zero" and isinstance(divisor, frozenset) and min(divisor) < 0 < max(divisor):
            if 0 in divisor:
                return None
            # Between a divisor's signs the extremes are not at the corners: 5 // {-1, 1, 2} reaches 5.
            signs = [frozenset(v for v in divisor if (v < 0) is negative) for negative in (True, False)]
            return join(*(transfer(kind, (operands[0], sign), result_type) for sign in signs))
        bounds = [hull(value) for value in operands]
        if any(b is None for b in bounds):
            return BOOLS if result_type == "bool" else None
        return _by_intervals(kind, bounds, operands, result_type)  # type: ignore[arg-type]
    except OverflowError:
        return None


def _by_sets(kind: str, operands: Sequence[Abstract], result_type: str) -> Abstract:
    size = 1
    for value in operands:
        if not isinstance(value, frozenset):
            return None
        size *= len(value)
        if size > MAX_PRODUCT:
            return None
    results: set[Any] = set()
    for combination in itertools.product(*operands):  # type: ignore[arg-type]
        results.add(evaluate(kind, combination, result_type))
    if len(results) > MAX_SET or any(v != v for v in results):
        return None
    return frozenset(results)


def _by_intervals(kind: str, bounds: Sequence[Interval], operands: Sequence[Abstract], result_type: str) -> Abstract:
    entry = SEMANTICS[kind]
    if kind in COMPARISONS:
        return _comparison(kind, *bounds)
    if kind == "abs":
        low, high = bounds[0]
        return Interval(low if low >= 0 else -high if high <= 0 else type(low)(0), max(abs(low), abs(high)))
    if kind == "mod":
        divisor = bounds[1]
        top = divisor.high - 1 if result_type == "int" else divisor.high
        return Interval(type(divisor.low)(0), top) if divisor.low > 0 else None
    if entry.fails is not None and may_fail(kind, operands):
        return None
    if entry.corners:
        corners = [evaluate(kind, point, result_type) for point in itertools.product(*bounds)]
        if all(c == c for c in corners):
            return Interval(min(corners), max(corners))
        return None
    return BOOLS if result_type == "bool" else None


def _comparison(kind: str, a: Interval, b: Interval) -> frozenset[bool]:
    if kind in ("gt", "ge"):
        kind, a, b = {"gt": "lt", "ge": "le"}[kind], b, a
    if kind == "lt":
        always, never = a.high < b.low, a.low >= b.high
    elif kind == "le":
        always, never = a.high <= b.low, a.low > b.high
    else:
        apart = a.high < b.low or a.low > b.high
        same = a.low == a.high == b.low == b.high
        always, never = (same, apart) if kind == "eq" else (apart, same)
    return frozenset((True,)) if always else frozenset((False,)) if never else BOOLS

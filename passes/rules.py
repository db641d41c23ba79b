"""Algebraic simplifications of scalar operations, grouped so that each group can be switched off.

A rule looks at one operation and gives the value it equals: an existing value, a known constant, or a
smaller operation it asks the builder for. Rules never look at conditions or at the batch: each is an
identity of the semantics table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xdsl.ir import SSAValue

from detent.passes.domains import Abstract, hull


@dataclass(frozen=True)
class Options:
    """Which simplifications run. All on is what the solver uses; each off is an ablation."""

    ranges: bool = True
    value_sets: bool = True
    equal_arms: bool = True
    boolean: bool = True
    identities: bool = True
    cse: bool = True


class Context(Protocol):
    """What rules may ask of the simplifier."""

    options: Options

    def known(self, value: SSAValue) -> tuple[Any] | None: ...

    def constant(self, value: Any, type: str) -> SSAValue: ...

    def build(self, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue: ...

    def definition(self, value: SSAValue) -> tuple[str, tuple[SSAValue, ...]]: ...

    def abstract(self, value: SSAValue) -> Abstract: ...

    def independent(self, value: SSAValue) -> Abstract: ...


Rule = Callable[[Context, str, Sequence[SSAValue], str], SSAValue | None]


def _is(ctx: Context, value: SSAValue, constant: Any) -> bool:
    found = ctx.known(value)
    return found is not None and type(found[0]) is type(constant) and found[0] == constant


def select(ctx: Context, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue | None:
    """A known condition; equal arms; a select of bools as logic; a nested select on the same condition."""
    condition, on_true, on_false = operands
    decided = ctx.known(condition)
    if decided is not None:
        return on_true if decided[0] else on_false
    if on_true is on_false and ctx.options.equal_arms:
        return on_true
    if not ctx.options.boolean:
        return None
    inner, inputs = ctx.definition(condition)
    if inner == "not":
        return ctx.build("select", (inputs[0], on_false, on_true), type)
    if type == "bool":
        logic = _select_as_logic(ctx, condition, on_true, on_false)
        if logic is not None:
            return logic
    for position, arm in ((1, on_true), (2, on_false)):
        nested, parts = ctx.definition(arm)
        if nested == "select" and parts[0] is condition:
            arms = [condition, on_true, on_false]
            arms[position] = parts[position]
            return ctx.build("select", arms, type)
    return None


def _select_as_logic(ctx: Context, condition: SSAValue, on_true: SSAValue, on_false: SSAValue) -> SSAValue | None:
    if _is(ctx, on_true, True):
        return ctx.build("or", (condition, on_false), "bool")
    if _is(ctx, on_false, False):
        return ctx.build("and", (condition, on_true), "bool")
    if _is(ctx, on_true, False):
        return ctx.build("and", (ctx.build("not", (condition,), "bool"), on_false), "bool")
    if _is(ctx, on_false, True):
        return ctx.build("or", (ctx.build("not", (condition,), "bool"), on_true), "bool")
    return None


def logic(ctx: Context, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue | None:
    """Double negation; neutral and absorbing constants; equal, opposite and absorbed operands."""
    if kind == "not":
        inner, inputs = ctx.definition(operands[0])
        return inputs[0] if inner == "not" else None
    absorbing = kind == "or"
    for one, other in (operands, tuple(reversed(operands))):
        if _is(ctx, one, absorbing):
            return one
        if _is(ctx, one, not absorbing):
            return other
        inner, inputs = ctx.definition(one)
        if inner == "not" and inputs[0] is other:
            return ctx.constant(absorbing, "bool")
        if inner in ("and", "or") and other in inputs:
            # a and (a and b) is (a and b); a and (a or b) is a
            return one if inner == kind else other
    return operands[0] if operands[0] is operands[1] else None


def identity(ctx: Context, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue | None:
    """Neutral elements of integer arithmetic, and comparisons of a value with itself.

    Integers only: ``x * 0.0`` is not 0.0 for every float, and ``x == x`` fails for NaN.
    """
    if len(operands) != 2:
        return None
    a, b = operands
    if kind in ("min", "max"):
        return a if a is b else None
    if type == "int":
        if kind == "mul" and (_is(ctx, a, 0) or _is(ctx, b, 0)):
            return ctx.constant(0, "int")
        if (kind in ("mul", "floordiv") and _is(ctx, b, 1)) or (kind in ("add", "sub") and _is(ctx, b, 0)):
            return a
        if (kind == "mul" and _is(ctx, a, 1)) or (kind == "add" and _is(ctx, a, 0)):
            return b
        if kind == "mod" and _is(ctx, b, 1):
            return ctx.constant(0, "int")
        if kind == "sub" and a is b:
            return ctx.constant(0, "int")
    if a is b and type == "bool" and str(a.type) not in ("!selir.float", "!selir.f32"):
        if kind in ("eq", "le", "ge"):
            return ctx.constant(True, "bool")
        if kind in ("ne", "lt", "gt"):
            return ctx.constant(False, "bool")
    return None


def extreme_by_range(ctx: Context, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue | None:
    """``min`` / ``max`` of operands whose ranges do not overlap."""
    a, b = (hull(ctx.abstract(v)) for v in operands)
    if a is None or b is None or (a.high > b.low and b.high > a.low):
        return None
    # The ranges decide at every input; they must also where the operands are pinned apart from each other.
    a, b = (hull(ctx.independent(v)) for v in operands)
    if a is None or b is None:
        return None
    # Of equal operands Python gives the first, and equal floats may differ in the sign of a zero: equal bounds decide
    # for the first operand, or where equal is the same.
    if a.high < b.low or (a.high == b.low and (kind == "min" or type == "int")):
        return operands[0] if kind == "min" else operands[1]
    if b.high < a.low or (b.high == a.low and (kind == "max" or type == "int")):
        return operands[1] if kind == "min" else operands[0]
    return None


def apply(ctx: Context, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue | None:
    """The first rule that fits, among those switched on; None if none does."""
    if kind == "copy":
        return operands[0]
    if kind == "select":
        return select(ctx, kind, operands, type)
    if kind in ("and", "or", "not"):
        return logic(ctx, kind, operands, type) if ctx.options.boolean else None
    found = identity(ctx, kind, operands, type) if ctx.options.identities else None
    if found is None and kind in ("min", "max") and ctx.options.ranges:
        found = extreme_by_range(ctx, kind, operands, type)
    return found

"""Makes the operations of a bound program, folding what is known and inserting Python's and C's casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from detent.dialects.selir.scalar import SCALAR_OPS, ConstantOp, LookupOp
from detent.dialects.selir.semantics import SEMANTICS, TypeMismatch, evaluate
from detent.dialects.selir.source import SourceError, span_of
from detent.dialects.selir.types import TYPES, ValueAttr, constant_key
from detent.passes.static import F32, is_residual, is_scalar, scalar_type

ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "mod")
MAX_BITS = 8192
"""Larger ints are no setting of any kernel, and Python refuses to print them."""


class Emitter:
    """Appends operations to the current block; known operands are folded and never become operations.

    ``header`` collects constants, inputs and knobs, which stand at the program's top. ``guards`` are the
    conditions under which the expression being built is used (short circuits and filters): an operation
    that Python could refuse carries them.
    """

    def __init__(self) -> None:
        self.header: list[Operation] = []
        self.block = Block()
        self.location: LocationAttr | None = None
        self.guards: list[SSAValue] = []
        self._constants: dict[Any, SSAValue] = {}
        self._types = {name: (attribute,) for name, attribute in TYPES.items()}

    def fail(self, message: str, help: str = "") -> NoReturn:
        """Raise an error at the place in the program's text that is being evaluated."""
        raise SourceError(message, span_of(self.location), help)

    def add(self, op: Operation) -> SSAValue:
        """Append an operation with one result to the current block."""
        self.block.add_op(op)
        return op.results[0]

    def value(self, value: Any) -> SSAValue:
        """A scalar as an operand: known values become constants at the program's top."""
        if is_residual(value):
            return value
        kind = scalar_type(value)
        plain = float(value) if kind == "f32" else value
        key = (kind, constant_key(plain))
        if key not in self._constants:
            if kind == "int" and value.bit_length() > MAX_BITS:
                self.fail(f"an int of {value.bit_length()} bits", f"at most {MAX_BITS} bits")
            op = ConstantOp.create(result_types=self._types[kind], properties={"value": ValueAttr(plain)},
                                   location=self.location)
            self.header.append(op)
            self._constants[key] = op.results[0]
        return self._constants[key]

    def scalar(self, kind: str, *operands: Any) -> Any:
        """An operation of the semantics table on known or unknown scalars.

        Raises SourceError for operands it does not take, and for a division of known values by zero.
        """
        for value in operands:
            if not is_scalar(value):
                self._refuse(kind, operands)
        if kind == "not":
            return self.negate(self.truth(operands[0]))
        if kind in ("min", "max") and all(scalar_type(value) == "bool" for value in operands):
            kind = "and" if kind == "min" else "or"  # the extreme of bools is a bool
        operands = self._convert(kind, operands)
        types = [scalar_type(value) for value in operands]
        try:
            result = SEMANTICS[kind].result(*types)
        except TypeMismatch:
            self._refuse(kind, operands)
        if not any(map(is_residual, operands)):
            return self._fold(kind, operands, result)
        return self.residual(kind, operands, result)

    def residual(self, kind: str, operands: Sequence[Any], result: str) -> SSAValue:
        """Append the operation itself."""
        values = [self.value(v) for v in operands]
        if SEMANTICS[kind].fails is not None and self.guards and not self._harmless(kind, operands):
            values.append(self.guard())
        return self.add(SCALAR_OPS[kind].create(operands=values, result_types=self._types[result],
                                                location=self.location))

    def lookup(self, pairs: Sequence[tuple[Any, Any]], key: SSAValue) -> SSAValue:
        """A table of known scalars at an unknown key."""
        key_types = {scalar_type(k) for k, _ in pairs}
        if key_types != {scalar_type(key)}:
            self.fail(f"the key is {scalar_type(key)}, the table's keys are {' and '.join(sorted(key_types))}")
        value_types = {scalar_type(v) for _, v in pairs}
        if len(value_types) != 1:
            self.fail(f"the table's values are of several types: {', '.join(sorted(value_types))}",
                      "give every row a value of one type")
        (kind,) = value_types
        plain = tuple((k, float(v) if kind == "f32" else v) for k, v in pairs)
        values = [key, self.guard()] if self.guards else [key]
        return self.add(LookupOp.create(operands=values, result_types=self._types[kind],
                                        properties={"table": ValueAttr(plain)}, location=self.location))

    def guard(self) -> SSAValue:
        """The conjunction of the guards in force."""
        value: SSAValue = self.guards[0]
        for other in self.guards[1:]:
            value = self.residual("and", (value, other), "bool")
        return value

    def truth(self, value: Any) -> Any:
        """Python's truth of a value: a known bool, or a bool operation."""
        if not is_residual(value):
            return bool(value)
        kind = scalar_type(value)
        if kind == "bool":
            return value
        if kind == "none":
            return False
        empty = {"str": "", "int": 0, "float": 0.0, "f32": F32(0.0)}[kind]
        return self.residual("ne", (value, empty), "bool")

    def negate(self, value: Any) -> Any:
        """``not`` of a known bool or a bool operation."""
        return not value if isinstance(value, bool) else self.residual("not", (value,), "bool")

    def cast(self, kind: str, value: Any) -> Any:
        """``f32(x)``, ``float(x)``, ``int(x)``, ``ceil(x)`` or ``floor(x)``; a cast to its own type is the value."""
        have = scalar_type(value)
        if have == "bool" and kind != "int":
            value, have = self.cast("int", value), "int"
        if have == kind or (have == "int" and kind in ("ceil", "floor")):
            return value
        try:
            result = SEMANTICS[kind].result(have)
        except TypeMismatch as error:
            self.fail(f"{kind} {error}")
        if is_residual(value):
            return self.residual(kind, (value,), result)
        return self._fold(kind, (value,), result)

    def _fold(self, kind: str, operands: Sequence[Any], result: str) -> Any:
        fails = SEMANTICS[kind].fails
        if fails == "zero" and not operands[1]:
            span = span_of(self.location)
            self.fail(f"division by zero in '{span.text}'" if span else "division by zero",
                      "the divisor follows from facts alone: correct them, or guard the division")
        if fails == "nonfinite" and not math.isfinite(operands[0]):
            self.fail(f"{kind} of {operands[0]}")
        try:
            value = evaluate(kind, operands, result)
        except OverflowError:
            self.fail(f"{kind} of an int too large for a float")
        return F32(value) if result == "f32" else value

    def _harmless(self, kind: str, operands: Sequence[Any]) -> bool:
        if SEMANTICS[kind].fails == "zero":
            return not is_residual(operands[1]) and bool(operands[1])
        return scalar_type(operands[0]) in ("int", "bool")

    def _convert(self, kind: str, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Casts that Python or C would do: bool to int, int to float or f32, f32 to float."""
        types = [scalar_type(v) for v in operands]
        if kind in ("and", "or", "select"):
            return tuple(operands)
        numeric = all(t in ("bool", "int", "float", "f32") for t in types)
        if kind in ("min", "max") and numeric and len(set(types)) > 1:
            self.fail(f"{kind} of {types[0]} and {types[1]} would give either type",
                      "convert one of them, for example float(x)")
        if not numeric or (kind in ("eq", "ne") and set(types) == {"bool"}):
            return tuple(operands)
        values = [self.cast("int", v) if t == "bool" else v for v, t in zip(operands, types, strict=True)]
        kinds = {scalar_type(v) for v in values}
        if kind in ARITHMETIC and len(kinds) > 1:
            target = "float" if "float" in kinds else "f32"
            values = [self.cast(target, v) for v in values]
        elif kinds == {"int", "f32"}:
            values = [self.cast("f32", v) for v in values]
        return tuple(values)

    def _refuse(self, kind: str, operands: Sequence[Any]) -> NoReturn:
        from detent.passes.static import describe

        what = " and ".join(describe(v) for v in operands)
        self.fail(f"'{kind}' does not take {what}", "use numbers of fitting types, or compare values of one type")

    def merge(self, condition: SSAValue, on_true: Any, on_false: Any) -> Any:
        """A choice between two scalars by an unknown bool."""
        kinds = (scalar_type(on_true), scalar_type(on_false))
        if kinds[0] != kinds[1]:
            self.fail(f"one case gives {kinds[0]}, the other {kinds[1]}", "give both cases one type")
        return self.residual("select", (condition, on_true, on_false), kinds[0])


def result_types(values: Sequence[SSAValue]) -> list[Attribute]:
    """The types of some values."""
    return [v.type for v in values]

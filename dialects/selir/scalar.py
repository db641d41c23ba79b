"""Scalar operations of the ``selir`` dialect: one class for each row of the semantics table."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.interfaces import HasFolderInterface
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import ConstantLike, Pure
from xdsl.utils.exceptions import VerifyException

from detent.dialects.selir.semantics import SEMANTICS, TypeMismatch, evaluate, look_up, type_of
from detent.dialects.selir.types import BoolType, ValueAttr, constant_key, type_name

_BINARY = "$lhs `,` $rhs attr-dict `:` functional-type(operands, results)"
_UNARY = "$value attr-dict `:` functional-type(operands, results)"
_GUARDED_BINARY = "$lhs `,` $rhs (`when` $guard^)? attr-dict `:` functional-type(operands, results)"
_GUARDED_UNARY = "$value (`when` $guard^)? attr-dict `:` functional-type(operands, results)"


def constant_of(value: SSAValue) -> ValueAttr | None:
    """The attribute of the constant that defines a value, or None."""
    owner = value.owner
    return owner.value if isinstance(owner, ConstantOp) else None


@irdl_op_definition
class ConstantOp(IRDLOperation, HasFolderInterface):
    """A scalar known when the program is bound; at the unbound level also a tuple or dict."""

    name = "selir.constant"
    value = prop_def(ValueAttr)
    res = result_def(AnyAttr())
    traits = traits_def(Pure(), ConstantLike())
    assembly_format = "$value attr-dict `:` type($res)"

    def fold(self) -> Sequence[SSAValue | Attribute]:
        return (self.value,)

    def verify_(self) -> None:
        kind, value = type_name(self.res.type), self.value.data
        if kind == "any":
            return
        expected = "float" if kind == "f32" else kind
        if isinstance(value, (tuple, dict)) or type_of(value) != expected:
            raise VerifyException(f"{value!r} is not a constant of type !selir.{kind}")


class ScalarOp(IRDLOperation, HasFolderInterface):
    """Base of the operations in the semantics table."""

    traits = traits_def(Pure())

    @property
    def kind(self) -> str:
        """The row's name in the semantics table."""
        return self.name.removeprefix("selir.")

    @property
    def guard_value(self) -> SSAValue | None:
        """The bool under which this operation's result is used; None: always."""
        return None

    @property
    def scalars(self) -> tuple[SSAValue, ...]:
        """The operands that the semantics table speaks of: all but the guard."""
        return tuple(self._operands[: SEMANTICS[self.kind].arity])

    def verify_(self) -> None:
        types = [type_name(value.type) for value in self.scalars]
        result = type_name(self.results[0].type)
        if "any" in types or result == "any":
            return
        try:
            expected = SEMANTICS[self.kind].result(*types)
        except TypeMismatch as error:
            raise VerifyException(f"'{self.name}' {error}") from None
        if result != expected:
            raise VerifyException(f"'{self.name}' gives !selir.{expected} on these operands, not !selir.{result}")

    def fold(self) -> Sequence[SSAValue | Attribute] | None:
        constants = [constant_of(value) for value in self.scalars]
        result = type_name(self.results[0].type)
        if result == "any" or any(c is None for c in constants):
            return None
        return (ValueAttr(evaluate(self.kind, [c.data for c in constants if c is not None], result)),)


class BinaryOp(ScalarOp):
    """A total operation on two scalars."""

    lhs = operand_def(AnyAttr())
    rhs = operand_def(AnyAttr())
    res = result_def(AnyAttr())
    assembly_format = _BINARY


class UnaryOp(ScalarOp):
    """A total operation on one scalar."""

    value = operand_def(AnyAttr())
    res = result_def(AnyAttr())
    assembly_format = _UNARY


class GuardedBinaryOp(ScalarOp):
    """An operation that Python refuses for some operands (here: total, see the semantics table)."""

    lhs = operand_def(AnyAttr())
    rhs = operand_def(AnyAttr())
    guard = opt_operand_def(BoolType)
    res = result_def(AnyAttr())
    assembly_format = _GUARDED_BINARY

    @property
    def guard_value(self) -> SSAValue | None:
        return self.guard


class GuardedUnaryOp(ScalarOp):
    """As :class:`GuardedBinaryOp`, for one operand."""

    value = operand_def(AnyAttr())
    guard = opt_operand_def(BoolType)
    res = result_def(AnyAttr())
    assembly_format = _GUARDED_UNARY

    @property
    def guard_value(self) -> SSAValue | None:
        return self.guard


def _define(kind: str, base: type[ScalarOp]) -> type[ScalarOp]:
    """Make the operation class for one row; the class is ``AddOp`` for ``add``."""
    body = {"name": f"selir.{kind}", "__module__": __name__, "__doc__": f"``{kind}`` of the table."}
    return irdl_op_definition(type(f"{kind.capitalize()}Op", (base,), body))


def _base(kind: str) -> type[ScalarOp]:
    entry = SEMANTICS[kind]
    if entry.fails is None:
        return BinaryOp if entry.arity == 2 else UnaryOp
    return GuardedBinaryOp if entry.arity == 2 else GuardedUnaryOp


@irdl_op_definition
class SelectOp(ScalarOp):
    """One of two values by a bool: what a branch becomes, so a branch's condition is a dependence."""

    name = "selir.select"
    cond = operand_def(AnyAttr())
    on_true = operand_def(AnyAttr())
    on_false = operand_def(AnyAttr())
    res = result_def(AnyAttr())
    assembly_format = "$cond `,` $on_true `,` $on_false attr-dict `:` functional-type(operands, results)"


SCALAR_OPS: dict[str, type[ScalarOp]] = {
    kind: SelectOp if kind == "select" else _define(kind, _base(kind)) for kind in SEMANTICS
}
"""Operation class by name in the semantics table."""

SCALAR_KINDS: dict[type, str] = {op: kind for kind, op in SCALAR_OPS.items()}
"""Name in the semantics table by operation class: quicker than isinstance, which costs a lot on xDSL's classes."""


@irdl_op_definition
class LookupOp(IRDLOperation, HasFolderInterface):
    """A table of facts read at a batch-dependent key, so that the key, not its columns, can be pinned."""

    name = "selir.lookup"
    key = operand_def(AnyAttr())
    guard = opt_operand_def(BoolType)
    table = prop_def(ValueAttr)
    res = result_def(AnyAttr())
    traits = traits_def(Pure())
    assembly_format = "$key `in` $table (`when` $guard^)? attr-dict `:` functional-type(operands, results)"

    @property
    def guard_value(self) -> SSAValue | None:
        """The bool under which this operation's result is used; None: always."""
        return self.guard

    def verify_(self) -> None:
        pairs = self.table.data
        if not isinstance(pairs, tuple) or not pairs or any(not isinstance(p, tuple) or len(p) != 2 for p in pairs):
            raise VerifyException("a lookup table is a non-empty list of [key, value] pairs")
        kinds = {type_of(k) for k, _ in pairs}
        if len(kinds) > 1 or kinds & {"float", "none"} or len({constant_key(k) for k, _ in pairs}) != len(pairs):
            raise VerifyException("a lookup's keys are distinct ints, bools or strings of one type")
        if len({type_of(v) for _, v in pairs}) > 1:
            raise VerifyException("a lookup's values are of one type")

    def fold(self) -> Sequence[SSAValue | Attribute] | None:
        key = constant_of(self.key)
        return None if key is None else (ValueAttr(look_up(self.table.data, key.data)),)


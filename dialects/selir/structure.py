"""Operations of a bound program that are not scalar: inputs, branches, conditions, pins, points."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import (
    IsolatedFromAbove,
    IsTerminator,
    NoTerminator,
    Pure,
    RecursiveMemoryEffect,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from detent.dialects.selir.semantics import type_of
from detent.dialects.selir.types import AnyType, BoolType, SourceAttr, ValueAttr, type_name


def verify_order(region: Region, defined: set[SSAValue] | None = None) -> None:
    """Check that every value is defined before it is used (xDSL's verifier does not).

    Raises VerifyException that names the operation and the operand's position.
    """
    defined = set() if defined is None else defined
    for block in region.blocks:
        local: list[SSAValue] = list(block.args)
        defined.update(local)
        for op in block.ops:
            for index, operand in enumerate(op.operands):
                if operand not in defined:
                    raise VerifyException(f"operand {index} of '{op.name}' is used before it is defined")
            for inner in op.regions:
                verify_order(inner, defined)
            local.extend(op.results)
            defined.update(op.results)
        # What a nested block defines must not be seen outside it.
        defined.difference_update(local)


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """A selection: one block from inputs, facts and knobs to the selection points."""

    name = "selir.program"
    sym_name = prop_def(StringAttr)
    family = prop_def(StringAttr)
    body = region_def("single_block")
    legality = opt_attr_def(ValueAttr)
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())
    assembly_format = "$sym_name `family` $family attr-dict-with-keyword $body"

    @property
    def block(self) -> Block:
        """The program's only block."""
        return self.body.block

    def verify_(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, (PointsOp,)) and (last is None or last.name != "selir.return"):
            raise VerifyException("a program ends in 'selir.points', or in 'selir.return' before it is bound")
        verify_order(self.body)
        names = [op.input_name.data for op in self.block.ops if isinstance(op, InputOp)]
        if len(set(names)) != len(names):
            raise VerifyException("two inputs of a program have the same name")


@irdl_op_definition
class PointsOp(IRDLOperation):
    """Ends a bound program: the selection points by name."""

    name = "selir.points"
    names = prop_def(ArrayAttr[StringAttr])
    values = var_operand_def(AnyAttr())
    traits = traits_def(IsTerminator())
    assembly_format = "$names ($values^ `:` type($values))? attr-dict"

    def verify_(self) -> None:
        names = [n.data for n in self.names.data]
        if len(names) != len(self.values):
            raise VerifyException(f"{len(names)} names for {len(self.values)} selection points")
        if len(set(names)) != len(names):
            raise VerifyException("two selection points have the same name")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """Ends a region that gives values."""

    name = "selir.yield"
    values = var_operand_def(AnyAttr())
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "($values^ `:` type($values))? attr-dict"


@irdl_op_definition
class InputOp(IRDLOperation):
    """A batch-dependent or per-request input. Never deleted: the program's signature is its inputs in order."""

    name = "selir.input"
    input_name = prop_def(StringAttr, prop_name="name")
    source = prop_def(SourceAttr)
    res = result_def(AnyAttr())
    assembly_format = "$name $source attr-dict `:` type($res)"


@irdl_op_definition
class KnobOp(IRDLOperation):
    """A deployment setting that no input determines."""

    name = "selir.knob"
    knob_name = prop_def(StringAttr, prop_name="name")
    choices = prop_def(ValueAttr, prop_name="values")
    default = prop_def(ValueAttr)
    res = result_def(AnyAttr())
    assembly_format = "$name $values `default` $default attr-dict `:` type($res)"

    def verify_(self) -> None:
        values, kind = self.choices.data, type_name(self.res.type)
        if not isinstance(values, tuple) or not values:
            raise VerifyException("a knob has a non-empty list of values")
        if any(type_of(v) != kind for v in (*values, self.default.data)):
            raise VerifyException(f"a knob's values and default are of its type, !selir.{kind}")
        if self.default.data not in values or len(set(values)) != len(values):
            raise VerifyException("a knob's values are distinct and its default is one of them")


@irdl_op_definition
class IfOp(IRDLOperation):
    """A branch: both regions yield one value for each result."""

    name = "selir.if"
    cond = operand_def(AnyAttr())
    res = var_result_def(AnyAttr())
    then = region_def("single_block")
    orelse = region_def("single_block")
    traits = traits_def(RecursiveMemoryEffect())
    assembly_format = "$cond `:` type($cond) (`->` type($res)^)? $then `else` $orelse attr-dict"

    def verify_(self) -> None:
        for label, region in (("then", self.then), ("else", self.orelse)):
            last = region.block.last_op
            if last is not None and last.name == "selir.return":
                continue
            if not isinstance(last, YieldOp):
                raise VerifyException(f"the {label} region of 'selir.if' ends in 'selir.yield'")
            if [v.type for v in last.values] != [r.type for r in self.res]:
                raise VerifyException(f"the {label} region of 'selir.if' yields other types than its results")


class ConditionOp(IRDLOperation):
    """Base of assume and require.

    The region computes the condition. What it computes itself is its own and never merges with a
    selection value; a value of the selection it uses from outside is *named* by the condition: an input
    is then the true input, a pinned value is as pinned.
    """

    message = prop_def(StringAttr)
    body = region_def("single_block")
    assembly_format = "$message $body attr-dict"

    @property
    def root(self) -> SSAValue:
        """The bool that the condition demands to be true."""
        last = self.body.block.last_op
        assert isinstance(last, YieldOp)
        return last.values[0]

    def verify_(self) -> None:
        last = self.body.block.last_op
        if not isinstance(last, YieldOp) or len(last.values) != 1:
            raise VerifyException(f"the region of '{self.name}' yields one value")
        if not isinstance(last.values[0].type, (BoolType, AnyType)):
            raise VerifyException(f"the region of '{self.name}' yields a bool")


@irdl_op_definition
class AssumeOp(ConditionOp):
    """What is known of the inputs: gives them their domains, and is checked while serving."""

    name = "selir.assume"


@irdl_op_definition
class RequireOp(ConditionOp):
    """What an assignment of the pins must satisfy at every input that the assumes allow."""

    name = "selir.require"


@irdl_op_definition
class PinOp(IRDLOperation):
    """Marks a value of the cut: its users see a constant of the commitment tuple instead."""

    name = "selir.pin"
    pin_name = prop_def(StringAttr, prop_name="name")
    value = operand_def(AnyAttr())
    res = result_def(AnyAttr())
    candidates = opt_attr_def(ValueAttr)
    assembly_format = "$name $value attr-dict `:` type($value) `->` type($res)"

    def verify_(self) -> None:
        if self.value.type != self.res.type:
            raise VerifyException("a pin has the type of the value it replaces")


def own_region_values(op: Operation) -> set[SSAValue]:
    """Every value defined inside an operation's regions, at any depth."""
    return {result for inner in op.walk() if inner is not op for result in inner.results}


__all__ = [
    "AssumeOp",
    "ConditionOp",
    "IfOp",
    "InputOp",
    "KnobOp",
    "NoTerminator",
    "PinOp",
    "PointsOp",
    "ProgramOp",
    "RequireOp",
    "YieldOp",
    "own_region_values",
    "verify_order",
]

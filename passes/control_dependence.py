"""``selir-control-dependence``: branches become selects, so a branch's condition is an ordinary dependence."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from detent.dialects.selir.scalar import SCALAR_OPS, LookupOp, ScalarOp, SelectOp
from detent.dialects.selir.semantics import SEMANTICS
from detent.dialects.selir.structure import ConditionOp, IfOp, ProgramOp, YieldOp
from detent.dialects.selir.types import TYPES

_BOOL = (TYPES["bool"],)


def _yielded(block: Block) -> tuple[SSAValue, ...]:
    last = block.last_op
    assert isinstance(last, YieldOp)
    return tuple(last.values)


_CAN_FAIL: dict[type, int] = {
    LookupOp: 1,
    **{op: SEMANTICS[kind].arity for kind, op in SCALAR_OPS.items() if SEMANTICS[kind].fails is not None},
}
"""Operations that Python could refuse for some operands, with their number of operands without the guard."""


class Path:
    """The condition under which a branch's arm is taken, as a bool that is made where it is first needed."""

    def __init__(self, condition: SSAValue, taken: bool, outer: Path | None) -> None:
        self.condition, self.taken, self.outer = condition, taken, outer
        self._value: SSAValue | None = None

    def value(self, before: Operation, like: Operation) -> SSAValue:
        """The bool; operations that compute it are inserted before ``before``."""
        if self._value is None:
            value = self.condition if self.taken else _insert("not", (self.condition,), before, like)
            if self.outer is not None:
                value = _insert("and", (self.outer.value(before, like), value), before, like)
            self._value = value
        return self._value


def _insert(kind: str, operands: tuple[SSAValue, ...], before: Operation, like: Operation) -> SSAValue:
    op = SCALAR_OPS[kind].create(operands=operands, result_types=_BOOL, location=like.location)
    block = before.parent
    assert block is not None
    block.insert_op_before(op, before)
    return op.results[0]


def flatten_branches(block: Block) -> None:
    """Turn every ``selir.if`` of a block, at any depth, into selects in the block itself.

    An operation that can fail gets the branch's condition as its guard; a condition of the program that
    stands in a branch is demanded only where the branch is taken.
    """
    for op in list(block.ops):
        if isinstance(op, IfOp):
            _lift(op, block, op, None)
            block.erase_op(op)
        elif isinstance(op, ConditionOp):
            flatten_branches(op.body.block)


def _lift(branch: IfOp, block: Block, anchor: Operation, outer: Path | None) -> None:
    """Move a branch's operations before ``anchor``, where the outermost branch stands, and add its selects."""
    values = []
    for region, taken in ((branch.then, True), (branch.orelse, False)):
        path = Path(branch.cond, taken, outer)
        for op in list(region.block.ops):
            kind = type(op)
            if kind is YieldOp:
                continue
            if kind is IfOp:
                assert isinstance(op, IfOp)
                _lift(op, block, anchor, path)
                continue
            region.block.detach_op(op)
            block.insert_op_before(op, anchor)
            if kind in _CAN_FAIL:
                _guard(op, path)
            elif isinstance(op, ConditionOp):
                flatten_branches(op.body.block)
                _restrict(op, path)
        values.append(_yielded(region.block))
    for result, on_true, on_false in zip(branch.res, *values, strict=True):
        choice = SelectOp.create(operands=[branch.cond, on_true, on_false], result_types=[result.type],
                                 location=branch.location)
        choice.res.name_hint = result.name_hint
        block.insert_op_before(choice, anchor)
        result.replace_all_uses_with(choice.res)


def _guard(op: Operation, path: Path) -> None:
    _add_guard(op, path.value(op, op))


def _add_guard(op: Operation, guard: SSAValue) -> None:
    operands = list(op.operands)
    if len(operands) > _CAN_FAIL[type(op)]:
        guard = _insert("and", (guard, operands.pop()), op, op)
    op.operands = [*operands, guard]


def _restrict(op: ConditionOp, path: Path) -> None:
    """Demand a condition only where its branches are taken.

    A branch's test is computed in the condition as if it were written there: from the true inputs, and from the
    variables it names. As a value of the selection it would have to be pinned, and a pin could say that the branch
    is never taken.
    """
    first, last = op.body.block.first_op, op.body.block.last_op
    assert first is not None and isinstance(last, YieldOp)
    can_fail = [inner for inner in op.body.block.ops if type(inner) in _CAN_FAIL]
    copies: dict[SSAValue, SSAValue] = {}
    taken: SSAValue | None = None
    step: Path | None = path
    while step is not None:
        test = _copied(step.condition, first, copies)
        test = test if step.taken else _insert("not", (test,), first, op)
        taken = test if taken is None else _insert("and", (test, taken), first, op)
        step = step.outer
    assert taken is not None
    for inner in can_fail:
        _add_guard(inner, taken)
    last.operands = [_insert("or", (_insert("not", (taken,), last, op), last.values[0]), last, op)]


def _copied(value: SSAValue, before: Operation, copies: dict[SSAValue, SSAValue]) -> SSAValue:
    """A value computed once more before ``before``, from inputs, knobs, constants and named values."""
    owner = value.owner
    if value.name_hint or not isinstance(owner, (ScalarOp, LookupOp)):
        return value
    if value not in copies:
        operands = [_copied(operand, before, copies) for operand in owner.operands]
        copy = owner.clone()
        copy.operands = operands
        block = before.parent
        assert block is not None
        block.insert_op_before(copy, before)
        copies[value] = copy.results[0]
    return copies[value]


@dataclass(frozen=True)
class ControlDependence(ModulePass):
    """Turn branches into selects, so that the graph has every dependence on the batch as an edge."""

    name = "selir-control-dependence"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in op.body.block.ops:
            if isinstance(program, ProgramOp):
                flatten_branches(program.block)

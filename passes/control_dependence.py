"""``selir-control-dependence``: branches become selects, so a branch's condition is an ordinary dependence."""

from __future__ import annotations

from collections.abc import Callable
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


def _logic(kind: str, *operands: SSAValue, like: Operation) -> Operation:
    return SCALAR_OPS[kind].create(operands=operands, result_types=_BOOL, location=like.location)


def can_fail(op: Operation) -> bool:
    """Whether Python could refuse this operation for some operands, so that its use must be guarded."""
    return isinstance(op, LookupOp) or (isinstance(op, ScalarOp) and SEMANTICS[op.kind].fails is not None)


def flatten_branches(block: Block) -> None:
    """Turn every ``selir.if`` of a block, at any depth, into selects in the block itself.

    An operation that can fail gets the branch's condition as its guard; a condition of the program that
    stands in a branch is demanded only where the branch is taken.
    """
    for op in list(block.ops):
        if isinstance(op, ConditionOp):
            flatten_branches(op.body.block)
        elif isinstance(op, IfOp):
            flatten_branches(op.then.block)
            flatten_branches(op.orelse.block)
            _lift(op, block)


def _lift(branch: IfOp, block: Block) -> None:
    condition = branch.cond
    negated: list[SSAValue] = []

    def inverse() -> SSAValue:
        if not negated:
            op = _logic("not", condition, like=branch)
            block.insert_op_before(op, branch)
            negated.append(op.results[0])
        return negated[0]

    values = [_yielded(branch.then.block), _yielded(branch.orelse.block)]
    for arm, path in ((branch.then.block, lambda: condition), (branch.orelse.block, inverse)):
        for op in list(arm.ops):
            if isinstance(op, YieldOp):
                continue
            op.detach()
            if can_fail(op):
                _guard(op, path(), block, branch)
            elif isinstance(op, ConditionOp):
                _restrict(op, path)
            block.insert_op_before(op, branch)
    for result, on_true, on_false in zip(branch.res, *values, strict=True):
        choice = SelectOp.create(operands=[condition, on_true, on_false], result_types=[result.type],
                                 location=branch.location)
        choice.res.name_hint = result.name_hint
        block.insert_op_before(choice, branch)
        result.replace_all_uses_with(choice.res)
    branch.detach()
    branch.erase()


def _guard(op: Operation, path: SSAValue, block: Block, branch: IfOp) -> None:
    arity = 1 if isinstance(op, LookupOp) else SEMANTICS[op.name.removeprefix("selir.")].arity
    operands = list(op.operands)
    if len(operands) > arity:
        both = _logic("and", path, operands.pop(), like=op)
        block.insert_op_before(both, branch)
        path = both.results[0]
    op.operands = [*operands, path]


def _restrict(op: ConditionOp, path: Callable[[], SSAValue]) -> None:
    body = op.body.block
    last = body.last_op
    assert isinstance(last, YieldOp)
    elsewhere = _logic("not", path(), like=op)
    demanded = _logic("or", elsewhere.results[0], last.values[0], like=op)
    body.insert_ops_before([elsewhere, demanded], last)
    last.operands = [demanded.results[0]]


@dataclass(frozen=True)
class ControlDependence(ModulePass):
    """Turn branches into selects, so that the graph has every dependence on the batch as an edge."""

    name = "selir-control-dependence"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in op.body.block.ops:
            if isinstance(program, ProgramOp):
                flatten_branches(program.block)

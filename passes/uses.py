"""What is asked of a value: its truth alone, or an input under another name."""

from __future__ import annotations

from typing import Any

from xdsl.ir import Block, SSAValue, Use

from detent.dialects.selir.scalar import SCALAR_OPS
from detent.dialects.selir.structure import ConditionOp, IfOp, InputOp, YieldOp
from detent.dialects.selir.unbound import BuiltinOp, FilterOp
from detent.passes.static import is_residual


def only_truth(value: SSAValue) -> bool:
    """Whether nothing but the truth of an unbound value is ever used: in tests, under ``not`` and in conditions."""
    return all(_asks_for_truth(use) for use in value.uses)


def _asks_for_truth(use: Use) -> bool:
    user = use.operation
    if isinstance(user, IfOp):
        return "logical" not in user.attributes or only_truth(user.res[0])
    if isinstance(user, YieldOp):
        parent = user.parent_op()
        return isinstance(parent, ConditionOp) or (isinstance(parent, IfOp) and only_truth(parent.res[use.index]))
    if isinstance(user, BuiltinOp):
        return user.function.data == "bool"
    return isinstance(user, (FilterOp, SCALAR_OPS["not"]))


def may_be_pinned(value: SSAValue) -> bool:
    """Whether a value is an input that a pin may replace."""
    return isinstance(value.owner, InputOp) and value.owner.source.data.value == "runtime"


def through_copies(block: Block, value: Any) -> Any:
    """Let an assume read the input where it names a variable that holds one; the assume's own value."""
    copy = SCALAR_OPS["copy"]
    for op in block.walk():
        for index, operand in enumerate(op.operands):
            if isinstance(operand.owner, copy):
                op.operands[index] = operand.owner.operands[0]
    return value.owner.operands[0] if is_residual(value) and isinstance(value.owner, copy) else value

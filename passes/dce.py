"""``selir-dce``: delete what nothing uses."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass

from detent.dialects.selir.scalar import ConstantOp, LookupOp, ScalarOp
from detent.dialects.selir.structure import ConditionOp, IfOp, ProgramOp


def delete_dead(block: Block) -> None:
    """One backward sweep. Inputs, knobs, conditions and points stay: they are what a program promises."""
    op = block.last_op
    while op is not None:
        previous = op.prev_op
        if isinstance(op, (ScalarOp, ConstantOp, LookupOp)) and op.results[0].first_use is None:
            block.erase_op(op)
        elif isinstance(op, ConditionOp):
            delete_dead(op.body.block)
        elif isinstance(op, IfOp):
            delete_dead(op.then.block)
            delete_dead(op.orelse.block)
        op = previous


@dataclass(frozen=True)
class Dce(ModulePass):
    """Delete scalar operations whose results nothing uses."""

    name = "selir-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in op.body.block.ops:
            if isinstance(program, ProgramOp):
                delete_dead(program.block)

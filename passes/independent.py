"""What a value can take when its operands are pinned apart from each other.

Correlation and narrowing say what values can be *together*, at one input. Once some of them are pinned, each has a
value of its own set and they no longer move together. A rewriting that chooses an operand by its range must hold then
too, or the choice could give what the program never computes.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import SSAValue

from detent.dialects.selir.scalar import SCALAR_KINDS, LookupOp, ScalarOp
from detent.dialects.selir.types import type_name
from detent.passes.boxes import apply
from detent.passes.domains import Abstract


class Independent:
    """Sets of values by their operands' sets alone; ``together`` has the sets of inputs, knobs and constants."""

    def __init__(self, together: Mapping[SSAValue, Abstract]) -> None:
        self._together = together
        self._found: dict[SSAValue, Abstract] = {}

    def __call__(self, value: SSAValue) -> Abstract:
        """The set of one value."""
        stack = [value]
        while stack:
            here = stack[-1]
            owner = here.owner
            kind = SCALAR_KINDS.get(type(owner))
            operands: tuple[SSAValue, ...] = ()
            if kind is not None:
                assert isinstance(owner, ScalarOp)
                operands = owner.scalars
            elif isinstance(owner, LookupOp):
                operands = (owner.key,)
            missing = [operand for operand in operands if operand not in self._found]
            if missing and here not in self._found:
                stack.extend(missing)
                continue
            stack.pop()
            sets = [self._found[operand] for operand in operands]
            if kind is not None:
                self._found[here] = apply(kind, sets, type_name(here.type))
            elif isinstance(owner, LookupOp):
                self._found[here] = frozenset(row for _, row in owner.table.data)
            else:
                self._found[here] = self._together.get(here)
        return self._found[value]

"""``selir-cse``: compute equal values once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from detent.passes.constant_fold import FOLD_ONLY
from detent.passes.simplify import sweep_module


@dataclass(frozen=True)
class Cse(ModulePass):
    """Merge equal operations, never across a condition: what a condition computes itself stays its own."""

    name = "selir-cse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sweep_module(op, replace(FOLD_ONLY, cse=True), facts_from_assumes=False)

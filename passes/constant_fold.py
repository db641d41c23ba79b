"""``selir-constant-fold``: fold constants and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from detent.passes.rules import Options
from detent.passes.simplify import sweep_module

FOLD_ONLY = Options(ranges=False, value_sets=False, equal_arms=False, boolean=False, identities=False, cse=False)


@dataclass(frozen=True)
class ConstantFold(ModulePass):
    """Replace operations on constants by their results."""

    name = "selir-constant-fold"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sweep_module(op, FOLD_ONLY, facts_from_assumes=False)

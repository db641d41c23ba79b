"""``selir-pipeline``: every pass in the order the solver runs them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from detent.passes.check_failures import CheckFailures
from detent.passes.control_dependence import ControlDependence
from detent.passes.dce import Dce
from detent.passes.min_cut import MinCut
from detent.passes.partial_eval import PartialEval
from detent.passes.simplify import Simplify
from detent.passes.value_ranges import ValueRanges


@dataclass(frozen=True)
class Pipeline(ModulePass):
    """Bind facts, flatten branches, simplify, exclude failures, cut, and judge.

    ``deployment`` as in selir-partial-eval.
    """

    name = "selir-pipeline"
    deployment: str

    def passes(self) -> list[ModulePass]:
        """The passes in order."""
        return [PartialEval(self.deployment), ControlDependence(), Simplify(), Dce(), CheckFailures(), MinCut(),
                ValueRanges()]

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for step in self.passes():
            step.apply(ctx, op)

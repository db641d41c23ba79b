"""``selir-simplify``: fold and simplify a straight-line program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from detent.passes.errors import AnalysisError, UnboundedInput
from detent.passes.rules import Options
from detent.passes.sweep import Domain, Simplifier, check_bound, program_domains, programs_of


def sweep_module(module: ModuleOp, options: Options, *, facts_from_assumes: bool) -> None:
    """Run one sweep over every program of a module, as a pass.

    With ``facts_from_assumes`` inputs have the domains that assumes give them; one without a domain is unknown.
    """
    for program in programs_of(module):
        try:
            check_bound(program)
            domains: dict[str, Domain] = {}
            if facts_from_assumes:
                try:
                    domains = program_domains(program)
                except UnboundedInput:
                    pass
            Simplifier(program, options, domains).run()
        except AnalysisError as error:
            raise PassFailedException(str(error)) from None


@dataclass(frozen=True)
class Simplify(ModulePass):
    """Fold constants and simplify with range facts, value sets, equal arms, boolean algebra and identities.

    Each option switches one group off. Input domains come from the program's assumes.
    """

    name = "selir-simplify"
    ranges: bool = True
    value_sets: bool = True
    equal_arms: bool = True
    boolean: bool = True
    identities: bool = True
    cse: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        options = Options(self.ranges, self.value_sets, self.equal_arms, self.boolean, self.identities, self.cse)
        sweep_module(op, options, facts_from_assumes=True)

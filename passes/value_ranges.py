"""``selir-value-ranges``: the candidates of every pin and which assignments are legal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from detent.dialects.selir.structure import PinOp, ProgramOp
from detent.dialects.selir.types import ValueAttr
from detent.passes.candidates import Candidates, candidates
from detent.passes.check_failures import require_no_failures
from detent.passes.domains import Abstract
from detent.passes.errors import AnalysisError
from detent.passes.flatten import Flattened
from detent.passes.input_domains import input_domains
from detent.passes.legality import Legality, judge
from detent.passes.rules import Options
from detent.passes.sweep import programs_of, value_sets


def pin_sets(flat: Flattened, sets: Mapping[SSAValue, Abstract]) -> dict[int, Abstract]:
    """The value set of what each pin replaces, by pin node."""
    graph = flat.graph
    return {pin: sets.get(flat.values[graph.args[pin][0]]) for pin in graph.of_kind("pin")}


def pin_candidates(flat: Flattened, sets: Mapping[SSAValue, Abstract]) -> dict[int, Candidates]:
    """Candidates by pin and knob node of a flattened program."""
    return candidates(flat.graph, {flat.graph.args[pin][0]: values for pin, values in pin_sets(flat, sets).items()})


def annotate(program: ProgramOp) -> Legality:
    """Judge a program with pins: candidates on the pins, counts and legal values on the program."""
    sets = value_sets(program, Options())
    flat = Flattened(program)
    found = pin_candidates(flat, sets)
    for op in program.block.ops:
        if isinstance(op, PinOp):
            op.candidates = ValueAttr(tuple(found[flat.nodes[op.res]].values))
    domains = input_domains(flat.graph)
    require_no_failures(flat.graph, pin_sets(flat, sets), domains)
    outcome = judge(flat.graph, {node: c.values for node, c in found.items()}, domains)
    program.legality = ValueAttr({
        "candidates": outcome.candidates, "legal": outcome.legal, "proved": outcome.proved,
        "sampled": outcome.sampled})
    return outcome


@dataclass(frozen=True)
class ValueRanges(ModulePass):
    """Find each pin's candidates and judge which joint assignments the requires allow."""

    name = "selir-value-ranges"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs_of(op):
            try:
                annotate(program)
            except AnalysisError as error:
                raise PassFailedException(str(error)) from None

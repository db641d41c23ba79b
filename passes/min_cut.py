"""``selir-min-cut``: mark the fewest values whose pinning keeps the batch away from the points."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from detent.dialects.selir.structure import ConditionOp, InputOp, PinOp, ProgramOp
from detent.passes.cut import Infeasible, latest_min_cut, sinks
from detent.passes.errors import AnalysisError
from detent.passes.flatten import Flattened
from detent.passes.graph import Graph
from detent.passes.sweep import programs_of


class InfeasibleCut(AnalysisError):
    """An unpinnable input reaches a selection point through nothing that may be pinned."""


def insert_pins(program: ProgramOp, *, control: bool = True, cut: bool = True,
                flat: Flattened | None = None) -> list[PinOp]:
    """Insert a ``selir.pin`` for each value of the latest minimum cut; the pins in program order.

    Selection values and conditions that name the value read the pin; a condition that names a pinned
    *input* still reads the true input. Without ``control`` selects do not depend on their conditions;
    without ``cut`` every batch-dependent sink is pinned itself (both unsound or wasteful: ablations).
    ``flat`` is the program's graph where the caller has it. Raises InfeasibleCut with the path as source lines.
    """
    flat = Flattened(program) if flat is None else flat
    wanted = sinks(flat.graph)
    try:
        found = latest_min_cut(flat.graph, wanted, control=control)
    except Infeasible as error:
        raise _infeasible(flat.graph, error.path) from None
    nodes = found.nodes if cut else found.sinks
    points = {node: name for name, node in reversed(flat.graph.points)}
    taken = {op.input_name.data for op in program.block.ops if isinstance(op, InputOp)}
    taken |= {flat.graph.data[node].name for node in flat.graph.of_kind("knob")}
    pins = []
    for node in nodes:
        value = flat.values[node]
        name = _unique(_pin_name(flat.graph, node, points), taken)
        taken.add(name)
        pins.append(_pin(value, name, program))
    return pins


def _pin(value: SSAValue, name: str, program: ProgramOp) -> PinOp:
    owner = value.owner
    assert isinstance(owner, Operation)
    users = [(use.operation, use.index) for use in value.uses]
    pin = PinOp.create(operands=[value], result_types=[value.type], properties={"name": StringAttr(name)},
                       location=owner.location)
    pin.res.name_hint = name
    block = program.block
    # An input that is pinned stands in the header; its pin must follow it, as any pin its value.
    block.insert_op_after(pin, owner)
    for user, index in users:
        if isinstance(owner, InputOp) and _in_condition(user, program):
            continue
        user.operands[index] = pin.res
    return pin


def _in_condition(op: Operation, program: ProgramOp) -> bool:
    parent = op.parent_op()
    while parent is not None and parent is not program:
        if isinstance(parent, ConditionOp):
            return True
        parent = parent.parent_op()
    return False


def _pin_name(graph: Graph, node: int, points: dict[int, str]) -> str:
    """The variable the value was last assigned to, else the point it is, else its text."""
    kind = graph.kinds[node]
    if kind == "input":
        return f"{graph.data[node].name}_pin"
    text = graph.names[node] or points.get(node, "")
    if not text and graph.locations[node] is not None:
        text = graph.locations[node].text  # type: ignore[union-attr]
    name = re.sub(r"\W+", "_", text).strip("_")[:40]
    return name if name and not name[0].isdigit() else f"{kind}_{name}" if name else kind


def _unique(name: str, taken: set[str]) -> str:
    candidate, count = name, 2
    while candidate in taken:
        candidate, count = f"{name}_{count}", count + 1
    return candidate


def _infeasible(graph: Graph, path: list[int]) -> InfeasibleCut:
    lines = []
    for node in path:
        location, name = graph.locations[node], graph.names[node]
        what = name or (location.text if location else graph.kinds[node])
        lines.append(f"{location} {what}" if location else what)
    named = [name for name, node in graph.points if node == path[-1]]
    what = f"selection point {named[0]!r}" if named else "a value that a condition names"
    return InfeasibleCut(
        f"no pins exist: the unpinnable input '{graph.names[path[0]]}' reaches {what}: {' -> '.join(lines)}",
        graph.locations[path[-1]], "return a value derived from it, or mark it Runtime or Request")


@dataclass(frozen=True)
class MinCut(ModulePass):
    """Mark the latest minimum vertex cut between batch-dependent inputs and selection points with pins."""

    name = "selir-min-cut"
    control: bool = True
    cut: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs_of(op):
            try:
                insert_pins(program, control=self.control, cut=self.cut)
            except AnalysisError as error:
                raise PassFailedException(str(error)) from None

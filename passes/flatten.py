"""Reads a straight-line ``selir.program`` into a :class:`~detent.passes.graph.Graph`."""

from __future__ import annotations

from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from detent.dialects.selir.scalar import SCALAR_KINDS, ConstantOp, LookupOp
from detent.dialects.selir.semantics import SEMANTICS
from detent.dialects.selir.source import span_of
from detent.dialects.selir.structure import AssumeOp, ConditionOp, InputOp, KnobOp, PinOp, PointsOp, ProgramOp, YieldOp
from detent.dialects.selir.types import type_name
from detent.passes.errors import AnalysisError, AssumeNamesSelection
from detent.passes.graph import Condition, Graph, Input, Knob, Location


class Flattened:
    """A graph, with the operation result that each of its nodes stands for."""

    def __init__(self, program: ProgramOp, *, assumes_only: bool = False) -> None:
        self.graph = Graph(program.sym_name.data, program.family.data)
        self.values: list[SSAValue] = []
        self.nodes: dict[SSAValue, int] = {}
        self._locations: dict[Any, Location | None] = {}
        self.points_location: Location | None = None
        for op in program.block.ops:
            if isinstance(op, ConditionOp):
                if not assumes_only or isinstance(op, AssumeOp):
                    self._condition(op)
            elif isinstance(op, PointsOp):
                if not assumes_only:
                    self.points_location = self._location(op)
                    self.graph.points = [(n.data, self.nodes[v]) for n, v in zip(op.names, op.values, strict=True)]
            elif not assumes_only or isinstance(op, (InputOp, KnobOp, ConstantOp)):
                self._node(op, 0)

    def _location(self, op: Operation) -> Location | None:
        key = op.location
        if key not in self._locations:
            span = span_of(key)
            self._locations[key] = None if span is None else Location(span.file, span.line, span.column - 1, span.text)
        return self._locations[key]

    def _operand(self, value: SSAValue, op: Operation) -> int:
        node = self.nodes.get(value)
        if node is None:
            # Only when reading assumes alone: they may name nothing but inputs and facts.
            raise AssumeNamesSelection("an assume names a value of the selection", self._location(op), "use require")
        return node

    def _node(self, op: Operation, scope: int) -> None:
        operands = [self._operand(v, op) for v in op.operands]
        data: Any = None
        guard: int | None = None
        kind = SCALAR_KINDS.get(type(op), "")
        if kind:
            if len(operands) > SEMANTICS[kind].arity:
                guard = operands.pop()
        elif isinstance(op, ConstantOp):
            kind, data = "constant", op.value.data
        elif isinstance(op, LookupOp):
            kind, data = "lookup", op.table.data
            if len(operands) > 1:
                guard = operands.pop()
        elif isinstance(op, InputOp):
            kind, data = "input", Input(op.input_name.data, op.source.data.value)
        elif isinstance(op, KnobOp):
            kind, data = "knob", Knob(op.knob_name.data, op.choices.data, op.default.data)
        elif isinstance(op, PinOp):
            kind, data = "pin", op.pin_name.data
        else:
            raise AnalysisError(f"'{op.name}' in a program that should be bound and straight-line",
                                self._location(op), "run selir-partial-eval and selir-control-dependence first")
        result = op.results[0]
        name = data.name if isinstance(data, (Input, Knob)) else result.name_hint or ""
        node = self.graph.add(kind, tuple(operands), data, type_name(result.type), name, self._location(op), scope)
        if guard is not None:
            self.graph.guards[node] = guard
        self.values.append(result)
        self.nodes[result] = node

    def _condition(self, op: ConditionOp) -> None:
        body: Block = op.body.block
        scope = len(self.graph.conditions) + 1
        root = -1
        location = self._location(op)
        for inner in body.ops:
            if isinstance(inner, YieldOp):
                root = self._operand(inner.values[0], op)
                # The yield stands for the condition's text alone, without the word and the message around it.
                location = self._location(inner) or location
            else:
                self._node(inner, scope)
        kind = "assume" if isinstance(op, AssumeOp) else "require"
        self.graph.conditions.append(Condition(kind, op.message.data, root, location))


def flatten(program: ProgramOp) -> Graph:
    """The program's graph; raises AnalysisError where it is not bound or has branches left."""
    return Flattened(program).graph

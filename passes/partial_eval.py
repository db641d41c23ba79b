"""``selir-partial-eval``: bind a deployment's facts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Region
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from detent.dialects.selir.source import SourceError, span_of
from detent.dialects.selir.structure import PointsOp, ProgramOp
from detent.dialects.selir.unbound import FuncOp, ReturnOp
from detent.passes.evaluator import Evaluator
from detent.passes.fact_types import allows_none, mismatch
from detent.passes.static import Unusable, describe, is_scalar


class DoesNotApply(SourceError):
    """The deployment lacks a whole section of facts that the program reads."""


@dataclass
class Binding:
    """Facts of one deployment, and a record of those that were read (they enter the cache key)."""

    facts: Mapping[str, Mapping[str, Any]]
    deployment: str = ""
    read: dict[tuple[str, str], Any] = field(default_factory=dict)

    def get(self, section: str, name: str, declared: str) -> Any:
        """The value of a fact; lists become tuples. Raises SourceError (without a span) for a missing one."""
        where = f"deployment {self.deployment}" if self.deployment else "the deployment"
        if section not in self.facts:
            raise DoesNotApply(f"{where} has no facts [{section}], which the program reads",
                               help="the program does not apply to this deployment")
        values = self.facts[section]
        if name not in values and allows_none(declared):
            self.read[section, name] = None  # TOML cannot write None: an optional fact is left out
            return None
        if name not in values:
            close = difflib.get_close_matches(name, values, 1)
            raise SourceError(f"{where} has no fact '{name}' in [{section}]",
                              help=f"did you mean '{close[0]}'?" if close else f"add {name} = ... to [{section}]")
        value = _frozen(values[name])
        problem = mismatch(value, declared)
        if problem:
            raise SourceError(f"{where}: [{section}] {name}: {problem}", help=f"the program declares it {declared}")
        self.read[section, name] = value
        return value


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, Mapping):
        return {k: _frozen(v) for k, v in value.items()}
    return value


def bind(program: ProgramOp, functions: Mapping[str, FuncOp], binding: Binding, *, keep_keys: bool = True,
         equal_arms: bool = True) -> ProgramOp:
    """The program for one deployment: no collection, call or fact is left in it."""
    current = Evaluator(functions, binding.get, keep_keys=keep_keys, equal_arms=equal_arms)
    try:
        (points,) = current.run(program.block)
        names, values = _points(current, points)
    except SourceError as error:
        if error.span is None and current.location is not None:
            raise type(error)(error.message, span_of(current.location), error.help) from None
        raise
    operands = [current.value(v) for v in values]
    location = program.block.last_op.location if program.block.last_op is not None else program.location
    current.block.add_op(PointsOp.create(
        operands=operands, location=location,
        properties={"names": ArrayAttr([StringAttr(n) for n in names])}))
    block = Block(current.header)
    for op in list(current.block.ops):
        current.block.detach_op(op)
        block.add_op(op)
    return ProgramOp.create(properties=dict(program.properties), regions=[Region(block)], location=program.location)


def _points(ev: Evaluator, points: Any) -> tuple[list[str], list[Any]]:
    if isinstance(points, Unusable):
        ev.fail(points.message, points.help)
    if not isinstance(points, dict) or not points:
        ev.fail("a selection returns a dict of selection points" if points != {} else "the selection has no points",
                'return {"name": value, ...}')
    for name, value in points.items():
        if isinstance(value, Unusable):
            ev.fail(f"selection point {name!r}: {value.message}", value.help)
        if not isinstance(name, str) or not is_scalar(value):
            ev.fail(f"selection point {name!r} is {describe(value)}", "return scalars by name")
        if isinstance(value, float) and not math.isfinite(value):
            ev.fail(f"selection point {name!r} is {float(value)}", "return a finite number")
    return list(points), list(points.values())


@dataclass(frozen=True)
class PartialEval(ModulePass):
    """Bind a deployment's facts: inline calls, unroll reductions and fold whatever facts alone decide.

    ``deployment`` is the name of a deployment or the path of its TOML file.
    """

    name = "selir-partial-eval"
    deployment: str
    keep_keys: bool = True
    equal_arms: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        from detent.runtime.deployment import load
        from detent.runtime.errors import DetentError

        try:
            found = load(self.deployment)
        except DetentError as error:
            raise PassFailedException(str(error)) from None
        functions = {f.sym_name.data: f for f in op.body.block.ops if isinstance(f, FuncOp)}
        for program in [p for p in op.body.block.ops if isinstance(p, ProgramOp)]:
            if isinstance(program.block.last_op, ReturnOp):
                bound = bind(program, functions, Binding(found.facts, found.name), keep_keys=self.keep_keys,
                             equal_arms=self.equal_arms)
                op.body.block.insert_op_before(bound, program)
                op.body.block.erase_op(program)
        for function in functions.values():
            op.body.block.erase_op(function)

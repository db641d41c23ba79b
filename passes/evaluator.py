"""Runs an unbound program with known facts; what depends on the batch becomes the bound program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, Region, SSAValue

from detent.dialects.selir import structure, unbound
from detent.dialects.selir.scalar import SCALAR_OPS, ConstantOp, LookupOp, ScalarOp
from detent.dialects.selir.semantics import SEMANTICS
from detent.dialects.selir.types import type_name
from detent.passes import access, builtins
from detent.passes.emitter import Emitter, result_types
from detent.passes.static import (
    Closure,
    Facts,
    Filtered,
    Function,
    Record,
    Unusable,
    is_residual,
    is_scalar,
    same_known,
    scalar_type,
)
from detent.passes.uses import may_be_pinned, only_truth, through_copies

FactReader = Callable[[str, str, str], Any]
"""(section, field, declared type) -> value; raises for a fact the deployment does not have."""


class Evaluator(Emitter):
    """Interprets unbound operations over known and unknown values.

    ``read_fact`` supplies facts. With ``keep_keys`` a table read at an unknown key stays one lookup by
    that key, otherwise it becomes a chain of selects; ``equal_arms`` keeps a known value that both arms
    of a branch agree on (both are switched off only to measure what they are worth).
    """

    def __init__(self, functions: Mapping[str, unbound.FuncOp], read_fact: FactReader, *, keep_keys: bool = True,
                 equal_arms: bool = True) -> None:
        super().__init__()
        self.functions, self.read_fact = functions, read_fact
        self.keep_keys, self.equal_arms = keep_keys, equal_arms
        self.values: dict[SSAValue, Any] = {}
        self.branches: list[Any] = []
        self.in_condition = False
        self.knobs: dict[str, structure.KnobOp] = {}
        self._handlers: dict[type[Operation], Callable[[Any], Any]] = {
            ConstantOp: self._constant,
            structure.InputOp: self._input,
            structure.IfOp: self._if,
            structure.AssumeOp: self._condition,
            structure.RequireOp: self._condition,
            unbound.FactsOp: self._facts,
            unbound.RecordOp: self._record,
            unbound.FieldOp: lambda op: access.field(self, self.get(op.value), op.field_name.data),
            unbound.ItemOp: lambda op: access.item(self, self.get(op.value), self.get(op.key)),
            unbound.TupleOp: lambda op: tuple(self.all(op.values)),
            unbound.DictOp: self._dict,
            unbound.CallOp: lambda op: self.call(op.callee.data, self.all(op.args)),
            unbound.BuiltinOp: self._builtin,
            unbound.LambdaOp: lambda op: Closure(op, self.values),
            unbound.FuncRefOp: lambda op: Function(op.callee.data),
            unbound.ComprehensionOp: self._comprehension,
            unbound.UndefOp: lambda op: Unusable(f"'{op.variable.data}' may have no value here",
                                                 "assign it on every path"),
        }
        for kind, scalar_op in SCALAR_OPS.items():
            self._handlers[scalar_op] = self._scalar(kind)

    # -- values ---------------------------------------------------------------------------------------

    def get(self, value: SSAValue) -> Any:
        """What an unbound value stands for; using an unusable variable is an error."""
        found = self.values[value]
        if isinstance(found, Unusable):
            self.fail(found.message, found.help)
        return found

    def all(self, values: Any) -> list[Any]:
        """What several unbound values stand for."""
        return [self.get(v) for v in values]

    # -- regions --------------------------------------------------------------------------------------

    def run(self, block: Block) -> list[Any]:
        """Evaluate a block; the values of its terminator (none for a block without one)."""
        for op in block.ops:
            self.location = op.location
            if isinstance(op, (structure.YieldOp, unbound.ReturnOp)):
                # A variable without a value may leave a branch as long as nobody uses it.
                return [self.values[v] for v in op.operands]
            self._step(op)
        return []

    def _step(self, op: Operation) -> None:
        """Evaluate one operation and bind its results."""
        if isinstance(op, unbound.UnpackOp):
            produced: Any = access.unpack(self, self.get(op.value), len(op.res))
        else:
            handler = self._handlers.get(type(op))
            if handler is None:
                self.fail(f"'{op.name}' has no meaning while facts are bound")
            produced = handler(op)
            if len(op.results) == 1:
                produced = (produced,)
        for result, value in zip(op.results, produced or (), strict=True):
            self._bind(result, value)

    def _bind(self, result: SSAValue, value: Any) -> None:
        hint = result.name_hint
        if (hint and not self.in_condition and not isinstance(result.owner, structure.InputOp) and is_residual(value)
                and may_be_pinned(value)):
            # The variable is a value of the selection, which may be pinned; the input is the true one in conditions.
            value = self.residual("copy", (value,), type_name(value.type))
        self.values[result] = value
        # A variable's name becomes the name of the value: pins are called after variables.
        if hint and is_residual(value) and type(value.owner) not in (structure.InputOp, structure.KnobOp):
            value.name_hint = hint

    def call(self, name: str, arguments: list[Any]) -> Any:
        """A helper function, inlined."""
        function = self.functions.get(name)
        if function is None:
            self.fail(f"unknown function '{name}'")
        if len(arguments) != len(function.params):
            self.fail(f"'{name}' takes {len(function.params)} arguments, not {len(arguments)}")
        return self.apply(function.body, arguments)

    def apply(self, body: Region, arguments: list[Any], captured: Mapping[SSAValue, Any] | None = None) -> Any:
        """A function body or lambda on arguments."""
        outer, location = self.values, self.location
        self.values = dict(captured) if captured is not None else {}
        for parameter, argument in zip(body.block.args, arguments, strict=True):
            self.values[parameter] = argument
        result = self.run(body.block)[0]
        self.values, self.location = outer, location
        return result

    def apply_value(self, function: Any, *arguments: Any) -> Any:
        """A lambda or a helper function passed as ``key=``."""
        if isinstance(function, Closure):
            if len(function.op.body.block.args) != len(arguments):
                self.fail(f"the function takes {len(function.op.body.block.args)} arguments, not {len(arguments)}")
            return self.apply(function.op.body, list(arguments), function.values)
        if isinstance(function, Function):
            return self.call(function.name, list(arguments))
        self.fail("not a function", "pass a lambda or a helper function")

    # -- operations -----------------------------------------------------------------------------------

    def _scalar(self, kind: str) -> Callable[[Any], Any]:
        def handle(op: Operation) -> Any:
            return self.scalar(kind, *[self.get(v) for v in op.operands])

        return handle

    def _constant(self, op: ConstantOp) -> Any:
        return op.value.data

    def _input(self, op: structure.InputOp) -> SSAValue:
        copy = op.clone()
        copy.res.name_hint = op.input_name.data
        self.header.append(copy)
        return copy.res

    def inputs(self) -> list[structure.InputOp]:
        """The inputs met so far; a selection's inputs come before its statements."""
        return [op for op in self.header if isinstance(op, structure.InputOp)]

    def _facts(self, op: unbound.FactsOp) -> Facts:
        section, fields = op.section.data, op.fields.data

        def read(name: str) -> Any:
            if name not in fields:
                self.fail(f"the record of section [{section}] has no field '{name}'", f"fields: {', '.join(fields)}")
            return self.read_fact(section, name, fields[name])

        return Facts(section, read)

    def _record(self, op: unbound.RecordOp) -> Record:
        return Record(dict(zip((name.data for name in op.fields), self.all(op.values), strict=True)))

    def _dict(self, op: unbound.DictOp) -> dict[Any, Any]:
        items = self.all(op.items)
        return builtins.make_dict(self, list(zip(items[::2], items[1::2], strict=True)))

    def _builtin(self, op: unbound.BuiltinOp) -> Any:
        values = self.all(op.args)
        split = len(values) - len(op.keywords)
        keywords = dict(zip((k.data for k in op.keywords), values[split:], strict=True))
        return builtins.call(self, op.function.data, values[:split], keywords)

    def _if(self, op: structure.IfOp) -> Any:
        condition = self.truth(self.get(op.cond))
        if not is_residual(condition):
            results = self.run((op.then if condition else op.orelse).block)
            return results[0] if len(results) == 1 else results
        logical = op.attributes.get("logical")
        if isinstance(logical, StringAttr):
            return self._short_circuit(logical.data, condition, op)
        location = self.location
        arms = [self._arm(region, condition, taken) for region, taken in ((op.then, True), (op.orelse, False))]
        self.location = location
        return self._join(op, condition, *arms)

    def _short_circuit(self, logical: str, first: SSAValue, op: structure.IfOp) -> Any:
        location = self.location
        self.guards.append(first if logical == "and" else self.negate(first))
        second = self.run((op.then if logical == "and" else op.orelse).block)[0]
        self.guards.pop()
        self.location = location
        original = self.get(op.cond)
        if only_truth(op.res[0]):
            second = self.truth(second)
        elif type_name(original.type) != "bool" or not is_scalar(second) or scalar_type(second) != "bool":
            # Python gives one of the two operands themselves.
            chosen, other = (second, original) if logical == "and" else (original, second)
            return self.merge(first, chosen, other)
        if isinstance(second, bool):
            return first if second is (logical == "and") else second
        return self.residual(logical, (first, second), "bool")

    def _arm(self, region: Region, condition: SSAValue, taken: bool) -> tuple[Block, list[Any]]:
        outer, guards = self.block, self.guards
        self.block, self.guards = Block(), []
        self.branches.append((condition, taken))
        results = self.run(region.block)
        self.branches.pop()
        arm, self.block, self.guards = self.block, outer, guards
        return arm, results

    def _join(self, op: structure.IfOp, condition: SSAValue, then: tuple[Block, list[Any]],
              orelse: tuple[Block, list[Any]]) -> Any:
        leaves: list[tuple[Any, Any]] = []
        shapes = [self._shape(a, b, leaves) for a, b in zip(then[1], orelse[1], strict=True)]
        yields = []
        for (block, _), index in ((then, 0), (orelse, 1)):
            values = [self.value(pair[index]) for pair in leaves]
            block.add_op(structure.YieldOp.create(operands=values, location=self.location))
            yields.append(values)
        branch = structure.IfOp.create(
            operands=[condition], result_types=result_types(yields[0]), location=self.location,
            regions=[Region(then[0]), Region(orelse[0])])
        self.block.add_op(branch)
        results = [shape(branch.results) for shape in shapes]
        return results[0] if len(op.results) == 1 else results

    def _shape(self, a: Any, b: Any, leaves: list[tuple[Any, Any]]) -> Callable[[Any], Any]:
        """Collect the scalars that differ between two arms' values; how to put the merged value together."""
        if isinstance(a, Unusable) or isinstance(b, Unusable):
            unusable = a if isinstance(a, Unusable) else b
            return lambda results: unusable
        a, b = access.as_dict_if_row(self, a, b), access.as_dict_if_row(self, b, a)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            parts = [self._shape(x, y, leaves) for x, y in zip(a, b, strict=True)]
            return lambda results: tuple(part(results) for part in parts)
        if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
            items = {k: self._shape(a[k], b[k], leaves) for k in a}
            return lambda results: {k: part(results) for k, part in items.items()}
        if is_scalar(a) and is_scalar(b):
            if not is_residual(a) and self.equal_arms and same_known(a, b):
                return lambda results: a
            if builtins.common_type(a, b) is None:
                return lambda results: Unusable(*builtins.mixed(a, b))
            position = len(leaves)
            leaves.append((a, b))
            return lambda results: results[position]
        if same_known(a, b) or a == b:
            return lambda results: a
        return lambda results: Unusable(*builtins.mixed(a, b))

    def _condition(self, op: structure.ConditionOp) -> None:
        if isinstance(op, structure.AssumeOp) and self.branches:
            self.fail("an assume under a batch-dependent branch", "move it above the branch, or use require")
        outer, guards, location = self.block, self.guards, self.location
        self.block, self.guards, self.in_condition = Block(), [], True
        value = self.truth(self.run(op.body.block)[0])
        self.location = location
        block, self.block, self.guards, self.in_condition = self.block, outer, guards, False
        if isinstance(op, structure.AssumeOp):
            value = through_copies(block, value)
        if value is True and not any(_can_fail(op) for op in block.walk()):
            return
        if value is False and not self.branches:
            kind = "assume" if isinstance(op, structure.AssumeOp) else "require"
            self.fail(f"this {kind} does not hold for the deployment's facts: {op.message.data}",
                      "the program does not support this deployment")
        assert op.body.block.last_op is not None
        block.add_op(structure.YieldOp.create(operands=[self.value(value)], location=op.body.block.last_op.location))
        self.block.add_op(type(op).create(properties=op.properties, regions=[Region(block)], location=location))

    # -- comprehensions -------------------------------------------------------------------------------

    def _comprehension(self, op: unbound.ComprehensionOp) -> Any:
        found: list[tuple[Any, Any]] = []
        self._clause(op.body.block, True, found)
        if op.form.data == "dict":
            if any(guard is not True for guard, _ in found):
                self.fail("a dict whose keys depend on the batch", "filter on facts only")
            return builtins.make_dict(self, [pair for _, pair in found])
        if all(guard is True for guard, _ in found):
            return tuple(value for _, value in found)
        return Filtered(tuple(found))

    def _clause(self, block: Block, guard: Any, found: list[tuple[Any, Any]]) -> None:
        depth = len(self.guards)
        for op in block.ops:
            self.location = op.location
            if isinstance(op, unbound.ForEachOp):
                for element in builtins.elements(self, self.get(op.collection)):
                    self.values[op.body.block.args[0]] = element
                    self._clause(op.body.block, guard, found)
            elif isinstance(op, unbound.FilterOp):
                condition = self.truth(self.get(op.cond))
                if condition is False:
                    break
                if condition is not True:
                    self.guards.append(condition)
                    guard = condition if guard is True else self.residual("and", (guard, condition), "bool")
            elif isinstance(op, unbound.EmitOp):
                values = self.all(op.values)
                found.append((guard, values[0] if len(values) == 1 else tuple(values)))
            else:
                self._step(op)
        del self.guards[depth:]


def _can_fail(op: Operation) -> bool:
    return isinstance(op, LookupOp) or (isinstance(op, ScalarOp) and SEMANTICS[op.kind].fails is not None)

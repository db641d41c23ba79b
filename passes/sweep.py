"""The forward sweep behind ``selir-simplify``, ``selir-constant-fold`` and ``selir-cse``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from detent.dialects.selir.scalar import SCALAR_KINDS, SCALAR_OPS, ConstantOp, LookupOp, ScalarOp
from detent.dialects.selir.semantics import SEMANTICS, evaluate, look_up
from detent.dialects.selir.structure import (
    AssumeOp,
    ConditionOp,
    IfOp,
    InputOp,
    KnobOp,
    PinOp,
    PointsOp,
    ProgramOp,
    RequireOp,
)
from detent.dialects.selir.types import TYPES, ValueAttr, constant_key, type_name
from detent.passes import rules
from detent.passes.boxes import apply, size
from detent.passes.correlate import MAX_ROOT, Correlation, Table
from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.domains import BOOLS, Abstract, Interval, hull, may_fail
from detent.passes.errors import NotStraightLine
from detent.passes.flatten import Flattened
from detent.passes.independent import Independent
from detent.passes.input_domains import input_domains
from detent.passes.narrow import narrow
from detent.passes.rules import Options

Domain = range | tuple[Any, ...]

_COMPUTED = frozenset((*SCALAR_KINDS, LookupOp))


def program_domains(program: ProgramOp) -> dict[str, Domain]:
    """Input domains by input name, read off the assumes; raises AnalysisError where they give none."""
    check_bound(program)
    graph = Flattened(program, assumes_only=True).graph
    return {graph.data[node].name: domain for node, domain in input_domains(graph).items()}


class Simplifier:
    """One forward sweep: every operation is folded, rewritten, merged with an equal one, or kept.

    ``domains`` gives input domains by name; inputs without one are unknown. Assumes are simplified
    without them, since they are what the domains come from. A condition's own values are merged among
    themselves only.
    """

    def __init__(self, program: ProgramOp, options: Options, domains: dict[str, Domain]) -> None:
        self.program, self.options, self.domains = program, options, domains
        self.correlation = Correlation() if options.value_sets else None
        self._abstract: dict[SSAValue, Abstract] = {}
        self._constants: dict[Any, SSAValue] = {}
        self._known: dict[SSAValue, tuple[Any]] = {}
        self._seen: dict[Any, SSAValue] = {}
        self._cursor: Operation | None = None
        self._own: set[SSAValue] | None = None
        self._blind = False
        self._independent = Independent(self._abstract)
        self._copies: dict[SSAValue, SSAValue] = {}

    def run(self) -> None:
        """Simplify the program in place."""
        self._block(self.program.block)

    def _block(self, block: Block) -> None:
        for op in list(block.ops):
            self._cursor = op
            kind = SCALAR_KINDS.get(type(op))
            if kind is not None:
                assert isinstance(op, ScalarOp)
                self._visit(op, kind)
            elif isinstance(op, ConstantOp):
                self._register_constant(op)
            elif isinstance(op, LookupOp):
                self._visit_lookup(op)
            elif isinstance(op, InputOp):
                self._visit_input(op)
            elif isinstance(op, KnobOp):
                self._abstract[op.res] = self._limit(frozenset(op.choices.data))
            elif isinstance(op, PinOp):
                self._abstract[op.res] = self._abstract.get(op.value)
            elif isinstance(op, ConditionOp):
                self._condition(op)
            elif isinstance(op, IfOp):
                raise NotStraightLine("the program still has branches", None, "run selir-control-dependence first")

    def _condition(self, op: ConditionOp) -> None:
        """Simplify what a condition computes itself.

        Values it names stay opaque: after the cut each may be pinned by itself, so how they were computed,
        and that two of them move together, says nothing about them any more.
        """
        outer = self._seen, self._own, self._blind, self.correlation
        self._seen, self._own, self._blind = {}, set(), isinstance(op, AssumeOp)
        self.correlation = Correlation() if self.options.value_sets and not self._blind else None
        named = {value: self._abstract[value] for inner in op.body.walk() for value in inner.operands
                 if type(value.owner) in _COMPUTED and value in self._abstract}
        for value in named:
            self._abstract[value] = BOOLS if type_name(value.type) == "bool" else None
        self._block(op.body.block)
        self._abstract.update(named)
        self._seen, self._own, self._blind, self.correlation = outer

    def _visit_input(self, op: InputOp) -> None:
        values = self._limit(self._input(op))
        self._abstract[op.res] = values
        if isinstance(values, frozenset) and _one_value(values, type_name(op.res.type)):
            # The assumes leave it one value: a constant everywhere but in the assumes that say so.
            constant = self.constant(next(iter(values)), type_name(op.res.type))
            for use in list(op.res.uses):
                if not _within(use.operation, AssumeOp):
                    use.operation.operands[use.index] = constant

    def _input(self, op: InputOp) -> Abstract:
        domain = self.domains.get(op.input_name.data)
        if not domain:
            return BOOLS if type_name(op.res.type) == "bool" else None
        if isinstance(domain, range) and size(domain) > MAX_ROOT:
            return Interval(min(domain[0], domain[-1]), max(domain[0], domain[-1]))
        return frozenset(domain)

    def _register_constant(self, op: ConstantOp) -> None:
        kind = type_name(op.res.type)
        key = (kind, constant_key(op.value.data))
        old = self._constants.setdefault(key, op.res)
        self._known[op.res] = (op.value.data,)
        self._abstract[op.res] = frozenset((op.value.data,))
        if old is not op.res:
            op.res.replace_all_uses_with(old)
            self._erase(op)

    @property
    def sets(self) -> Mapping[SSAValue, Abstract]:
        """What each value was found to be able to take."""
        return self._abstract

    # -- what rules may ask ---------------------------------------------------------------------------

    def known(self, value: SSAValue) -> tuple[Any] | None:
        """The constant a value is, in a 1-tuple; None if it is not one."""
        return self._known.get(value)

    def abstract(self, value: SSAValue) -> Abstract:
        """The values that a value can take."""
        if self._blind and value not in self._known:
            return None
        return self._abstract.get(value)

    def independent(self, value: SSAValue) -> Abstract:
        """The values that a value can take when what it is computed from is pinned."""
        return None if self._blind and value not in self._known else self._independent(value)

    def definition(self, value: SSAValue) -> tuple[str, tuple[SSAValue, ...]]:
        """The operation kind that defines a value, with its operands; ``("", ())`` if it is not scalar."""
        owner = value.owner
        kind = SCALAR_KINDS.get(type(owner))
        if kind is None or (self._own is not None and value not in self._own):
            return "", ()
        assert isinstance(owner, ScalarOp)
        return kind, owner.scalars

    def constant(self, value: Any, type: str) -> SSAValue:
        """A constant at the program's top, shared by the whole program."""
        key = (type, constant_key(value))
        found = self._constants.get(key)
        if found is None:
            op = ConstantOp.create(result_types=[TYPES[type]], properties={"value": ValueAttr(value)},
                                   location=self._cursor.location if self._cursor else None)
            first = self.program.block.first_op
            assert first is not None
            self.program.block.insert_op_before(op, first)
            found = self._constants[key] = op.res
            self._known[found] = (value,)
            self._abstract[found] = frozenset((value,))
        return found

    def build(self, kind: str, operands: Sequence[SSAValue], type: str) -> SSAValue:
        """A simplified operation: an existing value where there is one, else a new one before the cursor."""
        found, abstract, table = self._reduce(kind, operands, type, None)
        if found is not None:
            return found
        assert self._cursor is not None
        op = SCALAR_OPS[kind].create(operands=operands, result_types=[TYPES[type]], location=self._cursor.location)
        block = self._cursor.parent
        assert block is not None
        block.insert_op_before(op, self._cursor)
        self._keep(op.results[0], self._key(kind, operands, None), abstract, table)
        return op.results[0]

    # -- one operation --------------------------------------------------------------------------------

    def _visit(self, op: ScalarOp, kind: str) -> None:
        result, operands, guard = op.results[0], op.scalars, op.guard_value
        type = type_name(result.type)
        if guard is not None and (
                self.known(guard) == (True,) or not may_fail(kind, [self.abstract(v) for v in operands])):
            op.operands = operands
            guard = None
        found, abstract, table = self._reduce(kind, operands, type, guard)
        if found is None:
            self._keep(result, self._key(kind, operands, guard), abstract, table)
        else:
            self._replace(op, found)

    def _visit_lookup(self, op: LookupOp) -> None:
        result, key, guard, pairs = op.res, op.key, op.guard, op.table.data
        type, reachable, known = type_name(result.type), self.abstract(key), self.known(key)
        safe = isinstance(reachable, frozenset) and reachable <= {k for k, _ in pairs}
        if guard is not None and (self.known(guard) == (True,) or safe):
            op.operands = [key]
            guard = None
        kind = ("lookup", op.table)
        safe = safe or self._never(guard)  # what could fail stays, so that it can be refused
        if known is not None and safe:
            self._replace(op, self.constant(look_up(pairs, known[0]), type))
            return
        rows = [v for k, v in pairs if not isinstance(reachable, frozenset) or k in reachable] or [pairs[0][1]]
        if safe and len({constant_key(v) for v in rows}) == 1 and (self.options.value_sets or len(rows) == len(pairs)):
            self._replace(op, self.constant(rows[0], type))
            return
        found = self._seen.get(self._key(kind, (key,), guard)) if self.options.cse else None
        if found is not None:
            self._replace(op, found)
            return
        table = self.correlation.tabulate(kind, (key,), type, self._abstract) if self.correlation else None
        self._keep(result, self._key(kind, (key,), guard), frozenset(table[1] if table else rows), table)

    def _replace(self, op: Operation, found: SSAValue) -> None:
        result = op.results[0]
        if result.name_hint and type(found.owner) not in (InputOp, KnobOp, ConstantOp):
            found.name_hint = result.name_hint
        if self._own is None and _moves(found) and self._keep_copy(op, found):
            return
        result.replace_all_uses_with(found)
        self._erase(op)

    def _keep_copy(self, op: Operation, found: SSAValue) -> bool:
        """Leave points, pins and requires a copy of the input that a value equals; True if the operation is it.

        They ask for the selection's value, which may be pinned; the input itself is always the true one in a require,
        and may not be pinned at all if it sizes a buffer.
        """
        result = op.results[0]
        named = [use for use in result.uses
                 if isinstance(use.operation, (PointsOp, PinOp)) or _within(use.operation, RequireOp)]
        if not named:
            return False
        is_copy = SCALAR_KINDS.get(type(op)) == "copy" and found not in self._copies
        if is_copy:
            self._copies[found] = result
        elif found not in self._copies:
            copy = SCALAR_OPS["copy"].create(operands=[found], result_types=[found.type], location=op.location)
            block = op.parent
            assert block is not None
            block.insert_op_before(copy, op)
            copy.results[0].name_hint = result.name_hint
            self._copies[found] = copy.results[0]
        self._abstract[self._copies[found]] = self._abstract.get(found)
        for use in list(result.uses):
            use.operation.operands[use.index] = self._copies[found] if use in named else found
        return is_copy

    @staticmethod
    def _erase(op: Operation) -> None:
        assert op.parent is not None
        op.parent.erase_op(op)

    def _reduce(self, kind: str, operands: Sequence[SSAValue], type: str,
                guard: SSAValue | None) -> tuple[SSAValue | None, Abstract, Table | None]:
        """The value an operation equals, or None with what is known of its values.

        An operation that could fail is not folded, so that it can still be refused.
        """
        foldable = (SEMANTICS[kind].fails is None or self._never(guard)
                    or not may_fail(kind, [self.abstract(v) for v in operands]))
        constants = [self._known.get(v) for v in operands]
        if foldable and all(c is not None for c in constants):
            try:
                value = evaluate(kind, [c[0] for c in constants if c is not None], type)
            except OverflowError:
                return None, None, None  # left for the solver to refuse
            return self.constant(value, type), None, None
        found = rules.apply(self, kind, operands, type)
        if found is None and self.options.cse:
            found = self._seen.get(self._key(kind, operands, guard))
        if found is not None:
            return found, None, None
        abstract, table = self._transfer(kind, operands, type)
        if not foldable:
            return None, abstract, table
        if isinstance(abstract, frozenset):
            if _one_value(abstract, type):
                return self.constant(next(iter(abstract)), type), None, None
        elif abstract is not None and type == "int" and abstract.low == abstract.high:
            return self.constant(abstract.low, type), None, None
        return None, abstract, table

    def _never(self, guard: SSAValue | None) -> bool:
        """Whether a result is certainly not used."""
        return guard is not None and self.known(guard) == (False,)

    def _key(self, kind: Any, operands: Sequence[SSAValue], guard: SSAValue | None) -> Any:
        ids = [id(v) for v in operands]
        if isinstance(kind, str) and SEMANTICS[kind].commutes:
            ids.sort()
        return (kind, *ids, id(guard) if guard is not None else 0)

    def _keep(self, result: SSAValue, key: Any, abstract: Abstract, table: Table | None) -> None:
        self._seen[key] = result
        if self._own is not None:
            self._own.add(result)
        self._abstract[result] = self._limit(abstract)
        if self.correlation is not None and table is not None:
            self.correlation.keep(result, table)

    def _transfer(self, kind: str, operands: Sequence[SSAValue], type: str) -> tuple[Abstract, Table | None]:
        if self.correlation is not None:
            table = self.correlation.tabulate(kind, operands, type, self._abstract)
            if table is not None:
                return frozenset(table[1]), table
        values = [self.abstract(v) for v in operands]
        if kind == "select" and not self._blind and self.options.ranges:
            for arm, truth in ((1, True), (2, False)):
                values[arm] = narrow(self, operands[arm], values[arm], operands[0], truth)
        return self._limit(apply(kind, values, type)), None

    def _limit(self, value: Abstract) -> Abstract:
        """Forget what the options switch off."""
        if isinstance(value, frozenset) and len(value) > 1 and not self.options.value_sets:
            both = any(isinstance(v, bool) for v in value)  # {0, 1} equals {False, True}
            value = value if both else hull(value)
        if value is not None and not isinstance(value, frozenset) and not self.options.ranges:
            return None
        return value


def _one_value(values: frozenset[Any], type: str) -> bool:
    """Whether a set leaves one value to the bit: it does not tell 0.0 from -0.0, which are equal."""
    return len(values) == 1 and not (type in ("float", "f32") and 0.0 in values)


def _within(op: Operation, kind: type[ConditionOp]) -> bool:
    parent = op.parent_op()
    return parent is not None and (isinstance(parent, kind) or _within(parent, kind))


def _moves(value: SSAValue) -> bool:
    """Whether a value is an input that changes with the batch."""
    return isinstance(value.owner, InputOp) and value.owner.source.data.value in BATCH_DEPENDENT


def check_bound(program: ProgramOp) -> None:
    """Raise NotStraightLine for a program whose facts are not bound yet."""
    if not isinstance(program.block.last_op, PointsOp):
        raise NotStraightLine("the program's facts are not bound", None, "run selir-partial-eval first")


def value_sets(program: ProgramOp, options: Options) -> Mapping[SSAValue, Abstract]:
    """The values that every value of a simplified program can take.

    Raises AnalysisError where an input has no finite domain.
    """
    sweep = Simplifier(program, options, program_domains(program))
    sweep.run()
    return sweep.sets


def programs_of(module: ModuleOp) -> list[ProgramOp]:
    """All programs of a module."""
    return [op for op in module.body.block.ops if isinstance(op, ProgramOp)]

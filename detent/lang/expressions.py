"""Expressions: one function for each class of syntax tree."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Region, SSAValue

from detent.dialects.selir.unbound import (
    ComprehensionOp,
    DictOp,
    EmitOp,
    FieldOp,
    FilterOp,
    ForEachOp,
    ItemOp,
    LambdaOp,
    TupleOp,
    UnpackOp,
)
from detent.lang.calls import ITERATORS, VIEWS, Calls
from detent.lang.emit import ANY, hint, string

SCALARS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.USub: "neg",
    ast.Not: "not",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
"""Operators that are rows of the semantics table."""

KEPT_NOT = ITERATORS | VIEWS

BUILTIN_OPERATORS: dict[type[ast.AST], str] = {
    ast.Pow: "pow",
    ast.BitOr: "union",
    ast.In: "contains",
    ast.NotIn: "contains",
    ast.Is: "is_none",
    ast.IsNot: "is_none",
}
"""Operators that are functions of ``selir.builtin``."""


class Expressions(Calls):
    """Lowers expressions."""

    def value(self, node: ast.expr) -> SSAValue:
        if isinstance(node, ast.GeneratorExp):
            self.refuse("generator", node)
        if isinstance(node, ast.Call) and self.call_name(node) in KEPT_NOT:
            self.refuse("iterator", node)
        return self._any_value(node)

    def sized(self, node: ast.expr) -> SSAValue:
        return self._any_value(node) if self.call_name(node) in VIEWS else self.value(node)

    def iterable(self, node: ast.expr) -> SSAValue:
        return self._any_value(node)

    def _any_value(self, node: ast.expr) -> SSAValue:
        lower = EXPRESSIONS.get(type(node))
        if lower is None:
            self.refuse_node(node, node)
        return lower(self, node)

    # ---- names, literals, displays -----------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> SSAValue:
        value = node.value
        if value is ...:
            self.refuse("ellipsis", node)
        if isinstance(value, bytes | complex):
            self.refuse(type(value).__name__, node)
        return self.constant(value, node)

    def _sequence(self, node: ast.Tuple | ast.List) -> SSAValue:
        return self.emit(TupleOp, node, [self.value(part) for part in node.elts]).results[0]

    def _dict(self, node: ast.Dict) -> SSAValue:
        items: list[SSAValue] = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.refuse("dict unpacking", value)
            items += self.value(key), self.value(value)
        return self.emit(DictOp, node, items).results[0]

    def _f_string(self, node: ast.JoinedStr) -> SSAValue:
        # Before 3.12 Python misplaces what stands inside an f-string, so all of it is placed at the whole.
        with self.placed_at(node if sys.version_info < (3, 12) else None):
            return self.builtin("format", node, *(self.value(part) for part in node.values))

    def _formatted(self, node: ast.FormattedValue) -> SSAValue:
        if node.conversion != -1:
            self.refuse("conversion", node)
        if node.format_spec is not None:
            self.refuse("format spec", node)
        return self.value(node.value)

    # ---- operators ---------------------------------------------------------------------------------------------

    def operator(self, op: ast.operator, node: ast.expr | ast.stmt, left: SSAValue, right: SSAValue) -> SSAValue:
        """A binary operator on two values."""
        if type(op) in SCALARS:
            return self.scalar(SCALARS[type(op)], node, left, right)
        if type(op) in BUILTIN_OPERATORS:
            return self.builtin(BUILTIN_OPERATORS[type(op)], node, left, right)
        self.refuse_node(op, node)

    def _binary(self, node: ast.BinOp) -> SSAValue:
        if type(node.op) not in SCALARS and type(node.op) not in BUILTIN_OPERATORS:
            self.refuse_node(node.op, node)
        return self.operator(node.op, node, self.value(node.left), self.value(node.right))

    def _unary(self, node: ast.UnaryOp) -> SSAValue:
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                if not isinstance(value, bool):
                    return self.constant(-value, node)
        if type(node.op) not in SCALARS:
            self.refuse_node(node.op, node)
        return self.scalar(SCALARS[type(node.op)], node, self.value(node.operand))

    def _logical(self, node: ast.BoolOp) -> SSAValue:
        return self._short_circuit(isinstance(node.op, ast.And), node, node.values)

    def _short_circuit(self, is_and: bool, node: ast.BoolOp, values: Sequence[ast.expr]) -> SSAValue:
        first = self.value(values[0])
        if len(values) == 1:
            return first
        with self.region() as rest:
            self.ends(values[-1], self._short_circuit(is_and, node, values[1:]))
        return self._logical_if(is_and, node, first, rest)

    def _logical_if(self, is_and: bool, node: ast.expr, first: SSAValue, rest: Region) -> SSAValue:
        """``first and rest``: the rest is computed only if it decides."""
        with self.region() as decided:
            self.ends(node, first)
        if is_and:
            return self.choose(first, node, rest, decided, "and").results[0]
        return self.choose(first, node, decided, rest, "or").results[0]

    def _compare(self, node: ast.Compare) -> SSAValue:
        for op, left, right in zip(node.ops, (node.left, *node.comparators), node.comparators, strict=False):
            if isinstance(op, ast.Is | ast.IsNot) and not _is_none(right):
                self.refuse("identity", node)
            if isinstance(op, ast.Eq | ast.NotEq) and (_is_none(left) or _is_none(right)):
                self.refuse("equality with None", node)
        return self._chain(node, self.value(node.left), 0)

    def _chain(self, node: ast.Compare, left: SSAValue, index: int) -> SSAValue:
        """The comparisons from ``index`` on; each operand is computed once, and only if it is reached."""
        op, operand, last = node.ops[index], node.comparators[index], index + 1 == len(node.ops)
        if isinstance(op, ast.Is | ast.IsNot) and last:
            right = left  # None itself is not used
        else:
            right = self.sized(operand) if isinstance(op, ast.In | ast.NotIn) else self.value(operand)
        if type(op) in SCALARS:
            result = self.scalar(SCALARS[type(op)], node, left, right)
        elif type(op) in BUILTIN_OPERATORS:
            operands = (left,) if isinstance(op, ast.Is | ast.IsNot) else (right, left)
            result = self.builtin(BUILTIN_OPERATORS[type(op)], node, *operands)
        else:
            self.refuse_node(op, node)
        if isinstance(op, ast.IsNot | ast.NotIn):
            result = self.scalar("not", node, result)
        if last:
            return result
        with self.region() as rest:
            self.ends(operand, self._chain(node, right, index + 1))
        return self._logical_if(True, node, result, rest)

    def _conditional(self, node: ast.IfExp) -> SSAValue:
        cond = self.value(node.test)
        regions: list[Region] = []
        for part in (node.body, node.orelse):
            with self.region() as region:
                self.ends(part, self.value(part))
            regions.append(region)
        return self.choose(cond, node, regions[0], regions[1]).results[0]

    # ---- parts of values ---------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute) -> SSAValue:
        found = self.reference(node)
        if found is not None:
            return self.outer(node, found)
        return self.emit(FieldOp, node, (self.value(node.value),), {"name": string(node.attr)}).results[0]

    def _item(self, node: ast.Subscript) -> SSAValue:
        return self.emit(ItemOp, node, (self.value(node.value), self.value(node.slice))).results[0]

    # ---- lambdas and comprehensions ----------------------------------------------------------------------------

    def _bare_lambda(self, node: ast.Lambda) -> SSAValue:
        self.refuse("lambda", node)

    def function_value(self, node: ast.Lambda) -> SSAValue:
        args = node.args
        if args.defaults or args.kwonlyargs or args.vararg or args.kwarg:
            self.refuse("lambda parameters", node)
        params = [*args.posonlyargs, *args.args]
        env, inside = self.env, self.inside
        with self.region(*params) as body:
            names = [param.arg for param in params]
            self.env, self.inside = {**env, **dict(zip(names, self.block.args, strict=True))}, "a lambda"
            self.ends(node.body, self.value(node.body))
        self.env, self.inside = env, inside
        return self.emit(LambdaOp, node, regions=(body,)).results[0]

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> SSAValue:
        env, inside, local = self.env, self.inside, self.locals
        first = self.iterable(node.generators[0].iter)
        targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        self.env = {name: value for name, value in env.items() if name not in targets}
        self.inside, self.locals = "a comprehension", local | targets
        with self.region() as body:
            self._clauses(node, node.generators, first)
        self.env, self.inside, self.locals = env, inside, local
        form = {"form": string(FORMS[type(node)])}
        return self.emit(ComprehensionOp, node, (), form, regions=(body,)).results[0]

    def _clauses(self, node: Any, clauses: Sequence[ast.comprehension], first: SSAValue | None = None) -> None:
        """The ``for`` and ``if`` clauses from the first on, each inside the one before, then the element."""
        if not clauses:
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            self.emit(EmitOp, node.value if isinstance(node, ast.DictComp) else node.elt,
                      [self.value(part) for part in parts], results=())
            return
        clause = clauses[0]
        collection = self.iterable(clause.iter) if first is None else first
        with self.region(clause.target) as body:
            self.bind(clause.target, self.block.args[0])
            for test in clause.ifs:
                self.emit(FilterOp, test, (self.value(test),), results=())
            self._clauses(node, clauses[1:])
        self.emit(ForEachOp, clause.iter, (collection,), results=(), regions=(body,))

    def bind(self, target: ast.expr, value: SSAValue) -> None:
        """Assign a value to a name, or its elements to a tuple of targets."""
        match target:
            case ast.Name(id=name):
                self.env[name] = value
                hint(value, name)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    if isinstance(part, ast.Starred):
                        self.refuse("starred target", part)
                results = self.emit(UnpackOp, target, (value,), results=[ANY] * len(parts)).results
                for part, element in zip(parts, results, strict=True):
                    self.bind(part, element)
            case ast.Attribute():
                self.refuse("attribute target", target)
            case ast.Starred():
                self.refuse("starred target", target)
            case _:
                self.refuse("item target", target)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


FORMS = {ast.ListComp: "list", ast.GeneratorExp: "generator", ast.DictComp: "dict"}

EXPRESSIONS: dict[type[ast.expr], Callable[[Expressions, Any], SSAValue]] = {
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary,
    ast.BoolOp: Expressions._logical,
    ast.Call: Expressions.call_value,
    ast.Compare: Expressions._compare,
    ast.Constant: Expressions._constant,
    ast.Dict: Expressions._dict,
    ast.DictComp: Expressions._comprehension,
    ast.FormattedValue: Expressions._formatted,
    ast.GeneratorExp: Expressions._comprehension,
    ast.IfExp: Expressions._conditional,
    ast.JoinedStr: Expressions._f_string,
    ast.Lambda: Expressions._bare_lambda,
    ast.List: Expressions._sequence,
    ast.ListComp: Expressions._comprehension,
    ast.Name: Expressions.variable,
    ast.Subscript: Expressions._item,
    ast.Tuple: Expressions._sequence,
    ast.UnaryOp: Expressions._unary,
}
"""Every class of expression that the language has; what is not here is refused."""

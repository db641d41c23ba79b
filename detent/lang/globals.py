"""What a program may use from outside its own text: functions, and literal constants of a module.

A constant is captured by value, so it has to be one for as long as the module lives: assigned once, at the top
level of its module, from a literal expression, and still holding that value. Anything else is an error that names
the variable.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from detent.dialects.selir.source import Span
from detent.dialects.selir.types import constant_key
from detent.lang.errors import CapturedGlobal, SourceUnavailable
from detent.lang.text import Function, SourceFile, statements

REMEDY = "write the literal where it is used, assign it once at the top of its module, or make it a deployment fact"

SIBLINGS: dict[str, dict[str, ModuleType]] = {}
"""Modules beside a program that was loaded from a path, by that program's file: they are not in ``sys.modules``."""

LIBRARY = "detent.lang."

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def loaded(names: dict[str, Any], module: str) -> ModuleType | None:
    """A module by its name as the module with these names imports it, None if it is not loaded."""
    return SIBLINGS.get(str(names.get("__file__")), {}).get(module) or sys.modules.get(module)


class NotLiteral(Exception):
    """An expression that is not a literal one; ``args[0]`` says which part."""


def frozen(value: Any) -> Any:
    """A constant with lists as tuples; raises NotLiteral for anything that is not a constant."""
    if isinstance(value, tuple | list):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return {frozen(key): frozen(item) for key, item in value.items()}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise NotLiteral(f"it is a {type(value).__name__}")


class Module:
    """A module whose constants a program captures, as its text and as it runs."""

    def __init__(self, source: SourceFile, names: dict[str, Any]) -> None:
        self.source, self.names = source, names
        self.shown: str = names.get("__detent_name__", names.get("__name__", ""))
        self._bindings: dict[str, list[ast.stmt | None]] | None = None

    @property
    def bindings(self) -> dict[str, list[ast.stmt | None]]:
        """The top-level statements that bind each name; None for a binding anywhere else in the module."""
        if self._bindings is None:
            self._bindings = {}
            walrus = ":=" in self.source.text
            for stmt in self.source.tree.body:
                for name, top in _bound(stmt, walrus):
                    self._bindings.setdefault(name, []).append(stmt if top else None)
        return self._bindings


class Modules:
    """The modules reached from one program, and the constants captured from them."""

    def __init__(self) -> None:
        self.sources: dict[str, SourceFile] = {}
        self.modules: dict[int, Module] = {}
        self.captured: dict[tuple[str, str], Any] = {}

    def source(self, path: str) -> SourceFile:
        """The file of a path, read once."""
        key = os.path.realpath(path) if os.path.exists(path) else path
        if key not in self.sources:
            self.sources[key] = SourceFile(key)
        return self.sources[key]

    def module(self, names: dict[str, Any]) -> Module:
        """The module of a function's ``__globals__``."""
        if id(names) not in self.modules:
            try:
                source = self.source(str(names.get("__file__") or ""))
            except SourceUnavailable:
                raise NotLiteral("its module has no Python text") from None
            self.modules[id(names)] = Module(source, names)
        return self.modules[id(names)]

    def constant(self, names: dict[str, Any], name: str, at: Span) -> Any:
        """The value of a module's literal constant; raises CapturedGlobal that points at ``at``."""
        try:
            return self._constant(names, name, ())
        except NotLiteral as error:
            raise CapturedGlobal(f"'{name}' is not a literal constant: {error.args[0]}", at, REMEDY) from None

    def literal(self, names: dict[str, Any], node: ast.expr) -> Any:
        """The value of a literal expression in a module; raises NotLiteral."""
        return self._evaluate(names, node, ())

    def _constant(self, names: dict[str, Any], name: str, visiting: tuple[str, ...]) -> Any:
        """The value of a constant, found where it is assigned, behind any imports."""
        if name not in names or name in visiting:
            raise NotLiteral("it has no value" if name not in names else "it is defined by itself")
        module = self.module(names)
        bindings = module.bindings.get(name, [])
        if len(bindings) != 1 or bindings[0] is None:
            raise NotLiteral("it is not assigned exactly once at the top level of its module")
        stmt = bindings[0]
        if isinstance(stmt, ast.ImportFrom):
            origin = next(alias.name for alias in stmt.names if (alias.asname or alias.name) == name)
            return self._constant(vars(self._imported(names, stmt)), origin, ())
        expression = _assigned(stmt, name)
        if expression is None:
            raise NotLiteral("it is not assigned by a plain assignment")
        value, path = self._evaluate(names, expression[0], (*visiting, name)), expression[1]
        for index in path:
            if not isinstance(value, tuple) or index >= len(value):
                raise NotLiteral("it is not assigned from a tuple")
            value = value[index]
        running = frozen(names[name])
        if constant_key(running) != constant_key(value):
            raise NotLiteral(f"it holds {running!r} now, not {value!r} as assigned")
        self.captured[module.shown, name] = value
        return value

    def _imported(self, names: dict[str, Any], stmt: ast.ImportFrom) -> ModuleType:
        package = str(names.get("__package__") or "")
        if stmt.level:
            parts = package.split(".")[: len(package.split(".")) - stmt.level + 1]
            full = ".".join([*parts, *([stmt.module] if stmt.module else [])])
        else:
            full = stmt.module or ""
        module = loaded(names, full)
        if module is None:
            raise NotLiteral(f"module {full} is not loaded")
        return module

    def _evaluate(self, names: dict[str, Any], node: ast.expr, visiting: tuple[str, ...]) -> Any:
        """The value of a literal expression of a module."""

        def of(part: ast.expr) -> Any:
            return self._evaluate(names, part, visiting)

        try:
            match node:
                case ast.Constant(value=value):
                    return frozen(value)
                case ast.Tuple(elts=parts) | ast.List(elts=parts):
                    return tuple(map(of, parts))
                case ast.Dict(keys=keys, values=values) if None not in keys:
                    return {of(k): of(v) for k, v in zip(filter(None, keys), values, strict=True)}
                case ast.Name(id=name):
                    return self._constant(names, name, visiting)
                case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                    return _UNARY[type(op)](of(operand))
                case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                    return _BINARY[type(op)](of(left), of(right))
                case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                    return _COMPARE[type(op)](of(left), of(right))
                case ast.JoinedStr(values=parts):
                    return "".join(f"{of(part)}" for part in parts)
                case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                    return f"{of(value)}"
        except (TypeError, ValueError, ArithmeticError) as error:
            raise NotLiteral(f"{ast.unparse(node)} cannot be computed: {error}") from None
        raise NotLiteral(f"{ast.unparse(node)} is not made of literals and other constants")


def _assigned(stmt: ast.stmt, name: str) -> tuple[ast.expr, tuple[int, ...]] | None:
    """The expression that gives a name its value, and the indices into it if the target is a tuple."""
    match stmt:
        case ast.Assign(targets=targets, value=value):
            paths = [path for target in targets for path in _paths(target, name)]
            return (value, paths[0]) if len(paths) == 1 else None
        case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
            return value, ()
    return None


def _paths(target: ast.expr, name: str) -> list[tuple[int, ...]]:
    match target:
        case ast.Name(id=found):
            return [()] if found == name else []
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [(index, *rest) for index, part in enumerate(parts) for rest in _paths(part, name)]
    return []


def _bound(stmt: ast.stmt, walrus: bool) -> Iterator[tuple[str, bool]]:
    """Names that a top-level statement binds, and whether it does so plainly rather than in a block inside it."""
    plain = isinstance(stmt, ast.Assign | ast.AnnAssign | ast.ImportFrom | ast.Import | Function | ast.ClassDef)
    if isinstance(stmt, ast.Assign) and not walrus:  # most statements, and the largest: tables
        parts = (part for target in stmt.targets for part in ast.walk(target) if isinstance(part, ast.Name))
        yield from ((part.id, True) for part in parts if isinstance(part.ctx, ast.Store))
        return
    for node in _same_scope(stmt):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name, plain
            case ast.alias(name=name, asname=other):
                yield other or name.split(".")[0], plain
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node is stmt
                for inner in statements(node.body):
                    if isinstance(inner, ast.Global):
                        yield from ((other, False) for other in inner.names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, False


def _same_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is inside it, without the bodies of functions and classes and what comprehensions bind."""
    yield node
    if isinstance(node, Function | ast.ClassDef | ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            for part in (child.iter, *child.ifs):
                yield from _same_scope(part)
        else:
            yield from _same_scope(child)


KNOWN: dict[Any, str] = {
    **{function: function.__name__ for function in (abs, all, any, len, max, min, next, pow, sorted, sum)},
    **{kind: kind.__name__ for kind in (bool, enumerate, float, int, range, reversed, tuple, zip)},
    list: "tuple",
    math.ceil: "ceil",
    math.floor: "floor",
}
"""Python's own functions that the language has, with their names in ``selir.builtin``."""

WORDS = {"F32": "f32", "assume": "assume", "knob": "knob", "require": "require", "selection": "selection"}
"""The language's own words by their name in ``detent.lang``."""


def known(value: Any) -> str | None:
    """The name of a function that the language gives a meaning to, None for any other value."""
    if isinstance(value, FunctionType | type) and f"{value.__module__}.".startswith(LIBRARY):
        return WORDS.get(value.__name__)
    try:
        return KNOWN.get(value)
    except TypeError:  # unhashable: a list or a dict
        return None

"""Calls: of helpers, of Python's own functions, of the language's words, of the methods of dicts."""

from __future__ import annotations

import ast
from abc import abstractmethod
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from xdsl.ir import SSAValue

from detent.lang.errors import UnsupportedSyntax, WrongArguments
from detent.lang.globals import known
from detent.lang.names import Names, Reference

if TYPE_CHECKING:
    from detent.lang.builder import Helper


class Signature(NamedTuple):
    """How one of Python's functions is called.

    ``least`` and ``most`` count positional arguments, the object of a method included. ``names`` are those that may
    be passed by name as well, ``keywords`` those passed by name only. ``takes`` says what is consumed where it
    stands, and so may be an iterator: ``first`` or ``all`` arguments, or the first if it is ``alone``; ``sized`` is a
    first argument that may be a view, ``generator`` one that must be a generator expression.
    """

    least: int
    most: int
    takes: str = "values"
    names: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


MANY = 255
SIGNATURES: dict[str, Signature] = {
    "abs": Signature(1, 1),
    "all": Signature(1, 1, "first"),
    "any": Signature(1, 1, "first"),
    "bool": Signature(1, 1),
    "ceil": Signature(1, 1),
    "dict.get": Signature(2, 3),
    "dict.items": Signature(1, 1),
    "dict.keys": Signature(1, 1),
    "dict.values": Signature(1, 1),
    "enumerate": Signature(1, 2, "first", names=("", "start")),
    "f32": Signature(1, 1),
    "float": Signature(1, 1),
    "floor": Signature(1, 1),
    "int": Signature(1, 1),
    "knob": Signature(2, 2, names=("name", "values"), keywords=("default",)),
    "len": Signature(1, 1, "sized"),
    "max": Signature(1, MANY, "alone", keywords=("key", "default")),
    "min": Signature(1, MANY, "alone", keywords=("key", "default")),
    "next": Signature(1, 2, "generator"),
    "pow": Signature(2, 2),
    "range": Signature(1, 3),
    "reversed": Signature(1, 1, "sized"),
    "sorted": Signature(1, 1, "first", keywords=("key", "reverse")),
    "sum": Signature(1, 2, "first", names=("", "start")),
    "tuple": Signature(0, 1, "first"),
    "zip": Signature(0, MANY, "all"),
}
"""What of ``selir.builtin`` is written as a call."""

ITERATORS = frozenset({"enumerate", "reversed", "zip"})
"""What gives its elements once, and so must be consumed where it stands."""
VIEWS = frozenset({"dict.items", "dict.keys", "dict.values"})
"""What has a length but no items by index."""


class Calls(Names):
    """Lowers calls."""

    @abstractmethod
    def value(self, node: ast.expr) -> SSAValue:
        """The value of an expression that stands for one scalar, tuple, dict or record."""

    @abstractmethod
    def iterable(self, node: ast.expr) -> SSAValue:
        """The value of an expression whose elements are taken once: generators and ``zip(...)`` are allowed."""

    @abstractmethod
    def sized(self, node: ast.expr) -> SSAValue:
        """The value of an expression whose elements are counted or taken backwards: ``table.keys()`` is allowed."""

    @abstractmethod
    def function_value(self, node: ast.Lambda) -> SSAValue:
        """The value of a lambda that is an argument."""

    def callee(self, node: ast.Call) -> Reference | None:
        """What a call calls, if that is outside the function and not a method."""
        return self.reference(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else None

    def call_name(self, node: ast.expr) -> str | None:
        """The name in ``selir.builtin`` or the word of the language that an expression calls, None if neither."""
        if not isinstance(node, ast.Call):
            return None
        found = self.callee(node)
        if found is not None:
            return known(found.value)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return f"dict.{method}" if f"dict.{method}" in SIGNATURES else None

    def call_value(self, node: ast.Call) -> SSAValue:
        """The value of a call in an expression."""
        for part in (*node.args, *node.keywords):
            if isinstance(part, ast.Starred) or (isinstance(part, ast.keyword) and part.arg is None):
                self.refuse("argument unpacking", part.value)
        name = self.call_name(node)
        if name in ("assume", "require"):
            self.refuse("condition inside", node)
        if name is not None and name in SIGNATURES:
            return self._builtin(name, node)
        found = self.callee(node)
        if found is not None and isinstance(found.value, FunctionType) and name is None:
            return self._helper(found.value, node)
        if found is not None:
            raise self.not_a_value(node.func, found)
        self.refuse("method" if isinstance(node.func, ast.Attribute) else "computed callee", node.func)

    # ---- Python's functions ------------------------------------------------------------------------------------

    def _builtin(self, name: str, node: ast.Call) -> SSAValue:
        signature = SIGNATURES[name]
        args = list(node.args)
        if name.startswith("dict.") and isinstance(node.func, ast.Attribute):
            args.insert(0, node.func.value)
        named = {keyword.arg or "": keyword.value for keyword in node.keywords}
        while len(args) < len(signature.names) and signature.names[len(args)] in named:
            args.append(named.pop(signature.names[len(args)]))
        self._check(name, signature, len(args), named, node)
        if name == "knob":
            self._effect("knob", node)
        values = [self._positional(signature.takes, arg, index, len(args)) for index, arg in enumerate(args)]
        values += [self.argument(arg) for arg in named.values()]
        return self.builtin(name, node, *values, keywords=tuple(named))

    def _check(self, name: str, signature: Signature, count: int, named: dict[str, Any], node: ast.Call) -> None:
        shown = name.removeprefix("dict.")
        for keyword in named:
            if keyword not in signature.keywords:
                allowed = ", ".join(filter(None, (*signature.names, *signature.keywords))) or "none"
                raise self._wrong(node, f"{shown}() takes no argument '{keyword}'", f"arguments by name: {allowed}")
        if not signature.least <= count <= signature.most:
            least, most, given = (n - (shown != name) for n in (signature.least, signature.most, count))
            bounds = f"{least}" if least == most else f"{least} or more" if most > 9 else f"{least} to {most}"
            plural = "argument" if bounds == "1" else "arguments"
            raise self._wrong(node, f"{shown}() takes {bounds} {plural}, not {given}", "")
        if name == "knob" and "default" not in named:
            raise self._wrong(node, "knob() misses its default", "write knob(name, values, default=value)")
        if name != "knob" and "default" in named and count > 1:
            raise self._wrong(node, f"{shown}() takes a default only with one collection", "pass the values as a tuple")

    def _wrong(self, node: ast.Call, message: str, help: str) -> WrongArguments:
        return self.error(WrongArguments, message, node, help)

    def _positional(self, takes: str, node: ast.expr, index: int, count: int) -> SSAValue:
        """A positional argument of one of Python's functions."""
        if takes == "generator" and index == 0 and not isinstance(node, ast.GeneratorExp):
            self.refuse("next of a collection", node)
        if takes == "all" or (index == 0 and takes in ("first", "generator")) or (takes == "alone" and count == 1):
            return self.iterable(node)
        return self.sized(node) if takes == "sized" else self.argument(node)

    def argument(self, node: ast.expr) -> SSAValue:
        """An argument, which may be a lambda."""
        return self.function_value(node) if isinstance(node, ast.Lambda) else self.value(node)

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _helper(self, function: FunctionType, node: ast.Call) -> SSAValue:
        helper = self.helper(function, node.func)
        if self.inside and helper.effects:
            self.refuse_effects(helper, node)
        self.effects |= helper.effects
        return self.call(helper.symbol, node, self._bind(helper, node))

    def _bind(self, helper: Helper, node: ast.Call) -> list[SSAValue]:
        """The arguments of a call in the order of the parameters, defaults filled in."""
        name, parameters = helper.symbol, helper.parameters
        places = [p.name for p in parameters if p.kind != "keyword"]
        if len(node.args) > len(places):
            message = f"{name}() takes {len(places)} positional arguments, not {len(node.args)}"
            raise self._wrong(node, message, f"its parameters: {', '.join(p.name for p in parameters)}")
        given: dict[str, ast.expr] = dict(zip(places, node.args, strict=False))
        by_name = {p.name for p in parameters if p.kind != "positional"}
        for keyword in node.keywords:
            assert keyword.arg is not None
            if keyword.arg in given:
                raise self.error(WrongArguments, f"{name}() gets '{keyword.arg}' twice", keyword, "")
            if keyword.arg not in by_name:
                known_names = ", ".join(p.name for p in parameters)
                message = f"{name}() has no parameter '{keyword.arg}' to be passed by name"
                raise self.error(WrongArguments, message, keyword, f"its parameters: {known_names}")
            given[keyword.arg] = keyword.value
        missing = [p.name for p in parameters if p.name not in given and not p.has_default]
        if missing:
            raise self._wrong(node, f"{name}() misses {', '.join(missing)}", "")
        values = {key: self.argument(arg) for key, arg in given.items()}
        return [values[p.name] if p.name in values else self.constant(p.default, node) for p in parameters]

    # ---- effects -----------------------------------------------------------------------------------------------

    def _effect(self, word: str, node: ast.expr) -> None:
        if self.inside:
            message, help = f"{word} cannot be inside {self.inside}", "write it in a statement before this one"
            raise self.error(UnsupportedSyntax, message, node, help)
        self.effects.add(word)

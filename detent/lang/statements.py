"""Statements: assignments, conditions, and branches with early returns."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Region, SSAValue

from detent.dialects.selir.structure import AssumeOp, ConditionOp, RequireOp
from detent.dialects.selir.unbound import UndefOp
from detent.lang.emit import hint, string
from detent.lang.errors import UnsupportedSyntax, WrongArguments
from detent.lang.expressions import BUILTIN_OPERATORS, SCALARS, Expressions
from detent.lang.flow import assigned_names, has_return, returns_value
from detent.lang.globals import NotLiteral
from detent.lang.text import Function

CONDITIONS: dict[str, type[ConditionOp]] = {"assume": AssumeOp, "require": RequireOp}
MOST_COPIES = 64
"""How often one statement may be lowered because the branches before it return early in some of their arms."""


class Statements(Expressions):
    """Lowers the body of a function."""

    copies: Counter[ast.stmt]
    gives_value: bool

    def body(self, function: Function) -> SSAValue:
        """Lower a function's statements; the value it returns (None's constant if it returns nothing)."""
        stmts = function.body
        if ast.get_docstring(function, clean=False) is not None:
            stmts = stmts[1:]
        self._check_classes(stmts)
        self.gives_value = bool(stmts) and returns_value(function, self.source)
        self.locals = assigned_names(function)
        self.copies = Counter()
        return self._until_return(stmts, function)

    def _check_classes(self, stmts: Sequence[ast.stmt]) -> None:
        """Refuse statements by class before anything is said about where the function returns."""
        for stmt in stmts:
            if type(stmt) not in STATEMENTS:
                self.refuse_node(stmt, stmt)
            if isinstance(stmt, ast.If):
                self._check_classes(stmt.body)
                self._check_classes(stmt.orelse)

    def _until_return(self, stmts: Sequence[ast.stmt], at: ast.stmt) -> SSAValue:
        """Lower statements up to a return on every path; the value that is returned."""
        for index, stmt in enumerate(stmts):
            self.copies[stmt] += 1
            if self.copies[stmt] > MOST_COPIES:
                message = f"the branches before this return early in more than {MOST_COPIES} combinations"
                raise self.error(UnsupportedSyntax, message, stmt, "move branches that return early to a helper")
            if isinstance(stmt, ast.Return):
                return self.constant(None, stmt) if stmt.value is None else self.value(stmt.value)
            if isinstance(stmt, ast.If) and has_return(stmt):
                return self._returning_branch(stmt, stmts[index + 1 :])
            STATEMENTS[type(stmt)](self, stmt)
        return self.constant(None, at)

    # ---- branches ----------------------------------------------------------------------------------------------

    def _returning_branch(self, node: ast.If, rest: Sequence[ast.stmt]) -> SSAValue:
        """A branch with a return in it: what follows it moves into the arms that go on."""
        cond, env = self.value(node.test), self.env
        regions: list[Region] = []
        for stmts in (node.body, node.orelse):
            self.env = dict(env)
            with self.region() as region:
                self.ends(node, self._until_return([*stmts, *rest], node))
            regions.append(region)
        return self.choose(cond, node, regions[0], regions[1]).results[0]

    def _if(self, node: ast.If) -> None:
        """A branch that goes on: it gives every name that one of its arms assigns."""
        cond, before, outer = self.value(node.test), self.env, self.block
        arms: list[tuple[Region, dict[str, SSAValue]]] = []
        for stmts in (node.body, node.orelse):
            self.env = dict(before)
            with self.region() as region:
                for stmt in stmts:
                    STATEMENTS[type(stmt)](self, stmt)
            arms.append((region, self.env))
        names = list(dict.fromkeys(n for _, env in arms for n, value in env.items() if value is not before.get(n)))
        for region, env in arms:
            self.block = region.block
            self.ends(node, *(env[name] if name in env else self._undefined(name, node) for name in names))
        self.block, self.env = outer, dict(before)
        merged = self.choose(cond, node, arms[0][0], arms[1][0])
        for name, value in zip(names, merged.results, strict=True):
            self.env[name] = value
            hint(value, name)

    def _undefined(self, name: str, node: ast.stmt) -> SSAValue:
        return self.emit(UndefOp, node, (), {"variable": string(name)}).results[0]

    # ---- assignments -------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            self.refuse("bare annotation", node)
        self.bind(node.target, self.value(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.BitOr):
            self.refuse("aliasing update", node)
        if type(node.op) not in SCALARS and type(node.op) not in BUILTIN_OPERATORS:
            self.refuse_node(node.op, node)
        if isinstance(node.target, ast.Name):
            left = self.variable(node.target)
            self.bind(node.target, self.operator(node.op, node, left, self.value(node.value)))
        else:
            self.refuse("attribute target" if isinstance(node.target, ast.Attribute) else "item target", node.target)

    # ---- statements that stand alone ---------------------------------------------------------------------------

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _alone(self, node: ast.Expr) -> None:
        call = node.value
        name = self.call_name(call)
        if name in CONDITIONS and isinstance(call, ast.Call):
            self._condition(name, call)
        elif isinstance(call, ast.Call):
            self.value(call)
            if name is not None:
                self.refuse("expression statement", node)
        else:
            self.value(call)  # what is refused anyway is refused for what it is
            self.refuse("expression statement", node)

    def _condition(self, word: str, node: ast.Call) -> None:
        for part in (*node.args, *node.keywords):
            if isinstance(part, ast.Starred) or (isinstance(part, ast.keyword) and part.arg is None):
                self.refuse("argument unpacking", part.value)
        given = dict(zip(("condition", "message"), node.args, strict=False))
        for keyword in node.keywords:
            name = str(keyword.arg)
            if name not in ("condition", "message") or name in given:
                raise self.error(WrongArguments, f"{word}() takes no argument '{name}' here", keyword, USAGE)
            given[name] = keyword.value
        if len(node.args) > 2 or "condition" not in given:
            raise self.error(WrongArguments, f"{word}() takes a condition and a message", node, USAGE)
        condition = given["condition"]
        message = self._message(given["message"]) if "message" in given else ""
        message = message or re.sub(r"\s*\n\s*", " ", self.span(condition).text)
        self.effects.add(word)
        inside, self.inside = self.inside, "a condition"
        with self.region() as body:
            self.ends(condition, self.value(condition))
        self.inside = inside
        self.emit(CONDITIONS[word], node, (), {"message": string(message)}, results=(), regions=(body,))

    def _message(self, node: ast.expr) -> str:
        try:
            local = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in self.locals]
            if local:
                raise NotLiteral(f"'{local[0]}' is a value of the selection")
            message = self.owner.modules.literal(self.names, node)
        except NotLiteral as error:
            raise self.error(UnsupportedSyntax, f"a message is fixed text: {error.args[0]}", node, USAGE) from None
        if not isinstance(message, str):
            raise self.error(UnsupportedSyntax, "a message is a string", node, USAGE)
        return message


USAGE = "write require(condition, 'what must hold'), the message made of literals and constants"

STATEMENTS: dict[type[ast.stmt], Callable[[Statements, Any], None]] = {
    ast.AnnAssign: Statements._annotated,
    ast.Assign: Statements._assign,
    ast.AugAssign: Statements._augmented,
    ast.Expr: Statements._alone,
    ast.If: Statements._if,
    ast.Pass: Statements._pass,
    ast.Return: lambda self, node: None,  # met by _until_return only
}
"""Every class of statement that the language has; what is not here is refused."""

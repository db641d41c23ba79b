"""Where a function returns: checked before it is lowered, so that lowering may rely on it."""

from __future__ import annotations

import ast

from detent.lang.errors import MissingReturn, UnreachableCode
from detent.lang.text import Function, SourceFile, statements


def returns_value(function: Function, source: SourceFile) -> bool:
    """Whether a function returns a value: on every path, or on none.

    Raises MissingReturn if only some paths do, UnreachableCode for a statement behind a return.
    """
    _check_reachable(function.body, source)
    returns = [node for node in statements(function.body) if isinstance(node, ast.Return)]
    if not any(node.value is not None for node in returns):
        return False
    for node in returns:
        if node.value is None:
            raise MissingReturn(
                f"'{function.name}' returns a value elsewhere, but not here",
                source.span(node),
                "write 'return None' if there is nothing to return on this path",
            )
    falls = _falls_through(function.body)
    if falls is not None:
        raise MissingReturn(
            f"a path through '{function.name}' reaches its end without a return",
            source.head(falls),
            "return a value on every path; write 'return None' if that is meant",
        )
    return True


def has_return(stmt: ast.stmt) -> bool:
    """Whether a return is in a statement, at any depth."""
    return any(isinstance(node, ast.Return) for node in statements([stmt]))


def _falls_through(body: list[ast.stmt]) -> ast.stmt | None:
    """A statement behind which a block is left without a return; None if every path returns."""
    last = body[-1]
    if isinstance(last, ast.Return):
        return None
    if not isinstance(last, ast.If):
        return last
    if not last.orelse:
        return last
    return _falls_through(last.body) or _falls_through(last.orelse)


def _check_reachable(body: list[ast.stmt], source: SourceFile) -> None:
    for index, stmt in enumerate(body):
        if isinstance(stmt, ast.If):
            _check_reachable(stmt.body, source)
            if stmt.orelse:
                _check_reachable(stmt.orelse, source)
        if index + 1 < len(body) and _falls_through(body[: index + 1]) is None:
            raise UnreachableCode(
                "this statement is never reached: every path before it returns",
                source.head(body[index + 1]),
                "remove it, or return only under a condition",
            )


def assigned_names(function: Function) -> frozenset[str]:
    """The function's local variables: its parameters and every name that one of its statements assigns."""
    names: set[str] = {arg.arg for arg in parameters(function.args)}
    for stmt in statements(function.body):
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [getattr(stmt, "target", None)]
        for target in filter(None, targets):
            names.update(node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    return frozenset(names)


def parameters(args: ast.arguments) -> list[ast.arg]:
    """Named parameters in order, keyword-only ones last."""
    return [*args.posonlyargs, *args.args, *args.kwonlyargs]

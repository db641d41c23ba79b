"""What Python's own limit on recursion becomes: an error at the statement that nests too deeply.

The front end, like Python's parser and compiler, descends once for each level of an expression, and a chain of
operators is as many levels as it has operators. The limit is met anywhere on the way, so where it is met says nothing.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from detent.dialects.selir.source import Span
from detent.lang.errors import LanguageError, UnsupportedSyntax

if TYPE_CHECKING:
    from detent.lang.text import Function, SourceFile

HELP = "split it: assign parts of a long expression to names, and move long chains of branches to helpers"
WORTH_NAMING = 64
"""Levels from which on a statement is called the deep one; below, depth comes from many statements together."""

_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_LEVELS = frozenset({"and", "or", "not", "if", "else", "lambda", "await"})
_FLAT = frozenset({",", ":", "=", ";"})


@contextmanager
def limited(function: Function, source: SourceFile) -> Iterator[None]:
    """Turn RecursionError inside the block into UnsupportedSyntax at the function's deepest statement, or its name."""
    try:
        yield
    except RecursionError:
        deepest = _deepest(function)
        at = source.name(function) if deepest is None else source.head(deepest)
        raise UnsupportedSyntax(f"'{function.name}' nests too deeply", at, HELP) from None


def text_too_deep(text: str, shown: str) -> LanguageError:
    """The error for a text that Python itself cannot parse or compile; ``shown`` is the file's name in spans."""
    line = _deepest_line(text)
    if line is None:
        return UnsupportedSyntax(f"{shown} nests too deeply", None, HELP)
    piece = text.split("\n")[line - 1]
    column = len(piece) - len(piece.lstrip()) + 1
    return UnsupportedSyntax("this statement nests too deeply", Span(shown, line, column, piece.strip()), HELP)


def _deepest(function: ast.AST) -> ast.stmt | None:
    """The innermost statement around the deepest expression, if that is deep. Walks without recursion."""
    best, found = WORTH_NAMING, None
    waiting: list[tuple[ast.AST, ast.stmt | None, int]] = [(function, None, 0)]
    while waiting:
        node, stmt, depth = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                waiting.append((child, child, 0))
            elif stmt is not None:
                waiting.append((child, stmt, depth + 1))
                if depth + 1 > best:
                    best, found = depth + 1, stmt
    return found


def _deepest_line(text: str) -> int | None:
    """The first line of the statement with the longest chain of operators or brackets, if that is long."""
    best, found = WORTH_NAMING, None
    start: int | None = None
    depth, chain = 0, 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                start, depth, chain = None, 0, 0
                continue
            if start is None and token.type not in (tokenize.NL, tokenize.COMMENT):
                start = token.start[0]
            if token.string in _OPENING:
                depth += 1
            elif token.string in _CLOSING:
                depth -= 1
            elif token.string in _FLAT:
                chain = 0
            elif token.type == tokenize.OP or token.string in _LEVELS:
                chain += 1
            if depth + chain > best:
                best, found = depth + chain, start
    except (tokenize.TokenError, SyntaxError):
        return found
    return found

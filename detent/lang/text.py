"""Python files as the front end reads them: text, syntax tree, the span of a node, the text of a function."""

from __future__ import annotations

import ast
import linecache
import os
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import CodeType, FunctionType

from detent.dialects.selir.source import Span, display_path
from detent.lang.depth import text_too_deep
from detent.lang.errors import LanguageError, SourceUnavailable

Function = ast.FunctionDef | ast.AsyncFunctionDef

# The part of a compound statement that names what is wrong with it: up to the end of this child.
_HEADS: dict[type[ast.AST], str] = {
    ast.For: "iter",
    ast.While: "test",
    ast.If: "test",
    ast.Match: "subject",
}
_DEFINITION = re.compile(r"(?:async\s+def|def|class)\s+(\w+)")
_BLOCKS = frozenset({"body", "orelse", "handlers", "finalbody", "cases"})
_KEYWORDS: dict[type[ast.AST], str] = {ast.Try: "try", ast.TryStar: "try"}


class SourceFile:
    """One file (or a cell of a notebook): its text and its syntax tree.

    Raises SourceUnavailable if there is no text, LanguageError if it is not Python.
    """

    def __init__(self, path: str) -> None:
        if os.path.exists(path):
            self.path, self.shown = os.path.realpath(path), display_path(path)
            linecache.checkcache(self.path)
            text = _read(self.path)
        else:  # a name such as <stdin>, or that of a notebook's cell
            self.path, self.shown = path, path
            text = "".join(linecache.getlines(path)) or None
        if text is None:
            raise SourceUnavailable(f"there is no Python text for {path}", None, "define the function in a file")
        self.text = text
        self.lines = text.split("\n")

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree of the whole file, so that its positions are those of the file."""
        try:
            with quiet():
                return ast.parse(self.text, self.path)
        except SyntaxError as error:
            raise not_python(error, self.shown, self.text) from None
        except (RecursionError, MemoryError):  # Python's parser has a stack of its own
            raise text_too_deep(self.text, self.shown) from None

    @cached_property
    def functions(self) -> dict[tuple[int, str], Function]:
        """Every function definition by the line where its code object starts, and its name."""
        found: dict[tuple[int, str], Function] = {}
        for node in statements(self.tree.body):
            if isinstance(node, Function):
                found[min((d.lineno for d in node.decorator_list), default=node.lineno), node.name] = node
        return found

    def fields(self, name: str) -> dict[str, Span]:
        """The annotated fields of a class of this file."""
        found: dict[str, Span] = {}
        for node in statements(self.tree.body):
            if isinstance(node, ast.ClassDef) and node.name == name:
                annotated = [stmt for stmt in node.body if isinstance(stmt, ast.AnnAssign)]
                found = {stmt.target.id: self.span(stmt) for stmt in annotated if isinstance(stmt.target, ast.Name)}
        return found

    @cached_property
    def code(self) -> CodeType:
        """The file's code, to see whether a function that runs is the one in the text."""
        try:
            with quiet():
                return compile(self.tree, self.path, "exec", dont_inherit=True)
        except RecursionError:
            raise text_too_deep(self.text, self.shown) from None

    def definition(self, function: FunctionType) -> Function:
        """The syntax tree of a function of this file; raises SourceUnavailable if the text has changed since."""
        code = function.__code__
        node = self.functions.get((code.co_firstlineno, code.co_name))
        if node is None or not any(_same_code(code, other) for other in _codes(self.code, code)):
            raise SourceUnavailable(
                f"the text of '{function.__name__}' in {self.shown} is not what was loaded",
                None,
                "load the program again; a function made by exec or by a decorator cannot be read",
            )
        return node

    # ---- spans -------------------------------------------------------------------------------------------------

    def column(self, line: int, offset: int) -> int:
        """The column (characters from 1) of a byte offset as ``ast`` counts it."""
        text = self.lines[line - 1]
        return offset + 1 if text.isascii() else len(text.encode()[:offset].decode(errors="replace")) + 1

    def between(self, line: int, column: int, end_line: int, end_column: int) -> Span:
        """The span from one place up to another; columns count characters from 1."""
        if line == end_line:
            return Span(self.shown, line, column, self.lines[line - 1][column - 1 : end_column - 1])
        middle = self.lines[line : end_line - 1]
        text = [self.lines[line - 1][column - 1 :], *middle, self.lines[end_line - 1][: end_column - 1]]
        return Span(self.shown, line, column, "\n".join(text))

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Span:
        """The whole piece of text a node was parsed from."""
        line, end_line = node.lineno, node.end_lineno or node.lineno
        end = self.column(end_line, node.end_col_offset or node.col_offset)
        return self.between(line, self.column(line, node.col_offset), end_line, end)

    def head(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> Span:
        """What an error about a node points at: of a compound statement only its head, of a definition its name."""
        if isinstance(node, Function | ast.ClassDef):
            return self.name(node)
        whole = self.span(node)
        keyword = _KEYWORDS.get(type(node))
        if keyword:
            return whole._replace(text=keyword)
        last: ast.expr | None = getattr(node, _HEADS.get(type(node), ""), None)
        if isinstance(node, ast.With):
            last = node.items[-1].optional_vars or node.items[-1].context_expr
        if last is None:
            return whole
        return self.between(whole.line, whole.column, *self.span(last).end)

    def name(self, node: Function | ast.ClassDef) -> Span:
        """The name in a definition."""
        whole = self.span(node)
        found = _DEFINITION.match(whole.text)
        return whole if found is None else whole._replace(column=whole.column + found.start(1), text=found[1])


def statements(body: Sequence[ast.stmt | ast.ExceptHandler | ast.match_case]) -> Iterator[ast.AST]:
    """Every statement in a block and in the blocks inside it."""
    for stmt in body:
        yield stmt
        for block in stmt._fields:
            if block in _BLOCKS:
                yield from statements(getattr(stmt, block))


def _read(path: str) -> str | None:
    """A file's text as Python decodes it; None if it has none. What ``linecache`` keeps may be older."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Python's warnings about syntax back: where one is due, the front end has an error of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # unknown escapes, before 3.12
        yield


def not_python(error: SyntaxError, shown: str, text: str) -> LanguageError:
    """What Python itself says against a text, as an error of ours; ``shown`` is the file's name in spans."""
    lines, line, column = text.split("\n"), error.lineno or 1, error.offset or 1
    piece = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    if error.end_lineno == line and error.end_offset is not None and error.end_offset > column:
        piece = piece[: error.end_offset - column]
    return LanguageError(f"not Python: {error.msg}", Span(shown, line, column, piece))


def _codes(code: CodeType, like: CodeType) -> list[CodeType]:
    """The code objects inside another that start at the same line and have the same name."""
    found = [code] if (code.co_firstlineno, code.co_name) == (like.co_firstlineno, like.co_name) else []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found += _codes(constant, like)
    return found


def _same_code(a: CodeType, b: CodeType) -> bool:
    """Whether two code objects do the same; where their text stands does not matter."""
    if (a.co_code, a.co_names, a.co_varnames, a.co_freevars) != (b.co_code, b.co_names, b.co_varnames, b.co_freevars):
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    for x, y in zip(a.co_consts, b.co_consts, strict=True):
        if isinstance(x, CodeType) and isinstance(y, CodeType):
            same = _same_code(x, y)
        elif isinstance(x, frozenset):
            same = x == y  # their order is not fixed
        else:
            same = type(x) is type(y) and repr(x) == repr(y)
        if not same:
            return False
    return True

"""Places in a program's Python text: locations on operations, and errors that point at a span.

An operation's location is ``loc("text"("file":line:column))``: xDSL has no end position, so the source
text in the name gives it. Lines and columns count from 1, in characters.
"""

from __future__ import annotations

import linecache
import os
from typing import Any, NamedTuple

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, NameLoc, StringAttr
from xdsl.ir import Operation, SSAValue

# dialects/selir/source.py: the folder above dialects holds programs/, in a checkout and when installed.
_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Span(NamedTuple):
    """A piece of source text. ``line`` and ``column`` count from 1; ``text`` is the piece itself."""

    file: str
    line: int
    column: int
    text: str

    @property
    def end(self) -> tuple[int, int]:
        """Line and column just behind the piece."""
        lines = self.text.split("\n")
        if len(lines) == 1:
            return self.line, self.column + len(self.text)
        return self.line + len(lines) - 1, len(lines[-1]) + 1


def make_location(span: Span) -> LocationAttr:
    """The location attribute that stands for a span."""
    position = FileLineColLoc(StringAttr(span.file), IntAttr(span.line), IntAttr(span.column))
    return NameLoc(StringAttr(span.text), position)


def span_of(item: Operation | SSAValue | Any) -> Span | None:
    """The span of an operation, of a value's defining operation, or of a location; None if unknown."""
    location = item
    if isinstance(item, SSAValue):
        location = getattr(item.owner, "location", None)
    elif isinstance(item, Operation):
        location = item.location
    text = ""
    if isinstance(location, NameLoc):
        text, location = location.desc.data, location.location
    if isinstance(location, FileLineColLoc):
        return Span(location.filename.data, location.line.data, location.column.data, text)
    return None


def display_path(path: str) -> str:
    """How a program's file is named in locations: ``programs/x.py`` for our own, else absolute.

    Neither the working directory nor the place of installation enters it, so it can be stored.
    """
    real = os.path.realpath(path)
    home = os.path.realpath(os.path.join(_PARENT, "programs"))
    if real.startswith(home + os.sep):
        return os.path.join("programs", os.path.relpath(real, home))
    return real


def real_path(path: str) -> str:
    """The file behind a :func:`display_path`."""
    return os.path.join(_PARENT, path) if path.startswith("programs" + os.sep) else path


class SourceError(SyntaxError):
    """An error in a program's text, with its full span, shown by Python with carets under it.

    ``help`` says what to write instead; it is part of ``str()`` on a second line.
    """

    def __init__(self, message: str, span: Span | None = None, help: str = "") -> None:
        self.message, self.span, self.help = message, span, help
        text = f"{message}\n  help: {help}" if help else message
        if span is None:
            super().__init__(text)
            return
        line = linecache.getline(real_path(span.file), span.line) or span.text.split("\n")[0]
        end_line, end_column = span.end
        super().__init__(text, (span.file, span.line, span.column, line, end_line, end_column))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.span, self.help)

    @property
    def one_line(self) -> str:
        """``file:line:column: message (help)``, for command lines."""
        place = f"{self.span.file}:{self.span.line}:{self.span.column}: " if self.span else ""
        return f"{place}{self.message}" + (f" ({self.help})" if self.help else "")

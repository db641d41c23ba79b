"""What the front end says when a program cannot be read or is not in the language.

Every error is a ``SyntaxError`` with the full span of what is wrong, so that Python, pytest and notebooks
show the line with carets under it; each can be pickled and says what to write instead.
"""

from __future__ import annotations

from detent.dialects.selir.source import SourceError


class LanguageError(SourceError):
    """An error in a program's text, or in how the program was named."""


class UnsupportedSyntax(LanguageError):
    """A construct of Python that is not in the language."""


class UnknownName(LanguageError):
    """A name that is nowhere defined, or that is read before it is assigned."""


class CapturedGlobal(LanguageError):
    """A variable from outside the function that is not a literal constant of its module."""


class RecursionRefused(LanguageError):
    """A helper that calls itself, directly or through others: it cannot be inlined."""


class WrongArguments(LanguageError):
    """A call that does not fit the parameters of what it calls."""


class MissingReturn(LanguageError):
    """A path through a function that returns a value ends without returning one."""


class UnreachableCode(LanguageError):
    """A statement that no path reaches."""


class WrongRecord(LanguageError):
    """A program's parameter that is not a record, or records whose inputs clash."""


class SourceUnavailable(LanguageError):
    """A function without Python text, or whose text is no longer what runs."""


class UnknownProgram(LanguageError):
    """A program name that is not registered, or a file that cannot be read."""


class NoSelection(LanguageError):
    """A file or function without ``@selection``, or a file with several and none named."""


class ProgramFailed(LanguageError):
    """Running the program's file raised an exception."""

"""Errors a user can act on: one line that names the place, and a remedy.

All of them end a command with exit code 2. They keep their constructor's arguments in ``args``, so they
survive pickling between processes.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

SHOWN = 8
"""Alternatives listed in a message before it is cut short."""


LONGEST = 120
"""Characters of a value in a message before it is cut short."""


class CacheWarning(UserWarning):
    """A cache directory or entry that is not used, and why."""


class DetentError(Exception):
    """What is wrong and what to do about it.

    ``message`` names the place, ``remedy`` may be empty; ``str()`` is both on one line.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.message}; {self.remedy}" if self.remedy else self.message
        return " ".join(text.split())


class Refused(DetentError):
    """Several things that keep something from being done, a line each; ``message`` says from what."""

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.args = (message, lines)
        self.lines = list(lines)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.message}:", *self.lines])


class UnknownName(DetentError):
    """A name that is not among the known ones; the remedy lists those and guesses the intended one."""

    def __init__(self, what: str, name: str, known: Iterable[str], where: str = "") -> None:
        names = [str(k) for k in known]
        place = f"{where}: " if where else ""
        super().__init__(f"{place}unknown {what} {name!r}", suggest(name, names))
        self.args = (what, name, names, where)
        self.what, self.name, self.known, self.where = what, name, names, where


class BadFile(DetentError):
    """A file that cannot be read as what it should be. ``problem`` names the key or line."""

    def __init__(self, path: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{path}: {problem}", remedy)
        self.args = (path, problem, remedy)
        self.path, self.problem = path, problem


class BadInput(DetentError):
    """Inputs of a selector that do not fit its signature."""


class NotLegal(DetentError):
    """An assignment that is no legal one.

    ``condition`` is the solution document's condition that rules it out and ``witness`` inputs that satisfy
    every assume and break it; both are None where the value is not even a candidate.
    """

    def __init__(self, message: str, remedy: str = "", condition: Mapping[str, Any] | None = None,
                 witness: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, remedy)
        self.args = (message, remedy, condition, witness)
        self.condition, self.witness = condition, witness


class NoCandidate(NotLegal):
    """A value that its pin or knob cannot have at all."""


class Violation(DetentError):
    """Inputs that break an ``assume`` or a ``require`` while serving.

    The compiled selector raises it with ``kind``, ``message`` and ``source`` (``file:line``); the selector
    object adds the condition's ``text``, the ``inputs`` and what to do.
    """

    def __init__(self, kind: str, message: str, source: str, text: str = "",
                 inputs: Mapping[str, Any] | None = None, remedy: str = "") -> None:
        told = f"{source}: {kind} does not hold"
        if message:
            told += f": {message}"
        if text and text != message:
            told += f" [{text}]"
        if inputs:
            told += f" with {named(inputs)}"
        super().__init__(told, remedy)
        self.args = (kind, message, source, text, inputs, remedy)
        self.kind, self.reason, self.source, self.text, self.inputs = kind, message, source, text, inputs


class TupleMismatch(DetentError):
    """A commitment tuple that belongs to something else; ``differences`` are (part, expected, found)."""

    def __init__(self, where: str, differences: Sequence[Any], remedy: str = "") -> None:
        super().__init__(f"{where}: {'; '.join(str(d) for d in differences)}", remedy)
        self.args = (where, differences, remedy)
        self.differences = list(differences)


class CacheMiss(DetentError):
    """No stored solution; ``command`` makes one."""

    def __init__(self, program: str, deployment: str, reasons: Sequence[str], command: str) -> None:
        why = f" ({'; '.join(reasons)})" if reasons else ""
        super().__init__(f"{program} on {deployment} is not in the cache{why}", f"run: {command}")
        self.args = (program, deployment, reasons, command)
        self.reasons, self.command = list(reasons), command


class SolveFailed(DetentError):
    """The process that was started to solve a missing entry did not succeed."""


def suggest(name: str, known: Sequence[str]) -> str:
    """``did you mean ...? known: ...`` for a name that is not among the known ones."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}known: {shorten(known)}" if known else f"{guess}none is known"


def shorten(values: Sequence[Any], limit: int = SHOWN) -> str:
    """The values, or the first few and the last where there are many."""
    texts = [v if isinstance(v, str) else brief_repr(v) for v in values]
    if len(texts) > limit:
        texts = [*texts[:limit - 1], f"... ({len(texts)} in all)", texts[-1]]
    return ", ".join(texts)


def named(values: Mapping[str, Any]) -> str:
    """``name=value, ...``"""
    return ", ".join(f"{name}={brief_repr(value)}" for name, value in values.items())


def brief_repr(value: Any) -> str:
    """``repr(value)`` for a message, cut where it is long. Values that Python cannot print get a description."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits or deeper nesting than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[:LONGEST // 2]}... ({len(text)} characters)"

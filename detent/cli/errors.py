"""How a command ends when something is wrong: one line on standard error, and an exit code.

Only here. Commands raise; they print no errors themselves.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from detent.runtime.errors import CacheWarning, DetentError, Refused

if TYPE_CHECKING:
    from types import FrameType

BAD_INPUT = 2
TOO_DEEP = ("the program nests too deeply; split it: assign parts of long expressions to names, and move long chains "
            "of branches to helper functions")
CLOSED = "standard output is closed; redirect it to a file, or to /dev/null"
INTERRUPTED = 130


def guarded(call: Callable[[], object], *, debug: bool) -> int:
    """The exit code of a command: what ``call`` returns (None is 0), or an error's code after its line is printed.

    With ``debug`` the traceback comes first.
    """
    if sys.stdout is None:
        _say(f"error: {CLOSED}")
        return BAD_INPUT
    with _plain_warnings():
        try:
            code = call()
        except click.exceptions.NoArgsIsHelpError as usage:
            usage.show()
            return usage.exit_code
        except (click.Abort, KeyboardInterrupt):
            _say("interrupted")
            return INTERRUPTED
        except Exception as error:
            if debug:
                import traceback

                traceback.print_exc()
            if _is_output(error):
                drop_output()
            _say(f"error: {error if isinstance(error, Refused) else line(error)}")
            return error.exit_code if isinstance(error, (click.ClickException, DetentError)) else BAD_INPUT
    return code if isinstance(code, int) else 0


def _say(text: str) -> None:
    """Write a line to standard error, if there is one to write to."""
    with suppress(OSError):
        click.echo(text, err=True)


def _is_output(error: BaseException) -> bool:
    """Whether standard output could not be written (a full disk): such an error names no file."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    return any(frame.f_code is click.echo.__code__ for frame in frames(error))


def frames(error: BaseException) -> Iterator[FrameType]:
    """The frames that an error has come through, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def drop_output() -> None:
    """Let what is still buffered for standard output go nowhere: the interpreter would fail on it once more."""
    with suppress(OSError, ValueError):  # ValueError: it is no file, as in a test
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def line(error: Exception) -> str:
    """What is wrong, where, and what to do, on one line."""
    return " ".join(_text(error).split())


def _text(error: Exception) -> str:
    if isinstance(error, click.UsageError):
        hint = f"; see {error.ctx.command_path} --help" if error.ctx is not None else ""
        message = error.format_message().rstrip(".")
        return f"{message[:1].lower()}{message[1:]}{hint}"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, DetentError):
        return str(error)
    if _is(error, "detent.dialects.selir.source", "SourceError"):
        return str(getattr(error, "one_line"))  # noqa: B009 (the class may not be imported here)
    if _is(error, "detent.passes.errors", "AnalysisError"):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename or 'an empty path'}: {error.strerror or error}; check the path and its permissions"
    if _is_output(error):
        return f"standard output: {getattr(error, 'strerror', None) or error}; write to where there is room"
    if isinstance(error, RecursionError):
        return TOO_DEEP
    return f"a fault in Detent: {type(error).__name__}: {error}; run it again with --debug and report the traceback"


def does_not_apply(error: Exception) -> bool:
    """Whether a program cannot be solved because the deployment lacks what it is about (MoE on a dense model)."""
    return _is(error, "detent.passes.partial_eval", "DoesNotApply")


def _is(error: Exception, module: str, name: str) -> bool:
    """Like ``isinstance`` with a class of the compiler, which is imported if one of its errors was raised."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(error, getattr(loaded, name))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Detent's own warnings as one line each on standard error, without Python's file and source line."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", CacheWarning)
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
            if issubclass(category, CacheWarning):
                click.echo(f"warning: {message}", err=True)
            else:
                shown(message, category, *rest)  # type: ignore[arg-type]

        warnings.showwarning = show  # type: ignore[assignment]
        yield

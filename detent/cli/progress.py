"""What a command that takes longer than a second says meanwhile, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import threading

    from rich.status import Status

PATIENCE_S = 1.0
"""Nothing is said before this, and plain lines come no faster than this."""
REDRAW_S = 0.1
"""A terminal's line is rewritten no faster than this."""


class Steps:
    """``with Steps("attention for my-deployment") as step: step("judge")``.

    On a terminal one line that is rewritten and vanishes at the end, elsewhere a plain line now and then.
    """

    def __init__(self, subject: str) -> None:
        self._subject, self._step = subject, ""
        self._started = time.monotonic()
        self._next = self._started + PATIENCE_S
        self._timer: threading.Timer | None = None
        self._lock: threading.Lock | None = None
        self._status: Status | None = None
        self._open = True

    def __enter__(self) -> Steps:
        return self

    def __call__(self, step: str) -> None:
        """Say which step begins."""
        self._step = step
        if self._timer is None:
            # A cache hit has no steps, so it starts no thread.
            import threading

            self._lock = threading.Lock()
            self._timer = threading.Timer(max(0.0, self._next - time.monotonic()), self._show)
            self._timer.daemon = True
            self._timer.start()
        elif time.monotonic() >= self._next:
            self._show()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._status is not None:
            self._status.stop()

    def _show(self) -> None:
        assert self._lock is not None
        with self._lock:
            # The timer and the caller may both come here when the wait is over.
            if self._open and time.monotonic() >= self._next:
                self._write(f"{self._subject}: {self._step}")

    def _write(self, text: str) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty():
            self._next = now + PATIENCE_S
            click.echo(f"{text} ({now - self._started:.0f} s)", err=True)
            return
        from rich.text import Text

        self._next = now + REDRAW_S
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

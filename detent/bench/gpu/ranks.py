"""Processes that do the same at the same time, one a GPU, as told through pipes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from detent.runtime.errors import DetentError

PATIENCE_S = 180.0
"""A rank that says nothing for so long has met none of its peers."""
Make = Callable[[int, int, str], Callable[..., Any]]


class Ranks:
    """``count`` processes, each with what ``make(rank, count, file)`` gave it, where ``file`` is a path that they share
    and that does not exist yet. ``make`` is a function of a module, for it is found by name."""

    def __init__(self, count: int, make: Make, file: str, patience_s: float = PATIENCE_S) -> None:
        context, self._patience_s = get_context("spawn"), patience_s
        self._pipes, self._processes = [], []
        for rank in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, count, make, file, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def ask(self, *question: Any) -> list[Any]:
        """Every rank's answer. Raises DetentError where one fails or keeps silent."""
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):  # it ended, and what it said comes below
                pipe.send(question)
        end, answers = time.monotonic() + self._patience_s, []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise DetentError(f"rank {rank} says nothing for {self._patience_s:.0f} s", "see the ranks' output")
            try:
                good, answer = pipe.recv()
            except EOFError:
                raise DetentError(f"rank {rank} ended", "see the ranks' output") from None
            if not good:
                raise DetentError(f"rank {rank}: {answer}", "see the ranks' output")
            answers.append(answer)
        return answers

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


@contextlib.contextmanager
def ranks(count: int, make: Make) -> Iterator[Ranks]:
    with tempfile.TemporaryDirectory() as folder:
        made = Ranks(count, make, os.path.join(folder, "meeting"))
        try:
            yield made
        finally:
            made.close()


def _serve(rank: int, count: int, make: Make, file: str, pipe: Connection) -> None:
    try:
        answer = make(rank, count, file)
        while True:
            pipe.send((True, answer(*pipe.recv())))
    except EOFError:
        return
    except BaseException as error:  # the parent says it
        pipe.send((False, repr(error)[:500]))
        raise

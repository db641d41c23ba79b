"""A lock between processes, one file a lock."""

from __future__ import annotations

import os
import time
import warnings

from detent.runtime.errors import CacheWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

POLL_S = 0.02


class FileLock:
    """``with FileLock(path):`` holds an ``flock``, which the system releases when its holder dies.

    The file is removed on release. Whoever waited on the removed file notices and takes the new one.
    After ``timeout_s``, or where the file system has no locks, the block runs unlocked with a warning: a lock
    here only saves work, entries are written in one step anyway. Not reentrant. ``path`` None locks nothing.
    """

    __slots__ = ("_descriptor", "path", "timeout_s")

    def __init__(self, path: str | None, timeout_s: float = 600.0) -> None:
        self.path, self.timeout_s = path, timeout_s
        self._descriptor: int | None = None

    def __enter__(self) -> FileLock:
        if self.path is not None:
            try:
                self._descriptor = self._acquire(self.path)
            except OSError as error:
                warnings.warn(f"{self.path}: no lock ({error.strerror}), going on without", CacheWarning, stacklevel=2)
        return self

    def _acquire(self, path: str) -> int | None:
        deadline = time.monotonic() + self.timeout_s
        while True:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                locked = _wait(descriptor, deadline)
                if locked and _is_current(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if not locked:
                told = f"{path}: locked for {self.timeout_s:.0f} s, going on without"
                warnings.warn(told, CacheWarning, stacklevel=3)
                return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._descriptor is not None and self.path is not None:
            try:
                if _is_current(self._descriptor, self.path):
                    os.unlink(self.path)
            except FileNotFoundError:
                pass
            finally:
                os.close(self._descriptor)
                self._descriptor = None


def _wait(descriptor: int, deadline: float) -> bool:
    """Take the lock, or give up at the deadline (of the monotonic clock)."""
    import fcntl

    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(POLL_S)


def _is_current(descriptor: int, path: str) -> bool:
    """Whether the open file is still the one at the path."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

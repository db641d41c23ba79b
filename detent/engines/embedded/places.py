"""Which KV pages are free, and where a request's pages go.

Attention reads keys that lie one after the other in memory where they are, and gathers others first. So a request that
begins is promised as many consecutive pages as it may come to need, the longest unused ones; its next pages are taken
from there. A promise costs no one a page: when no others are free, half of what was promised goes to the next request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HELD = np.iinfo(np.int64).max
PROMISED = HELD - 1


class Places:
    """``count`` pages, all of them free at first."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._since = np.zeros(count, np.int64)  # when a page was last given back; HELD while it is not
        self._run = np.zeros(count, np.int64)  # the run that a page is promised to, 0 for none
        self._now = self._runs = 0
        self._ended: set[int] = set()  # runs of which a page was given back

    def take(self, after: int | None, room: int) -> int | None:
        """A page that is free, None if there is none.

        The one behind ``after``, which the caller took here, if both are promised to it; else the first of ``room`` or
        some more consecutive ones, which are promised from now on; where there are no such pages, the longest unused
        one.
        """
        if not self.free:
            return None
        if after is not None and self._run[after] and after + 1 < len(self._since) and (
                self._run[after + 1] == self._run[after] and self._since[after + 1] != HELD):
            run, page = int(self._run[after]), after + 1
        else:
            run, page = self._begin(room)
        self.hold(page)
        self._run[page] = run
        return page

    def hold(self, page: int) -> None:
        """A free page is held from now on, by one to whom it was not promised."""
        self._since[page] = HELD
        self._run[page] = 0
        self.free -= 1

    def give(self, page: int) -> None:
        """A held page is free from now on; :meth:`settle` has to follow."""
        self._now += 1
        self._since[page] = self._now
        self.free += 1
        self._ended.add(int(self._run[page]))

    def settle(self) -> None:
        """Promises to requests that hold none of their pages any more end."""
        for run in self._ended - {0}:
            own = self._run == run
            if not (self._since[own] == HELD).any():
                self._run[own] = 0
        self._ended.clear()

    def _begin(self, room: int) -> tuple[int, int]:
        """A run and its first page; a single page has no run."""
        promised = (self._run != 0) & (self._since != HELD)
        unused = np.where(promised, PROMISED, self._since)
        for width in (_rounded(room), room):
            if 1 < width <= len(unused):
                latest = _sliding_maximum(unused, width)
                first = int(latest.argmin())
                if latest[first] < PROMISED:
                    return self._promise(first, width)
        page = int(unused.argmin())
        if unused[page] < PROMISED:
            return 0, page
        # All that is free is promised: the second half of a run, or where that has begun half of what is left of it.
        first, length = _longest_stretch(promised)
        own, end = np.flatnonzero(self._run == self._run[first]), first + length
        start = int(own[0] + own[-1] + 1) // 2
        if not first < start < end:
            start = end - max(1, length // 2)
        return self._promise(start, min(room, end - start))

    def _promise(self, first: int, width: int) -> tuple[int, int]:
        self._runs += 1
        self._run[first:first + width] = self._runs
        return self._runs, first


def _rounded(room: int) -> int:
    """At most a quarter more: requests of about one length get runs of one width, so that those which begin together
    are equally far from each other."""
    step = 1 << max(0, room.bit_length() - 3)
    return -(-room // step) * step


def _sliding_maximum(values: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """The largest of every ``width`` consecutive values."""
    done = 1
    while done * 2 <= width:
        values = np.maximum(values[:-done], values[done:])
        done *= 2
    return np.maximum(values[:len(values) - (width - done)], values[width - done:])


def _longest_stretch(marked: NDArray[np.bool_]) -> tuple[int, int]:
    """The first and the number of the most consecutive marked elements; some are."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], marked, [False]))))
    first, last = edges[::2], edges[1::2]
    longest = int((last - first).argmax())
    return int(first[longest]), int(last[longest] - first[longest])

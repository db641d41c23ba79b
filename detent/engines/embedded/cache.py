"""The KV cache: pages of keys and values, and the index of prefixes that are already in them.

A page's key is a hash of every token up to its end, begun with a salt (the tuple's hash), so keys and values that were
written under one tuple are never found under another. A hit ends at any token: what a request shares of a page only in
part is copied.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from detent.engines.embedded.config import Config, Limits
from detent.engines.embedded.places import Places

TOGETHER = 64
"""Pages that are looked through at once."""


class Cache:
    """``pages``: keys and values, each ``[layers, P, page, kv_heads, head_dim]``."""

    def __init__(self, config: Config, limits: Limits, device: torch.device, dtype: torch.dtype, salt: str) -> None:
        self.page = limits.page
        shape = (config.layers, limits.pages, limits.page, config.kv_heads, config.head_dim)
        self.pages = (_zeros(shape, device, dtype), _zeros(shape, device, dtype))
        self._origins: list[Mapping[str, Any]] = [{}] * (limits.pages * limits.page)
        self._users = [0] * limits.pages
        self._places = Places(limits.pages)
        self._index: dict[bytes, int] = {}  # whole pages by their key
        self._children: dict[bytes, dict[int, tuple[int, ...]]] = {}  # by the key of what precedes them
        self._published: dict[int, tuple[bytes, bytes | None]] = {}  # page: what precedes it, its own key if whole
        self._root = b""
        self.flush(salt)

    @property
    def available(self) -> int:
        """Pages that no request holds."""
        return self._places.free

    @property
    def root(self) -> bytes:
        """The key of nothing."""
        return self._root

    def flush(self, salt: str | None = None) -> None:
        """Forget every prefix; with ``salt``, keys begin with it from now on."""
        self._index.clear()
        self._children.clear()
        self._published.clear()
        if salt is not None:
            self._root = hashlib.sha256(salt.encode()).digest()

    def match(self, tokens: Sequence[int]) -> tuple[list[int], list[bytes], int]:
        """The longest prefix of ``tokens`` that is stored: its pages, which the caller now holds, the keys of the
        whole ones, and its length."""
        pages: list[int] = []
        keys: list[bytes] = []
        parent = self._root
        while len(tokens) >= (len(pages) + 1) * self.page:
            key = self.key(parent, tokens[len(pages) * self.page:(len(pages) + 1) * self.page])
            page = self._index.get(key)
            if page is None:
                break
            self._hold(page)
            pages.append(page)
            keys.append(key)
            parent = key
        length = len(pages) * self.page
        source, shared = self._closest(parent, tokens[length:length + self.page])
        if shared:
            self._hold(source)  # or the next line might take it
            copy = self.allocate()
            if copy is not None:
                for side in self.pages:
                    side[:, copy, :shared] = side[:, source, :shared]
                self._origins[copy * self.page:copy * self.page + shared] = \
                    self._origins[source * self.page:source * self.page + shared]
                pages.append(copy)
                length += shared
            self.release([source])
        return pages, keys, length

    def wrote(self, slots: Iterable[int], points: Mapping[str, Any]) -> None:
        """Note the selection points under which keys and values were computed. A slot is page x tokens of a page +
        place."""
        origins = self._origins
        for slot in slots:
            origins[slot] = points

    def origins(self, pages: Sequence[int], count: int) -> tuple[tuple[int, Mapping[str, Any]], ...]:
        """For the first ``count`` tokens of a request with these pages: how many in a row were computed under which
        selection points."""
        found: list[tuple[int, Mapping[str, Any]]] = []
        for index, page in enumerate(pages):
            start = page * self.page
            for points in self._origins[start:start + max(0, min(self.page, count - index * self.page))]:
                if found and (found[-1][1] is points or found[-1][1] == points):
                    found[-1] = found[-1][0] + 1, found[-1][1]
                else:
                    found.append((1, points))
        return tuple(found)

    def allocate(self, after: int | None = None, room: int = 1) -> int | None:
        """A page to write to, which the caller now holds; None where every page is held.

        ``after``: the page that the caller was given before it; ``room``: how many it may come to need from this one
        on. Both only say where it should be, see :class:`Places`.
        """
        page = self._places.take(after, room)
        if page is None:
            return None
        self._withdraw(page)
        self._users[page] = 1
        return page

    def publish(self, page: int, parent: bytes, tokens: Sequence[int]) -> bytes:
        """Let others find what a held page has: ``tokens``, after those of ``parent``. The key of a whole page."""
        key = self.key(parent, tokens)
        whole = len(tokens) == self.page
        if not (whole and key in self._index):  # else another page has the same
            self._withdraw(page)
            if whole:
                self._index[key] = page
            self._children.setdefault(parent, {})[page] = tuple(tokens)
            self._published[page] = (parent, key if whole else None)
        return key

    def release(self, pages: Iterable[int], forget: bool = False) -> None:
        """Let go of pages. They can be found until they are needed, or with ``forget`` no longer.

        The last go first, so that what remains of a prefix is its beginning.
        """
        ended = []
        for page in reversed(list(pages)):
            self._users[page] -= 1
            if self._users[page] == 0:
                if forget:
                    self._withdraw(page)
                self._places.give(page)
                ended.append(page)
        self._places.settle()
        self._clear(ended)

    @staticmethod
    def key(parent: bytes, tokens: Sequence[int]) -> bytes:
        """The key of a page with ``tokens`` after those of ``parent``."""
        return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()

    def _hold(self, page: int) -> None:
        if self._users[page] == 0:
            self._places.hold(page)
        self._users[page] += 1

    def _closest(self, parent: bytes, tokens: Sequence[int]) -> tuple[int, int]:
        """The page after ``parent`` that shares the most leading tokens, and how many."""
        best, length = 0, 0
        for page, stored in self._children.get(parent, {}).items():
            shared = 0
            for ours, theirs in zip(tokens, stored, strict=False):
                if ours != theirs:
                    break
                shared += 1
            if shared > length:
                best, length = page, shared
        return best, length

    def _clear(self, pages: Sequence[int]) -> None:
        """Pages of which something is not finite become zero and are not found again.

        Whoever is given such a page masks what it has not written, but 0 times what is not finite is not 0.
        """
        for start in range(0, len(pages), TOGETHER):
            part = list(pages[start:start + TOGETHER])
            if all(bool(torch.isfinite(side[:, part]).all()) for side in self.pages):
                continue
            for page in part:
                if not all(bool(torch.isfinite(side[:, page]).all()) for side in self.pages):
                    self._withdraw(page)
                    for side in self.pages:
                        side[:, page] = 0

    def _withdraw(self, page: int) -> None:
        published = self._published.pop(page, None)
        if published is None:
            return
        parent, key = published
        if key is not None:
            del self._index[key]
        siblings = self._children[parent]
        del siblings[page]
        if not siblings:
            del self._children[parent]


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that a CPU only backs with memory once they are written to: torch's own are written at once."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    import numpy as np

    size = torch.empty((), dtype=dtype).element_size()
    count = size
    for extent in shape:
        count *= extent
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(shape)

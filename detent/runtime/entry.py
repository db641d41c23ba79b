"""What a lookup in the cache gives: an entry, or a miss that can say why."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from detent.runtime.facts import Change
    from detent.runtime.records import Record

HEADER_KEYS = frozenset(("created", "default", "deployment", "facts", "family", "files", "function", "id", "key",
                         "parts", "payloads", "program", "program_key"))


class Entry:
    """A solution of the cache, or one that was just put there.

    ``header``: see :meth:`Store.put_solution`. ``document`` is the solution document, with the names of
    the deployment and the program asked for; the graph and the unpinned selector's source are read when they are
    asked for.
    """

    def __init__(self, header: dict[str, Any], deployment: str, program: str, record: Record | None = None,
                 document: dict[str, Any] | None = None, payloads: dict[str, bytes] | None = None,
                 read_payload: Callable[[Entry, str], bytes | None] | None = None) -> None:
        self.header, self.deployment, self.program, self.record = header, deployment, program, record
        self._document, self._payloads, self._read_payload = document, payloads or {}, read_payload

    @property
    def key(self) -> str:
        """The solution's cache key: program, facts read and Detent's sources, whatever the formatting."""
        return str(self.header["key"])

    @property
    def document(self) -> dict[str, Any]:
        """The solution document. If a lookup left it unread and it is lost: records.Corrupt or FileNotFoundError."""
        if self._document is None:
            assert self.record is not None
            self._document = json.loads(self.record.body())
            self._document["deployment"], self._document["program"] = self.deployment, self.program
        return self._document

    def graph(self) -> Any:
        """The graph document, or None if there is none or it was lost (then the entry is gone: solve again)."""
        data = self.payload("graph.json")
        return None if data is None else json.loads(data)

    def unpinned(self) -> str | None:
        """Source of the unpinned selector, or None as for :meth:`graph`."""
        data = self.payload("unpinned.py")
        return None if data is None else data.decode()

    def payload(self, suffix: str) -> bytes | None:
        """The bytes of one of the entry's further files."""
        if suffix not in self._payloads and suffix in self.header["payloads"] and self._read_payload is not None:
            data = self._read_payload(self, suffix)
            if data is not None:
                self._payloads[suffix] = data
        return self._payloads.get(suffix)


class Miss:
    """No entry fits. ``reasons`` (computed when asked for) compare with the nearest stored entry of the program."""

    def __init__(self, explain: Callable[[], list[Change]]) -> None:
        self._explain = explain
        self._reasons: list[Change] | None = None

    @property
    def reasons(self) -> list[Change]:
        if self._reasons is None:
            self._reasons = self._explain()
        return self._reasons

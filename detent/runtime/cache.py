"""The cache between the two halves: solutions, and selectors made from them.

A solution's first-level key is what is known without solving: the function, its file's normalised text,
Detent's own sources, options. Which facts and further files matter is known only from an entry, so the
entries under one first-level key hold the facts that were read with their values, and the lookup compares::

    solutions/<first-level key>/<id>.solution      header, solution document
                                <id>.graph.json  <id>.unpinned.py  <id>.places.json
                                <id>.<assignment>.selector  <id>.<assignment>.<python>.code
    normalised/<sha256 of a text>         a program's normalised hash
               <sha256 of a text>.toml    what a deployment's file holds

An entry is never changed: ``id`` covers the files' bytes too, and a reformatted program gets an entry of its
own, derived without solving. Numbers are bounded and the least recently used entries go first.
"""

from __future__ import annotations

import json
import os
import time
import warnings

from detent.runtime import place, records, shelf
from detent.runtime.encoding import canonical, digest, ordered, sha256, strict_toml
from detent.runtime.entry import Entry, Miss
from detent.runtime.errors import BadFile, CacheWarning
from detent.runtime.facts import ABSENT, ALWAYS_READ, Change, fact_changes, fact_text, summary
from detent.runtime.lock import FileLock
from detent.runtime.sources import BUILT_IN, SourceFile, normalise, own_sources, tag, untag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from detent.runtime.deployment import Deployment
    from detent.runtime.selector import Selector
    from detent.runtime.sources import Program

    Parts = Sequence[tuple[str, Any]]

_told: set[str] = set()
"""Reasons for not using a directory that this process has given."""


class Store:
    """The cache in one directory (default: :func:`detent.runtime.place.default_directory`).

    A directory that cannot be trusted is not used, with one warning a process: lookups miss and nothing is stored.
    """

    def __init__(self, directory: str | None = None) -> None:
        self.directory = os.path.abspath(directory) if directory else place.default_directory()
        problem = place.prepare(self.directory)
        self.usable = problem is None
        if problem is not None and problem not in _told:
            _told.add(problem)
            warnings.warn(f"the cache is off: {problem}", CacheWarning, stacklevel=2)
        self.shelf = shelf.Shelf(self.directory)
        self._normalised: dict[str, str] = {}

    def key(self, program: Program, parts: Parts = ()) -> str:
        """First-level key for the program's text as it is on disk; ``parts`` are named options such as ablations."""
        return self._first(self._parts(program, self._main(program), parts))

    def lock(self, name: str, timeout_s: float = 600.0) -> FileLock:
        """``with store.lock(store.key(program, parts)):`` keeps two processes from solving the same.

        Look again once inside: the other process may have stored it.
        """
        path = None
        if self.usable:
            try:
                path = self.shelf.lock_path(name)
            except OSError as error:
                warnings.warn(f"{self.shelf.lock_folder}: no lock ({error.strerror}), going on without", CacheWarning,
                              stacklevel=2)
        return FileLock(path, timeout_s)

    def find_solution(self, program: Program, deployment: Deployment, parts: Parts = (),
                      body: bool = True) -> Entry | Miss:
        """The entry for this program, these facts and options.

        With ``body`` False the document and the entry's further files are read when they are used, which may then
        fail; otherwise they are there. Raises BadFile if the program's file cannot be read; damaged entries are
        removed with a warning.
        """
        miss = Miss(lambda: self.why(program, deployment, parts))
        if not self.usable:
            return miss
        now = _FilesNow(self, program)
        moved: records.Record | None = None
        for record in self.shelf.solutions(self._first(self._parts(program, self._main(program), parts))):
            if any(fact_text(deployment.facts, name) != text for name, text in record.header["facts"].items()):
                continue
            state = now.compare(record.header["files"])
            if state == "same":
                entry = self._entry(record, program, deployment)
                if body and not self._whole(entry):
                    continue
                self.shelf.used(record.path)
                return entry
            if state == "reformatted":
                moved = moved or record
        if moved is not None:
            return self._relocated(self._entry(moved, program, deployment), now) or miss
        return miss

    def put_solution(self, program: Program, deployment: Deployment, parts: Parts, facts_read: Iterable[str],
                     files: Iterable[SourceFile], document: Mapping[str, Any], graph: Any = None,
                     unpinned: str | None = None) -> Entry:
        """Store a solution and return its entry; the entry's document is what to use from then on.

        ``facts_read``: names (``section.name``; a section's name alone if the program asked what is in it), absent
        ones included. ``files``: every source file the solution depends on, the main file among them, by the
        names the document's locations use. ``graph``: its graph document. The document gets ``key``,
        ``program_key`` and ``facts`` (what a commitment tuple states about the program and its facts).
        A cache that cannot be written costs a warning, not the solution.
        """
        sources = list(files)
        raws = {source.name: source.raw() for source in sources}
        listed = [{"name": s.name, "path": tag(s.path, program.path), **self._hashes(raws[s.name])} for s in sources]
        main_tag = tag(program.path, program.path)
        main = next((file for file in listed if file["path"] == main_tag), None)
        if main is None:
            raise ValueError(f"{program.path} is not among the solution's files")
        first_parts = self._parts(program, main["normalised"], parts)
        names = sorted({*facts_read, *ALWAYS_READ})
        texts = {name: fact_text(deployment.facts, name) for name in names}
        normal = sorted(f"{file['path']}\0{file['normalised']}" for file in listed if file is not main)
        program_key = digest(program.function, main["normalised"], *normal)
        header = {
            "program": program.name, "function": program.function, "family": document["family"],
            "deployment": deployment.name, "parts": first_parts, "facts": texts, "files": listed,
            "program_key": program_key, "key": digest(self._first(first_parts), program_key, ordered(texts)),
            "default": document["default"], "created": int(time.time()),
        }
        complete = {**document, "key": header["key"], "program_key": program_key, "facts": summary(texts)}
        payloads = _payloads(graph, unpinned)
        if self.usable:
            from detent.runtime.relocate import index_places

            payloads["places.json"] = ordered(index_places(complete, graph, raws)).encode()
        return self._write(header, complete, payloads)

    def find_selector(self, entry: Entry, assignment: Mapping[str, Any]) -> Selector | None:
        """The stored selector of an entry and a (legal) assignment."""
        return self.shelf.find_selector(entry, assignment) if self.usable and entry.record is not None else None

    def put_selector(self, entry: Entry, selector: Selector) -> None:
        """Store a selector beside its solution."""
        if self.usable and entry.record is not None:
            self.shelf.put_selector(entry, selector)

    def why(self, program: Program, deployment: Deployment, parts: Parts = ()) -> list[Change]:
        """What keeps this from being a hit, against the nearest entry of the same function; empty for a hit."""
        if not self.usable:
            return [Change("cache", "on", "off")]
        first = self._parts(program, self._main(program), parts)
        now = _FilesNow(self, program)
        best: list[Change] | None = None
        for record in self.shelf.all_solutions():
            header = record.header
            if header["function"] != program.function:
                continue
            before = dict(header["parts"])
            changes = _part_changes(before, dict(first))
            others = [file for file in header["files"] if file["path"] != before["file"]]
            changes += [Change(f"program text: {name}") for name in now.changed(others)]
            changes += fact_changes(header["facts"], deployment.facts)
            if best is None or len(changes) < len(best):
                best = changes
        return [Change("cache", f"no solution of {program.name} is stored")] if best is None else best

    def entries(self) -> list[dict[str, Any]]:
        """One dict an entry, most recently used first: ``kind`` (solution or selector), ``program``, ``family``,
        ``deployment``, ``key``, ``created`` (Unix seconds), ``ablate`` (what was switched off, or ""), ``bytes``,
        ``path``, and a selector's ``assignment``."""
        return self.shelf.entries() if self.usable else []

    def clear(self) -> int:
        """Remove everything Detent put there, and nothing else; the number of entries removed."""
        return self.shelf.clear() if self.usable else 0

    def toml(self, data: bytes) -> dict[str, Any]:
        """As :func:`detent.runtime.encoding.strict_toml`, remembered: the parser costs more than a hit's lookup."""
        key = sha256(data)
        content = self.shelf.read_toml(key) if self.usable else None
        if content is None:
            content = strict_toml(data)
            if self.usable:
                self.shelf.write_toml(key, content)
        return content

    def _main(self, program: Program) -> str:
        try:
            return self._hashes(SourceFile(program.name, program.path).raw())["normalised"]
        except OSError as error:
            problem = error.strerror or "cannot be read"
            raise BadFile(program.path, problem, "give an existing path.py:function") from None

    def _parts(self, program: Program, text: str, parts: Parts) -> list[list[str]]:
        """The named parts of the first-level key, as texts."""
        own = [[f"detent sources: {folder}", value] for folder, value in sorted(own_sources().items())]
        return [["function", program.function], ["file", tag(program.path, program.path)], ["program text", text], *own,
                *([n, canonical(v)] for n, v in parts)]

    @staticmethod
    def _first(parts: list[list[str]]) -> str:
        return digest(*(text for part in parts for text in part))

    def _hashes(self, raw: bytes) -> dict[str, str]:
        """Hashes of a file's bytes and of its normalised text, the latter remembered so that a hit parses nothing."""
        key = sha256(raw)
        known = self._normalised.get(key) or (self.shelf.read_memo(key) if self.usable else None)
        if known is None:
            try:
                known = sha256(normalise(raw).encode())
            except (SyntaxError, ValueError):
                # Nothing is stored for a text that does not parse; the front end will say where it is wrong.
                return {"raw": key, "normalised": key}
            if self.usable:
                self.shelf.write_memo(key, known)
        self._normalised[key] = known
        return {"raw": key, "normalised": known}

    def _entry(self, record: records.Record, program: Program, deployment: Deployment) -> Entry:
        return Entry(record.header, deployment.name, program.name, record, read_payload=self.shelf.read_payload)

    def _whole(self, entry: Entry) -> bool:
        """Read all of an entry; if a part of it is lost, so is the entry."""
        assert entry.record is not None
        try:
            _ = entry.document
        except (records.Corrupt, OSError) as error:
            self.shelf.lost(entry, error)
            return False
        return all(entry.payload(suffix) is not None for suffix in entry.header["payloads"])

    def _write(self, header: dict[str, Any], document: dict[str, Any], payloads: dict[str, bytes]) -> Entry:
        first = self._first(header["parts"])
        header["payloads"] = {suffix: sha256(data) for suffix, data in payloads.items()}
        header["id"] = digest(first, ordered(header["files"]), ordered(header["facts"]))[:32]
        record = self.shelf.write_solution(first, header, document, payloads) if self.usable else None
        return Entry(header, header["deployment"], header["program"], record, document, payloads)

    def _relocated(self, entry: Entry, now: _FilesNow) -> Entry | None:
        """The entry for the files as they are formatted now, stored as a new one; None if a part of it was lost."""
        from detent.runtime.relocate import relocate

        if not self._whole(entry):
            return None
        document, places = entry.document, entry.payload("places.json")
        if places is None:
            return None
        files = [{**file, **self._hashes(now.raw(file["path"]))} for file in entry.header["files"]]
        texts = {new["name"]: now.raw(new["path"]) for new, old in zip(files, entry.header["files"], strict=True)
                 if new["raw"] != old["raw"]}
        document, graph, unpinned, moved = relocate(document, entry.graph(), entry.unpinned(), json.loads(places),
                                                    texts)
        payloads = {**_payloads(graph, unpinned), "places.json": ordered(moved).encode()}
        return self._write({**entry.header, "files": files, "deployment": entry.deployment, "program": entry.program},
                           document, payloads)


class _FilesNow:
    """A program's files as they are on disk, each read once a lookup."""

    def __init__(self, store: Store, program: Program) -> None:
        self.store, self.program = store, program
        self._raw: dict[str, bytes] = {}

    def raw(self, tagged: str) -> bytes:
        if tagged not in self._raw:
            with open(untag(tagged, self.program.path), "rb") as file:
                self._raw[tagged] = file.read()
        return self._raw[tagged]

    def compare(self, files: list[dict[str, str]]) -> str:
        """``same`` bytes, ``reformatted``, or ``changed``."""
        try:
            if all(sha256(self.raw(file["path"])) == file["raw"] for file in files):
                return "same"
        except OSError:
            return "changed"
        return "changed" if self.changed(files) else "reformatted"

    def changed(self, files: list[dict[str, str]]) -> list[str]:
        """Names of the files whose program text differs."""
        return [file["name"] for file in files if not self._fits(file)]

    def _fits(self, file: dict[str, str]) -> bool:
        try:
            return self.store._hashes(self.raw(file["path"]))["normalised"] == file["normalised"]
        except OSError:
            return False


def _payloads(graph: Any, unpinned: str | None) -> dict[str, bytes]:
    payloads = {}
    if graph is not None:
        payloads["graph.json"] = ordered(graph).encode()
    if unpinned is not None:
        payloads["unpinned.py"] = unpinned.encode()
    return payloads


def _part_changes(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    changes = []
    for name in [*before, *(n for n in after if n not in before)]:
        old, new = before.get(name, ABSENT), after.get(name, ABSENT)
        if old == new:
            continue
        if name == "program text":
            changes.append(Change(f"{name}: {after['file'].removeprefix(BUILT_IN)}"))
        else:
            changes.append(Change(name) if name.startswith("detent sources") else Change(name, old, new))
    return changes

"""The files of the cache directory: names, bounds, and what happens to a damaged one."""

from __future__ import annotations

import json
import os
import sys
import warnings

from detent.runtime import records
from detent.runtime.encoding import canonical, digest, replace_file, sha256
from detent.runtime.entry import HEADER_KEYS
from detent.runtime.errors import CacheWarning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from detent.runtime.entry import Entry
    from detent.runtime.selector import Selector

MAX_KEYS = 128
"""First-level keys kept: program texts and versions of Detent."""
MAX_ENTRIES = 32
"""Entries kept under one first-level key: deployments and formattings."""
MAX_SELECTORS = 64
"""Selectors kept beside one solution."""
MAX_MEMOS = 1024
"""Texts of which something is remembered: a program's normalised hash, what a deployment's file holds."""
NAME_LENGTH = 40
"""Hex digits of a first-level key in a folder's name."""


class Shelf:
    """All paths below one cache directory, which exists and is trusted."""

    def __init__(self, directory: str) -> None:
        self.solutions_folder = os.path.join(directory, "solutions")
        self.memo_folder = os.path.join(directory, "normalised")
        self.lock_folder = os.path.join(directory, "locks")

    def lock_path(self, name: str) -> str:
        """The lock's file. Raises OSError if its folder cannot be made."""
        os.makedirs(self.lock_folder, mode=0o700, exist_ok=True)
        return os.path.join(self.lock_folder, f"{digest(name)[:NAME_LENGTH]}.lock")

    def solutions(self, first: str) -> Iterator[records.Record]:
        """Entries under a first-level key, most recently used first."""
        return self._in_folder(os.path.join(self.solutions_folder, first[:NAME_LENGTH]))

    def all_solutions(self) -> Iterator[records.Record]:
        """Every entry, by first-level key and then as :meth:`solutions`."""
        for folder in _by_age(self.solutions_folder):
            if _is_key(folder.name):
                yield from self._in_folder(folder.path)

    def _in_folder(self, folder: str) -> Iterator[records.Record]:
        for file in _own(folder, _is_entry, ".solution"):
            try:
                record = records.read(file.path, "solution")
                if not record.header.keys() >= HEADER_KEYS:
                    raise records.Corrupt("its header lacks keys")
            except FileNotFoundError:
                continue
            except (records.Corrupt, OSError, ValueError) as error:
                self.discard(file.path, error)
            else:
                yield record

    def write_solution(self, first: str, header: dict[str, Any], document: dict[str, Any],
                       payloads: dict[str, bytes]) -> records.Record | None:
        """The entry's files, the one that lookups see last; None with a warning if they cannot be written."""
        folder = os.path.join(self.solutions_folder, first[:NAME_LENGTH])
        path = os.path.join(folder, f"{header['id']}.solution")
        body = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        try:
            # One after the other: makedirs gives the mode to the innermost only.
            os.makedirs(self.solutions_folder, mode=0o700, exist_ok=True)
            os.makedirs(folder, mode=0o700, exist_ok=True)
            for suffix, data in payloads.items():
                replace_file(os.path.join(folder, f"{header['id']}.{suffix}"), data)
            records.write(path, "solution", header, body)
            self._prune(folder)
        except OSError as error:
            warnings.warn(f"{folder}: the solution is not stored ({error.strerror})", CacheWarning, stacklevel=4)
            return None
        return records.Record(path, "solution", header)

    def read_payload(self, entry: Entry, suffix: str) -> bytes | None:
        """A further file of an entry; None if it is lost, and then the entry is discarded."""
        assert entry.record is not None
        try:
            with open(entry.record.path.removesuffix("solution") + suffix, "rb") as file:
                data = file.read()
            if sha256(data) != entry.header["payloads"][suffix]:
                raise records.Corrupt(f"its {suffix} does not match its checksum")
            return data
        except FileNotFoundError as error:
            # If the whole entry is gone, another process removed it.
            alone = os.path.exists(entry.record.path)
            self.lost(entry, records.Corrupt(f"its {suffix} is missing") if alone else error)
        except (records.Corrupt, OSError) as error:
            self.lost(entry, error)
        return None

    def lost(self, entry: Entry, error: Exception) -> None:
        """Discard an entry of which a part cannot be read."""
        assert entry.record is not None
        self.discard(entry.record.path, error)

    def used(self, path: str) -> None:
        """Mark an entry and its folder as used now."""
        try:
            os.utime(path)
            os.utime(os.path.dirname(path))
        except OSError:
            pass

    def discard(self, path: str, error: Exception) -> None:
        """Remove a damaged entry with everything beside it. Says so, unless another process removed it first."""
        if not isinstance(error, FileNotFoundError):
            warnings.warn(f"{path}: cache entry discarded: {error}", CacheWarning, stacklevel=4)
        _remove_entry(path)

    def find_selector(self, entry: Entry, assignment: Mapping[str, Any]) -> Selector | None:
        from detent.runtime.selector import Selector

        path = self._selector_path(entry, assignment)
        try:
            state = json.loads(records.read(path, "selector").body())
            code = self._read_code(path, state["source"])
        except FileNotFoundError:
            return None
        except (records.Corrupt, OSError, ValueError, KeyError) as error:
            self.discard(path, error)
            return None
        self.used(path)
        selector = Selector(**state, code=code)
        if code is None:
            self._write_code(path, selector)
        return selector

    def put_selector(self, entry: Entry, selector: Selector) -> None:
        path = self._selector_path(entry, selector.assignment)
        header = {"assignment": dict(selector.assignment), "key": entry.key, "program": selector.program}
        try:
            records.write(path, "selector", header, json.dumps(selector.state(), separators=(",", ":")).encode())
        except OSError as error:
            # The solution's folder may just have been cleared; the selector is only a short cut.
            if not isinstance(error, FileNotFoundError):
                warnings.warn(f"{path}: the selector is not stored ({error.strerror})", CacheWarning, stacklevel=3)
            return
        self._write_code(path, selector)
        prefix = f"{entry.header['id']}."
        for file in _own(os.path.dirname(path), _is_entry, ".selector", prefix)[MAX_SELECTORS:]:
            _remove_entry(file.path)

    @staticmethod
    def _selector_path(entry: Entry, assignment: Mapping[str, Any]) -> str:
        assert entry.record is not None
        return f"{entry.record.path.removesuffix('solution')}{digest(canonical(dict(assignment)))[:24]}.selector"

    @staticmethod
    def _code_path(path: str) -> str:
        return f"{path.removesuffix('selector')}{sys.implementation.cache_tag}.code"

    def _read_code(self, path: str, source: str) -> Any:
        """The code object for this Python, None if there is none or it belongs to another source."""
        import marshal

        try:
            record = records.read(self._code_path(path), "code")
            if record.header != {"python": sys.version, "source": sha256(source.encode())}:
                return None
            return marshal.loads(record.body())
        except FileNotFoundError:
            return None

    def _write_code(self, path: str, selector: Selector) -> None:
        import marshal

        header = {"python": sys.version, "source": sha256(selector.source.encode())}
        try:
            records.write(self._code_path(path), "code", header, marshal.dumps(selector.code))
        except OSError:
            pass

    def read_memo(self, raw: str) -> str | None:
        """The normalised hash remembered for a text's hash."""
        try:
            with open(os.path.join(self.memo_folder, raw), encoding="ascii") as file:
                known, _, check = file.read(200).partition(" ")
        except (OSError, ValueError):
            return None
        return known if check == digest(raw, known) else None

    def write_memo(self, raw: str, known: str) -> None:
        try:
            self._prepare_memos()
            replace_file(os.path.join(self.memo_folder, raw), f"{known} {digest(raw, known)}".encode())
        except OSError:
            # A memo only saves parsing.
            pass

    def read_toml(self, raw: str) -> dict[str, Any] | None:
        """What the TOML text of that hash holds, if that is remembered."""
        try:
            header = records.read(self._toml_path(raw), "toml").header
            content: dict[str, Any] = header["content"]
            return content if header["of"] == raw else None
        except (records.Corrupt, OSError, ValueError, KeyError):
            return None

    def write_toml(self, raw: str, content: dict[str, Any]) -> None:
        """Remember it, unless JSON has no words for it (a date, an infinity)."""
        try:
            self._prepare_memos()
            records.write(self._toml_path(raw), "toml", {"of": raw, "content": content}, b"")
        except (OSError, ValueError, TypeError):
            pass

    def _toml_path(self, raw: str) -> str:
        return os.path.join(self.memo_folder, f"{raw}.toml")

    def _prepare_memos(self) -> None:
        """Make their folder, and room for one more in it."""
        os.makedirs(self.memo_folder, mode=0o700, exist_ok=True)
        for file in _own(self.memo_folder, _is_memo)[MAX_MEMOS - 1:]:
            _remove(file.path)

    def entries(self) -> list[dict[str, Any]]:
        rows = []
        for record in self.all_solutions():
            header, folder = record.header, os.path.dirname(record.path)
            common = {name: header[name] for name in ("program", "family", "deployment", "key", "created")}
            common["ablate"] = dict(header["parts"]).get("ablate", "")
            files = _own(folder, _is_entry, prefix=f"{header['id']}.")
            selectors = [file for file in files if file.name.endswith(".selector")]
            own = [file for file in files if file.name.count(".") == 1 or file.name[33:] in header["payloads"]]
            rows.append({"kind": "solution", **common, "bytes": _size(own), "path": record.path})
            for file in selectors:
                try:
                    assignment = records.read(file.path, "selector").header["assignment"]
                except (records.Corrupt, OSError, ValueError, KeyError) as error:
                    self.discard(file.path, error)
                    continue
                stem = file.name.removesuffix("selector")
                size = _size([f for f in files if f.name.startswith(stem)])
                rows.append({"kind": "selector", **common, "bytes": size, "path": file.path, "assignment": assignment})
        return rows

    def clear(self) -> int:
        removed = 0
        for folder in _by_age(self.solutions_folder):
            if _is_key(folder.name):
                for file in _own(folder.path, _is_entry):
                    removed += file.name.endswith((".solution", ".selector"))
                    _remove(file.path)
                _remove(folder.path, os.rmdir)
        for file in [*_own(self.memo_folder, _is_memo), *_own(self.lock_folder, _is_lock)]:
            _remove(file.path)
        for name in (self.solutions_folder, self.memo_folder, self.lock_folder):
            _remove(name, os.rmdir)
        return removed

    def _prune(self, folder: str) -> None:
        for file in _own(folder, _is_entry, ".solution")[MAX_ENTRIES:]:
            _remove_entry(file.path)
        for old in [f for f in _by_age(self.solutions_folder) if _is_key(f.name)][MAX_KEYS:]:
            for file in _own(old.path, _is_entry):
                _remove(file.path)
            _remove(old.path, os.rmdir)


def _is_hex(text: str, length: int) -> bool:
    return len(text) == length and not text.strip("0123456789abcdef")


def _is_key(name: str) -> bool:
    return _is_hex(name, NAME_LENGTH)


# The files that Detent writes, by their names: nothing else is ever removed.

def _is_entry(name: str) -> bool:
    """An entry's file, see :mod:`detent.runtime.cache`."""
    match _whole_name(name).split("."):
        case [id, "solution"] | [id, "graph" | "places", "json"] | [id, "unpinned", "py"]:
            return _is_hex(id, 32)
        case [id, assignment, "selector"] | [id, assignment, _, "code"]:
            return _is_hex(id, 32) and _is_hex(assignment, 24)
    return False


def _is_memo(name: str) -> bool:
    return _is_hex(_whole_name(name).removesuffix(".toml"), 64)


def _is_lock(name: str) -> bool:
    return name.endswith(".lock") and _is_key(name[:-5])


def _whole_name(name: str) -> str:
    """The name of the file that a killed process was about to write here."""
    match name.rsplit(".", 3):
        case [whole, process, random, "tmp"] if process.isdecimal() and _is_hex(random, 8):
            return whole
    return name


def _by_age(folder: str, suffix: str = "", prefix: str = "") -> list[os.DirEntry[str]]:
    """The folder's entries with such names, most recently modified first; none if there is no folder.

    Nor where it may not be read, and that is said: what is in it is not found and cannot be stored.
    """
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix) and entry.name.startswith(prefix):
                    try:
                        found.append((-entry.stat(follow_symlinks=False).st_mtime_ns, entry.name, entry))
                    except FileNotFoundError:
                        continue
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warnings.warn(f"{folder}: not read ({error.strerror}); remove it to use the cache again", CacheWarning,
                      stacklevel=2)
        return []
    found.sort(key=lambda item: item[:2])
    return [entry for _, _, entry in found]


def _own(folder: str, is_own: Callable[[str], bool], suffix: str = "", prefix: str = "") -> list[os.DirEntry[str]]:
    """As :func:`_by_age`, of the entries whose name is one that Detent gives."""
    return [entry for entry in _by_age(folder, suffix, prefix) if is_own(entry.name)]


def _size(files: list[os.DirEntry[str]]) -> int:
    return sum(file.stat(follow_symlinks=False).st_size for file in files)


def _remove_entry(path: str) -> None:
    """Remove an entry and its other files; the entry first, so that no lookup finds it half gone."""
    _remove(path)
    stem = os.path.basename(path).rpartition(".")[0] + "."
    for file in _own(os.path.dirname(path), _is_entry, prefix=stem):
        _remove(file.path)


def _remove(path: str, how: Any = os.unlink) -> None:
    try:
        how(path)
    except OSError:
        pass

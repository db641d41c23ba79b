"""One file of the cache: a first line that says what it is and checks the rest, a JSON header, a body.

The header is read without the body, so that a lookup can compare many entries and parse one.
"""

from __future__ import annotations

import json
import os

from detent.runtime.encoding import replace_file, sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any

MAGIC = "detent-cache"
FORMAT = 1


class Corrupt(Exception):
    """A file that is not the record it should be, and why."""


class Record:
    """A verified header, and the body on demand."""

    __slots__ = ("header", "kind", "path")

    def __init__(self, path: str, kind: str, header: dict[str, Any]) -> None:
        self.path, self.kind, self.header = path, kind, header

    def body(self) -> bytes:
        """Raises Corrupt if the bytes are not those that were written, FileNotFoundError if the file is gone."""
        with open(self.path, "rb") as file:
            # The file may have been replaced since: the body goes with the header that stands before it now.
            _, body_hash = _head(file, self.kind)
            data = file.read()
        if sha256(data) != body_hash:
            raise Corrupt("its body does not match its checksum")
        return data


def write(path: str, kind: str, header: dict[str, Any], body: bytes) -> None:
    """Write a record in one step."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    first = f"{MAGIC} {FORMAT} {kind} {sha256(head)} {sha256(body)}\n".encode()
    replace_file(path, first + head + b"\n" + body)


def read(path: str, kind: str) -> Record:
    """The record of that kind in a file.

    Raises Corrupt for anything else, including a file that another user owns; FileNotFoundError if there is none.
    """
    with open(path, "rb") as file:
        head, _ = _head(file, kind)
    return Record(path, kind, json.loads(head))


def _head(file: BufferedReader, kind: str) -> tuple[bytes, str]:
    """The header's text and the body's hash; leaves the file at the body."""
    if os.fstat(file.fileno()).st_uid != os.geteuid():
        raise Corrupt("another user owns it")
    first = file.readline(512)
    words = first.decode("ascii", "replace").split()
    if len(words) != 5 or words[:3] != [MAGIC, str(FORMAT), kind] or not first.endswith(b"\n"):
        raise Corrupt(f"it is no {kind} entry of format {FORMAT}")
    head = file.readline().removesuffix(b"\n")
    if sha256(head) != words[3]:
        raise Corrupt("its header does not match its checksum")
    return head, words[4]

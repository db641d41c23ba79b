"""What the programs that come with Detent read of a deployment: their records, from the programs' text.

Importing the programs would import the language, so ``class Gpu`` and its annotations are read as they are written.
"""

from __future__ import annotations

import os
import re

from detent.runtime.deployment import PROGRAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED = "facts.py"
"""The file with the records that programs share, which nearly always has all there is to know."""
CLASS = re.compile(r"^@record\nclass (\w+):\n((?:(?:    .*)?\n)+)", re.MULTILINE)
FIELD = re.compile(r"^    (\w+): ([^#\n]+)", re.MULTILINE)
"""A plain search: the syntax tree costs more than a cache hit may, and tests compare both over all programs."""
INPUTS = ("Runtime", "Unpinnable", "Request")

_read: dict[str, dict[str, dict[str, str]]] = {}


def declared(section: str) -> dict[str, str]:
    """Facts of a section with their declared types, as the shared record has them; empty if none reads the section."""
    return _of(SHARED).get(section, {})


def names(section: str) -> list[str]:
    """Names of all facts that some program reads in the section."""
    found: dict[str, None] = dict.fromkeys(declared(section))
    for file in sorted(os.listdir(PROGRAMS)):
        if file.endswith(".py") and file != SHARED:
            found |= dict.fromkeys(_of(file).get(section, {}))
    return list(found)


def _of(file: str) -> dict[str, dict[str, str]]:
    """The records of facts in a file of programs, by section."""
    if file not in _read:
        with open(os.path.join(PROGRAMS, file), encoding="utf-8") as text:
            _read[file] = dict(_records(text.read()))
    return _read[file]


def _records(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    for name, body in CLASS.findall(text):
        fields = {field: kind.strip() for field, kind in FIELD.findall(body)}
        facts = {field: kind for field, kind in fields.items() if not kind.startswith(INPUTS)}
        if facts:
            yield _section(name), facts


def _section(record: str) -> str:
    """As the language names the section of a record: ``AllReduce`` reads ``[all_reduce]``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", record).lower()

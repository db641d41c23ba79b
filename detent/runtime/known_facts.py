"""What the programs that come with Detent read of a deployment: their records, from the programs' text.

Importing the programs would import the language, so ``class Gpu`` and its annotations are read as text.
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
RECORD = "@record"
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
    if RECORD not in text:
        return
    import ast

    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(each) == RECORD[1:] for each in node.decorator_list):
            fields = {each.target.id: ast.unparse(each.annotation) for each in node.body
                      if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
            facts = {name: kind for name, kind in fields.items() if not kind.startswith(INPUTS)}
            if facts:
                yield _section(node.name), facts


def _section(record: str) -> str:
    """As the language names the section of a record: ``AllReduce`` reads ``[all_reduce]``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", record).lower()

"""Facts as the cache and the commitment tuple compare them.

A fact is named ``section.name``. Its text is JSON in the order of its keys, so that ``1`` and ``1.0`` differ
and so do two tables that list the same rows in another order: a program can observe both.
"""

from __future__ import annotations

import json

from detent.runtime.encoding import ordered, sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    Facts = Mapping[str, Mapping[str, Any]]

ABSENT = "absent"
"""The text of a fact that a deployment does not have. No JSON text reads so."""


ALWAYS_READ = ("engine.name", "engine.version")
"""Facts that count as read even if a program does not name them: a new engine version may select differently."""


def fact_text(facts: Facts, name: str) -> str:
    """The text of one fact, or ABSENT. A name without a dot is a section: its text lists the names in it."""
    section, dot, key = name.partition(".")
    values = facts.get(section)
    if values is None or (dot and key not in values):
        return ABSENT
    return ordered(values[key]) if dot else ordered(sorted(values))


def summary(texts: Mapping[str, str]) -> dict[str, Any]:
    """Fact texts as a commitment tuple states them: scalars as they are, tables and lists as a hash, absent as None.

    A deployment that names no engine has nothing to state about it.
    """
    return {name: None if text == ABSENT else f"sha256:{sha256(text.encode())}" if text[0] in "[{" else json.loads(text)
            for name, text in sorted(texts.items()) if text != ABSENT or name not in ALWAYS_READ}


class Change:
    """One part of a key that differs: ``before`` is what the entry has, ``after`` what is asked for now.

    Both are texts; without ``after`` the part is what changed and ``before`` says how, without both it only did.
    """

    __slots__ = ("after", "before", "part")

    def __init__(self, part: str, before: str = "", after: str = "") -> None:
        self.part, self.before, self.after = part, before, after

    def __str__(self) -> str:
        if self.after:
            return f"{self.part}: {self.before} -> {self.after}"
        if self.before:
            return f"{self.part}: {self.before}"
        return f"{self.part} changed"

    def __repr__(self) -> str:
        return f"Change({str(self)!r})"


def fact_changes(before: Mapping[str, str], facts: Facts) -> list[Change]:
    """What differs between an entry's fact texts and a deployment's facts, down to the row and name of a table."""
    changes: list[Change] = []
    for name, text in before.items():
        now = fact_text(facts, name)
        if now != text:
            if text[0] == now[0] == "{":
                _table_changes(f"facts.{name}", json.loads(text), json.loads(now), changes)
            else:
                changes.append(Change(f"facts.{name}", text, now))
    return changes


def _table_changes(place: str, before: dict[str, Any], after: dict[str, Any], changes: list[Change]) -> None:
    start = len(changes)
    for key in [*before, *(k for k in after if k not in before)]:
        old, new = (ordered(side[key]) if key in side else ABSENT for side in (before, after))
        if old == new:
            continue
        if old[0] == new[0] == "{":
            _table_changes(f"{place}[{key}]", before[key], after[key], changes)
        else:
            changes.append(Change(f"{place}[{key}]", old, new))
    if len(changes) == start:
        changes.append(Change(f"{place}: order of keys", _keys(list(before)), _keys(list(after))))


def _keys(keys: Sequence[str]) -> str:
    return f"[{', '.join(keys)}]"

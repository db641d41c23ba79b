"""Tables among the facts: which no path reads, and by which value the others are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from detent.dialects.selir.source import SourceError
from detent.passes.graph import Graph
from detent.solver.lint.finding import WARNING, Finding
from detent.solver.lint.subject import Subject


class Use(NamedTuple):
    """A table of facts whose rows are looked up by the value of ``key``, a node of the subject's graph."""

    section: str
    name: str
    key: int

    def __str__(self) -> str:
        return f"[{self.section}] {self.name}"


def unread_tables(subject: Subject) -> list[Finding]:
    """Tables of the program's own records that could as well be empty.

    A table counts as read if emptying it makes the program another one, or one that cannot be bound.
    """
    found = []
    for (section, name), place in subject.tables.items():
        if (section, name) in subject.read:
            try:
                if not _same(subject.graph, subject.rebound(section, name, {})):
                    continue
            except SourceError:
                continue
        rows = len(subject.table(section, name))
        found.append(Finding("unread-table", WARNING, f"[{section}] {name}", place,
                             f"no path of the selection reads its {rows} {'row' if rows == 1 else 'rows'} on this "
                             "deployment: tuning it changes nothing", {"section": section, "name": name, "rows": rows}))
    return found


def _same(a: Graph, b: Graph) -> bool:
    parts = [(graph.kinds, graph.args, graph.data, graph.types, graph.points,
              [(c.kind, c.message, c.root) for c in graph.conditions]) for graph in (a, b)]
    return parts[0] == parts[1]


def uses(subject: Subject) -> list[Use]:
    """Tables with the values by which their rows are looked up, ascending."""
    return [use for section, name in subject.tables for use in own_uses(subject, section, name)]


def own_uses(subject: Subject, section: str, name: str) -> list[Use]:
    """The values by which one table's rows are looked up, told apart from those of a table like it.

    A lookup shows rows and not where they came from. Where another table has the same keys, the program is bound once
    more with this one's rows in reverse: the lookups that turn around with them are its own.
    """
    graph, table = subject.graph, subject.table(section, name)
    found = uses_of(graph, section, name, table)
    alike = [other for other in subject.tables if list(subject.table(*other)) == list(table)]
    if len(alike) < 2 or not found:
        return found
    backwards = dict(reversed(table.items()))
    try:
        if len(table) < 2:  # which is its own reverse
            return [] if _same(graph, subject.rebound(section, name, {})) else found
        turned = subject.rebound(section, name, backwards)
    except SourceError:
        return found
    before, after = _lookups(graph, table), _lookups(turned, table, backwards)
    if len(before) != len(after):
        return found if uses_of(turned, section, name, backwards) else []
    own = {graph.args[node][0] for node, other in zip(before, after, strict=True)
           if _keys(turned, other) == list(backwards)}
    return [use for use in found if use.key in own]


def uses_of(graph: Graph, section: str, name: str, table: Mapping[int, Mapping[str, Any]]) -> list[Use]:
    """The values by which one table's rows are looked up: of lookups whose rows are a column of it."""
    keys = dict.fromkeys(graph.args[node][0] for node in _lookups(graph, table))
    return [Use(section, name, key) for key in keys]


def _lookups(graph: Graph, *tables: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """The lookups whose rows are a column of one of the tables."""
    return [node for node in graph.of_kind("lookup")
            if any(_keys(graph, node) == list(table) and _is_column(graph.data[node], table) for table in tables)]


def _keys(graph: Graph, lookup: int) -> list[Any]:
    return [key for key, _ in graph.data[lookup]]


def _is_column(pairs: Sequence[tuple[Any, Any]], table: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether some column has these values; a row without that column may have any (``get`` with a default)."""
    columns = {column for row in table.values() for column in row}
    return any(all(column not in table[key] or table[key][column] == value for key, value in pairs)
               for column in columns)

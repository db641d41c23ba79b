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
                             f"no path of the selection reads its {rows} rows on this deployment: tuning it changes "
                             "nothing", {"section": section, "name": name, "rows": rows}))
    return found


def _same(a: Graph, b: Graph) -> bool:
    parts = [(graph.kinds, graph.args, graph.data, graph.types, graph.points,
              [(c.kind, c.message, c.root) for c in graph.conditions]) for graph in (a, b)]
    return parts[0] == parts[1]


def uses(subject: Subject) -> list[Use]:
    """Tables with the values by which their rows are looked up, ascending."""
    return [use for section, name in subject.tables
            for use in uses_of(subject.graph, section, name, subject.table(section, name))]


def uses_of(graph: Graph, section: str, name: str, table: Mapping[int, Mapping[str, Any]]) -> list[Use]:
    """The values by which one table's rows are looked up: of lookups whose rows are a column of it."""
    found: dict[int, Use] = {}
    for node in graph.of_kind("lookup"):
        if [key for key, _ in graph.data[node]] == list(table) and _is_column(graph.data[node], table):
            found.setdefault(graph.args[node][0], Use(section, name, graph.args[node][0]))
    return list(found.values())


def _is_column(pairs: Sequence[tuple[Any, Any]], table: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether some column has these values; a row without that column may have any (``get`` with a default)."""
    columns = {column for row in table.values() for column in row}
    return any(all(column not in table[key] or table[key][column] == value for key, value in pairs)
               for column in columns)

"""Tables that were measured by size: which row counts."""

from __future__ import annotations

from detent.lang import Table


def row_for(table: Table, size: int) -> int:
    """The key of the row that counts for a size: the smallest one that is not smaller, or the largest."""
    return next((key for key in sorted(table) if key >= size), max(table))


def none_packed(table: Table, columns: tuple[str, ...]) -> bool:
    """Whether no row of the table has packed weights in any of the columns."""
    return all(row[column] == 0 for row in table.values() for column in columns)

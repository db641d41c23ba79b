"""Exact value sets of values that hang on one small dominator.

Value sets of operands ignore that the operands may move together: with ``x`` in {1, 2}, ``x - x`` has the
set {-1, 0, 1}. Where everything an operation reads derives from one value with a small set (its *root*),
its value is tabulated over the root's values instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.ir import SSAValue

from detent.dialects.selir.semantics import evaluate, look_up
from detent.passes.domains import Abstract

MAX_ROOT = 1024

Table = tuple[SSAValue, tuple[Any, ...]]
"""A root, and a value for each of the root's values in their order."""


class Correlation:
    """Tables over roots, for the values seen so far."""

    def __init__(self) -> None:
        self._tables: dict[SSAValue, Table] = {}
        self._roots: dict[SSAValue, tuple[Any, ...]] = {}

    def keep(self, result: SSAValue, table: Table) -> None:
        """Remember the table of a value for its users."""
        self._tables[result] = table

    def _table(self, value: SSAValue, abstract: Mapping[SSAValue, Abstract]) -> Table | None:
        found = self._tables.get(value)
        if found is not None:
            return found
        values = abstract.get(value)
        if not isinstance(values, frozenset) or not 1 < len(values) <= MAX_ROOT:
            return None
        if value not in self._roots:
            self._roots[value] = tuple(values)
        return value, self._roots[value]

    def tabulate(self, kind: Any, operands: Sequence[SSAValue], type: str,
                 abstract: Mapping[SSAValue, Abstract]) -> Table | None:
        """Root and values of an operation (a table kind, or ``("lookup", table)``); None without a common root."""
        columns: list[Any] = []
        root: SSAValue | None = None
        for operand in operands:
            values = abstract.get(operand)
            if isinstance(values, frozenset) and len(values) == 1:
                columns.append(next(iter(values)))
                continue
            table = self._table(operand, abstract)
            if table is None or (root is not None and table[0] is not root):
                return None
            root = table[0]
            columns.append(table[1])
        if root is None:
            return None
        size = len(self._roots[root])
        spread = [c if isinstance(c, tuple) else (c,) * size for c in columns]
        if isinstance(kind, str):
            try:
                rows = tuple([evaluate(kind, row, type) for row in zip(*spread, strict=True)])
            except OverflowError:  # an int beyond every double, for the solver to refuse
                return None
        else:
            rows = tuple(look_up(kind[1].data, key) for key in spread[0])
        return None if any(v != v for v in rows) else (root, rows)

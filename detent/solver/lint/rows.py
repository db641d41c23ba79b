"""Rows of tuned tables: which inputs select them, at every input that the assumes allow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from detent.dialects.selir.source import SourceError
from detent.passes.boxes import Region, piece
from detent.passes.graph import Graph
from detent.passes.input_domains import input_domains
from detent.solver.lint.finding import NOTE, WARNING, Finding
from detent.solver.lint.subject import Subject
from detent.solver.lint.tables import Use, own_uses, uses, uses_of
from detent.solver.trials import every_input, knob_values, tuple_function
from detent.solver.views.wording import compress

SHOWN = 6
"""Inputs that an explanation names."""


def unreached_rows(subject: Subject) -> list[Finding]:
    """Rows that no input selects."""
    found = []
    for use in uses(subject):
        table = subject.table(use.section, use.name)
        reached = _reached(subject, use)
        rows = [row for row in table if reached is not None and row not in reached]
        if rows:
            found.append(Finding(
                "unreached-row", WARNING, str(use), _place(subject, use),
                f"no input selects {_rows(rows)} of its {len(table)}: {_domains(subject, use)}",
                {"section": use.section, "name": use.name, "rows": rows}))
    return found


def untuned_rows(subject: Subject) -> list[Finding]:
    """Rows that stand in for sizes they were not tuned for: selected by inputs below the first key or above the last.

    A warning where a row is selected by no other input, else a note. Only for tables whose keys are values of their
    one input: where the input is a key, that key's row is selected.
    """
    found = []
    for use in uses(subject):
        chosen = _by_input(subject, use)
        if chosen is None:
            continue
        low, high = min(chosen.rows), max(chosen.rows)
        for row in sorted(set(chosen.selected.values())):
            inputs = [x for x, selected in chosen.selected.items() if selected == row]
            beyond = [x for x in inputs if not low <= x <= high]
            if beyond:
                only = len(beyond) == len(inputs)
                found.append(Finding(
                    "untuned-row", WARNING if only else NOTE, str(use), _place(subject, use),
                    f"row {row} {'serves only' if only else 'also serves'} {chosen.name} {compress(beyond, SHOWN)}, "
                    f"outside of the tuned {low}-{high}",
                    {"section": use.section, "name": use.name, "row": row, "inputs": [beyond[0], beyond[-1]],
                     "only": only}))
    return found


def ties(subject: Subject) -> list[Finding]:
    """Inputs whose row hangs on the order of keys in the table's file: another row is selected if it is reversed.

    A note where keys ascend, since a tie then goes to the smaller one; a warning where the order is another.
    """
    found = []
    for use in uses(subject):
        table = subject.table(use.section, use.name)
        backwards = dict(reversed(table.items()))
        try:
            graph = subject.rebound(use.section, use.name, backwards)
        except SourceError:
            continue
        others = uses_of(graph, use.section, use.name, backwards)
        rank = _rank(subject, use)
        if rank >= len(others):
            continue
        here, there = _selected(subject.graph, use.key), _selected(graph, others[rank].key)
        if here is None or there is None:
            continue
        moved = [(x, here[x], there[x]) for x in here if x in there and here[x] != there[x]]
        if moved:
            ascending = list(table) == sorted(table)
            names = _input_names(subject, use)
            shown = "; ".join(f"{_at(names, x)} takes row {row}, not {other}" for x, row, other in moved[:SHOWN])
            more = f"; … {len(moved) - SHOWN:,} more" if len(moved) > SHOWN else ""
            order = "they ascend, so the smaller wins" if ascending else "they are not ascending"
            found.append(Finding(
                "tie", NOTE if ascending else WARNING, str(use), _place(subject, use),
                f"the order of keys in the file decides {_inputs(len(moved))} ({order}): {shown}{more}",
                {"section": use.section, "name": use.name, "count": len(moved), "ascending": ascending,
                 "ties": [{"inputs": dict(zip(names, x, strict=True)), "row": row, "reversed": other}
                          for x, row, other in moved]}))
    return found


# ---- what selects a row ----------------------------------------------------------------------------------------


def _selected(graph: Graph, key: int) -> dict[tuple[Any, ...], Any] | None:
    """The key at every admitted value of the inputs and knobs it reads; None where these are too many."""
    leaves = list(graph.leaves([key]))
    points = every_input(graph, input_domains(graph), leaves)
    if points is None:
        return None
    key_at = tuple_function(graph, [key], leaves)
    return {point: key_at(*point)[0] for point in points}


def _reached(subject: Subject, use: Use) -> set[Any] | frozenset[Any] | None:
    """The keys that some input gives; where inputs are too many to try, a superset by intervals if there is one."""
    chosen = _selected(subject.graph, use.key)
    if chosen is not None:
        return set(chosen.values())
    region = Region(subject.graph, [use.key])
    boxes = {leaf: piece(knob_values(subject.graph, leaf) if subject.graph.kinds[leaf] == "knob"
                         else subject.domains[leaf]) for leaf in region.leaves}
    value = region.value(region.evaluate(boxes), use.key)
    if value is None or isinstance(value, frozenset):
        return value
    return {row for row in subject.table(use.section, use.name) if value.low <= row <= value.high}


class _ByInput:
    """The row that each value of the one int input selects; ``rows`` are the table's keys."""

    def __init__(self, name: str, rows: list[int], selected: dict[int, int]) -> None:
        self.name, self.rows, self.selected = name, rows, selected


def _by_input(subject: Subject, use: Use) -> _ByInput | None:
    leaves = list(subject.graph.leaves([use.key]))
    chosen = _selected(subject.graph, use.key)
    if chosen is None or len(leaves) != 1 or subject.graph.types[leaves[0]] != "int":
        return None
    selected = {x: row for (x,), row in chosen.items()}
    rows = list(subject.table(use.section, use.name))
    if any(selected.get(row, row) != row for row in rows):
        return None
    return _ByInput(_input_names(subject, use)[0], rows, selected)


def _rank(subject: Subject, use: Use) -> int:
    """Which of its table's uses this is: rebinding with the rows in another order keeps the uses' order."""
    return own_uses(subject, use.section, use.name).index(use)


# ---- words -----------------------------------------------------------------------------------------------------


def _place(subject: Subject, use: Use) -> str:
    return subject.place(subject.graph.locations[use.key])


def _input_names(subject: Subject, use: Use) -> list[str]:
    return [subject.graph.data[leaf].name for leaf in subject.graph.leaves([use.key])]


def _domains(subject: Subject, use: Use) -> str:
    graph = subject.graph
    parts = [f"{graph.data[leaf].name} is {compress(subject.domains[leaf], SHOWN)}"
             for leaf in graph.leaves([use.key]) if graph.kinds[leaf] == "input"]
    return " and ".join(parts) or "facts alone decide the row"


def _rows(rows: Iterable[Any]) -> str:
    listed = list(rows)
    return f"{'row' if len(listed) == 1 else 'rows'} {compress(listed)}"


def _inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count:,} inputs"


def _at(names: list[str], point: tuple[Any, ...]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, point, strict=True))

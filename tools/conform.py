"""Conformance: an engine's own recorded outputs against the helpers of the program that transcribes it.

A program's module names what can be compared in ``CONFORM``, a tuple of ``(input columns, output columns,
function)``; the function takes one row as ``{input column: int}`` and returns the outputs in the order of their
columns. In a CSV file an output column's name starts with ``->``.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SHOWN = 5
"""Mismatches kept in a report."""

Entry = tuple[Sequence[str], Sequence[str], Callable[[Mapping[str, int]], Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One output that differs: ``recorded`` by the engine, ``computed`` by the program; ``line`` counts from 1."""

    line: int
    column: str
    recorded: int
    computed: int
    inputs: dict[str, int]

    def __str__(self) -> str:
        inputs = ", ".join(f"{name}={value}" for name, value in self.inputs.items())
        return f"line {self.line}: {self.column} is {self.recorded}, the program says {self.computed} ({inputs})"


@dataclass(slots=True)
class Report:
    """``points`` = ``rows`` times the output columns; ``first`` holds the first mismatches, five at most."""

    rows: int = 0
    points: int = 0
    mismatches: int = 0
    first: list[Mismatch] = field(default_factory=list)

    def __str__(self) -> str:
        return counted(self.points, self.mismatches)


def counted(points: int, mismatches: int) -> str:
    """``9000 points, 0 mismatches``."""
    return f"{points} point{'' if points == 1 else 's'}, {mismatches} mismatch{'' if mismatches == 1 else 'es'}"


def conform(program: Callable[..., object], path: str | os.PathLike[str],
            progress: Callable[[int], None] | None = None) -> Report:
    """Compare every row of a CSV file with what the program's helpers compute.

    ``progress`` is called with the number of rows done. Raises ValueError, with what to do about it, for a program
    that names nothing to compare and for a file that is not such a table.
    """
    entries: Sequence[Entry] = getattr(program, "__globals__", {}).get("CONFORM", ())
    if not entries:
        name = getattr(program, "__name__", program)
        raise ValueError(f"{name} names nothing to compare; define CONFORM beside it, or take the stock program "
                         "of the engine that the file was recorded from")
    table = _rows(path)
    _, header = next(table)
    inputs, outputs, function = _entry(path, header, entries)
    report = Report()
    for line, cells in table:
        row = dict(zip(header, _integers(path, line, header, cells), strict=True))
        report.rows += 1
        report.points += len(outputs)
        for name, value in zip(outputs, _computed(path, line, function, row, outputs), strict=True):
            column = f"->{name}"
            if row[column] != value:
                report.mismatches += 1
                if len(report.first) < SHOWN:
                    report.first.append(Mismatch(line, column, row[column], int(value), {n: row[n] for n in inputs}))
        if progress is not None:
            progress(report.rows)
    if not report.rows:
        raise ValueError(f"{os.fspath(path)}: no rows below the header; give a file with recorded outputs")
    return report


def _computed(path: str | os.PathLike[str], line: int, function: Callable[[Mapping[str, int]], Sequence[int]],
              row: Mapping[str, int], outputs: Sequence[str]) -> Sequence[int]:
    """What the program says of a row; helpers need not bear rows that no engine can have recorded."""
    try:
        found = function(row)
    except Exception as error:
        what = str(error) or "no value"
        raise ValueError(f"{os.fspath(path)}:{line}: the program cannot compute this row ({type(error).__name__}: "
                         f"{what}); give values that the engine can have") from error
    if len(found) != len(outputs):
        raise ValueError(f"{os.fspath(path)}:{line}: the program computes {len(found)} values for {len(outputs)} "
                         "columns; correct its CONFORM")
    return found


def _rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, list[str]]]:
    """The table's lines with their numbers, the header first. Line ends may be of either kind."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, cells) for cells in reader if cells]
    except OSError as error:
        raise ValueError(f"{os.fspath(path)}: {error.strerror}; give the path of a CSV file") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)}: is not CSV ({error}); give a table with a header line") from None
    if not rows:
        raise ValueError(f"{os.fspath(path)}: is empty; give a CSV table with a header line")
    yield from rows


def _entry(path: str | os.PathLike[str], header: list[str], entries: Sequence[Entry]) -> Entry:
    """The entry that computes the file's output columns. All of an entry's columns must be there."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{os.fspath(path)}: two columns are named {', '.join(twice)}; keep one of each")
    recorded = {name[2:] for name in header if name.startswith("->")}
    if not recorded:
        raise ValueError(f"{os.fspath(path)}: no column's name starts with '->'; mark the recorded outputs so")
    for inputs, outputs, function in entries:
        if recorded & set(outputs):
            missing = [name for name in (*inputs, *(f"->{name}" for name in outputs)) if name not in header]
            unknown = sorted(recorded - set(outputs))
            if missing:
                raise ValueError(f"{os.fspath(path)}: columns {', '.join(missing)} are missing; record them too")
            if unknown:
                raise ValueError(f"{os.fspath(path)}: nothing computes {', '.join(unknown)}; drop these columns")
            return inputs, outputs, function
    known = "; ".join(", ".join(f"->{name}" for name in outputs) for _, outputs, _ in entries)
    raise ValueError(f"{os.fspath(path)}: nothing computes {', '.join(sorted(recorded))}; the program computes {known}")


def _integers(path: str | os.PathLike[str], line: int, header: list[str], cells: list[str]) -> list[int]:
    if len(cells) != len(header):
        raise ValueError(f"{os.fspath(path)}:{line}: {len(cells)} cells under {len(header)} columns; "
                         "give every row one cell a column")
    values = []
    for name, cell in zip(header, cells, strict=True):
        try:
            values.append(int(cell))
        except ValueError:
            raise ValueError(f"{os.fspath(path)}:{line}: {name} is {cell!r}; write an integer (flags as 0 and 1)"
                             ) from None
    return values

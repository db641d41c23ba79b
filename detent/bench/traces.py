"""Recorded workloads: Mooncake's and Azure's traces, from files that the user gives, replayed as they are."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

from detent.bench.workloads import FEWEST, SHORTEST_OUTPUT, Shape, Traffic, shrink
from detent.runtime.errors import BadFile

BLOCK = 512
"""Tokens that one entry of Mooncake's ``hash_ids`` stands for."""

Row = tuple[float, Shape]
"""Arrival in seconds, and the request."""


def recorded(name: str, path: str, scale: float, context: int) -> Traffic:
    """The trace ``name`` ("mooncake" or "azure") of a file, for an engine with so many tokens a request.

    Below scale 1 it is the first part of the trace with shorter requests, at the recorded times. Requests that do
    not fit the context are left out and counted. Raises BadFile.
    """
    return fitting(name, path, rows(name, path, scale), context)


def rows(name: str, path: str, scale: float) -> list[Row]:
    """The requests of a trace in the order of their arrival, at least one. Raises BadFile."""
    factor = shrink(scale)
    if not os.path.isfile(path):
        raise BadFile(path, "there is no such file", f"give the {name} trace: --trace {name}=FILE")
    read: Callable[[TextIO, str, float], Iterator[Row]] = _mooncake if name == "mooncake" else _azure
    try:
        with open(path, encoding="utf-8", newline="") as file:
            found = sorted(read(file, path, factor), key=lambda row: row[0])
    except UnicodeDecodeError:
        raise BadFile(path, "is no text in UTF-8", f"give the {name} trace as published") from None
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be read", f"give the {name} trace: --trace {name}=FILE") from None
    if not found:
        raise BadFile(path, "holds no requests", f"give the {name} trace as published")
    return found[:max(FEWEST, round(len(found) * factor))]


def fitting(name: str, path: str, rows: list[Row], context: int) -> Traffic:
    """What of a trace's requests fits an engine. Raises BadFile where none does."""
    kept = [row for row in rows if row[1].tokens + row[1].output <= context]
    if not kept:
        raise BadFile(path, f"none of its requests fits the engine's context of {context} tokens",
                      "give a smaller --scale, or the trace as published")
    times = [at - kept[0][0] for at, _ in kept]
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    return Traffic(name, tuple(shape for _, shape in kept), tuple(gaps), context, True, len(rows) - len(kept))


def _mooncake(file: TextIO, path: str, factor: float) -> Iterator[Row]:
    """``timestamp`` in ms, ``input_length``, ``output_length``, and ``hash_ids``: equal ids are equal tokens."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row: dict[str, Any] = json.loads(line)
            tokens, blocks = int(row["input_length"]), [int(block) for block in row["hash_ids"]]
            at, output = _time(float(row["timestamp"]) / 1000), int(row["output_length"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise _bad(path, number, error) from None
        if len(blocks) != -(-tokens // BLOCK) or tokens < 1:
            raise BadFile(path, f"line {number}: {tokens} tokens are not {len(blocks)} blocks of {BLOCK}",
                          "give the mooncake trace as published")
        edges = [round(index * BLOCK * factor) for index in range(len(blocks))] + [max(1, round(tokens * factor))]
        segments = tuple((f"block {block}", max(0, after - before))
                         for block, before, after in zip(blocks, edges, edges[1:], strict=False))
        yield at, Shape(segments, _output(output, factor), f"line {number}")


def _azure(file: TextIO, path: str, factor: float) -> Iterator[Row]:
    """``TIMESTAMP,ContextTokens,GeneratedTokens``; nothing says what requests share, so nothing is shared."""
    reader = csv.DictReader(file)
    rows = enumerate(reader, 2)
    while True:
        try:
            number, row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:  # a line that is too long, or has a NUL
            raise _bad(path, reader.line_num + 1, error) from None
        try:
            # Seven digits of a second are one more than Python reads.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
            tokens, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _bad(path, number, error) from None
        yield at, Shape(((f"line {number}", max(1, round(tokens * factor))),), _output(output, factor),
                        f"line {number}")


def _time(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(f"timestamp {seconds}")
    return seconds


def _output(tokens: int, factor: float) -> int:
    """As recorded at full scale, at least the shortest of the other workloads below."""
    return max(1, tokens) if factor == 1 else max(SHORTEST_OUTPUT, round(tokens * factor))


def _bad(path: str, number: int, error: Exception) -> BadFile:
    what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
    return BadFile(path, f"line {number}: {what}", "give the trace as published")

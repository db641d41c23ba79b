"""Short text for values, domains and places, the same in every view."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MIN_RUN = 3
"""Consecutive integers written as a range: ``1-3`` is shorter than ``1, 2, 3``, ``1-2`` is not than ``1, 2``."""
MIN_STRIDED = 5
"""Evenly spaced integers written as ``64-512 step 64``; fewer are easier to read one by one."""


def compress(values: Iterable[Any], limit: int = 12) -> str:
    """Values in the given order, integer runs as ranges: ``1-4, 8, 16-256``.

    More than ``limit`` pieces are cut off and the values left out counted. An empty sequence gives ``none``.
    """
    items = list(values)
    pieces: list[tuple[str, int]] = []
    at = 0
    while at < len(items):
        length, step = _progression(items, at)
        if length < (MIN_RUN if step == 1 else MIN_STRIDED):
            length = 1
        pieces.append((_range(items[at], items[at + length - 1], step) if length > 1 else repr(items[at]), length))
        at += length
    kept = len(pieces) if len(pieces) <= limit + 1 else limit
    texts = [text for text, _ in pieces[:kept]]
    if kept < len(pieces):
        texts.append(f"… {sum(length for _, length in pieces[kept:]):,} more")
    return ", ".join(texts) or "none"


def _progression(items: Sequence[Any], at: int) -> tuple[int, int]:
    """Length and step of the longest evenly rising run of ints that starts at ``at``."""
    if at + 1 >= len(items) or type(items[at]) is not int or type(items[at + 1]) is not int:
        return 1, 0
    step = items[at + 1] - items[at]
    if step <= 0:
        return 1, 0
    end = at + 1
    while end + 1 < len(items) and type(items[end + 1]) is int and items[end + 1] - items[end] == step:
        end += 1
    return end - at + 1, step


def _range(low: int, high: int, step: int) -> str:
    text = f"{low} to {high}" if low < 0 else f"{low}-{high}"
    return text if step == 1 else f"{text} step {step}"


def domain(entry: Mapping[str, Any]) -> str:
    """An input's domain: ``{"range": [low, high, step]}`` or ``{"values": [...]}``."""
    if "range" in entry:
        low, high, step = entry["range"]
        return repr(low) if low == high else _range(low, high, step)
    return compress(entry["values"])


def place(location: Mapping[str, Any] | None) -> str:
    """``file:line`` of a document's location; empty where there is none."""
    return f"{location['file']}:{location['line']}" if location else ""


def one_line(text: str, limit: int = 160) -> str:
    """Source text with its line breaks and indentation folded, cut off after ``limit`` characters."""
    folded = " ".join(text.split())
    return folded if len(folded) <= limit else folded[: limit - 1] + "…"


def replaced(text: str) -> str:
    """The source text that a pin replaces. A statement with early returns is shown by its head, which is no value."""
    folded = one_line(text)
    return f"what '{folded}' decides" if folded.startswith("if ") else folded


def bindings(values: Mapping[str, Any]) -> str:
    """``b=993, max_seqlen_k=4096``."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def count(number: int, noun: str) -> str:
    """``1 pin``, ``3,105 values``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def packed(pieces: Iterable[str], width: int, lines: int) -> list[str]:
    """Pieces joined by commas into at most ``lines`` lines of about ``width`` characters; the rest is counted."""
    items = list(pieces)
    rows: list[str] = []
    for index, piece in enumerate(items):
        comma = "," if index + 1 < len(items) else ""
        if rows and len(rows[-1]) + len(piece) + 2 <= width:
            rows[-1] += f" {piece}{comma}"
        elif len(rows) < lines:
            rows.append(piece + comma)
        else:
            rows.append(f"… {len(items) - index} more")
            break
    return rows


def unknown(kind: str, name: str, known: Iterable[str]) -> LookupError:
    """The error for a name that does not exist: lists those that do and proposes the nearest."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return LookupError(f"no {kind} {name!r}: {hint}known: {', '.join(names) or 'none'}")

"""How wide the columns of a table are, and where the text in them breaks: names stay whole as long as there is room."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

_PIECES = re.compile(r"[^-/._,:×]*[-/._,:×]+|[^-/._,:×]+")
"""Pieces of a word that is too long for its column: it breaks behind punctuation."""


AMPLE = 16
"""Characters that a column of text keeps before a table is drawn tighter."""


def column_widths(columns: Sequence[Sequence[str]], kept: Sequence[bool],
                  available: Sequence[int]) -> tuple[list[int], int]:
    """A width for each column, and which of the ``available`` totals they fit, as an index.

    ``columns`` are the lines of text of each; those ``kept`` give way last. ``available`` ascends. What gives way, in
    this order, until the widths fit: lines, the smaller totals, the words of columns that are not kept, all words.
    """
    natural = [_longest(lines, lambda line: [line]) for lines in columns]
    words = [_longest(lines, str.split) for lines in columns]
    pieces = [_longest(lines, _PIECES.findall) for lines in columns]
    ample = [max(word, min(n, AMPLE)) for n, word in zip(natural, words, strict=True)]
    floors = [[n if keep else least for n, least, keep in zip(natural, by, kept, strict=True)]
              for by in (ample, words, pieces)]
    attempts = [(floors[0], index) for index in range(len(available))]
    attempts += [(least, len(available) - 1) for least in (*floors[1:], words, pieces)]
    for least, index in attempts:
        if sum(least) <= available[index]:
            return _shrunk(natural, least, available[index]), index
    return _shrunk(natural, [1] * len(columns), max(available[-1], len(columns))), len(available) - 1


def _longest(lines: Iterable[str], split: Callable[[str], list[str]]) -> int:
    return max((len(part) for line in lines for part in split(line)), default=1) or 1


def _shrunk(natural: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """The natural widths with the widest column narrowed again and again until all fit; none below its least."""
    widths = list(natural)
    for _ in range(sum(widths) - available):
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def folded(text: str, width: int) -> str:
    """Text in lines of at most ``width`` characters: broken between words, long words behind punctuation."""
    return "\n".join(part for line in text.split("\n") for part in _lines(line, width))


def _lines(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    rows = [""]
    for word in line.split():
        gap = " " if rows[-1] else ""
        if len(rows[-1]) + len(gap) + len(word) <= width:
            rows[-1] += gap + word
            continue
        if rows[-1]:
            rows.append("")
        for piece in _PIECES.findall(word) if len(word) > width else [word]:
            if rows[-1] and len(rows[-1]) + len(piece) > width:
                rows.append("")
            rows[-1] += piece
            while len(rows[-1]) > width:
                rows[-1:] = [rows[-1][:width], rows[-1][width:]]
    return rows

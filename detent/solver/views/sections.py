"""Text views as data, and the one place that draws them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True)
class Paragraph:
    """A few lines of text; long lines are wrapped at words."""

    lines: tuple[str, ...]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of text below a title. Columns named in ``whole`` are the last to be folded, those in ``right``
    hold numbers and are aligned right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


Section = Paragraph | Table


def render(sections: Sequence[Section], width: int = WIDTH, color: bool = False) -> str:
    """The sections as text of at most ``width`` columns; without ``color`` there are no escape sequences."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=color, color_system="standard" if color else None,
                      highlight=False, markup=False, emoji=False, legacy_windows=False)
    for section in sections:
        if section.title:
            console.print(Text(section.title, style="bold"))
        if isinstance(section, Table):
            console.print(_grid(section, width))
        else:
            for line in section.lines:
                console.print(Padding(Text(line), (0, 0, 0, 1 if section.title else 0)))
        console.print()
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    return "\n".join(lines).rstrip() + "\n"


def _grid(section: Table, width: int) -> object:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    from detent.solver.views.columns import column_widths, folded

    count = len(section.columns)
    texts = [[column, *(line for row in section.rows for line in row[i].split("\n"))]
             for i, column in enumerate(section.columns)]
    kept = [column in section.right or (column in section.whole and max(map(len, texts[i])) <= width // 3)
            for i, column in enumerate(section.columns)]
    # Beside the text: the column's padding, and a blank between columns.
    loose, tight = width - 3 * count + 1, width - 2 * count + 1
    widths, which = column_widths(texts, kept, (loose, tight))
    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=True, padding=((0, 1), (0, 0, 0, 1))[which],
                header_style="cyan")
    for column, size in zip(section.columns, widths, strict=True):
        grid.add_column(Text(folded(column, size)), justify="right" if column in section.right else "left",
                        overflow="fold", width=size)
    for row in section.rows:
        grid.add_row(*(Text(folded(cell, size)) for cell, size in zip(row, widths, strict=True)))
    return grid

"""What commands write to standard output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from detent.solver.views.sections import Section

PIPED_WIDTH = 100
"""Columns of a table that is not written to a terminal, unless COLUMNS says otherwise."""
MIN_WIDTH, MAX_WIDTH = 60, 160


def show(sections: Sequence[Section]) -> None:
    """Draw text views: as wide as the terminal and coloured there, plain in a pipe.

    COLUMNS sets the width of either; a pipe's is 100 without it.
    """
    from detent.solver.views.sections import render

    terminal = sys.stdout.isatty()
    width = PIPED_WIDTH
    if terminal or os.environ.get("COLUMNS", "").isdecimal():
        import shutil

        width = max(MIN_WIDTH, min(shutil.get_terminal_size((PIPED_WIDTH, 24)).columns, MAX_WIDTH))
    click.echo(render(sections, width, color=terminal and "NO_COLOR" not in os.environ), nl=False)


def show_json(value: Any) -> None:
    """Write a JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def check_places(*paths: str | None) -> None:
    """Raise BadFile for a file that cannot be written: before anything is served, measured or solved."""
    from detent.runtime.errors import BadFile

    for path in paths:
        if path is None:
            continue
        folder = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(path):
            why = "it is a folder"
        elif os.path.exists(path):
            why = "" if os.access(path, os.W_OK) else "permission denied"
        elif not path or not os.path.isdir(folder):
            why = f"there is no folder {folder}" if path else "it has no name"
        else:
            why = "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
        if why:
            raise BadFile(path or "''", f"cannot be written: {why}", "name a file in a folder you may write to")


def place(source: dict[str, Any] | None) -> str | None:
    """``file:line`` of a document's location."""
    return f"{source['file']}:{source['line']}" if source else None

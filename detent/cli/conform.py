"""``detent conform``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import json_option, program_argument
from detent.cli.output import show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.tools.conform import Mismatch, Report


@click.command("conform", epilog="""\b
Example:
  detent conform fa3-vllm-stock fa3_vllm-0.26.0.csv fa3_tiles_vllm-0.26.0.csv""")
@program_argument
@click.argument("files", metavar="FILE.csv...", nargs=-1, required=True, type=click.Path())
@json_option
def conform_command(program: str, files: tuple[str, ...], as_json: bool) -> int:
    """Compare an engine's recorded outputs with a program's.

    The program's helpers run in plain Python, row by row; columns whose name starts with -> are compared.
    Exit code 1 if any differs.
    """
    from detent.lang.load import load_program
    from detent.runtime.errors import DetentError
    from detent.solver.solve import program_of
    from detent.tools.conform import conform

    reports: list[tuple[str, Report]] = []
    with Steps(f"conform {program}") as step:
        function = load_program(program_of(program).id)
        for path in files:
            try:
                with redirect_stdout(sys.stderr):  # the program's functions may print
                    report = conform(function, path, _rows(step, os.path.basename(path)))
            except ValueError as error:
                raise DetentError(str(error)) from error
            reports.append((path, report))
    mismatches = sum(report.mismatches for _, report in reports)
    if as_json:
        show_json(_json(program, reports))
    else:
        _print(reports)
    return 1 if mismatches else 0


def _rows(step: Steps, name: str) -> Callable[[int], None]:
    return lambda row: step(f"{name}, row {row:,}")


def _print(reports: list[tuple[str, Report]]) -> None:
    from detent.tools.conform import counted

    if len(reports) > 1:
        for path, report in reports:
            click.echo(f"{path}: {report}")
    click.echo(counted(sum(report.points for _, report in reports), sum(report.mismatches for _, report in reports)))
    for path, mismatch in first(reports):
        click.echo(f"  {path}: {mismatch}")


def first(reports: list[tuple[str, Report]]) -> list[tuple[str, Mismatch]]:
    """The first mismatches of all files together, as many as one report keeps."""
    from detent.tools.conform import SHOWN

    return [(path, mismatch) for path, report in reports for mismatch in report.first][:SHOWN]


def _json(program: str, reports: list[tuple[str, Report]]) -> dict[str, Any]:
    return {
        "program": program,
        "points": sum(report.points for _, report in reports),
        "mismatches": sum(report.mismatches for _, report in reports),
        "files": [{"file": path, "rows": report.rows, "points": report.points, "mismatches": report.mismatches}
                  for path, report in reports],
        "first": [{"file": path, "line": m.line, "column": m.column, "recorded": m.recorded, "computed": m.computed,
                   "inputs": m.inputs} for path, m in first(reports)],
    }

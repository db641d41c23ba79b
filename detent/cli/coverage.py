"""``detent coverage``: what becomes of each of an engine's batch-dependent selections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import json_option
from detent.cli.output import show, show_json

if TYPE_CHECKING:
    from detent.runtime.coverage import Coverage, Row
    from detent.runtime.settings import Check, Switch
    from detent.solver.views.sections import Section

TITLES = {"covered": "Covered by programs", "switched-off": "Switched off by the plug-in",
          "refused": "Refused at start-up"}
PATH_WIDTH = 44
"""Longer settings take two lines."""
COLUMNS = {"covered": "programs", "switched-off": "set to", "refused": "served where"}


@click.command("coverage", epilog="""\b
Examples:
  detent coverage --engine vllm
  detent coverage --engine sglang --row E2-13""")
@click.option("--engine", required=True, metavar="ENGINE", help="vllm or sglang.")
@click.option("--engine-version", metavar="V", help="Version of the engine, if several are known.")
@click.option("--row", "ids", metavar="ID", multiple=True,
              help="One row with where it is and why it ends so. May be repeated.")
@json_option
def coverage_command(engine: str, engine_version: str | None, ids: tuple[str, ...], as_json: bool) -> None:
    """List every selection of an engine that reads the batch.

    Each is covered by programs, switched off by the plug-in or refused when the engine starts.
    """
    from detent.runtime.coverage import load

    coverage = load(engine, engine_version)
    rows = [coverage.row(id) for id in ids] or list(coverage.rows)
    if as_json:
        show_json(_json(coverage, rows))
    elif ids:
        show([_one(row) for row in rows])
    else:
        show(_sections(coverage))


def _counts(coverage: Coverage) -> dict[str, int]:
    return {status: sum(row.status == status for row in coverage.rows) for status in TITLES}


def _sections(coverage: Coverage) -> list[Section]:
    from detent.solver.views.sections import Paragraph, Table

    counts = _counts(coverage)
    told = ", ".join(f"{count} {status.replace('-', ' ')}" for status, count in counts.items())
    sections: list[Section] = [Paragraph((f"{coverage.engine} {coverage.version}: {len(coverage.rows)} selections, "
                                          f"{told}",))]
    for status, title in TITLES.items():
        rows = tuple((row.id, f"{row.what}\nreads {', '.join(row.reads) or 'nothing of the batch'}", _ends(row))
                     for row in coverage.rows if row.status == status)
        sections.append(Table(title, ("id", "selection", COLUMNS[status]), rows, whole=("id",)))
    sections.append(Paragraph((f"Where a row is and why: detent coverage --engine {coverage.engine} --row "
                               f"{coverage.rows[0].id}",)))
    return sections


def _ends(row: Row) -> str:
    """Programs on one line, settings on one each; a long one is broken before its last name or its value."""
    if row.programs:
        return ", ".join(row.programs)
    lines = []
    for text in row.by:
        name, _, rest = text.partition(" ")
        head, dot, last = name.rpartition(".")
        if len(text) > PATH_WIDTH:
            text = f"{head}\n  .{last} {rest}" if dot else f"{name}\n  {rest}"
        lines.append(text)
    return "\n".join(lines)


def _one(row: Row) -> Section:
    from detent.solver.views.sections import Paragraph

    return Paragraph((
        row.what,
        f"reads: {', '.join(row.reads) or 'nothing of the batch'}",
        f"{row.status.replace('-', ' ')}: {'; '.join(row.by)}",
        f"why: {row.why}",
        *(f"in {where}" for where in row.where),
    ), row.id)


def _json(coverage: Coverage, rows: list[Row]) -> dict[str, Any]:
    return {
        "engine": coverage.engine,
        "version": coverage.version,
        "counts": _counts(coverage),
        "rows": [{"id": row.id, "what": row.what, "where": list(row.where), "reads": list(row.reads),
                  "status": row.status, "why": row.why,
                  "by": [*row.programs, *map(_switch, row.switches), *map(_check, row.checks)]} for row in rows],
    }


def _switch(switch: Switch) -> dict[str, Any]:
    return {switch.kind: switch.name, "has" if switch.has else "value": _value(switch.value)}


def _value(value: Any) -> Any:
    from detent.runtime.settings import FactValue

    return {"fact": value.name} if isinstance(value, FactValue) else value


def _check(check: Check) -> dict[str, Any]:
    """As in the file: what does not restrict is left out."""
    found: dict[str, Any] = {check.kind: check.name}
    if check.allowed:
        found["allowed"] = list(check.allowed)
    if check.absent:
        found["absent"] = True
    if check.at_most is not None:
        found["at_most"] = _value(check.at_most)
    return found

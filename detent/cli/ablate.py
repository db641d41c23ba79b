"""``detent ablate``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from detent.cli.errors import does_not_apply
from detent.cli.options import json_option, named_program
from detent.cli.output import show, show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.cli.appendix import Row
    from detent.solver.ablation import Ablations
    from detent.solver.choices import Choices
    from detent.solver.views.sections import Section

MAIN = {
    "attention": ("llama-3.1-70b-tp4-h100", "qwen3-30b-a3b-tp4-h100-sglang"),
    "allreduce": ("llama-3.1-70b-tp4-h100", "qwen3-30b-a3b-tp4-h100-sglang"),
    "moe": ("qwen3-30b-a3b-tp4-h100-sglang", "qwen3-30b-a3b-tp4-h100"),
    "gemm": ("llama-3.1-70b-tp4-h100", "qwen3-30b-a3b-tp4-h100-sglang"),
}
"""The paper's four families, each on its main deployments; between them both engines."""
LISTED = 12
"""Up to so many legal assignments are listed one by one."""


@click.command("ablate", epilog="""\b
Columns:
  batch-dependent   points that would follow the batch without the pins
  candidates        assignments of the pins and knobs; legal: those that no require rules out
  at one input      legal assignments that the selection itself makes at some input
  at several        it takes each of their values at some input, but never all at once
  bypassing         it takes some of their values at no input: they bypass its own rules and tables
\b
Examples:
  detent ablate
  detent ablate allreduce
  detent ablate norm.py:rms_norm -d my.toml --json""")
@click.argument("program", metavar="[PROGRAM]", required=False, callback=named_program)
@click.option("--deployment", "-d", metavar="D", help="Deployment: a name or the path of a TOML file. Without it the "
              f"main deployments of {', '.join(MAIN)}.")
@json_option
def ablate_command(program: str | None, deployment: str | None, as_json: bool) -> None:
    """Solve programs with each analysis switched off in turn, and show what it costs.

    Without PROGRAM: attention, all-reduce, MoE and GEMM. Without a deployment the counts also stand beside the paper's.
    """
    if program is not None and deployment is None and program not in MAIN:
        from detent.runtime.sources import resolve

        resolve(program)
        raise click.UsageError(f"{program} has no main deployment; give one with --deployment")
    reports = _reports(program, deployment)
    rows: list[Row] = []
    if deployment is None:
        from detent.cli.appendix import beside_the_paper

        rows = beside_the_paper(reports)
    if as_json:
        show_json({"ablations": [_json(report) for report in reports],
                   "paper": [row._asdict() for row in rows]})
        return
    show([section for report in reports for section in _sections(report)] + _paper(rows))


def _reports(program: str | None, deployment: str | None) -> list[Ablations]:
    from detent.solver.ablation import compare_all

    programs = list(MAIN) if program is None else [program]
    reports = []
    for name in programs:
        for where in MAIN[name] if deployment is None else (deployment,):
            try:
                with Steps(f"{name} for {where}") as step:
                    reports.append(compare_all(name, where, progress=step))
            except SyntaxError as error:
                if program is not None or not does_not_apply(error):
                    raise
    return reports


# ---- tables ----------------------------------------------------------------------------------------------------


def _sections(report: Ablations) -> list[Section]:
    from detent.solver.ablation import counts
    from detent.solver.views.sections import Paragraph, Table

    full = report.full
    rows = [("nothing", counts(full.document), "")]
    rows += [(found.name, found.rows[1], found.remark) for found in report.comparisons]
    columns = ("switched off", "pins", "batch-dependent", "candidates", "legal", "in words")
    sections: list[Section] = [Table(
        f"{full.program} for {full.deployment}", columns,
        tuple((name, str(row.pins), str(row.moving), _count(row.candidates, "not finite"),
               _count(row.legal, "not judged"), remark) for name, row, remark in rows),
        right=columns[1:5], whole=columns[:1])]
    sections += _choice_sections(report)
    sections.append(Paragraph((_freely(report.free),), "Without any analysis"))
    return sections


def _choice_sections(report: Ablations) -> list[Section]:
    from detent.solver.views.sections import Table
    from detent.solver.views.wording import bindings, compress

    if report.choices is None:
        return []
    choices = [("nothing", report.choices)]
    choices += [(found.name, found.choices) for found in report.comparisons if found.choices is not None]
    columns = ("switched off", "legal", "at one input", "at several", "bypassing", "values it never takes")
    counts = [(name, *(f"{number:,}" for number in (found.legal, *(len(part) for _, part in _parts(found)))),
               "; ".join(f"{pin}: {compress(values)}" for pin, values in found.unused.items()))
              for name, found in choices]
    sections: list[Section] = [Table("Legal assignments beside what the selection itself does", columns, tuple(counts),
                                     right=columns[1:5], whole=columns[:1])]
    listed: list[tuple[str, str, str]] = []
    seen: list[Choices] = []
    for name, found in choices:
        if found.legal <= LISTED and found not in seen:
            seen.append(found)
            listed += [(name, bindings(assignment), part) for part, some in _parts(found) for assignment in some]
    if listed:
        sections.append(Table("Which they are", ("switched off", "legal assignment", "the selection makes it"),
                              tuple(listed), whole=("switched off",)))
    return sections


def _parts(found: Choices) -> list[tuple[str, list[dict[str, Any]]]]:
    return [("at one input", found.together), ("at several", found.apart), ("never: bypassing", found.bypassing)]


def _freely(free: dict[str, int]) -> str:
    flags = sum(count == 2 for count in free.values())
    others = [f"{name} {count}" for name, count in free.items() if count != 2]
    parts = ", ".join([*([f"{flags} points 2 each"] if flags else []), *others])
    return f"{power(math.prod(free.values()))} assignments, every point set freely ({parts or 'none'})"


def power(number: int) -> str:
    """``7 × 2^25 = 234,881,024``: powers of two from 2^10 on are written out."""
    exponent = (number & -number).bit_length() - 1
    odd = number >> exponent
    text = f"{number:,}"
    return text if exponent < 10 else f"{'' if odd == 1 else f'{odd:,} × '}2^{exponent} = {text}"


def _count(number: int | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number:,}"


def _paper(rows: list[Row]) -> list[Section]:
    if not rows:
        return []
    from detent.solver.views.sections import Table

    columns = ("count", "paper", "ours", "how ours is counted")
    cells = tuple((f"{row.program}: {row.what}", row.paper, row.ours, row.how) for row in rows)
    return [Table("Beside the paper", columns, cells, whole=columns[1:3])]


# ---- JSON ------------------------------------------------------------------------------------------------------


def _json(report: Ablations) -> dict[str, Any]:
    from detent.solver.ablation import counts

    full = report.full
    return {
        "program": full.program,
        "deployment": full.deployment,
        "full": {**_numbers(counts(full.document)), "choices": _choices(report.choices)},
        "without": [{
            "name": found.name, "off": found.off, **_numbers(found.rows[1]),
            "pinned": [pin["name"] for pin in found.document["pins"]],
            "problem": found.problem or None,
            "remark": found.remark or None,
            "reached": None if found.reached is None else {"candidates": found.reached["candidates"],
                                                           "legal": found.reached["legal"]},
            "moved": None if found.moved is None else {
                "point": found.moved.point, "values": list(found.moved.values), "inputs": list(found.moved.inputs),
                "pins": found.moved.pins},
            "choices": _choices(found.choices),
        } for found in report.comparisons],
        "free": {"assignments": math.prod(report.free.values()), "points": report.free},
    }


def _numbers(row: Any) -> dict[str, Any]:
    return {"pins": row.pins, "batch_dependent": row.moving, "candidates": row.candidates, "legal": row.legal}


def _choices(found: Choices | None) -> dict[str, Any] | None:
    if found is None:
        return None
    parts = {"together": found.together, "apart": found.apart, "bypassing": found.bypassing}
    return {**{name: len(part) for name, part in parts.items()}, "unused": found.unused,
            "assignments": parts if found.legal <= LISTED else None}

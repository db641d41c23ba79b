"""``detent run``: the main job, on the deployments that come with Detent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detent.cli.families import solve_all
from detent.cli.options import json_option
from detent.cli.output import show, show_json

if TYPE_CHECKING:
    from detent.solver.solution import Solution
    from detent.solver.views.sections import Table

PROGRAMS = ("attention", "moe")
DEPLOYMENTS = ("llama-3.1-70b-tp4-h200", "qwen3-30b-a3b-tp4-h200")


@click.command("run")
@json_option
def run_command(as_json: bool) -> None:
    """Solve attention and MoE for Llama-3.1-70B and Qwen3-30B-A3B."""
    from detent.runtime.deployment import load

    solutions: list[Solution] = []
    skipped: list[tuple[str, str, str]] = []
    for name in DEPLOYMENTS:
        solved, reasons = solve_all(load(name), PROGRAMS)
        solutions += solved
        skipped += [(program, name, reason) for program, reason in reasons.items()]
    if as_json:
        from detent.cli.solve import summary

        show_json({"solutions": [summary(solution) for solution in solutions],
                   "skipped": [{"program": program, "deployment": name, "reason": reason}
                               for program, name, reason in skipped]})
        return
    from detent.solver.views.sections import Paragraph

    show([
        _table(solutions),
        Paragraph(("moving: points that would follow the batch without the pins",)),
        *(Paragraph((reason,), f"Skipped: {program} for {name}") for program, name, reason in skipped),
        Paragraph(_next(DEPLOYMENTS[-1]), "Where to look next"),
    ])


def _table(solutions: list[Solution]) -> Table:
    from detent.solver.views.sections import Table

    rows = []
    for solution in solutions:
        moving = sum(point["batch_dependent"] for point in solution.points)
        sampled = solution.legality["sampled"]
        verdict = f"{sampled:,} by sample" if sampled else "all proved"
        rows.append((
            f"{solution.program}\n{solution.deployment}", f"{solution.values:,}",
            f"{moving} of {len(solution.points)}", ", ".join(pin["name"] for pin in solution.pins),
            f"{solution.legal:,} of {solution.candidates:,}\n{verdict}", f"{solution.seconds:.2f} s"))
    columns = ("program and deployment", "values", "moving", "pins", "legal", "time")
    return Table("Solved", columns, tuple(rows), right=("values", "moving", "legal", "time"))


def _next(deployment: str) -> tuple[str, ...]:
    commands = {
        f"detent solve attention -d {deployment}": "candidates, legal values, default",
        f"detent explain attention -d {deployment}": "why these values are pinned",
        f"detent tuple new -d {deployment} tuple.json": "one value for every pin",
        "detent --help": "everything else",
    }
    width = max(map(len, commands))
    return tuple(f"{command:{width}}   {what}" for command, what in commands.items())

"""``detent run``: the main job, on the deployments that come with Detent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detent.cli.families import adapted, solve_all
from detent.cli.options import json_option
from detent.cli.output import show, show_json

if TYPE_CHECKING:
    from detent.solver.solution import Solution
    from detent.solver.views.sections import Table

DEPLOYMENTS = ("llama-3.1-70b-tp4-h200", "qwen3-30b-a3b-tp4-h200")


@click.command("run")
@json_option
def run_command(as_json: bool) -> None:
    """Solve attention and MoE for Llama-3.1-70B and Qwen3-30B-A3B on H200 and show what was found."""
    from detent.runtime.deployment import load

    solutions: list[Solution] = []
    skipped: list[tuple[str, str, str]] = []
    for name in DEPLOYMENTS:
        solved, reasons = solve_all(load(name), adapted())
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
        *(Paragraph((reason,), f"Skipped: {program} for {name}") for program, name, reason in skipped),
        Paragraph(_next(DEPLOYMENTS[-1]), "Where to look next"),
    ])


def _table(solutions: list[Solution]) -> Table:
    from detent.solver.views.sections import Table

    rows = []
    for solution in solutions:
        moving = sum(point["batch_dependent"] for point in solution.points)
        sampled = solution.legality["sampled"]
        rows.append((
            solution.program, solution.deployment, f"{solution.values:,}", f"{len(solution.points)}, {moving} moving",
            ", ".join(pin["name"] for pin in solution.pins), f"{solution.candidates:,}", f"{solution.legal:,}",
            f"{sampled:,} sampled" if sampled else "all proved", f"{solution.seconds:.2f} s"))
    columns = ("program", "deployment", "values", "points", "pins", "candidates", "legal", "verdicts", "time")
    return Table("Solved", columns, tuple(rows), right=("values", "candidates", "legal", "time"),
                 whole=("program", "deployment"))


def _next(deployment: str) -> tuple[str, ...]:
    return (
        f"detent solve attention -d {deployment}        pins, candidates, legal values, default",
        f"detent explain attention -d {deployment}      why these values are pinned",
        f"detent tuple new -d {deployment} tuple.json   one value for every pin, to serve with",
        "detent --help                                                everything else",
    )

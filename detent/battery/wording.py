"""The report in words: what the table on a terminal and the page say alike."""

from __future__ import annotations

from typing import Any

from detent.battery.compare import PREFIX, Difference
from detent.battery.report import VERDICTS, Report, counts
from detent.battery.workload import SHORT

SHOWN_POINTS = 12
"""Selection points listed below a difference before they are cut short."""


def headline(report: Report) -> str:
    """One line: the target and how many cells have which verdict."""
    found = counts(report.results)
    sums = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
    cells = len(report.results)
    alone = f"; no batch of several requests was exercised in: {', '.join(report.without_batch)}"
    return (f"{report.traits.name} ({report.traits.arm}), {cells} cell{'s' * (cells != 1)}: {sums or 'none'}"
            + alone * bool(report.without_batch))


def conditions(report: Report) -> dict[str, str]:
    """What the verdicts hold for."""
    traits, sizes = report.traits, report.sizes
    hidden = sorted({"batch", "row", "tokens", "graph", "selections", "cached", "chunks", "preemptions"}
                    - traits.evidence)
    limits = {"context": traits.context, "budget": traits.budget, "max_seqs": traits.max_seqs, "page": traits.page}
    values = {
        "target": f"{traits.engine}, {traits.model}, arm {traits.arm}",
        "limits": ", ".join(f"{name} {value if value is not None else 'not told'}" for name, value in limits.items()),
        "log-probabilities": traits.resolution,
        "evidence told": ", ".join(sorted(traits.evidence)) or "none",
        "not told": ", ".join(hidden) or "nothing",
        "prompts": f"seed {report.seed}, short {SHORT}, compared {sizes.subject}, long {sizes.long} tokens"
                   + (f", salt {report.salt}" if report.salt else ""),
    }
    environment = ", ".join(f"{name} {value}" for name, value in traits.environment.items())
    return values | ({"environment": environment} if environment else {})


def difference_lines(difference: Difference) -> list[str]:
    """The first differing token, both values, and what the selections say."""
    copy = f"copy {difference.copy + 1}, " if difference.copy else ""
    ids = difference.tokens
    token = f"id {_id(ids[0])}" if ids[0] == ids[1] else f"ids {_id(ids[0])} and {_id(ids[1])}"
    lines = [f"{copy}token {difference.at} ({token}): {difference.reference}, then {difference.perturbed}"]
    later = []
    if difference.same_inputs:
        later.append(f"{difference.same_inputs} more differ")
    if difference.other_inputs:
        later.append(f"{difference.other_inputs} more have other inputs (token ids)")
    lines.append("; ".join([difference.diagnosis, *later]))
    points = list(difference.points.items())
    lines += [f"{name}: {was!r}, then {now!r} ({'the prompt' if at == PREFIX else f'token {at}'})"
              for name, (at, was, now) in points[:SHOWN_POINTS]]
    if len(points) > SHOWN_POINTS:
        lines.append(f"... {len(points)} points in all")
    return lines


def _id(token: Any) -> str:
    return "none" if token is None else str(token)

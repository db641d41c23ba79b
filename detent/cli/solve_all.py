"""``detent solve --all``: every family on every deployment, and the paper's pins beside ours."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from detent.cli.families import adapted, adapted_for
from detent.cli.output import show, show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.cli.overview import Cell
    from detent.solver.views.sections import Section, Table

SUMMED = ("attention", "allreduce", "moe")
"""Families whose pins the paper adds up, in its order; the GEMM's follow in brackets."""
TITLES = {"allreduce": "all-reduce", "moe": "MoE", "gemm": "GEMM"}
LABELS = {"vllm": "vLLM", "sglang": "SGLang"}


def solve_every(families: Sequence[str], deployments: Sequence[str], as_json: bool) -> int:
    """Solve and print; the exit code, which is 2 if a program refused a deployment that it is about."""
    from detent.cli.overview import overview
    from detent.runtime.consistent import require_consistent
    from detent.runtime.deployment import known, load
    from detent.runtime.errors import UnknownName

    started = time.perf_counter()
    for family in families:
        if family not in adapted():
            raise UnknownName("family", family, adapted())
    facts = [load(name) for name in dict.fromkeys(deployments or known())]
    if not deployments:
        facts = [each for each in facts if "gpu" in each.facts]
    for each in facts:
        require_consistent(each)
    programs = list(dict.fromkeys(program for each in facts for program in adapted_for(each)
                                  if not families or program.removesuffix("-cpu") in families))
    with Steps("all families" if not families else ", ".join(programs)) as step:
        cells = overview(programs, facts, step)
    seconds = time.perf_counter() - started
    refused = [cell for cell in cells if cell.status == "refused"]
    if as_json:
        show_json(_json(cells, seconds))
    else:
        show(_sections(programs, cells, seconds))
    for cell in refused:
        click.echo(f"error: {cell.program} for {cell.deployment.name}: {cell.reason}", err=True)
    return 2 if refused else 0


def paper() -> dict[str, Any]:
    """``programs/paper.toml``."""
    import tomllib

    from detent.runtime.deployment import PROGRAMS

    with open(os.path.join(PROGRAMS, "paper.toml"), "rb") as file:
        return tomllib.load(file)


def _pins(cells: Sequence[Cell]) -> dict[str, dict[str, int | None]]:
    """Pins by deployment and family: 0 where the family does not apply, None where it was refused."""
    found: dict[str, dict[str, int | None]] = {}
    for cell in cells:
        count = len(cell.document["pins"]) if cell.document is not None else None if cell.status == "refused" else 0
        found.setdefault(cell.deployment.name, {})[cell.program] = count
    return found


def _json(cells: Sequence[Cell], seconds: float) -> dict[str, Any]:
    figures = paper()
    solved, others = [], []
    for cell in cells:
        document = cell.document
        if document is None:
            others.append({"program": cell.program, "deployment": cell.deployment.name, "reason": cell.reason,
                           "applies": cell.status == "refused"})
            continue
        solved.append({"program": cell.program, "deployment": cell.deployment.name, "values": document["values"],
                       "pins": [pin["name"] for pin in document["pins"]],
                       "knobs": [knob["name"] for knob in document["knobs"]], "candidates": document["candidates"],
                       "legal": document["legal"], "legality": document["legality"],
                       "cache": "hit" if cell.known else "miss", "key": document["key"]})
    pins = [{"deployment": name, **counts, "paper": figures["pins"].get(name)} for name, counts in _pins(cells).items()]
    return {"solutions": solved, "unsolved": others, "pins": pins, "paper": figures["assignments"], "seconds": seconds}


def _sections(programs: Sequence[str], cells: Sequence[Cell], seconds: float) -> list[Section]:
    from detent.solver.views.sections import Paragraph

    figures = paper()
    sections: list[Section] = []
    if set(SUMMED) <= set(programs):
        sections.append(_totals(_pins(cells), figures["pins"]))
    for program in programs:
        sections += _family(program, [cell for cell in cells if cell.program == program],
                            figures["assignments"].get(program))
    hits = sum(cell.known for cell in cells)
    sampled = sum(cell.document["legality"]["sampled"] for cell in cells if cell.document is not None)
    sections.append(Paragraph((f"{len(cells)} in {seconds:.1f} s, {hits} from the cache; verdicts: "
                               f"{f'{sampled:,} by sample' if sampled else 'all proved'}",)))
    return sections


def _totals(pins: Mapping[str, Mapping[str, int | None]], figures: Mapping[str, Any]) -> Table:
    from detent.solver.views.sections import Table

    rows = []
    for name, counts in pins.items():
        ours = "+".join(_count(counts[family]) for family in SUMMED)
        if "gemm" in counts:
            ours += f" (+{_count(counts['gemm'])})"
        theirs = figures.get(name)
        if theirs is None:
            rows.append((name, ours, "–", ""))
            continue
        differ = []
        for family in SUMMED:
            count = counts[family]
            if count is not None and count != theirs[family]:
                differ.append(f"{TITLES.get(family, family)} {count - theirs[family]:+d}")
        engines = ", ".join(LABELS[engine] for engine in theirs["engines"])
        rows.append((name, ours, f"{'+'.join(str(theirs[family]) for family in SUMMED)} in {engines}",
                     ", ".join(differ) or "the same"))
    return Table("Pins: attention + all-reduce + MoE (+ GEMM)", ("deployment", "ours", "paper", "ours beside it"),
                 tuple(rows), whole=("deployment", "ours"))


def _count(number: int | None) -> str:
    return "?" if number is None else str(number)


def _family(program: str, cells: Sequence[Cell], figures: Mapping[str, int] | None) -> list[Section]:
    """What was solved, then the deployments that the family does not apply to, and those that it refuses."""
    from detent.solver.views.sections import Paragraph, Table

    rows = []
    others: dict[str, list[str]] = {}
    for cell in cells:
        document = cell.document
        if document is None:
            what = "does not apply" if cell.status == "absent" else "refuses"
            others.setdefault(f"{what}, {cell.reason}: ", []).append(cell.deployment.name)
            continue
        pins = ", ".join(pin["name"] for pin in document["pins"]) or "none"
        rows.append((cell.deployment.name, pins, f"{document['candidates']:,}", f"{document['legal']:,}",
                     f"{document['values']:,}"))
    title = program
    if figures is not None:
        title += f" (paper, Qwen3-30B-A3B: {figures['candidates']:,} candidates, {figures['legal']:,} legal)"
    sections: list[Section] = []
    if rows:
        sections.append(Table(title, ("deployment", "pins", "candidates", "legal", "values"), tuple(rows),
                              right=("candidates", "legal", "values"), whole=("deployment",)))
    if others:
        sections.append(Paragraph(tuple(f"{what}{', '.join(names)}" for what, names in others.items()),
                                  "" if rows else title))
    return sections

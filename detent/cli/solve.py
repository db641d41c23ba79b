"""``detent solve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import ablate_option, json_option, named_program
from detent.cli.output import place, show, show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.solver.ablation import Comparison
    from detent.solver.solution import Solution
    from detent.solver.views.sections import Section


@click.command("solve", epilog="""\b
Examples:
  detent solve attention -d qwen3-30b-a3b-tp4-h200
  detent solve norm.py:rms_norm -d my.toml --json
  detent solve attention -d qwen3-30b-a3b-tp4-h200 --ablate control-dependence
  detent solve --all --family attention""")
@click.argument("program", metavar="PROGRAM", required=False, callback=named_program)
@click.option("--deployment", "-d", "deployments", metavar="D", multiple=True,
              help="Deployment: a name (see detent deployments) or the path of a TOML file; with --all any number.")
@ablate_option("Also solve with one analysis switched off, and put both side by side.")
@click.option("--all", "every", is_flag=True, help="Solve the programs that Detent runs on every GPU deployment that "
              "comes with it, and put their pins beside the paper's.")
@click.option("--family", "families", metavar="F", multiple=True, help="With --all: only this family.")
@json_option
@click.pass_context
def solve_command(ctx: click.Context, program: str | None, deployments: tuple[str, ...], ablate: str | None,
                  every: bool, families: tuple[str, ...], as_json: bool) -> int:
    """Find a program's pins, their candidates and what is legal.

    Solved before: the answer comes from the cache.
    """
    if every:
        from detent.cli.solve_all import solve_every

        if program is not None or ablate is not None:
            raise click.UsageError(f"{'--ablate' if program is None else program} and --all exclude each other", ctx)
        return solve_every(families, deployments, as_json)
    if families:
        raise click.UsageError("--family needs --all", ctx)
    if program is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    if len(deployments) != 1:
        if not deployments:
            raise click.MissingParameter(ctx=ctx, param=ctx.command.params[1])
        raise click.UsageError(f"{len(deployments)} deployments for one program; several need --all", ctx)
    _one(program, deployments[0], ablate, as_json)
    return 0


def _one(program: str, deployment: str, ablate: str | None, as_json: bool) -> None:
    if ablate is not None:
        _ablate(program, deployment, ablate, as_json)
        return
    from detent.solver.solve import solve

    with Steps(f"{program} for {deployment}") as step:
        solution = solve(program, deployment, progress=step)
    if as_json:
        show_json(summary(solution))
    else:
        show(_sections(solution))


def summary(solution: Solution) -> dict[str, Any]:
    """What ``detent solve --json`` prints."""
    return summary_of(solution.document, solution.cached, solution.key, solution.seconds)


def summary_of(document: Mapping[str, Any], cached: bool, key: str | None, seconds: float) -> dict[str, Any]:
    """The summary of a document; ``seconds`` is what this call took."""
    inputs: dict[str, list[str]] = {"runtime": [], "unpinnable": [], "request": []}
    for entry in document["inputs"]:
        inputs[entry["kind"]].append(entry["name"])
    return {
        "program": document["program"],
        "deployment": document["deployment"],
        "values": document["values"],
        "inputs": inputs,
        "selection_points": [{name: point[name] for name in ("name", "batch_dependent", "constant", "pins")}
                             for point in document["points"]],
        "pins": [{"name": pin["name"], "source": place(pin["source"]), "candidates": pin["candidates"]}
                 for pin in document["pins"]],
        "knobs": [{"name": knob["name"], "source": place(knob["source"]), "values": knob["values"],
                   "default": knob["default"]} for knob in document["knobs"]],
        "candidates": document["candidates"],
        "legal": document["legal"],
        "legality": document["legality"],
        "default": document["default"],
        "cache": "hit" if cached else "miss",
        "key": key,
        "seconds": seconds,
    }


def _sections(solution: Solution) -> list[Section]:
    from detent.solver.views import wording
    from detent.solver.views.cut_view import cut_view
    from detent.solver.views.sections import Paragraph
    from detent.solver.views.table import joint_sections, knobs_table, pins_table, points_sections, summary

    document, graph = solution.document, solution.graph
    sections: list[Section] = [summary(document, graph)]
    if document["pins"]:
        sections.append(pins_table(document, graph, [pin["name"] for pin in document["pins"]]))
    if document["knobs"]:
        sections.append(knobs_table(document, [knob["name"] for knob in document["knobs"]]))
    sections += joint_sections(document)
    sections += points_sections(cut_view(document, graph))
    default = "none: no assignment is legal" if solution.default is None else wording.bindings(solution.default)
    if solution.default == {}:
        default = "empty: there is nothing to pin and no knob to set"
    sections.append(Paragraph((default,), "Default assignment"))
    origin = "from the cache" if solution.cached else "solved"
    sections.append(Paragraph((f"{origin} in {solution.seconds:.3f} s, key {solution.key[:12]}",)))
    return sections


def _ablate(program: str, deployment: str, name: str, as_json: bool) -> None:
    import time

    from detent.solver.ablation import compare

    started = time.perf_counter()
    with Steps(f"{program} for {deployment}") as step:
        found = compare(program, deployment, name, progress=step)
    if as_json:
        show_json(_comparison(found, time.perf_counter() - started))
    else:
        show(_comparison_sections(found))


def _comparison(found: Comparison, seconds: float) -> dict[str, Any]:
    """The ablated program under the usual keys, then both rows and the point that moved."""
    if found.ablated is not None:
        shown = summary_of(found.document, found.ablated.cached, found.ablated.key, seconds)
    else:
        shown = summary_of(found.document, False, None, seconds)
    full, ablated = ({"pins": row.pins, "batch_dependent": row.moving, "candidates": row.candidates,
                      "legal": row.legal} for row in found.rows)
    moved = found.moved
    return {
        **shown,
        "ablation": {"name": found.name, "off": found.off, "full": full, "ablated": ablated,
                     "problem": found.problem or None},
        "moved": None if moved is None else {"point": moved.point, "values": list(moved.values),
                                             "inputs": list(moved.inputs), "pins": moved.pins},
    }


def _comparison_sections(found: Comparison) -> list[Section]:
    from detent.solver.views import wording
    from detent.solver.views.sections import Paragraph, Table

    documents = (found.full.document, found.document)
    rows, pinned = [], []
    for title, row, document in zip(("everything on", f"without {found.name}"), found.rows, documents, strict=True):
        rows.append((title, str(row.pins), str(row.moving), _count(row.candidates, "not finite"),
                     _count(row.legal, "not judged")))
        pinned.append(f"{title}: {', '.join(pin['name'] for pin in document['pins']) or 'nothing'}")
    sections: list[Section] = [
        Paragraph((f"{documents[0]['program']} for {documents[0]['deployment']}", f"switched off: {found.off}")),
        Table("With and without", ("solver", "pins", "batch-dependent points", "candidates", "legal"),
              tuple(rows), right=("pins", "batch-dependent points", "candidates", "legal"), whole=("solver",)),
        Paragraph(tuple(pinned), "Pinned"),
    ]
    if found.problem:
        sections.append(Paragraph((found.problem,), "Why it is not judged"))
    if found.moved is not None:
        moved = found.moved
        sections.append(Paragraph((
            f"point {moved.point} takes two values under the same pins ({wording.bindings(moved.pins) or 'none'}):",
            f"{moved.values[0]!r} at {wording.bindings(moved.inputs[0])}",
            f"{moved.values[1]!r} at {wording.bindings(moved.inputs[1])}",
        ), "UNSOUND: a point moves with the batch"))
    elif found.ablated is not None:
        sections.append(Paragraph(("No point reads a batch-dependent input behind these pins: still sound.",)))
    return sections


def _count(number: int | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number:,}"

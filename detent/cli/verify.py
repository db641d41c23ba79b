"""``detent verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detent.cli.options import json_option
from detent.cli.output import check_places, show, show_json
from detent.cli.progress import Steps
from detent.cli.targets import ARMS, ENGINES_OWN, open_target

if TYPE_CHECKING:
    from detent.battery import Report, Result
    from detent.solver.views.sections import Section

SETS = ("paper", "strong", "extended", "all")


@click.command("verify", epilog="""\b
Verdicts:
  same            the bits did not change, and the engine shows that the cell's
                  perturbation happened
  changed         they did
  not applicable  the engine has no such thing (fewer requests, no captured graphs)
  not exercised   they did not change, but the perturbation was not seen
  could not run   the engine refused or failed
Exit code 1 if a cell changed; else 2 if one could not run, or if no batch of several requests
was exercised in one of the sets; else 0.
\b
Examples:
  detent verify --engine embedded --arm stock
  detent verify --engine embedded --set paper --set strong --html report.html
  detent verify --engine http://127.0.0.1:8000 --set all --resume report.json
  detent verify --engine vllm --model Qwen/Qwen3-8B --random 500 --seed 1""")
@click.option("--engine", required=True, metavar="E", help="embedded, vllm (in this process), or the URL of an "
              "OpenAI-compatible server.")
@click.option("--model", metavar="M", help="Model: smollm2 (the default of embedded), tiny, tiny-moe, a GGUF file, a "
              "Hugging Face folder; of a server, one of those it serves.")
@click.option("--arm", type=click.Choice((*ARMS, ENGINES_OWN)),
              help="The engine as shipped, with Detent's selectors, or (of vllm) in its own batch-invariant mode.")
@click.option("--tuple", "commitment", metavar="FILE", help="Commitment tuple, instead of the default assignment.")
@click.option("--set", "sets", type=click.Choice(SETS), multiple=True,
              help="Cells: the paper's 26 (the default, unless --random is given), its 9 strong ones, the extended "
              "list, or all of these; several times for several.")
@click.option("--random", "random", type=click.IntRange(1), metavar="N", help="Also N random batches.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="S",
              help="Seed of the prompts and of the random batches.")
@click.option("--long", "long", type=click.IntRange(1), metavar="TOKENS",
              help="Tokens of a long prompt, instead of a 32nd of the context.")
@click.option("--html", "html", metavar="FILE", help="Also write the report as one HTML page.")
@click.option("--resume", metavar="FILE", help="Keep results in this file, and run only what it lacks.")
@json_option
def verify_command(engine: str, model: str | None, arm: str | None, commitment: str | None, sets: tuple[str, ...],
                   random: int | None, seed: int, long: int | None, html: str | None, resume: str | None,
                   as_json: bool) -> int:
    """Say whether an engine is batch-invariant: does a request's output change its bits with other requests?

    Each cell serves a request twice, the second time in another batch, place, or state of the prefix cache, and
    compares token ids and the bits of the log-probabilities.
    """
    from detent.battery import Settings, verify

    check_places(html, resume)
    settings = Settings(sets or (() if random else ("paper",)), random or 0, seed, long, resume)
    with Steps(f"verify {engine}") as step:
        step("start the engine")
        target = open_target(engine, model, arm, commitment)
        try:
            report = verify(target, settings, lambda number, count, name: step(f"cell {number} of {count}, {name}"))
        finally:
            target.close()
    if html is not None:
        from detent.battery.html import page
        from detent.runtime.encoding import write_atomic

        write_atomic(html, page(report).encode(), mode=0o666)
    if as_json:
        show_json(report.as_json())
    else:
        show(_sections(report))
        if html is not None:
            click.echo(f"wrote {html}")
    return report.exit_code


def _sections(report: Report) -> list[Section]:
    from detent.battery.report import CHANGED
    from detent.battery.wording import conditions, difference_lines, headline
    from detent.solver.views.sections import Paragraph, Table

    sections: list[Section] = [Paragraph(tuple(f"{name}: {value}" for name, value in conditions(report).items()))]
    for group in dict.fromkeys(result.group for result in report.results):
        results = [result for result in report.results if result.group == group]
        rows = _rows(results)
        if rows:
            sections.append(Table(f"{group.capitalize()} cells", ("cell", "verdict", "perturbation", "evidence"), rows,
                                  whole=("cell", "verdict")))
    changed = tuple((result.name, "\n".join(line for each in result.differences for line in difference_lines(each)))
                    for result in report.results if result.verdict == CHANGED)
    if changed:
        sections.append(Table("First difference", ("cell", "reference, then perturbed"), changed, whole=("cell",)))
    sections.append(Paragraph((headline(report),)))
    return sections


def _rows(results: list[Result]) -> tuple[tuple[str, ...], ...]:
    """A row a cell; random batches have one only where something is to be said."""
    from detent.battery.report import SAME
    from detent.battery.scenario import RANDOM

    return tuple((result.name, result.verdict, result.what, result.reason) for result in results
                 if result.group != RANDOM or result.verdict != SAME)

"""``detent cache``: what is stored, why a lookup missed, and how to start over."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import ablate_option, deployment_option, json_option, program_argument
from detent.cli.output import show, show_json

if TYPE_CHECKING:
    from detent.solver.views.sections import Section


@click.group("cache")
def cache_command() -> None:
    """Look into the cache, or clear it.

    It holds solutions and selectors and is in DETENT_CACHE_DIR, else in XDG_CACHE_HOME/detent, else in ~/.cache/detent.
    """


@cache_command.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the stored solutions, most recently used first; with --json also each selector."""
    from detent.runtime.cache import Store

    store = Store()
    entries = store.entries()
    if as_json:
        show_json({"directory": store.directory, "entries": entries})
        return
    from detent.solver.views.sections import Paragraph, Table

    solutions = [entry for entry in entries if entry["kind"] == "solution"]
    size = sum(entry["bytes"] for entry in entries)
    sections: list[Section] = [Paragraph((f"{store.directory}: {len(entries)} entries, {size / 1e6:.1f} MB",))]
    if solutions:
        sections.append(Table("Solutions", ("program", "deployment", "selectors", "key", "age", "size"),
                              tuple(_row(entry, entries) for entry in solutions), right=("selectors", "age", "size"),
                              whole=("program", "deployment")))
    show(sections)


def _row(solution: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A solution with the number of selectors stored beside it, and the size of all."""
    stem = str(solution["path"]).removesuffix("solution")
    beside = [entry for entry in entries if entry["kind"] == "selector" and str(entry["path"]).startswith(stem)]
    size = sum(entry["bytes"] for entry in (solution, *beside))
    name = solution["program"] + (f" without {solution['ablate']}" if solution["ablate"] else "")
    return (name, solution["deployment"], str(len(beside)), solution["key"][:12],
            _age(solution["created"]), f"{size / 1e3:,.0f} kB")


@cache_command.command("why")
@program_argument
@deployment_option
@ablate_option("Ask about the solution with this ablation.")
@json_option
def why(program: str, deployment: str, ablate: str | None, as_json: bool) -> None:
    """Say whether a solve would hit, and if not, what changed since the nearest entry."""
    from detent.runtime.cache import Store
    from detent.runtime.deployment import load
    from detent.runtime.entry import Miss
    from detent.runtime.sources import resolve

    target = resolve(program)
    # The lookup itself answers: it also finds out whether the entry is still whole.
    found = Store().find_solution(target, load(deployment), [("ablate", ablate)] if ablate else [])
    hit, changes = not isinstance(found, Miss), found.reasons if isinstance(found, Miss) else []
    if as_json:
        show_json({"hit": hit,
                   "changes": [{"part": c.part, "before": c.before, "after": c.after} for c in changes]})
    elif hit:
        click.echo(f"{target.name} on {deployment} is in the cache")
    else:
        click.echo("\n".join([f"{target.name} on {deployment} is not in the cache:", *(f"  {c}" for c in changes)]))


@cache_command.command("clear")
@json_option
def clear(as_json: bool) -> None:
    """Remove everything Detent stored there, and nothing else."""
    from detent.runtime.cache import Store

    store = Store()
    removed = store.clear()
    if as_json:
        show_json({"directory": store.directory, "removed": removed})
    else:
        click.echo(f"removed {removed} entries from {store.directory}")


def _age(created: int) -> str:
    """Seconds since the epoch as an age in its largest unit: ``3 h``."""
    age = max(0, int(time.time()) - created)
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age >= seconds:
            return f"{age // seconds} {unit}"
    return f"{age} s"

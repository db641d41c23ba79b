"""``detent tuple``: write, show and check a commitment tuple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import deployment_option, json_option
from detent.cli.output import show, show_json

if TYPE_CHECKING:
    from detent.runtime.tuple import CommitmentTuple
    from detent.solver.views.sections import Section

_programs = click.option("--program", "programs", metavar="PROGRAM", multiple=True,
                         help="A family of the tuple, may be repeated; without it every program that comes with "
                              "Detent and applies to the deployment.")
_deployment = click.option("--deployment", "-d", metavar="D",
                           help="Deployment, if it is not the one the tuple names.")
_file = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))


@click.group("tuple")
def tuple_command() -> None:
    """Write, show and check commitment tuples.

    A tuple has one legal value for every pin and knob of all families: what a deployment serves with.
    """


@tuple_command.command("new", epilog="""\b
Examples:
  detent tuple new -d qwen3-30b-a3b-tp4-h200 tuple.json
  detent tuple new -d qwen3-30b-a3b-tp4-h200 --set attention.num_splits=160 --set moe.row=256 tuple.json""")
@deployment_option
@click.option("--set", "settings", metavar="FAMILY.NAME=VALUE", multiple=True,
              help="A pin or knob that is not at its default. May be repeated.")
@_programs
@click.argument("rest", metavar="[FAMILY.NAME=VALUE]... FILE", nargs=-1, required=True)
@json_option
def new(deployment: str, settings: tuple[str, ...], programs: tuple[str, ...], rest: tuple[str, ...],
        as_json: bool) -> None:
    """Write a whole tuple: defaults where nothing is set.

    What is unknown here (GPU, CUDA, engine build, weights) stays open until the first start on the target
    machine binds it.
    """
    from detent.runtime.tuple import CommitmentTuple

    more, path = _split(rest)
    choices = _choices([*settings, *more])
    name, documents = _documents(deployment, programs)
    commitment = CommitmentTuple.new(name, documents, choices)
    commitment.write(path)
    if as_json:
        show_json(_json(commitment))
    else:
        show([*_sections(commitment, choices), _line(f"wrote {path}")])


@tuple_command.command("show")
@_deployment
@_file
@json_option
def show_(deployment: str | None, file: str, as_json: bool) -> None:
    """Show a tuple's values, its hash and what is still open."""
    from detent.runtime.deployment import load
    from detent.runtime.errors import TupleMismatch
    from detent.runtime.tuple import CommitmentTuple, Difference

    commitment = CommitmentTuple.load(file)
    if deployment is not None and load(deployment).name != commitment.deployment:
        raise TupleMismatch(file, [Difference("deployment", commitment.deployment, load(deployment).name)],
                            "give the deployment it is for, or the other one's tuple")
    if as_json:
        show_json(_json(commitment))
    else:
        show(_sections(commitment, {}))


@tuple_command.command("check", epilog="""\b
Example:
  detent tuple check -d qwen3-30b-a3b-tp4-h200 tuple.json""")
@_deployment
@_programs
@_file
@json_option
def check(deployment: str | None, programs: tuple[str, ...], file: str, as_json: bool) -> int:
    """Compare a tuple with the deployment as it is now, and say which part differs. Exit code 1 if one does.

    With --program only those families are compared. Of the environment only Detent's version is known here.
    """
    from detent.runtime.errors import TupleMismatch
    from detent.runtime.tuple import CommitmentTuple
    from detent.runtime.tuple import check as differences_of

    left_out: list[str] = []
    try:
        commitment = CommitmentTuple.load(file)
        _, documents = _documents(deployment or _named(commitment), programs)
        differences = differences_of(commitment, documents, whole=not programs)
        left_out = [f"family {family}" for family in commitment.families if family not in documents]
        left_out += [name for name, value in commitment.environment.items() if value is not None and name != "detent"]
    except TupleMismatch as mismatch:  # the file is not what its hash says
        differences = mismatch.differences
    if as_json:
        show_json({"matches": not differences, "not_compared": left_out,
                   "differences": [{"part": d.part, "tuple": d.expected, "found": d.found} for d in differences]})
    elif differences:
        count = f"{len(differences)} difference{'s' if len(differences) != 1 else ''}"
        click.echo("\n".join([f"{file}: {count}", *(f"  {d}" for d in differences)]))
    else:
        rest = f"; not compared here: {', '.join(left_out)}" if left_out else ""
        click.echo(f"{file}: matches {commitment.deployment}, hash {commitment.hash}{rest}")
    return 1 if differences else 0


def _named(commitment: CommitmentTuple) -> str:
    """The name of the tuple's deployment, if that comes with Detent. Raises BadInput."""
    from detent.runtime.deployment import known
    from detent.runtime.errors import BadInput

    if commitment.deployment not in known():
        raise BadInput(f"{commitment.where}: its deployment {commitment.deployment!r} does not come with Detent",
                       "give its TOML file with --deployment")
    return commitment.deployment


def _split(rest: Sequence[str]) -> tuple[list[str], str]:
    """Settings written behind ``--set`` without repeating it, and the file."""
    files = [text for text in rest if "=" not in text] if len(rest) > 1 else list(rest)
    if len(files) != 1:
        raise click.UsageError(f"give one FILE, not {len(files)} ({' '.join(rest)})", click.get_current_context())
    return [text for text in rest if text != files[0]], files[0]


def _choices(settings: Sequence[str]) -> dict[str, str]:
    from detent.runtime.errors import BadInput

    choices: dict[str, str] = {}
    for setting in settings:
        place, equals, value = (part.strip() for part in setting.partition("="))
        family, dot, name = place.rpartition(".")
        if not (equals and dot and family and name and value):
            raise BadInput(f"--set {setting!r} sets nothing", "write --set family.name=value")
        if place in choices:
            raise BadInput(f"--set {place} is given twice", "give each pin and knob one value")
        choices[place] = value
    return choices


def _documents(deployment: str, programs: Sequence[str]) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """The deployment's name, and the solution document of every family."""
    from detent.cli.families import adapted_for, solve_all
    from detent.runtime.deployment import load
    from detent.runtime.errors import BadInput

    facts = load(deployment)
    solutions, skipped = solve_all(facts, programs or adapted_for(facts))
    for program in programs:
        if program in skipped:
            raise BadInput(skipped[program], f"leave out --program {program}")
    if not solutions:
        raise BadInput(f"no program that comes with Detent applies to {facts.name}: {'; '.join(skipped.values())}",
                       "name yours with --program path.py:function")
    documents: dict[str, Mapping[str, Any]] = {}
    for solution in solutions:
        family = str(solution.document["family"])
        if family in documents:
            raise BadInput(f"{documents[family]['program']} and {solution.program} are both of family {family}",
                           "give one --program a family")
        documents[family] = solution.document
    return facts.name, documents


def _json(commitment: CommitmentTuple) -> dict[str, Any]:
    return {**commitment.content(), "hash": commitment.hash, "open": commitment.open_parts()}


def _sections(commitment: CommitmentTuple, choices: Mapping[str, str]) -> list[Section]:
    from detent.solver.views.sections import Paragraph, Table

    rows: list[tuple[str, ...]] = []
    for family, part in commitment.families.items():
        for kind in ("pin", "knob"):
            rows += [(family, name, kind, repr(value), "set" if f"{family}.{name}" in choices else "default")
                     for name, value in part[f"{kind}s"].items()]
    columns: tuple[str, ...] = ("family", "name", "kind", "value", "from")
    if not choices:
        columns, rows = columns[:4], [row[:4] for row in rows]
    known = [f"{name} {value}" for name, value in commitment.environment.items() if value is not None]
    open_parts = commitment.open_parts()
    return [
        Paragraph((f"for {commitment.deployment}", f"hash {commitment.hash}"), "Commitment tuple"),
        Table("Values", columns, tuple(rows), whole=("name", "value")),
        Paragraph((
            f"known: {', '.join(known) or 'nothing'}",
            f"open until the first start on the target machine: {', '.join(open_parts)}" if open_parts
            else "nothing is open",
        ), "Environment"),
    ]


def _line(text: str) -> Section:
    from detent.solver.views.sections import Paragraph

    return Paragraph((text,))

"""``detent select``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import deployment_option, json_option, program_argument
from detent.cli.output import place, show, show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.passes.graph import Graph
    from detent.solver.solution import Solution
    from detent.solver.views.sections import Section


@click.command("select", epilog="""\b
Examples:
  detent select moe -d qwen3-30b-a3b-tp4-h200 --inputs num_tokens=37
  detent select moe -d qwen3-30b-a3b-tp4-h200 --inputs num_tokens=37 --tuple tuple.json --json""")
@program_argument
@deployment_option
@click.option("--inputs", "texts", metavar="K=V,...", multiple=True,
              help="Values of the program's inputs. May be given more than once.")
@click.option("--tuple", "tuple_path", metavar="FILE", type=click.Path(dir_okay=False),
              help="Select under this commitment tuple; without it nothing is pinned and knobs are at their defaults.")
@json_option
def select_command(program: str, deployment: str, texts: tuple[str, ...], tuple_path: str | None,
                   as_json: bool) -> None:
    """Compute every selection point for one set of inputs.

    Conditions are reported, none is enforced. Inputs for which an assume does not hold are answered too, by the
    program as it was simplified for those for which all hold.
    """
    from detent.cli.inputs import parse_inputs
    from detent.solver.solve import solve

    with Steps(f"{program} for {deployment}") as step:
        solution = solve(program, deployment, progress=step)
    document = solution.document
    inputs = parse_inputs(texts, document["inputs"], document["program"])
    assignment = None if tuple_path is None else assignment_of(tuple_path, solution, program, deployment)
    points, holds = evaluate(solution.graph, inputs, assignment or {})
    solved = all(held for held, c in zip(holds, document["conditions"], strict=True) if c["kind"] == "assume")
    if as_json:
        show_json({
            "program": document["program"], "deployment": document["deployment"], "inputs": inputs,
            "assignment": assignment, "solved": solved, "points": points,
            "conditions": [{"kind": c["kind"], "text": c["text"], "message": c["message"],
                            "source": place(c["source"]), "holds": held}
                           for c, held in zip(document["conditions"], holds, strict=True)],
        })
    else:
        show(_sections(document, inputs, points, holds, assignment))
        if not solved:
            click.echo("\nAn assume does not hold: these inputs are outside of what was solved, "
                       "and the program itself\nmay select something else there.")


def assignment_of(path: str, solution: Solution, program: str, deployment: str) -> dict[str, Any]:
    """The pins and knobs a tuple commits the solution's family to. Raises TupleMismatch if it is for another one."""
    from detent.runtime.repin import Repin
    from detent.runtime.tuple import CommitmentTuple

    document = solution.document
    assignment = CommitmentTuple.load(path).assignment_for(document, program, deployment)
    Repin(document).check(assignment)
    return assignment


def evaluate(graph: Graph, inputs: Mapping[str, Any],
             assignment: Mapping[str, Any]) -> tuple[dict[str, Any], list[bool]]:
    """Every point, and of every condition whether it holds. A pin without a value is computed as the program does.

    The reference evaluator, because it has a value everywhere: selectors stop at inputs outside of their domain.
    """
    from detent.passes.interpret import interpret

    leaves: dict[int, Any] = {}
    for node in graph.of_kind("input"):
        leaves[node] = inputs[graph.data[node].name]
    for node in graph.of_kind("knob"):
        leaves[node] = assignment.get(graph.data[node].name, graph.data[node].default)
    for node in graph.of_kind("pin"):
        if graph.data[node] in assignment:
            leaves[node] = assignment[graph.data[node]]
    roots = [*(node for _, node in graph.points), *(condition.root for condition in graph.conditions)]
    values = interpret(graph, leaves, roots)
    return ({name: values[node] for name, node in graph.points},
            [bool(values[condition.root]) for condition in graph.conditions])


def _sections(document: Mapping[str, Any], inputs: Mapping[str, Any], points: Mapping[str, Any], holds: list[bool],
              assignment: Mapping[str, Any] | None) -> list[Section]:
    from detent.solver.views import wording
    from detent.solver.views.sections import Table
    from detent.solver.views.select_table import select_table

    rows = []
    for index, (condition, held) in enumerate(zip(document["conditions"], holds, strict=True)):
        text, message = wording.one_line(condition["text"]), condition["message"]
        shown = text if held or message in text else f"{text}\n{message}"
        rows.append((str(index), condition["kind"], "yes" if held else "NO", shown, wording.place(condition["source"])))
    sections = select_table(document, inputs, points, assignment=assignment)
    if rows:
        title = f"Conditions ({sum(holds)} of {len(holds)} hold; reported, not enforced)"
        sections.append(Table(title, ("#", "kind", "holds", "condition", "source"), tuple(rows), right=("#",),
                              whole=("source",)))
    return sections

"""``detent explain --in-force``: every selection point of a deployment, and what decides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detent.cli.families import adapted_for, solve_all

if TYPE_CHECKING:
    from detent.runtime.tuple import CommitmentTuple
    from detent.solver.solution import Solution
    from detent.solver.views.sections import Section


def in_force(deployment: str, tuple_path: str | None) -> list[Section]:
    """All points of the programs that apply to a deployment: under a tuple what they are, without one the constant
    ones and what the others follow. Raises TupleMismatch, NotLegal."""
    from detent.runtime.deployment import load
    from detent.runtime.tuple import CommitmentTuple
    from detent.solver.views.sections import Paragraph, Table

    facts = load(deployment)
    commitment = None if tuple_path is None else CommitmentTuple.load(tuple_path)
    solutions, _ = solve_all(facts, adapted_for(facts))
    rows: list[tuple[str, ...]] = []
    fixed = 0
    for solution in solutions:
        document = solution.document
        values = _values(solution, commitment, facts.id)
        for point in document["points"]:
            name = point["name"]
            shown = repr(values[name]) if name in values else "–"
            why = _chosen(point) if name in values else ", ".join(point["requests"]) or "the batch"
            fixed += shown != "–"
            rows.append((f"{document['program']}.{name}", shown, why))
    arm = "no tuple: as shipped" if commitment is None else f"tuple {commitment.hash}"
    return [Paragraph((f"for {facts.name}", arm), "Selection points in force"),
            Table("", ("point", "value", "decided by"), tuple(rows), whole=("point",)),
            Paragraph((f"{fixed} of {len(rows)} are the same for every batch",))]


def _values(solution: Solution, commitment: CommitmentTuple | None, deployment: str) -> dict[str, Any]:
    """Points that are the same for every batch and request. No input reaches them, so any will do."""
    from detent.cli.select import evaluate
    from detent.runtime.repin import Repin
    from detent.runtime.unpinned import STOCK_KNOBS

    document = solution.document
    assignment = dict(STOCK_KNOBS.get(document["program"], {}))
    if commitment is not None:
        assignment = commitment.assignment_for(document, solution.program, deployment)
        Repin(document).check(assignment)
    inputs = {item["name"]: _least(item["domain"]) for item in document["inputs"]}
    points, _ = evaluate(solution.graph, inputs, assignment)
    return {point["name"]: points[point["name"]] for point in document["points"]
            if not point["requests"] and (commitment is not None or not point["batch_dependent"])}


def _least(domain: Mapping[str, Any]) -> Any:
    return domain["range"][0] if "range" in domain else domain["values"][0]


def _chosen(point: Mapping[str, Any]) -> str:
    names = [f"pin {name}" for name in point["pins"]] + [f"knob {name}" for name in point["knobs"]]
    return ", ".join(names) or "constant"

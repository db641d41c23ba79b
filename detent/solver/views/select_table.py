"""``detent select`` as text: every point's value for one set of inputs, and the conditions that do not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detent.solver.views import wording
from detent.solver.views.legal import Document
from detent.solver.views.sections import Paragraph, Section, Table


def select_table(document: Document, inputs: Mapping[str, Any], points: Mapping[str, Any],
                 failed: Sequence[int] = (), assignment: Mapping[str, Any] | None = None) -> list[Section]:
    """Points with their values, and ``failed`` conditions by index; they are reported, not enforced.

    ``assignment`` has the pins and knobs of the tuple in force, None when nothing is pinned.
    """
    state = "unpinned: points follow the batch" if assignment is None else f"pinned: {wording.bindings(assignment)}"
    head = Paragraph((f"{document['program']} for {document['deployment']}", f"at {wording.bindings(inputs)}", state))
    described = {point["name"]: point for point in document["points"]}
    rows = tuple((name, repr(value), described[name]["type"], _hangs_on(described[name], assignment is not None))
                 for name, value in points.items())
    sections: list[Section] = [head, Table("Selection points", ("point", "value", "type", "decided by"), rows,
                                           whole=("point", "value"))]
    for index in failed:
        condition = document["conditions"][index]
        sections.append(Paragraph((f"{wording.one_line(condition['text'])}  at {wording.place(condition['source'])}",
                                   condition["message"]), f"Does not hold: {condition['kind']} #{index}"))
    return sections


def _hangs_on(point: Mapping[str, Any], pinned: bool) -> str:
    if point["is_constant"]:
        return "deployment facts"
    if point["batch_dependent"] and not pinned:
        return "the batch"
    parts = [*(f"pin {n}" for n in point["pins"]), *(f"knob {n}" for n in point["knobs"]),
             *(f"input {n}" for n in point["requests"])]
    return ", ".join(parts)

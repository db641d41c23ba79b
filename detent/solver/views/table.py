"""The cut view as text: inputs, pins, points and conditions, as engineers paste it into a review."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from detent.passes.graph import Graph
from detent.solver.views import wording
from detent.solver.views.cut_view import CutView, cut_view, headline, leaf_name
from detent.solver.views.legal import Document, blamed, default, legal_values, nothing_legal
from detent.solver.views.sections import Paragraph, Section, Table

VERDICTS = {
    "domain": "bounds the inputs",
    "constant": "always the same",
    "exhaustive": "proved, exhaustive",
    "interval": "proved, intervals",
    "sampled": "sampled",
}


def cut_table(document: Document, graph: Graph) -> list[Section]:
    """The default of ``detent explain``."""
    view = cut_view(document, graph)
    sections: list[Section] = [summary(document, graph), inputs_table(document, graph)]
    if document["pins"]:
        sections.append(pins_table(document, graph, [pin["name"] for pin in document["pins"]]))
    if document["knobs"]:
        sections.append(knobs_table(document, [knob["name"] for knob in document["knobs"]]))
    sections += points_sections(view)
    sections += joint_sections(document)
    sections += conditions_sections(document, range(len(document["conditions"])))
    return sections


def summary(document: Document, graph: Graph) -> Paragraph:
    """Sizes, and how many assignments are legal by which kind of verdict."""
    judged = document["legality"]
    moving = sum(point["batch_dependent"] for point in document["points"])
    return Paragraph((
        headline(document, graph),
        f"{wording.count(document['candidates'], 'candidate assignment')}, {document['legal']:,} legal; "
        f"{judged['proved']:,} judged by proof, {judged['sampled']:,} by sample",
        *_impossible(document),
        f"{moving} of {wording.count(len(document['points']), 'point')} would follow the batch without the pins",
    ))


def _impossible(document: Document) -> list[str]:
    """Which conditions leave no assignment, where none is legal."""
    if not nothing_legal(document):
        return []
    texts = [f"{wording.place(c['source'])}: require {wording.one_line(c['text'])}"
             for c in (document["conditions"][index] for index in blamed(document))]
    return [f"nothing is legal because of {'; '.join(texts)}"] if texts else []


def inputs_table(document: Document, graph: Graph) -> Table:
    """Every input with its domain, and the pins and points it leads to first."""
    reached = _reached(graph)
    rows = tuple(
        (i["name"], i["kind"], i["type"], wording.domain(i["domain"]),
         wording.place(i["source"]), ", ".join(reached.get(i["name"], ())) or "conditions only")
        for i in document["inputs"])
    return Table("Inputs", ("input", "kind", "type", "domain", "source", "leads to"), rows, whole=("input", "source"))


def _reached(graph: Graph) -> dict[str, list[str]]:
    """For each input: the pins it reaches, and the points it reaches without passing a pin."""
    reached: dict[str, list[str]] = {}
    ends = [(f"pin {graph.data[pin]}", graph.args[pin]) for pin in graph.of_kind("pin")]
    ends += [(name, (node,)) for name, node in graph.points]
    for name, roots in ends:
        for leaf in graph.leaves(roots):
            if graph.kinds[leaf] == "input":
                reached.setdefault(leaf_name(graph, leaf), []).append(name)
    return reached


def pins_table(document: Document, graph: Graph, names: Iterable[str]) -> Table:
    """Name, place, what it replaces, candidates, legal values, default and what the pin shuts out."""
    origins = {str(graph.data[pin]): list(graph.leaves(graph.args[pin], through_pins=True))
               for pin in graph.of_kind("pin")}
    rows = []
    for pin in document["pins"]:
        if pin["name"] in names:
            shut_out = [leaf_name(graph, leaf) for leaf in origins.get(pin["name"], ())]
            size = f"{len(pin['candidates']):,} ({'exact' if pin['exact'] else 'hull'})"
            rows.append((pin["name"], wording.place(pin["source"]), size,
                         wording.compress(legal_values(document, pin["name"])),
                         default(document, pin["name"]), ", ".join(shut_out)))
    return Table("Pins", ("pin", "source", "candidates", "legal", "default", "derives from"), tuple(rows),
                 right=("candidates",), whole=("pin", "source"))


def knobs_table(document: Document, names: Iterable[str]) -> Table:
    """Settings that no input determines."""
    rows = tuple((k["name"], wording.place(k["source"]), wording.compress(k["values"]),
                  wording.compress(legal_values(document, k["name"])), repr(k["default"]))
                 for k in document["knobs"] if k["name"] in names)
    return Table("Knobs", ("knob", "source", "values", "legal", "default"), rows, whole=("knob", "source"))


def points_sections(view: CutView) -> list[Section]:
    """Points grouped by what they hang on; constants in one paragraph."""
    sections: list[Section] = []
    rows = []
    for group in view.groups:
        parts = [*(f"pin {n}" for n in group.pins), *(f"knob {n}" for n in group.knobs),
                 *(f"input {n}" for n in group.inputs)]
        rows.append((", ".join(parts) or "nothing", ", ".join(group.points),
                     "MOVES WITH THE BATCH" if group.moving else "fixed" if not group.inputs else "per request"))
    if rows:
        sections.append(Table("Selection points", ("hang on", "points", "state"), tuple(rows)))
    if view.constants:
        text = ", ".join(f"{name} = {value!r}" for name, value in view.constants)
        sections.append(Paragraph((text,), f"Constant points ({len(view.constants)})"))
    return sections


def joint_sections(document: Document) -> list[Section]:
    """Which pins and knobs are legal only together; the legal set is the product of the rows."""
    if all(len(group["names"]) <= 1 for group in document["components"]):
        return []
    rows = tuple((" × ".join(group["names"]), f"{combinations(document, group['names']):,}", f"{len(group['legal']):,}")
                 for group in document["components"] if group["names"])
    return [Table("Decided together", ("pins and knobs", "combinations", "legal"), rows,
                  right=("combinations", "legal"))]


def combinations(document: Document, names: Iterable[str]) -> int:
    """Number of combinations of the candidates of some pins and the values of some knobs."""
    sizes = {pin["name"]: len(pin["candidates"]) for pin in document["pins"]}
    sizes |= {knob["name"]: len(knob["values"]) for knob in document["knobs"]}
    return math.prod(sizes[name] for name in names)


def conditions_sections(document: Document, indices: Iterable[int]) -> list[Section]:
    """Conditions by index, assumes before requires: source text, verdict and how much each rules out."""
    sections: list[Section] = []
    chosen = [(index, document["conditions"][index]) for index in indices]
    for kind, title in (("assume", "Assumed (assume)"), ("require", "Required (require)")):
        rows = tuple((str(index), _text(condition), _verdict(document, condition), wording.place(condition["source"]))
                     for index, condition in chosen if condition["kind"] == kind)
        if rows:
            sections.append(Table(title, ("#", "condition", "verdict", "source"), rows, right=("#",),
                                  whole=("source",)))
    return sections


def _text(condition: Mapping[str, Any]) -> str:
    text, message = wording.one_line(condition["text"]), condition["message"]
    return text if message in text else f"{text}\n{message}"


def _verdict(document: Document, condition: Mapping[str, Any]) -> str:
    verdict = VERDICTS[condition["verdict"]]
    if not condition["fails"]:
        return verdict if condition["kind"] == "assume" else f"{verdict}: rules out nothing"
    named = [*condition["pins"], *condition["knobs"]]
    if not named:
        return f"{verdict}: rules out everything"
    return f"{verdict}: rules out {condition['fails']:,} of {combinations(document, named):,} {' × '.join(named)}"

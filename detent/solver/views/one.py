"""Views of one selection point or one pin: its values, what rules the others out, and why it needs pinning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detent.passes.graph import Graph
from detent.solver.views import wording
from detent.solver.views.cut_view import leaf_name
from detent.solver.views.legal import (
    Document,
    blamed,
    by_equal,
    component,
    default,
    entry,
    legal_values,
    nothing_legal,
    outcomes,
)
from detent.solver.views.sections import Paragraph, Section, Table
from detent.solver.views.table import conditions_sections, knobs_table, pins_table
from detent.solver.views.why import why_sections

MAX_ROWS = 16
"""Rows of a table of values before the rest is only counted."""


def point_table(document: Document, graph: Graph, name: str) -> list[Section]:
    """One point: the values it can take, the pins and knobs behind it, their conditions, and why it moves.

    Raises LookupError that lists the points when there is none of that name.
    """
    point = entry(document, "points", name)
    if point is None:
        raise wording.unknown("point", name, (p["name"] for p in document["points"]))
    head = [f"point {name} ({point['type']}), {wording.place(point['source'])}"]
    if point["is_constant"]:
        head.append(f"always {point['constant']!r}: deployment facts decide it")
        return [Paragraph(tuple(head))]
    if point["batch_dependent"]:
        head.append("follows the batch unless pinned")
    if point["requests"]:
        head.append(f"may differ by request: {', '.join(point['requests'])}")
    node = dict(graph.points)[name]
    names = [*point["pins"], *point["knobs"]]
    sections: list[Section] = [Paragraph(tuple(head)), *_values_sections(document, graph, node)]
    if point["pins"]:
        sections.append(pins_table(document, graph, point["pins"]))
    if point["knobs"]:
        sections.append(knobs_table(document, point["knobs"]))
    sections += conditions_sections(document, naming(document, names))
    return [*sections, *why_sections(graph, name)]


def _values_sections(document: Document, graph: Graph, node: int) -> list[Section]:
    values = outcomes(document, graph, node)
    if not values:
        return [Paragraph(("none: no assignment is legal",), "Values under legal assignments")] if values == [] else []
    if graph.kinds[node] in ("pin", "knob"):
        return [Paragraph((wording.compress(value for value, _ in values),), "Values under legal assignments")]
    rows = []
    names = list(values[0][1][0])
    for value, cases in values[:MAX_ROWS]:
        rows.append((repr(value), _settings(names, [tuple(case.values()) for case in cases]), f"{len(cases):,}"))
    if len(values) > MAX_ROWS:
        rest = values[MAX_ROWS:]
        rows.append((f"… {len(rest):,} more", "", f"{sum(len(cases) for _, cases in rest):,}"))
    return [Table("Values under legal assignments", ("value", "where", "assignments"), tuple(rows),
                  right=("assignments",), whole=("value",))]


def pin_table(document: Document, graph: Graph, name: str) -> list[Section]:
    """One pin: candidates, legal values, what is legal together, what each condition rules out and where.

    Raises LookupError that lists the pins when there is none of that name.
    """
    pin = entry(document, "pins", name)
    if pin is None:
        raise wording.unknown("pin", name, (p["name"] for p in document["pins"]))
    node = next(i for i in graph.of_kind("pin") if graph.data[i] == name)
    origins = [leaf_name(graph, leaf) for leaf in graph.leaves(graph.args[node], through_pins=True)]
    behind = [point["name"] for point in document["points"] if name in point["pins"]]
    hidden = len(graph.slice(graph.args[node])) - 1
    legal = legal_values(document, name)
    kind = "exactly the values that can flow here" if pin["exact"] else "all between the bounds"
    sections: list[Section] = [Paragraph((
        f"pin {name} ({pin['type']}), {wording.place(pin['source'])}, replaces {wording.replaced(pin['replaces'])}",
        f"candidates: {wording.compress(pin['candidates'])} ({len(pin['candidates']):,}; {kind})",
        f"legal:      {wording.compress(legal)} ({len(legal):,})",
        f"default:    {default(document, name)}",
        f"cuts {', '.join(origins)} ({wording.count(hidden, 'value')} before it) from {', '.join(behind)}",
    ))]
    used: dict[int, None] = {}
    sections += _together_sections(document, name)
    sections += _refuted_sections(document, name, used)
    sections += conditions_sections(document, naming(document, [name]))
    sections += _witness_sections(document, used)
    return [*sections, *why_sections(graph, name)]


def naming(document: Document, names: Iterable[str]) -> list[int]:
    """Indices of the conditions that name one of these pins or knobs, or leave no assignment at all."""
    wanted = set(names)
    also = blamed(document) if nothing_legal(document) else []
    return [i for i, c in enumerate(document["conditions"]) if i in also or wanted & {*c["pins"], *c["knobs"]}]


def _together_sections(document: Document, name: str) -> list[Section]:
    names, cases = component(document, name)
    if len(names) == 1:
        return []
    at = names.index(name)
    others = [n for n in names if n != name]
    groups = by_equal((case[at], case[:at] + case[at + 1:]) for case in cases)
    rows = [(wording.compress(values, 6), _settings(others, partners), f"{len(values) * len(partners):,}")
            for values, partners in groups[:MAX_ROWS]]
    if len(groups) > MAX_ROWS:
        rest = sum(len(values) * len(partners) for values, partners in groups[MAX_ROWS:])
        rows.append((f"… {len(groups) - MAX_ROWS} more groups", "", f"{rest:,}"))
    return [Table("Legal together", (name, "with", "assignments"), tuple(rows), right=("assignments",))]


def _refuted_sections(document: Document, name: str, used: dict[int, None]) -> list[Section]:
    """Rows: condition, the pin's values it rules out, with which others, and a witness. Fills ``used``."""
    rows: list[tuple[str, ...]] = []
    also = blamed(document) if nothing_legal(document) else []
    for refutation in document["refutations"]:
        names = refutation["names"]
        if name not in names:
            if refutation["condition"] in also:
                rows.append((str(refutation["condition"]), "all", _blame(names), "see below"))
            continue
        at = names.index(name)
        others = [n for n in names if n != name]
        cases = [(tuple(case), witness) for case, witness in refutation["cases"]]
        groups = by_equal((case[at], case[:at] + case[at + 1:]) for case, _ in cases)
        condition = document["conditions"][refutation["condition"]]
        for values, partners in groups[:MAX_ROWS]:
            witness = next(w for case, w in cases if case[at] == values[0])
            where = "everywhere"
            if condition["inputs"]:
                used[witness] = None
                shown = {n: v for n, v in document["witnesses"][witness].items() if n in condition["inputs"]}
                where = f"w{witness}: {wording.bindings(shown)}"
            rows.append((str(refutation["condition"]), wording.compress(values, 6), _settings(others, partners), where))
        if len(groups) > MAX_ROWS:
            rows.append((str(refutation["condition"]), f"… {len(groups) - MAX_ROWS} more groups", "", ""))
    if not rows:
        return []
    return [Table("Ruled out", ("#", name, "with", "for example at"), tuple(rows), right=("#",))]


def _blame(names: Sequence[str]) -> str:
    return f"whatever they are: it leaves no value of {', '.join(names)}" if names else "whatever the pins are"


def _witness_sections(document: Document, used: Mapping[int, None]) -> list[Section]:
    if not used:
        return []
    lines = tuple(f"w{i}: {wording.bindings(document['witnesses'][i])}" for i in used)
    return [Paragraph(lines, "Witnesses (inputs that satisfy every assume)")]


def _settings(names: Sequence[str], cases: Sequence[tuple[Any, ...]]) -> str:
    """``stride 64, 128``, each name with its values, and ``(2 of 4 combinations)`` where they are no product."""
    if not names:
        return "anything"
    columns = [_distinct(case[i] for case in cases) for i in range(len(names))]
    text = "; ".join(f"{n} {wording.compress(column, 6)}" for n, column in zip(names, columns, strict=True))
    product = 1
    for column in columns:
        product *= len(column)
    return text if product == len(cases) else f"{text} ({len(cases):,} of {product:,} combinations)"


def _distinct(values: Iterable[Any]) -> list[Any]:
    listed = list(dict.fromkeys(values))
    return listed if any(isinstance(v, str) or v is None for v in listed) else sorted(listed)

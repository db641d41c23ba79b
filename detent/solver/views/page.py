"""The whole graph as one HTML file that needs no network and no library."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.passes.graph import Graph
from detent.solver.views import wording
from detent.solver.views.cut_view import headline, leaf_kind, leaf_name, pin_lines
from detent.solver.views.layout import layout
from detent.solver.views.legal import Document, entry
from detent.solver.views.palette import COLOURS, FIXED_TINT, OTHER_TINT, TINTS

TEMPLATE = Path(__file__).with_name("page.html")
MAX_TEXT = 200
"""Characters of source text kept a node: nested expressions repeat their parts."""
MAX_DATA = 80
"""Characters of a constant or table kept a node."""
DERIVED, FIXED, FACTS = "derived", "fixed", "facts"


def page(document: Document | None, graph: Graph) -> str:
    """The page's text; ``document`` is None for a graph that was not solved."""
    title = headline(document, graph)
    text = json.dumps(payload(document, graph), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    values = {"title": html.escape(title), "graph": _inert(text)}
    return re.sub(r"\{\{(title|graph)\}\}", lambda mark: values[mark[1]], TEMPLATE.read_text(encoding="utf-8"))


def _inert(text: str) -> str:
    """JSON that no HTML parser can take for markup: ``</script>`` in a source text stays text."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class _Strings:
    def __init__(self) -> None:
        self.index: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))


def payload(document: Document | None, graph: Graph) -> dict[str, Any]:
    """What the page draws, in columns.

    Nodes have the graph's numbers; behind them come the points, then the conditions, each a mark with its
    node as only operand. Texts are indices into ``strings``. ``set`` is an index into ``sets``, the groups of
    inputs that values derive from (pins are constants here).
    """
    strings = _Strings()
    marks = [(name, node, "point", _point_note(graph, node)) for name, node in graph.points]
    marks += [(c.kind, c.root, c.kind, c.message) for c in graph.conditions]
    at = layout(graph, [node for _, node in graph.points], [c.root for c in graph.conditions])
    sets, assigned = origins(graph)
    kinds = [leaf_kind(graph, n) if k in ("input", "knob", "pin") else k for n, k in enumerate(graph.kinds)]
    roots = [root for _, root, _, _ in marks]
    places = [*graph.locations, *(graph.locations[root] for root in roots[: len(graph.points)]),
              *(c.location for c in graph.conditions)]
    return {
        "sets": sets, "colours": {k: list(v) for k, v in COLOURS.items()},
        "points": len(graph.points), "conditions": len(graph.conditions),
        "kind": [strings(k) for k in [*kinds, *(kind for _, _, kind, _ in marks)]],
        "args": [*graph.args, *((root,) for root in roots)],
        "type": [strings(graph.types[n]) for n in [*range(len(graph)), *roots]],
        "name": [strings(n) for n in [*(_name(graph, i) for i in range(len(graph))), *(m[0] for m in marks)]],
        "note": [strings(n) for n in [*(_note(document, graph, i) for i in range(len(graph))), *(m[3] for m in marks)]],
        "text": [strings(wording.one_line(p.text, MAX_TEXT)) if p is not None else 0 for p in places],
        "file": [strings(p.file) if p is not None else 0 for p in places],
        "line": [p.line if p is not None else 0 for p in places],
        "scope": [*graph.scopes, *([0] * len(graph.points)), *range(1, len(graph.conditions) + 1)],
        "set": [assigned[n] for n in [*range(len(graph)), *roots]],
        "x": [_short(v) for v in at.x], "y": [_short(v) for v in at.y],
    } | {"strings": list(strings.index)}


def origins(graph: Graph) -> tuple[list[dict[str, Any]], list[int]]:
    """Sets of inputs that values derive from with pins as constants, most frequent first, and each node's set.

    ``derived`` sets name inputs, ``fixed`` is what pins and knobs alone decide, ``facts`` is constant.
    """
    found: list[tuple[str, frozenset[str]]] = []
    for node, kind in enumerate(graph.kinds):
        if kind == "input":
            found.append((DERIVED, frozenset((leaf_name(graph, node),))))
        elif kind in ("pin", "knob"):
            found.append((FIXED, frozenset()))
        else:
            operands = [found[a] for a in graph.args[node]]
            names = frozenset[str]().union(*(names for _, names in operands))
            fixed = any(state == FIXED for state, _ in operands)
            found.append((DERIVED if names else FIXED if fixed else FACTS, names))
    order = {DERIVED: 0, FIXED: 1, FACTS: 2}
    counts = Counter(found)
    ranked = sorted(counts, key=lambda key: (order[key[0]], -counts[key], sorted(key[1])))
    labels = {FIXED: "pins and knobs only", FACTS: "deployment facts only"}
    colours = {FIXED: FIXED_TINT, FACTS: COLOURS["constant"][1]}
    sets = []
    for rank, key in enumerate(ranked):
        state, names = key
        tint = TINTS[rank] if rank < len(TINTS) else OTHER_TINT
        sets.append({"state": state, "label": labels.get(state, ", ".join(sorted(names))),
                     "colour": colours.get(state, tint), "count": counts[key]})
    index = {key: i for i, key in enumerate(ranked)}
    return sets, [index[key] for key in found]


def _name(graph: Graph, node: int) -> str:
    return leaf_name(graph, node) if graph.kinds[node] in ("input", "knob", "pin") else graph.names[node]


def _note(document: Document | None, graph: Graph, node: int) -> str:
    kind, data = graph.kinds[node], graph.data[node]
    if kind == "constant":
        return wording.one_line(repr(data), MAX_DATA)
    if kind == "lookup":
        rows = ", ".join(f"{key!r}: {value!r}" for key, value in data)
        return wording.one_line(f"{len(data)} rows: {rows}", MAX_DATA)
    if kind == "knob":
        return wording.compress(data.values)
    if kind == "pin":
        return "; ".join(pin_lines(document, str(data)))
    known: Mapping[str, Any] | None = entry(document, "inputs", data.name) if document and kind == "input" else None
    return wording.domain(known["domain"]) if known else ""


def _point_note(graph: Graph, node: int) -> str:
    moving = [leaf_name(graph, leaf) for leaf in graph.leaves([node])
              if leaf_kind(graph, leaf) in ("runtime", "unpinnable")]
    return f"follows the batch: {', '.join(moving)}" if moving else ""


def _short(value: float) -> float | int:
    rounded = round(value, 1)
    return int(rounded) if rounded == int(rounded) else rounded

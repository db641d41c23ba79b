"""The cut view as a Mermaid flowchart, which GitHub draws in Markdown and in CI summaries."""

from __future__ import annotations

from detent.passes.graph import Graph
from detent.solver.views.cut_view import Box, CutView, cut_view
from detent.solver.views.legal import Document
from detent.solver.views.palette import COLOURS

_ESCAPES = {ord(c): f"#{ord(c)};" for c in '"#&<>`'}
"""What ends a quoted label or would be read as HTML, as an entity or as a Markdown label: Mermaid's numeric
entities. Inside the quotes everything else is text, brackets, underscores and stars included."""


def mermaid(document: Document | None, graph: Graph) -> str:
    """A ``flowchart LR``, without the Markdown fence; ``document`` is None for a graph that was not solved."""
    view = cut_view(document, graph)
    lines = ["---", f"title: {_title(view.title)}", "---", "flowchart LR"]
    lines += [f'  n{i}{_shape(box)}:::{box.kind}' for i, box in enumerate(view.boxes)]
    lines += [f"  n{tail} --> n{head}" for tail, head in view.edges]
    lines += [f"  n{after} ~~~ n{i}" for i, after in _placed(view)]
    for kind in dict.fromkeys(box.kind for box in view.boxes):
        fill, stroke = COLOURS[kind]
        width = ",stroke-width:3px" if kind == "pin" else ""
        lines.append(f"  classDef {kind} fill:{fill},stroke:{stroke},color:#000{width}")
    return "\n".join([*lines, ""])


def _placed(view: CutView) -> list[tuple[int, int]]:
    """Boxes without edges that belong in the points' column, each with a box to stand right of."""
    pins = [i for i, box in enumerate(view.boxes) if box.kind == "pin"]
    return [(i, pins[-1]) for i, box in enumerate(view.boxes) if box.kind == "constant" and pins]


def _shape(box: Box) -> str:
    text = "<br/>".join(line.translate(_ESCAPES) for line in (box.title, *box.lines)).replace("\n", " ")
    return f'(["{text}"])' if box.kind in ("runtime", "unpinnable", "request", "knob") else f'["{text}"]'


def _title(text: str) -> str:
    """A double-quoted YAML scalar: names come from files, so nothing in them may end it early."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'

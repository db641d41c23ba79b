"""The cut view for Graphviz. Only the text is written; rendering is the reader's business."""

from __future__ import annotations

from detent.passes.graph import Graph
from detent.solver.views.cut_view import Box, cut_view
from detent.solver.views.legal import Document
from detent.solver.views.palette import COLOURS

LEFT = ("runtime", "unpinnable", "request", "knob")
RIGHT = ("points", "moving", "constant")


def dot(document: Document | None, graph: Graph) -> str:
    """A ``digraph``, left to right; ``document`` is None for a graph that was not solved."""
    view = cut_view(document, graph)
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        f"  label={_quoted(view.title)}; labelloc=t; rankdir=LR; ranksep=1.2;",
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=10];',
        '  edge [color="#64748b", arrowsize=0.7];',
    ]
    lines += [f"  n{i} [{_attributes(box)}];" for i, box in enumerate(view.boxes)]
    for rank, kinds in (("source", LEFT), ("sink", RIGHT)):
        column = " ".join(f"n{i};" for i, box in enumerate(view.boxes) if box.kind in kinds)
        lines.append(f"  {{ rank={rank}; {column} }}")
    lines += [f"  n{tail} -> n{head};" for tail, head in view.edges]
    return "\n".join([*lines, "}", ""])


def _attributes(box: Box) -> str:
    fill, stroke = COLOURS[box.kind]
    label = "".join(_escaped(line) + r"\l" for line in (box.title, *box.lines))
    width = ", penwidth=3" if box.kind == "pin" else ""
    return f'label="{label}", fillcolor="{fill}", color="{stroke}"{width}'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")

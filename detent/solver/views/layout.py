"""Where the nodes of a whole graph stand: layers from left to right, rows near what they are computed from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from detent.passes.graph import Graph

WIDTH, GAP = 1000, 150
MARK_COLUMNS = (0.2, 1.2, 2.2)
"""Columns of points, constant points and conditions, in gaps behind the width of the layers."""


class Layout(NamedTuple):
    """``layer``: column of each node (half layers hold constants). ``x`` rises with the layer.
    ``y``: rows, one unit apart at least within a layer."""

    layer: list[float]
    x: list[float]
    y: list[float]


def layout(graph: Graph, points: Sequence[int] = (), conditions: Sequence[int] = ()) -> Layout:
    """Positions of all nodes, then of one mark for each entry of ``points`` and of ``conditions``.

    The entries are nodes. Behind the last layer come a column of points, one of constant points and one of
    conditions. The layer is the longest path from an input; pins do not interrupt it. A row is the mean of
    the predecessors' rows, moved as little as possible for nodes of a layer to keep apart. Constants stand
    half a layer before their first user.
    """
    size = len(graph)
    sinks = [*points, *conditions]
    before: list[list[int]] = [[a for a in args if graph.kinds[a] != "constant"] for args in graph.args]
    before += [[node] for node in sinks]
    layers = _layers(graph, before, len(points))
    after: list[list[int]] = [[] for _ in range(len(before))]
    for node, operands in enumerate([*graph.args, *((s,) for s in sinks)]):
        for operand in operands:
            after[operand].append(node)
    columns: dict[float, list[int]] = {}
    for node, layer in enumerate(layers):
        if node >= size or graph.kinds[node] != "constant":
            columns.setdefault(layer, []).append(node)
    height = float(max((len(nodes) for nodes in columns.values()), default=1))
    spread = {0.0, *layers[size:]}
    y = [0.0] * len(before)
    _place(columns, before, y, height, spread, {})
    first = {node: _mean([y[user] for user in after[node]], height / 2) for node in columns.get(0.0, ())}
    _place(columns, before, y, height, spread, first)
    _place_constants(graph, layers, y, after, height)
    return Layout(layers, _abscissas(graph, layers), y)


def _layers(graph: Graph, before: Sequence[Sequence[int]], points: int) -> list[float]:
    size = len(graph)
    x = [0.0] * len(before)
    for node in range(size):
        if graph.kinds[node] not in ("input", "knob"):
            x[node] = max((x[a] + 1 for a in before[node]), default=1.0)
    last = max(x, default=0.0) + 1
    x[size:] = [last if before[mark] and graph.kinds[before[mark][0]] != "constant" else last + 1
                for mark in range(size, size + points)] + [last + 2] * (len(before) - size - points)
    first_user: dict[int, float] = {}
    for node in range(len(before)):
        operands = graph.args[node] if node < size else before[node]
        for operand in operands:
            first_user[operand] = min(first_user.get(operand, x[node]), x[node])
    for node in range(size):
        if graph.kinds[node] == "constant":
            x[node] = first_user.get(node, 1.0) - 0.5
    return x


def _place(columns: dict[float, list[int]], before: Sequence[Sequence[int]], y: list[float], height: float,
           spread: set[float], wanted: dict[int, float]) -> None:
    """One sweep from left to right; ``wanted`` are the targets of nodes without predecessors."""
    for layer in sorted(columns):
        nodes = columns[layer]
        middle = height / 2
        targets = [(_mean([y[a] for a in before[n]], wanted.get(n, middle)), n) for n in nodes]
        targets.sort()
        gap = max(1.0, 0.9 * height / len(nodes)) if layer in spread else 1.0
        rows = separate([target for target, _ in targets], gap)
        for (_, node), row in zip(targets, rows, strict=True):
            y[node] = row


def _place_constants(graph: Graph, x: Sequence[float], y: list[float], after: Sequence[Sequence[int]],
                     height: float) -> None:
    columns: dict[float, list[int]] = {}
    for node in graph.of_kind("constant"):
        columns.setdefault(x[node], []).append(node)
    for nodes in columns.values():
        targets = sorted((_mean([y[user] for user in after[node]], height / 2), node) for node in nodes)
        for (_, node), row in zip(targets, separate([target for target, _ in targets], 1.0), strict=True):
            y[node] = row


def _abscissas(graph: Graph, layers: Sequence[float]) -> list[float]:
    """Half of the width is shared by the layers equally, half by how many values they hold: a long chain
    (a reduction over 256 split counts) would otherwise press the wide layers into a line. The columns of
    marks stand behind, with room for their labels."""
    last = int(max((layers[i] for i in range(len(graph)) if graph.kinds[i] != "constant"), default=0.0))
    pin = 1 + len(graph) / 30  # room to stand apart, even at the start of a chain
    counts = [0.0] * (last + 1)
    for node, kind in enumerate(graph.kinds):
        if kind != "constant" and graph.scopes[node] == 0:
            counts[int(layers[node])] += pin if kind == "pin" else 1
    total = sum(counts) or 1
    edges = [0.0]
    for count in counts:
        edges.append(edges[-1] + WIDTH / 2 / (last + 1) + WIDTH / 2 * count / total)
    centres = [(left + right) / 2 for left, right in itertools.pairwise(edges)]
    centres += [WIDTH + GAP * column for column in MARK_COLUMNS]
    return [(centres[math.floor(layer)] + centres[math.ceil(layer)]) / 2 for layer in layers]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def separate(targets: Sequence[float], gap: float) -> list[float]:
    """Rising positions at least ``gap`` apart with the least sum of squared distances from rising ``targets``.

    Pool adjacent violators on the targets less their index times the gap.
    """
    blocks: list[tuple[float, int]] = []
    for index, target in enumerate(targets):
        total, count = target - index * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            previous_total, previous_count = blocks.pop()
            total, count = total + previous_total, count + previous_count
        blocks.append((total, count))
    shifts = [total / count for total, count in blocks for _ in range(count)]
    return [shift + index * gap for index, shift in enumerate(shifts)]

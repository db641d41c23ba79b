"""The pins: the latest minimum vertex cut between batch-dependent inputs and selection points.

Every value of the selection may become a pin, selection points included. Inputs that must stay truthful
(unpinnable), inputs of one request, knobs and constants may not. The cut is found by the algorithm of
Edmonds and Karp (shortest augmenting paths) with one unit of capacity a value. Among the minimum cuts the
latest one is taken: fewest pins first, then nearest the selection points. It is unique, so neither the
order of nodes nor that of operands changes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from detent.passes.graph import Graph

BATCH_DEPENDENT = ("runtime", "unpinnable")
"""Sources of inputs that change with the batch; an input of one request does not."""


class Cut(NamedTuple):
    """``nodes``: the values to pin. ``sinks``: the batch-dependent sinks they separate. Both ascending."""

    nodes: tuple[int, ...]
    sinks: tuple[int, ...]


class Infeasible(Exception):
    """An input that may not be pinned reaches a sink and nothing between them may be pinned either.

    ``path`` lists node numbers from the input to the sink, both included.
    """

    def __init__(self, path: list[int]) -> None:
        super().__init__(path)
        self.path = path


def sinks(graph: Graph) -> list[int]:
    """What must not move with the batch: the points, and the values of the selection that conditions name.

    A condition names a value when its own computation, or its root, is that value. Inputs, copies of them, knobs and
    constants stay true or fixed in a condition, so they are no sinks by being named; a point is one always.
    """
    named = {condition.root for condition in graph.conditions}
    for node, scope in enumerate(graph.scopes):
        if scope:
            named.update(graph.args[node])
    free = ("input", "knob", "constant")
    found = {node for node in named if graph.scopes[node] == 0 and graph.kinds[graph.origin(node)] not in free}
    found.update(node for _, node in graph.points)
    return sorted(found)


def batch_dependent(graph: Graph, control: bool = True) -> list[bool]:
    """For each node of the selection whether a batch-dependent input reaches it; False in conditions.

    Without ``control`` a select does not depend on its condition, which is unsound and there to show it.
    """
    moves = [False] * len(graph)
    for node, kind in enumerate(graph.kinds):
        if graph.scopes[node] == 0:
            if kind == "input":
                moves[node] = graph.data[node].source in BATCH_DEPENDENT
            else:
                moves[node] = any(moves[a] for a in _operands(graph, node, control))
    return moves


def why(graph: Graph, node: int, through_pins: bool = False) -> list[int]:
    """The shortest path from a batch-dependent input to a node, both included; empty when there is none.

    Among paths of one length the one through the first operands is taken. Pins block unless ``through_pins``.
    """
    user: dict[int, int | None] = {node: None}
    queue = deque((node,))
    while queue:
        here = queue.popleft()
        if graph.kinds[here] == "input" and graph.data[here].source in BATCH_DEPENDENT:
            path = []
            step: int | None = here
            while step is not None:
                path.append(step)
                step = user[step]
            return path
        for operand in graph.operands(here, through_pins):
            if operand not in user:
                user[operand] = here
                queue.append(operand)
    return []


def latest_min_cut(graph: Graph, sinks: Iterable[int], *, control: bool = True) -> Cut:
    """The fewest values that separate batch-dependent inputs from the sinks, nearest the sinks.

    Sinks that no batch-dependent input reaches are ignored. Raises :class:`Infeasible` when a sink is itself
    an unpinnable input: everything else that could lie on a path may be pinned.
    """
    moves = batch_dependent(graph, control)
    ends = {node for node in sinks if moves[node]}
    for node in sorted(ends):
        if _unpinnable(graph, node):
            raise Infeasible([node])
    gates, before, starts = _folded(graph, ends, moves, control)
    fixed = {index for index in starts if _unpinnable(graph, gates[index])}
    cut = _vertex_cut(before, starts, fixed, [index for index, node in enumerate(gates) if node in ends])
    return Cut(tuple(sorted(gates[index] for index in cut)), tuple(sorted(ends)))


def _unpinnable(graph: Graph, node: int) -> bool:
    return graph.kinds[node] == "input" and graph.data[node].source == "unpinnable"


def _operands(graph: Graph, node: int, control: bool) -> Sequence[int]:
    kind = graph.kinds[node]
    if kind == "pin":
        return ()
    return graph.args[node][1:] if kind == "select" and not control else graph.args[node]


def _folded(graph: Graph, ends: Container[int], moves: Sequence[bool], control: bool,
            ) -> tuple[list[int], list[list[int]], set[int]]:
    """The batch-dependent values that reach an end, each folded into the one value that all its ways run through.

    The latest cut never takes a value that a single later one could replace, so folding (to the outermost
    post-dominator) keeps it, and usually leaves a small part of the graph. Returns the values left, for each
    the indices of its operands among them, and the indices that batch-dependent inputs are folded into.
    """
    gates: list[int] = []
    before: list[list[int]] = []
    starts: set[int] = set()
    towards: dict[int, set[int]] = {}
    for node in range(len(graph) - 1, -1, -1):
        ways = towards.pop(node, set())
        if len(ways) == 1 and node not in ends:
            (gate,) = ways
        elif ways or node in ends:
            gate = len(gates)
            gates.append(node)
            before.append([])
            for way in ways:
                before[way].append(gate)
        else:
            continue
        if graph.kinds[node] == "input":
            starts.add(gate)
        for operand in _operands(graph, node, control):
            if moves[operand]:
                towards.setdefault(operand, set()).add(gate)
    return gates, before, starts


_END = -1
_NONE = -2


def _vertex_cut(before: Sequence[Sequence[int]], starts: Container[int], fixed: Container[int],
                ends: Sequence[int]) -> list[int]:
    """The latest minimum set of values, none of them ``fixed``, that lies on every way from starts to ends.

    Each value has an in-side and an out-side with one unit of capacity between them; edges between values are
    unlimited. ``follow`` gives, for each value that carries flow, the value it flows to next, which is all
    the residual graph needs. Each round searches backwards from the ends, breadth first. ``out`` and ``into``
    say where the residual path leads from a side that was reached; from the in-side of a value one goes to the
    out-side of ``into``: of itself if it carries nothing, else of the value whose flow into it is taken back.
    """
    follow = [_NONE] * len(before)
    while True:
        out, into = [_NONE] * len(before), [_NONE] * len(before)
        for node in ends:
            out[node] = _END
        queue = list(ends)
        start = _NONE
        for node in queue:  # grows while it is read
            entered = node if follow[node] == _NONE else follow[node]
            if entered == _END or into[entered] != _NONE:
                continue
            into[entered] = node
            if entered in starts:
                start = entered
                break
            for earlier in before[entered]:
                if out[earlier] == _NONE:
                    out[earlier] = entered
                    queue.append(earlier)
            if follow[entered] != _NONE and out[entered] == _NONE:
                out[entered] = entered  # gives its own unit back
                queue.append(entered)
        if start == _NONE:
            return [node for node in queue if into[node] == _NONE]
        while start != _END:
            node = into[start]
            start = out[node]
            if node not in fixed:
                follow[node] = _NONE if start == node else start

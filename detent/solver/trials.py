"""All inputs that some values depend on, where these are few enough to try every one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detent.passes.boxes import Domain, size
from detent.passes.graph import Graph
from detent.passes.input_domains import relations
from detent.passes.lowering import expression_function
from detent.passes.witness import EXHAUSTIVE_LIMIT


def every_input(graph: Graph, domains: Mapping[int, Domain], leaves: Sequence[int],
                limit: int = EXHAUSTIVE_LIMIT) -> list[tuple[Any, ...]] | None:
    """Values of some inputs and knobs (``leaves``, in their order) at every point that the assumes allow.

    None where the product of their domains has more than ``limit`` points. An assume that also relates other inputs
    does not filter: a point in the list may then have no whole input, but no whole input is missing.
    """
    choices = [knob_values(graph, leaf) if graph.kinds[leaf] == "knob" else domains[leaf] for leaf in leaves]
    if math.prod(map(size, choices)) > limit:
        return None
    points = list(itertools.product(*choices))
    own = [graph.conditions[index].root for index in relations(graph, dict(domains))
           if set(graph.leaves((graph.conditions[index].root,))) <= set(leaves)]
    if not own:
        return points
    holds = tuple_function(graph, own, leaves)
    return [point for point in points if all(holds(*point))]


def knob_values(graph: Graph, node: int) -> tuple[Any, ...]:
    """A knob's values in ascending order."""
    return tuple(sorted(graph.data[node].values))


def tuple_function(graph: Graph, roots: Sequence[int], params: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    """The roots' values as a tuple, whatever their number; see :func:`expression_function` for ``params``."""
    if not roots:
        return lambda *values: ()
    _, function = expression_function(graph, roots, params)
    return (lambda *values: (function(*values),)) if len(roots) == 1 else function

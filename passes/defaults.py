"""The default assignment: what an untuned deployment runs, and the sample of inputs it is taken from.

The design's rule: over a fixed, seeded sample of inputs (uniform over the domains, filtered by the assumes)
the most frequent *jointly* legal assignment of the pins, ties to the smallest, knobs at their default. The
most frequent value of each pin alone may be illegal together with another's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detent.passes.boxes import Domain
from detent.passes.errors import UndecidedAssumes
from detent.passes.graph import Graph
from detent.passes.question import Question, Witness, draw
from detent.passes.witness import Assumes

if TYPE_CHECKING:
    from detent.passes.legality import Legality

REJECTIONS = 200
"""Uniform points rejected in a row before a search from a random start replaces them."""


def default_assignment(legality: Legality, sample: Iterable[Mapping[int, Any]],
                       knob_defaults: Mapping[int, Any]) -> dict[int, Any] | None:
    """The default assignment of all pins and knobs; None if nothing is legal.

    ``sample`` has the pins' values at each sampled input. If no sampled assignment is legal with the knobs at
    their defaults, the smallest legal one with these is taken, else the smallest legal one at all.
    """
    places = {node: {value: i for i, value in enumerate(values)} for node, values in legality.candidates_of.items()}
    pins = [node for node in places if node not in knob_defaults]
    counts = Counter(tuple([values[node] for node in pins]) for values in sample)

    def rank(item: tuple[tuple[Any, ...], int]) -> tuple[int, list[int]]:
        return -item[1], [places[node].get(value, -1) for node, value in zip(pins, item[0], strict=True)]

    frequent = [{**dict(zip(pins, values, strict=True)), **knob_defaults}
                for values, _ in sorted(counts.items(), key=rank)]
    return legality.default([*frequent, knob_defaults])


def sample_inputs(graph: Graph, domains: Mapping[int, Domain], relations: Sequence[int], count: int,
                  seed: int) -> list[Witness]:
    """``count`` inputs, uniform over the domains and filtered by the assumes; the same for one seed everywhere.

    Where uniform points hardly ever satisfy the assumes, random searches fill in, which are not uniform.
    Raises :class:`UndecidedAssumes` where these find nothing either.
    """
    return draw_inputs(Assumes(graph, domains, relations), count, seed)


def draw_inputs(assumes: Assumes, count: int, seed: int) -> list[Witness]:
    """:func:`sample_inputs` for assumes that are already gathered."""
    rng = random.Random(seed)
    groups = assumes.groups(frozenset())
    tied = {leaf for group in groups for leaf in group.variables}
    free = [leaf for leaf in assumes.domains if leaf not in tied]
    result = []
    for _ in range(count):
        point: Witness = {leaf: draw(rng, assumes.domains[leaf]) for leaf in free}
        for group in groups:
            point.update(_draw_group(assumes, group, rng))
        result.append({leaf: point[leaf] for leaf in assumes.domains})
    return result


def _draw_group(assumes: Assumes, group: Question, rng: random.Random) -> Witness:
    """Values of inputs that relations tie together: uniform points until one is admitted."""
    for _ in range(REJECTIONS):
        point = {leaf: draw(rng, assumes.domains[leaf]) for leaf in group.variables}
        if group.admits(point):
            return point
    found = group.ask({}, rng=rng)
    if not isinstance(found, dict):
        graph = assumes.graph
        related = next(graph.conditions[index] for index in assumes.relations
                       if assumes.inputs[index] & set(group.variables))
        raise UndecidedAssumes("found no sample input that satisfies this assume and those it is related to",
                               related.location, "simplify the assumes that relate inputs")
    return found

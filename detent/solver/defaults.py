"""The default assignment of a solved program: what its own selection does most often, as far as that is legal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detent.passes.defaults import default_assignment, sample_inputs
from detent.passes.input_domains import relations
from detent.passes.lowering import expression_function
from detent.solver.compiled import Compiled, without_pins

SAMPLES = 512
SEED = 2611


def default_of(compiled: Compiled) -> dict[int, Any] | None:
    """Values of all pins and knobs by node; None if nothing is legal.

    The sample is fixed: 512 inputs, uniform over their domains and filtered by the assumes.
    """
    graph = compiled.graph
    knobs = {node: graph.data[node].default for node in graph.of_kind("knob")}
    return default_assignment(compiled.legality, _sampled_pins(compiled, knobs), knobs)


def _sampled_pins(compiled: Compiled, knobs: dict[int, Any]) -> Iterator[dict[int, Any]]:
    graph = compiled.graph
    pins = graph.of_kind("pin")
    if not pins:
        return
    plain = without_pins(graph)
    inputs = graph.of_kind("input")
    roots = [graph.args[node][0] for node in pins]
    _, values_at = expression_function(plain, roots, [*inputs, *knobs])
    samples = sample_inputs(graph, compiled.pinned.domains, relations(graph, compiled.pinned.domains), SAMPLES, SEED)
    for sample in samples:
        values = values_at(*[sample[node] for node in inputs], *knobs.values())
        yield dict(zip(pins, values if len(pins) > 1 else (values,), strict=True))

"""The Solution document: what a solve found, as plain data for the cache, the runtime and the views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.passes.boxes import Domain
from detent.passes.cut import BATCH_DEPENDENT
from detent.passes.graph import Graph, Location
from detent.passes.lowering import pinned_template
from detent.solver.compiled import Compiled

FORMAT = 1


class Unsound(RuntimeError):
    """A selection point still reads a batch-dependent input after pinning: an ablation, or a fault of ours."""


def place(location: Location | None) -> dict[str, Any] | None:
    """A location as the document's ``{"file", "line", "column", "text"}``."""
    return None if location is None else dict(location._asdict())


def domain(values: Domain) -> dict[str, Any]:
    """A domain as ``{"range": [low, high, step]}`` or ``{"values": [...]}``."""
    if isinstance(values, range):
        return {"range": [values[0], values[-1], values.step]}
    return {"values": list(values)}


def name_of(graph: Graph, node: int) -> str:
    """The name of an input, knob or pin node."""
    data = graph.data[node]
    return str(data) if graph.kinds[node] == "pin" else str(data.name)


def _leaves(graph: Graph, root: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"pin": [], "knob": [], "input": []}
    for node in graph.leaves([root]):
        found[graph.kinds[node]].append(name_of(graph, node))
    return found


def condition_text(graph: Graph, index: int) -> str:
    """The condition's source text without ``require(`` and the message."""
    location = graph.conditions[index].location
    return location.text if location is not None else ""


def document(compiled: Compiled, default: Mapping[int, Any] | None) -> dict[str, Any]:
    """Everything but the key and the seconds; ``default`` by node."""
    graph, legality = compiled.graph, compiled.legality
    names = {node: name_of(graph, node) for node in (*graph.of_kind("pin"), *graph.of_kind("knob"))}
    inputs = {node: name_of(graph, node) for node in graph.of_kind("input")}
    failed: dict[int, int] = {r.condition: len(r.cases) for r in legality.refutations}
    return {
        "format": FORMAT,
        "program": graph.name,
        "family": graph.family,
        "values": len(graph) - len(graph.of_kind("pin")),
        "inputs": [_input(graph, node, compiled.pinned.domains[node]) for node in inputs],
        "points": [_point(compiled, name, node) for name, node in graph.points],
        "pins": [_pin(compiled, node) for node in graph.of_kind("pin")],
        "knobs": [_knob(graph, node) for node in graph.of_kind("knob")],
        "conditions": [_condition(compiled, index, failed.get(index, 0)) for index in range(len(graph.conditions))],
        "candidates": legality.candidates,
        "legal": legality.legal,
        "legality": {"proved": legality.proved, "sampled": legality.sampled},
        "components": [{"names": [names[n] for n in nodes], "legal": [list(values) for values in rows]}
                       for nodes, rows in legality.components],
        "refutations": [{"condition": r.condition, "names": [names[n] for n in r.nodes],
                         "cases": [[list(values), witness] for values, witness in r.cases.items()]}
                        for r in legality.refutations],
        "witnesses": [{inputs[n]: value for n, value in witness.items() if n in inputs}
                      for witness in legality.witnesses],
        "default": None if default is None else {names[n]: value for n, value in default.items()},
        "template": pinned_template(graph, checked(compiled), compiled.pinned.fails),
    }


def checked(compiled: Compiled) -> list[int]:
    """Conditions the selector checks while serving: every assume, and each require that was only sampled."""
    return [index for index, condition in enumerate(compiled.graph.conditions)
            if condition.kind == "assume" or compiled.legality.verdicts.get(index) == "sampled"]


def moving_points(graph: Graph) -> list[tuple[str, list[str]]]:
    """Points that read batch-dependent inputs although pins are constants; empty for a sound cut."""
    found = []
    for name, node in graph.points:
        inputs = [graph.data[leaf].name for leaf in graph.leaves([node])
                  if graph.kinds[leaf] == "input" and graph.data[leaf].source in BATCH_DEPENDENT]
        if inputs:
            found.append((name, inputs))
    return found


def _input(graph: Graph, node: int, values: Domain) -> dict[str, Any]:
    return {"name": name_of(graph, node), "kind": graph.data[node].source, "type": graph.types[node],
            "domain": domain(values), "source": place(graph.locations[node])}


def _point(compiled: Compiled, name: str, node: int) -> dict[str, Any]:
    graph = compiled.graph
    constant = graph.kinds[node] == "constant"
    leaves = _leaves(graph, node)
    return {"name": name, "type": graph.types[node], "batch_dependent": compiled.pinned.moves_point(node),
            "constant": graph.data[node] if constant else None, "is_constant": constant,
            "pins": leaves["pin"], "knobs": leaves["knob"], "requests": leaves["input"],
            # A constant is shared by the whole program; what names the point is the return statement.
            "source": place(compiled.pinned.points_location if constant else graph.locations[node])}


def _pin(compiled: Compiled, node: int) -> dict[str, Any]:
    graph, found = compiled.graph, compiled.candidates[node]
    location = graph.locations[node]
    return {"name": name_of(graph, node), "type": graph.types[node], "candidates": found.values,
            "exact": found.exact, "replaces": location.text if location else "", "source": place(location)}


def _knob(graph: Graph, node: int) -> dict[str, Any]:
    data = graph.data[node]
    return {"name": data.name, "type": graph.types[node], "values": list(data.values), "default": data.default,
            "source": place(graph.locations[node])}


def _condition(compiled: Compiled, index: int, fails: int) -> dict[str, Any]:
    graph, condition = compiled.graph, compiled.graph.conditions[index]
    leaves = _leaves(graph, condition.root)
    verdict = "domain" if condition.kind == "assume" else compiled.legality.verdicts[index]
    return {"kind": condition.kind, "message": condition.message, "text": condition_text(graph, index),
            "source": place(condition.location), "pins": leaves["pin"], "knobs": leaves["knob"],
            "inputs": leaves["input"], "verdict": verdict, "fails": fails}


"""Lowering: a graph to the Python source of one function.

Three functions are made: a selector that computes every point from the true inputs, the template of a
selector whose pins and knobs are constants, and functions of chosen values for the analyses. Besides Python's
builtins the text calls what :data:`GLOBALS` holds and, in selectors, ``Violation(kind, message, source)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from detent.dialects.selir.semantics import round32
from detent.passes.graph import Graph
from detent.passes.spelling import Block, render
from detent.passes.writing import Writer

GLOBALS: dict[str, Any] = {"f32": round32, "ceil": math.ceil, "floor": math.floor, "isfinite": math.isfinite}


def expression_function(graph: Graph, roots: Sequence[int], params: Sequence[int], name: str = "f",
                        ) -> tuple[str, Callable[..., Any]]:
    """A function of the values of ``params`` that returns the roots' values, a tuple unless there is one root.

    ``params`` are inputs, knobs and pins, or any other nodes whose values are to be given. A pin that is not
    among them has its operand's value; an input or knob that is needed and missing is a :class:`ValueError`.
    Every operation has its total meaning, so the function raises nothing that the interpreter does not.
    """
    writer = Writer(graph, [roots], {}, params, None, named=False)
    names = [writer.local(node, _title(graph, node)) for node in params]
    body: Block = []
    writer.stage(0, body)
    values = [writer.use(root) for root in roots]
    body.append(f"return {values[0]}" if len(values) == 1 else f"return ({', '.join(values)})")
    source = _function(writer, name, names, body)
    space = dict(GLOBALS)
    exec(compile(source, f"<{graph.name}>", "exec"), space)
    function: Callable[..., Any] = space[name]
    return source, function


def unpinned_source(graph: Graph, fails: Container[int]) -> str:
    """The selector without pins: ``select(<inputs>, *, <knobs>=<defaults>)``.

    It raises ``Violation`` for the first assume that does not hold and returns the points and the indices of
    the requires that do not hold. ``fails`` names the nodes that could fail on the domain if they were
    computed at every input of it, whatever their guards: they get their total form, because a value that is
    shared may be computed outside its guard. Assumes are total, as they are what establishes the domain.
    """
    assumes = [index for index, condition in enumerate(graph.conditions) if condition.kind == "assume"]
    requires = [index for index, condition in enumerate(graph.conditions) if condition.kind != "assume"]
    stages = [*_roots(graph, assumes), [node for _, node in graph.points], *_roots(graph, requires)]
    inputs, knobs = _named(graph, "input"), _named(graph, "knob")
    writer = Writer(graph, stages, {**inputs, **knobs}, (), _careful(graph, fails, assumes))
    defaults = [f"{name}={writer.literal(graph.data[node].default)}" for node, name in knobs.items()]
    body: Block = []
    _checks(graph, writer, assumes, body)
    writer.stage(len(assumes), body)
    broken = writer.fresh("broken")
    body.append(f"{broken} = []")
    for stage, index in enumerate(requires, len(assumes) + 1):
        _check(graph, writer, stage, index, f"{broken}.append({index})", body)
    _return(graph, writer, f"}}, {broken}", body)
    return _function(writer, "select", [*inputs.values(), *(["*", *defaults] if defaults else [])], body)


def pinned_template(graph: Graph, keep: Sequence[int], fails: Container[int]) -> str:
    """The selector under a commitment tuple: ``select(<inputs>)`` with ``⟦name⟧`` where a pin's or knob's value goes.

    ``keep`` are the indices of the conditions to check, in order: the assumes, and the requires that are not
    proved. The first that does not hold raises ``Violation``; the function returns the points. For ``fails``
    see :func:`unpinned_source`.
    """
    fixed = [*graph.of_kind("pin"), *graph.of_kind("knob")]
    stages = [*_roots(graph, keep), [node for _, node in graph.points]]
    inputs = _named(graph, "input")
    writer = Writer(graph, stages, inputs, fixed, _careful(graph, fails, keep))
    body: Block = []
    for node in fixed:
        if node in writer.used:
            name = _title(graph, node)
            body.append(f"{writer.local(node, name)} = ⟦{name}⟧")
    _checks(graph, writer, keep, body)
    writer.stage(len(keep), body)
    _return(graph, writer, "}", body)
    return _function(writer, "select", list(inputs.values()), body)


def _roots(graph: Graph, conditions: Iterable[int]) -> list[list[int]]:
    return [[graph.conditions[index].root] for index in conditions]


def _careful(graph: Graph, fails: Container[int], checked: Sequence[int]) -> set[int]:
    """The nodes to write in total form: what may fail, and what is computed before the domain is checked."""
    before = graph.slice((root for roots in _roots(graph, checked) for root in roots), through_pins=True)
    return {*before, *(node for node in range(len(graph)) if node in fails)}


def _title(graph: Graph, node: int) -> str:
    data = graph.data[node]
    return data if graph.kinds[node] == "pin" else data.name if data is not None else graph.names[node]


def _named(graph: Graph, kind: str) -> dict[int, str]:
    return {node: graph.data[node].name for node in graph.of_kind(kind)}


def _checks(graph: Graph, writer: Writer, conditions: Sequence[int], body: Block) -> None:
    for stage, index in enumerate(conditions):
        condition = graph.conditions[index]
        place = "" if condition.location is None else str(condition.location)
        arguments = ", ".join(map(writer.literal, (condition.kind, condition.message, place)))
        _check(graph, writer, stage, index, f"raise {writer.function('Violation')}({arguments})", body)


def _check(graph: Graph, writer: Writer, stage: int, index: int, action: str, body: Block) -> None:
    """Compute what condition ``index`` needs beyond earlier stages, and act if it does not hold."""
    condition = graph.conditions[index]
    if graph.kinds[condition.root] == "constant":
        body += [] if graph.data[condition.root] else [action]
        return
    text, place = condition.message, ""
    if condition.location is not None:
        text, place = condition.location.text or text, f"  ({condition.location})"
    line = " ".join(f"{condition.kind} {text}".split())
    body.append(f"# {line}{place}".replace("⟦", "[").replace("⟧", "]"))
    writer.stage(stage, body)
    body += [f"if {writer.refuted(condition.root)}:", [action]]


def _return(graph: Graph, writer: Writer, end: str, body: Block) -> None:
    body += ["return {", [f"{writer.literal(name)}: {writer.use(node)}," for name, node in graph.points], end]


def _function(writer: Writer, name: str, parameters: Sequence[str], body: Block) -> str:
    return "\n".join([*writer.preamble(), f"def {name}({', '.join(parameters)}):", *render(body), ""])

"""Programs from text to results by every way there is: plain Python, the interpreter, emitted source."""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import math
import random
import re
import struct
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

from programs_support import is_call, log_uniform, parameters

from detent.dialects.selir.structure import ProgramOp
from detent.lang import F32, Violation, knobs, report
from detent.lang.builder import build_module
from detent.lang.load import load_program
from detent.passes.defaults import draw_inputs
from detent.passes.graph import Graph
from detent.passes.input_domains import relations
from detent.passes.interpret import interpret
from detent.passes.lowering import GLOBALS, unpinned_source
from detent.passes.partial_eval import Binding, bind
from detent.passes.witness import Assumes
from detent.solver.compiled import ABLATIONS, Compiled, Switches, compile_program, split_module, without_pins
from detent.solver.document import name_of

Facts = Mapping[str, Mapping[str, Any]]
EVERYTHING = Switches()
FAILURES = (ZeroDivisionError, KeyError, IndexError, StopIteration, OverflowError, ValueError)


def load_text(text: str, folder: Path, name: str = "program") -> FunctionType:
    """The one selection of a program's text, written to a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return load_program(str(path))


def compiled(function: FunctionType, facts: Facts, switches: Switches = EVERYTHING) -> Compiled:
    """A program solved in memory."""
    return compile_program(build_module(function).module, facts, "test", switches)


_WRITTEN = """from __future__ import annotations

from detent.lang import F32, Request, Runtime, Unpinnable, assume, ceil, f32, floor, knob, record, require, selection


@record
class Call:
{fields}


@selection(family="written")
def program(call: Call):
{body}
"""


class Written:
    """A program from the lines of its record and its body."""

    def __init__(self, folder: Path, fields: str, body: str) -> None:
        fields, body = (textwrap.indent(inspect.cleandoc(text), "    ") for text in (fields, body))
        self.function = load_text(_WRITTEN.format(fields=fields, body=body), folder)

    def solve(self, ablation: str = "") -> Compiled:
        return compiled(self.function, {}, *(ABLATIONS[ablation][1:] if ablation else ()))


def bound(function: FunctionType, facts: Facts, switches: Switches = EVERYTHING) -> ProgramOp:
    """A program after partial evaluation alone."""
    program, functions = split_module(build_module(function).module)
    return bind(program, functions, Binding(facts, "test"), keep_keys=switches.keep_keys,
                equal_arms=switches.options.equal_arms)


# ---- running ---------------------------------------------------------------------------------------------------


def exact(value: Any) -> tuple[str, Any]:
    """A value's type in the language and its bits; every NaN is the same."""
    if isinstance(value, float):
        kind = "f32" if isinstance(value, F32) else "float"
        return kind, "nan" if math.isnan(value) else struct.pack("<d", value)
    return type(value).__name__.replace("NoneType", "none"), value


def typed(value: Any, kind: str) -> tuple[str, Any]:
    """:func:`exact` of what a graph computes, whose f32 values are plain floats of that type."""
    return exact(F32(value) if kind == "f32" else value)


Point = Mapping[str, Any]
Outcome = tuple[dict[str, tuple[str, Any]], set[str]]
"""Points, and the messages of the requires that do not hold."""


def records(function: FunctionType, facts: Facts) -> dict[str, Any]:
    """The fact records of a program's parameters."""
    made = {}
    for name, cls in parameters(function).items():
        if not is_call(cls):
            section = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
            made[name] = cls(**{k: v for k, v in facts[section].items() if k in cls.__detent_fields__})
    return made


class Plain:
    """A program as plain Python. Inputs are given by name; f32 inputs as floats."""

    def __init__(self, function: FunctionType, facts: Facts) -> None:
        self.function, self.facts = function, records(function, facts)
        self.calls = {name: cls for name, cls in parameters(function).items() if is_call(cls)}

    def __call__(self, point: Point, settings: Mapping[str, Any] | None = None) -> Outcome:
        """Points and broken requires; raises Violation for an assume, and what Python raises."""
        with report() as found, knobs(**(settings or {})):
            try:
                points = self.function(**self.facts, **self.arguments(point))
            finally:  # a broken assume comes before anything that it was to exclude
                for violation in found:
                    if violation.kind == "assume":
                        raise violation
        return {name: exact(value) for name, value in points.items()}, {v.message for v in found}

    def arguments(self, point: Point) -> dict[str, Any]:
        return {name: cls(**{field: F32(point[field]) if type is F32 else point[field]
                             for field, (_, type) in cls.__detent_fields__.items()})
                for name, cls in self.calls.items()}


def evaluated(graph: Graph, point: Point, fixed: Mapping[int, Any] | None = None) -> Outcome:
    """The same by the interpreter; ``fixed`` gives values of pins and knobs by node, other knobs are at default."""
    leaves = leaves_of(graph, point) | dict(fixed or {})
    values = interpret(graph, leaves, [*(node for _, node in graph.points), *(c.root for c in graph.conditions)])
    broken = {c.message for c in graph.conditions if c.kind == "require" and not values[c.root]}
    return {name: typed(values[node], graph.types[node]) for name, node in graph.points}, broken


def admitted(graph: Graph, point: Point) -> str | None:
    """The message of the first assume that does not hold, None if all do."""
    roots = [(c.root, c.message) for c in graph.conditions if c.kind == "assume"]
    values = interpret(graph, leaves_of(graph, point), [root for root, _ in roots])
    return next((message for root, message in roots if not values[root]), None)


def leaves_of(graph: Graph, point: Point) -> dict[int, Any]:
    """Values of inputs, and defaults of knobs, by node."""
    inputs = {node: point[graph.data[node].name] for node in graph.of_kind("input")}
    return inputs | {node: graph.data[node].default for node in graph.of_kind("knob")}


class Emitted:
    """The emitted unpinned selector, called with inputs by name."""

    def __init__(self, found: Compiled) -> None:
        self.graph = without_pins(found.graph)
        self.source = unpinned_source(self.graph, found.pinned.fails)
        self.names = [self.graph.data[node].name for node in self.graph.of_kind("input")]
        self.kinds = {name: self.graph.types[node] for name, node in self.graph.points}
        self.select = executed(self.source)

    def __call__(self, point: Point, settings: Mapping[str, Any] | None = None) -> Outcome:
        points, broken = self.select(*[point[name] for name in self.names], **(settings or {}))
        return ({name: typed(value, self.kinds[name]) for name, value in points.items()},
                {self.graph.conditions[index].message for index in broken})


def executed(source: str) -> Any:
    """The ``select`` function of emitted source; a broken assume is :class:`Violation`."""
    space: dict[str, Any] = dict(GLOBALS) | {"Violation": lambda kind, message, place: Violation(kind, message)}
    exec(compile(source, "<emitted>", "exec"), space)
    return space["select"]


# ---- pins in plain Python --------------------------------------------------------------------------------------


class _Keeps(ast.NodeTransformer):
    """Lets what functions assign to a name go through ``keep``."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.body = [kept for statement in node.body for kept in self._statement(statement)]
        return node

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.If):
            node.body = [kept for statement in node.body for kept in self._statement(statement)]
            node.orelse = [kept for statement in node.orelse for kept in self._statement(statement)]
        if not isinstance(node, ast.Assign):
            return [node]
        names = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        self.names.update(names)
        return [node, *(ast.parse(f"{name} = keep({name!r}, {name})").body[0] for name in names)]


class Pinned(Plain):
    """A program as plain Python whose variables, and those of its helpers, are pinned by their names."""

    def __init__(self, function: FunctionType, facts: Facts) -> None:
        super().__init__(function, facts)
        self.pins: dict[str, Any] = {}
        self._keeps, self._files = _Keeps(), {}
        self.function = self._rebuilt(function)
        self.variables = self._keeps.names

    def _rebuilt(self, function: FunctionType) -> FunctionType:
        """The function in a module that is run anew, with ``keep`` after every assignment."""
        path = function.__code__.co_filename
        if path not in self._files:
            tree = self._keeps.visit(ast.parse("".join(linecache.getlines(path))))
            space = self._files[path] = {"__name__": function.__module__, "__file__": path,
                                         "keep": lambda name, value: self.pins.get(name, value)}
            code = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
            with mock.patch.dict(sys.modules, {function.__module__: ModuleType(function.__module__)}):
                exec(code, space)
            for name, value in list(space.items()):
                if isinstance(value, FunctionType) and value.__module__.startswith("detent.programs."):
                    if value.__module__ != function.__module__:
                        space[name] = self._rebuilt(value)
        found: FunctionType = self._files[path][function.__name__]
        return found

    def under(self, controls: Mapping[str, Any], point: Point) -> Outcome:
        """Points and broken requires with pins and knobs as given."""
        self.pins = {name: value for name, value in controls.items() if name in self.variables}
        return self(point, {name: value for name, value in controls.items() if name not in self.variables})


# ---- inputs and assignments ------------------------------------------------------------------------------------


def product(inputs: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of some values of each input."""
    return (dict(zip(inputs, values, strict=True)) for values in itertools.product(*inputs.values()))


def controls(graph: Graph, assignment: Mapping[int, Any]) -> dict[str, Any]:
    """An assignment by name."""
    return {name_of(graph, node): value for node, value in assignment.items()}


def named(graph: Graph, point: Mapping[int, Any]) -> dict[str, Any]:
    """An input by name."""
    return {graph.data[node].name: value for node, value in point.items()}


def tried(found: Compiled, count: int) -> list[dict[int, Any]]:
    """So many uniform inputs and so many of every magnitude, and for each int input every whole number that the
    program names, and those beside it. Only the first need satisfy the assumes."""
    graph, domains = found.graph, found.pinned.domains
    assumes = Assumes(graph, domains, relations(graph, dict(domains)))
    rng = random.Random(len(graph))
    pool = draw_inputs(assumes, count, 7)
    for _ in range(count):
        pool.append({leaf: log_uniform(rng, domain[0], domain[-1]) if isinstance(domain, range) and domain[0] > 0
                     else rng.choice(domain) for leaf, domain in domains.items()})
    values = (graph.data[node] for node in graph.of_kind("constant"))
    near = sorted({int(value) + step for value in values if type(value) in (int, float) for step in (-1, 0, 1)})
    completions = 25
    for leaf, domain in domains.items():
        for value in near if graph.types[leaf] == "int" else ():
            if value in domain:
                pool.append({**pool[rng.randrange(count)], leaf: value})
                whole = assumes.complete({leaf: value}, rng=rng) if completions and rng.random() < 0.1 else None
                if isinstance(whole, dict):
                    completions -= 1
                    pool.append(whole)
    return pool

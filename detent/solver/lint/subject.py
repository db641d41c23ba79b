"""What rules look at: a solution, and the program once more with facts bound and nothing simplified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from detent.dialects.selir.source import display_path, real_path, span_of
from detent.dialects.selir.unbound import FactsOp
from detent.lang.builder import build_module
from detent.lang.load import load_program
from detent.passes.boxes import Domain
from detent.passes.control_dependence import flatten_branches
from detent.passes.flatten import Flattened
from detent.passes.graph import Graph, Location
from detent.passes.input_domains import input_domains
from detent.passes.partial_eval import Binding, bind
from detent.runtime.deployment import Deployment
from detent.runtime.sources import display_name
from detent.solver.compiled import split_module
from detent.solver.solution import Solution
from detent.solver.solve import program_of

Facts = Mapping[str, Mapping[str, Any]]


class Subject:
    """A solved program on a deployment.

    ``globals``: the names of the program's module, declarations for the rules among them. ``graph``: facts bound and
    branches flattened, nothing simplified, no pins; every table that is read is still there. ``domains``: of its
    inputs. ``read``: facts that binding read, as (section, name).
    """

    def __init__(self, program: str | Callable[..., Any], deployment: Deployment, solution: Solution) -> None:
        self.deployment, self.solution = deployment, solution
        self._target = program_of(program)
        function = load_program(program if callable(program) else self._target.id)
        self.globals: Mapping[str, Any] = function.__globals__
        built = build_module(function)
        self._files = {display_path(path): display_name(path, self._target.path) for path in built.texts}
        self._program, self._functions = split_module(built.module)
        self.graph, self.read = self._bind(deployment.facts)

    def _bind(self, facts: Facts) -> tuple[Graph, set[tuple[str, str]]]:
        binding = Binding(facts, self.deployment.name)
        bound = bind(self._program, self._functions, binding)
        flatten_branches(bound.block)
        return Flattened(bound).graph, set(binding.read)

    def rebound(self, section: str, name: str, value: Any) -> Graph:
        """The graph with another value of one fact. Raises SourceError where the program cannot be bound to it."""
        sections = {**self.deployment.facts, section: {**self.deployment.facts[section], name: value}}
        return self._bind(sections)[0]

    @cached_property
    def domains(self) -> dict[int, Domain]:
        """Domains of the graph's inputs."""
        return input_domains(self.graph)

    @cached_property
    def tables(self) -> dict[tuple[str, str], str]:
        """The tables among the facts that the program's records declare, with the place of the parameter."""
        found: dict[tuple[str, str], str] = {}
        for op in self._program.block.ops:
            if isinstance(op, FactsOp):
                values = self.deployment.facts.get(op.section.data, {})
                span = span_of(op.location)
                place = "" if span is None else self._place(span.file, span.line)
                found |= {(op.section.data, name): place for name in op.fields.data
                          if isinstance(values.get(name), dict)}
        return found

    def table(self, section: str, name: str) -> dict[int, dict[str, Any]]:
        """The rows of one table by key, in the order of its file."""
        rows: dict[int, dict[str, Any]] = self.deployment.facts[section][name]
        return rows

    def place(self, location: Location | None) -> str:
        """``file:line`` without a directory, for a location of ``graph``."""
        return "" if location is None else self._place(location.file, location.line)

    def _place(self, file: str, line: int) -> str:
        return f"{self._files.get(file, display_name(real_path(file), self._target.path))}:{line}"

"""Builds graphs by hand, as flattening would: operators make nodes, conditions make nodes of their own scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from detent.dialects.selir.semantics import SEMANTICS, type_of
from detent.passes.graph import Condition, Graph, Input, Knob, Location


@dataclass(frozen=True, eq=False)
class Value:
    """A node being built upon; ``eq`` and ``ne`` are methods, the other operators are Python's."""

    build: Build
    node: int

    def _op(self, kind: str, *others: Any) -> Value:
        return self.build.op(kind, self, *others)

    def __add__(self, other: Any) -> Value:
        return self._op("add", other)

    def __sub__(self, other: Any) -> Value:
        return self._op("sub", other)

    def __mul__(self, other: Any) -> Value:
        return self._op("mul", other)

    def __truediv__(self, other: Any) -> Value:
        return self._op("div", other)

    def __floordiv__(self, other: Any) -> Value:
        return self._op("floordiv", other)

    def __mod__(self, other: Any) -> Value:
        return self._op("mod", other)

    def __neg__(self) -> Value:
        return self._op("neg")

    def __lt__(self, other: Any) -> Value:
        return self._op("lt", other)

    def __le__(self, other: Any) -> Value:
        return self._op("le", other)

    def __gt__(self, other: Any) -> Value:
        return self._op("gt", other)

    def __ge__(self, other: Any) -> Value:
        return self._op("ge", other)

    def __and__(self, other: Any) -> Value:
        return self._op("and", other)

    def __or__(self, other: Any) -> Value:
        return self._op("or", other)

    def __invert__(self) -> Value:
        return self._op("not")

    def eq(self, other: Any) -> Value:
        return self._op("eq", other)

    def ne(self, other: Any) -> Value:
        return self._op("ne", other)

    def among(self, values: Sequence[Any]) -> Value:
        """``self in values``, as the front end writes it."""
        return reduce(lambda a, b: a | b, [self.eq(value) for value in values])


class Build:
    """A graph under construction; conditions are given as functions that build them in their scope."""

    def __init__(self) -> None:
        self.graph = Graph("test", "test")
        self._scope = 0

    def __getitem__(self, name: str) -> int:
        """The node of that name."""
        return self.graph.names.index(name)

    def constant(self, value: Any, type: str | None = None) -> Value:
        return Value(self, self.graph.add("constant", (), value, type or type_of(value)))

    def input(self, name: str, type: str = "int", source: str = "runtime") -> Value:
        line = Location("program.py", len(self.graph) + 1, 0, name)
        return Value(self, self.graph.add("input", (), Input(name, source), type, name, line))

    def knob(self, name: str, values: tuple[Any, ...]) -> Value:
        return Value(self, self.graph.add("knob", (), Knob(name, values, values[0]), type_of(values[0]), name))

    def pin(self, value: Value, name: str) -> Value:
        return Value(self, self.graph.add("pin", (value.node,), name, self.graph.types[value.node], name))

    def named(self, value: Value, name: str) -> Value:
        self.graph.names[value.node] = name
        return value

    def op(self, kind: str, *operands: Any) -> Value:
        nodes = [operand if isinstance(operand, Value) else self.constant(operand) for operand in operands]
        type = SEMANTICS[kind].result(*(self.graph.types[value.node] for value in nodes))
        args = tuple(value.node for value in nodes)
        return Value(self, self.graph.add(kind, args, None, type, scope=self._scope))

    def lookup(self, table: Sequence[tuple[Any, Any]], key: Value) -> Value:
        type = type_of(table[0][1])
        return Value(self, self.graph.add("lookup", (key.node,), tuple(table), type, scope=self._scope))

    def select(self, condition: Value, on_true: Any, on_false: Any) -> Value:
        return self.op("select", condition, on_true, on_false)

    def minimum(self, *operands: Any) -> Value:
        return reduce(lambda a, b: self.op("min", a, b), operands)

    def maximum(self, *operands: Any) -> Value:
        return reduce(lambda a, b: self.op("max", a, b), operands)

    def assume(self, expression: Callable[[], Value]) -> int:
        return self._condition("assume", expression, "")

    def require(self, expression: Callable[[], Value], message: str = "") -> int:
        return self._condition("require", expression, message)

    def _condition(self, kind: str, expression: Callable[[], Value], message: str) -> int:
        index = len(self.graph.conditions)
        self._scope = index + 1
        root = expression().node
        self._scope = 0
        self.graph.conditions.append(Condition(kind, message, root, Location("program.py", 100 + index, 4)))
        return index

    def bounded(self, name: str, low: int, high: int, source: str = "runtime") -> Value:
        """An input with the assume ``low <= name <= high``."""
        value = self.input(name, "int", source)
        self.assume(lambda: (self.constant(low) <= value) & (value <= high))
        return value

"""A bound program as flat arrays: what the analyses (cut, value ranges, lowering, views) work on.

xDSL operations are convenient to rewrite and slow to analyse, so a straight-line ``selir.program`` is
read once into this form (:func:`detent.passes.flatten.flatten`). Node numbers are topological: every
operand has a smaller number than its user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Location(NamedTuple):
    """A span of source text. Lines count from 1, columns from 0 in characters."""

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Input(NamedTuple):
    """``data`` of an ``input`` node. ``source`` is ``runtime``, ``unpinnable`` or ``request``."""

    name: str
    source: str


class Knob(NamedTuple):
    """``data`` of a ``knob`` node."""

    name: str
    values: tuple[Any, ...]
    default: Any


class Condition(NamedTuple):
    """An ``assume`` or ``require``; ``root`` is the bool node it checks (in scope ``index + 1``)."""

    kind: str
    message: str
    root: int
    location: Location | None


@dataclass
class Graph:
    """Parallel arrays, one entry a node.

    ``kinds``: a name of the semantics table, or ``constant``, ``input``, ``knob``, ``lookup``, ``pin``.
    ``data``: the constant's value, :class:`Input`, :class:`Knob`, the lookup's ``((key, value), ...)``,
    the pin's name; otherwise None. ``scopes``: 0 for the selection, ``i + 1`` for what condition ``i``
    computes itself. ``guards``: for a node that may fail, the bool node under which its result is used.
    A ``pin`` node has the value it replaces as its only operand; selection values and conditions that
    name the pinned value read the ``pin`` node, conditions that name an input read the ``input`` node.
    """

    name: str
    family: str
    kinds: list[str] = field(default_factory=list)
    args: list[tuple[int, ...]] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    locations: list[Location | None] = field(default_factory=list)
    scopes: list[int] = field(default_factory=list)
    guards: dict[int, int] = field(default_factory=dict)
    points: list[tuple[str, int]] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, kind: str, args: tuple[int, ...] = (), data: Any = None, type: str = "int", name: str = "",
            location: Location | None = None, scope: int = 0) -> int:
        """Append a node and return its number."""
        self.kinds.append(kind)
        self.args.append(args)
        self.data.append(data)
        self.types.append(type)
        self.names.append(name)
        self.locations.append(location)
        self.scopes.append(scope)
        return len(self.kinds) - 1

    def of_kind(self, kind: str) -> list[int]:
        """Numbers of all nodes of a kind, ascending."""
        return [i for i, k in enumerate(self.kinds) if k == kind]

    def origin(self, node: int) -> int:
        """What a node is a copy of, or the node itself."""
        while self.kinds[node] == "copy":
            (node,) = self.args[node]
        return node

    def operands(self, node: int, through_pins: bool = False) -> tuple[int, ...]:
        """What a node's value is computed from; a pin is a constant unless ``through_pins``."""
        if self.kinds[node] == "pin" and not through_pins:
            return ()
        return self.args[node]

    def slice(self, roots: Iterable[int], through_pins: bool = False) -> list[int]:
        """All nodes that the roots' values are computed from, ascending (so in evaluation order)."""
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(self.operands(node, through_pins))
        return sorted(seen)

    def leaves(self, roots: Iterable[int], through_pins: bool = False) -> Iterator[int]:
        """The inputs, knobs and (unless ``through_pins``) pins in the roots' slice, ascending."""
        for node in self.slice(roots, through_pins):
            if self.kinds[node] in ("input", "knob") or (self.kinds[node] == "pin" and not through_pins):
                yield node

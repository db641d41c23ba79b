"""Runs an engine's own function and a program's helper on the same inputs, and keeps what the report needs."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import arms

INPUTS = 100_000
SHOWN = 5


@dataclass(slots=True)
class Comparison:
    """One engine function beside the helpers that transcribe it."""

    engine: str
    theirs: str
    ours: str
    helpers: tuple[Any, ...]
    inputs: int = 0
    at_edges: int = 0
    points: int = 0
    mismatches: int = 0
    constants: int = 0
    first: list[tuple[Any, Any, Any]] = field(default_factory=list)


COMPARISONS: list[Comparison] = []
GOLDEN: dict[str, tuple[list[str], list[list[int]]]] = {}
"""Rows for the ordinary suite: file name to (header, rows)."""


def constants(helpers: Iterable[Any]) -> set[int]:
    """Every whole number in the code of the helpers and of what they call in the programs, and in the tables and
    constants of the modules that they name."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = list(helpers)
    while waiting:
        helper = waiting.pop()
        if helper in seen or not isinstance(helper, types.FunctionType):
            continue
        seen.add(helper)
        codes = [helper.__code__]
        while codes:
            code = codes.pop()
            for constant in code.co_consts:
                if isinstance(constant, types.CodeType):
                    codes.append(constant)
                else:
                    found |= _numbers(constant)
            for name in code.co_names:
                value = helper.__globals__.get(name)
                if isinstance(value, types.FunctionType) and value.__module__.startswith(arms.PACKAGE):
                    waiting.append(value)
                elif not isinstance(value, type | types.FunctionType | types.ModuleType):
                    found |= _numbers(value)
    return found


def _numbers(value: Any) -> set[int]:
    if isinstance(value, bool):
        return set()
    if isinstance(value, int):
        return {value}
    if isinstance(value, dict):
        return set().union(*(_numbers(part) for pair in value.items() for part in pair))
    if isinstance(value, tuple | list | frozenset):
        return set().union(*(_numbers(part) for part in value))
    return set()


class Draw:
    """Draws inputs. Every other case is *at an edge*: a number of it equals a constant of the program or is one off,
    or a gate is met or missed by one."""

    def __init__(self, name: str, helpers: Sequence[Any]) -> None:
        self.rng = random.Random(name)
        self.constants = sorted(constants(helpers))
        self.edges = sorted({c + d for c in self.constants for d in (-1, 0, 1)})
        self.edge = self.met = False
        self.drawn: set[int] = set()
        self.reach = (0, 0)

    def number(self, low: int, high: int) -> int:
        """A whole number of any magnitude, in an edge case mostly one off a constant."""
        self.reach = min(self.reach[0], low), max(self.reach[1], high)
        if self.edge and self.rng.random() < 0.75:
            inside = [edge for edge in self.edges if low <= edge <= high]
            if inside:
                self.met = True
                value = self.rng.choice(inside)
                self.drawn.add(value)
                return value
        return min(high, max(low, int((low or 1) * (high / (low or 1)) ** self.rng.random()) - (low == 0)))

    def near(self, value: int, low: int, high: int) -> int:
        """In an edge case a number within one of ``value``, where a gate turns; else any number."""
        if self.edge and low <= value <= high and self.rng.random() < 0.5:
            self.met = True
            return min(high, max(low, value + self.rng.choice((-1, 0, 1))))
        return self.number(low, high)

    def one_of(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def flag(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def cases(self, make: Callable[[Draw], Any], count: int = INPUTS) -> Iterator[tuple[bool, Any]]:
        """``count`` cases, half of them at an edge."""
        for index in range(count):
            self.edge, self.met = index % 2 == 0, False
            case = make(self)
            while self.edge and not self.met:
                case = make(self)
            yield self.edge, case

    def missed(self) -> list[int]:
        """Constants within reach of an input that no input came within one of."""
        low, high = self.reach
        return [c for c in self.constants if low <= c <= high and not self.drawn & {c - 1, c, c + 1}]


def compare(engine: str, theirs: str, ours: str, helpers: Sequence[Any], cases: Iterable[tuple[bool, Any]],
            run: Callable[[Any], tuple[Any, Any]]) -> Comparison:
    """``run`` takes a case and returns what the engine and what the program says; the report gets the outcome."""
    result = Comparison(engine, theirs, ours, tuple(helpers), constants=len(constants(helpers)))
    for edge, case in cases:
        they, we = run(case)
        result.inputs += 1
        result.at_edges += edge
        result.points += len(they) if isinstance(they, tuple) else 1
        if they != we:
            result.mismatches += 1
            if len(result.first) < SHOWN:
                result.first.append((case, they, we))
    COMPARISONS.append(result)
    assert not result.mismatches, result.first
    return result


def sampled(draw: Draw, engine: str, theirs: str, ours: str, helpers: Sequence[Any], make: Callable[[Draw], Any],
            run: Callable[[Any], tuple[Any, Any]]) -> None:
    """:func:`compare` on 100,000 drawn cases, half of them at an edge, with every constant met."""
    result = compare(engine, theirs, ours, helpers, draw.cases(make), run)
    assert result.inputs == INPUTS and result.at_edges * 2 >= INPUTS
    assert not draw.missed(), draw.missed()

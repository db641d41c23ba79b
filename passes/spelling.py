"""How operations and chains of choices are spelled in Python.

The table of semantics writes every operation in parentheses. Read by people, most of them are noise, so each
expression carries how tightly it binds and loses its own where the place it goes to allows.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from detent.dialects.selir.semantics import SEMANTICS, emit

Block: TypeAlias = "list[str | Block]"
"""Lines of source; a nested list is indented once more."""

MAX_LADDER = 24
"""Tests in one if/elif ladder; longer chains leave a loop of one round by ``break``, so that nothing nests."""
MAX_ELSE = 2
"""Levels of ``else`` that a ladder may add for statements between its tests."""
ATOM = 9
"""The level of names, literals and calls; what binds less is written in parentheses."""
_LEVELS = {"select": 0, "or": 1, "and": 2, "not": 3, "lt": 4, "le": 4, "gt": 4, "ge": 4, "eq": 4, "ne": 4,
           "add": 5, "sub": 5, "mul": 6, "div": 6, "floordiv": 6, "mod": 6, "neg": 7}
# The binding level an operand needs to stand without parentheses; where not listed, its operation's and one more.
_SLOTS = {"select": (1, 1, 0), "or": (1, 1), "and": (2, 2), "not": (3,), "neg": (7,), "copy": (ATOM,),
          "lt": (5, 5), "le": (5, 5),
          "gt": (5, 5), "ge": (5, 5), "eq": (5, 5), "ne": (5, 5)}


class Shape(NamedTuple):
    """How an operation is written.

    ``slots``: the level each operand needs to stand without parentheses. ``twice``: operands that the template
    repeats, so they must be names. ``level``: how tightly the whole binds.
    """

    template: str
    slots: tuple[int, ...]
    twice: tuple[bool, ...]
    level: int


@functools.cache
def shape(kind: str, result_type: str, total: bool) -> Shape:
    """The spelling of an operation of the semantics table, in its total form or in Python's own."""
    entry = SEMANTICS[kind]
    marks = [f"{{{index}}}" for index in range(entry.arity)]
    template = emit(kind, marks, result_type, total)
    own = _LEVELS.get(kind)
    if total and entry.total is not None:
        slots: tuple[int, ...] = (ATOM,) * entry.arity
        own = 0
    elif own is None:
        slots = _SLOTS.get(kind, (0,) * entry.arity)
    else:
        slots = _SLOTS.get(kind, (own, own + 1))
    level = own if own is not None and template.startswith("(") else ATOM
    return Shape(template, slots, tuple(template.count(mark) > 1 for mark in marks), level)


def strip(text: str, level: int) -> str:
    """An expression without its outer parentheses."""
    return text[1:-1] if level < ATOM else text


def negated(text: str, level: int) -> str:
    """``not`` of a bool expression, without outer parentheses."""
    if level == _LEVELS["not"]:
        return strip(text, level).removeprefix("not ")
    return emit("not", [strip(text, level) if level > _LEVELS["not"] else text], "bool")[1:-1]


class Step(NamedTuple):
    """One test of a chain: what is computed before it, the test, and what to do and give where it holds.

    The first step has nothing before it.
    """

    before: Block
    test: str
    leave: Block
    value: str


def chain_statements(steps: Sequence[Step], last: Block) -> Block:
    """Statements that do what the first step whose test holds says, or ``last``."""
    if len(steps) <= MAX_LADDER and sum(bool(step.before) for step in steps) <= MAX_ELSE:
        return _ladder(steps, last)
    return _loop(steps, last)


def _ladder(steps: Sequence[Step], last: Block) -> Block:
    block: Block = []
    inner, word = block, "if"
    for step in steps:
        if step.before:
            below: Block = [*step.before]
            inner += ["else:", below]
            inner, word = below, "if"
        inner += [f"{word} {step.test}:", step.leave]
        word = "elif"
    inner += ["else:", last]
    return block


def _loop(steps: Sequence[Step], last: Block) -> Block:
    body: Block = []
    for step in steps:
        body += [*step.before, f"if {step.test}:", [*step.leave, "break"]]
    return ["while True:", [*body, *last, "break"]]


def render(block: Block, indent: str = "    ") -> list[str]:
    """The lines of a block."""
    lines: list[str] = []
    for line in block:
        if isinstance(line, str):
            lines.append(indent + line)
        else:
            lines += render(line, indent + "    ")
    return lines

"""Writes values of a graph as Python statements: names, parentheses, line lengths and branches.

Values used once and unnamed are written where they are used, others become variables under the names the
program gave them. What only one arm of a choice uses is computed in that arm (:mod:`detent.passes.sinking`).
How an operation is spelled comes from the table of semantics.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from detent.dialects.selir.semantics import SEMANTICS
from detent.passes.graph import Graph
from detent.passes.sinking import arms_of, place
from detent.passes.spelling import ATOM, Block, Step, chain_statements, negated, shape, strip

FUNCTIONS = ("abs", "ceil", "f32", "float", "floor", "int", "isfinite", "max", "min", "Violation")
"""What emitted source may call."""
WIDTH = 90
"""Characters of an operation's operands beyond which the longest of them become variables."""


class Writer:
    """Writes the values that the stages' roots need, stage by stage.

    ``parameters`` names nodes by the parameters of the function to be written; ``given`` are further nodes that
    are not computed, to be named by :meth:`local`. A pin that is neither is its operand. ``fails`` are the
    nodes to be written in their total form, None for all that could fail. Without ``named`` the program's
    names are not used.
    """

    def __init__(self, graph: Graph, stages: Sequence[Sequence[int]], parameters: Mapping[int, str],
                 given: Iterable[int], fails: Container[int] | None, named: bool = True) -> None:
        self.graph, self.fails, self.named = graph, fails, named
        self.used: set[int] = set()
        """The parameters and given nodes that some root needs."""
        self._given = {*parameters, *given}
        self._aliases: dict[int, int] = {}
        self._renamed: dict[str, str] = {}
        self._counters: dict[str, int] = {}
        self._tables: dict[str, str] = {}
        self._text: dict[int, str] = {}
        self._level: dict[int, int] = {}
        self._taken = {*keyword.kwlist, *FUNCTIONS, *parameters.values()}
        for node, name in parameters.items():
            self._set(node, name)
            if name in FUNCTIONS:
                self._renamed[name] = self.fresh(f"{name}_function")
        roots = [[self._resolve(root) for root in stage] for stage in stages]
        self._operands = self._collect(roots)
        self._where = place(graph.kinds, self._operands, roots)

    # What is computed -------------------------------------------------------------------------------------------

    def _resolve(self, node: int) -> int:
        start = node
        while self.graph.kinds[node] == "pin" and node not in self._given:
            node = self.graph.args[node][0]
        if node != start:
            self._aliases.setdefault(node, start)
        return node

    def _collect(self, roots: Iterable[Iterable[int]]) -> dict[int, tuple[int, ...]]:
        kinds, found = self.graph.kinds, {}
        stack = [root for stage in roots for root in stage]
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node in self._given:
                self.used.add(node)
            elif kinds[node] == "constant":
                self._set(node, self.literal(self.graph.data[node]))
            elif kinds[node] in ("input", "knob"):
                raise ValueError(f"{kinds[node]} {self.graph.data[node].name} is needed and not given")
            else:
                found[node] = tuple(map(self._resolve, self.graph.args[node]))
                for operand in found[node]:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append(operand)
        return {node: found[node] for node in sorted(found)}

    # Names and literals -----------------------------------------------------------------------------------------

    def local(self, node: int, name: str) -> str:
        """Name a given node; where a parameter has that name already, or it is none, by another one."""
        free = name.isidentifier() and name not in self._taken
        self._set(node, self.fresh(name if free else f"given_{name}"))
        return self._text[node]

    def fresh(self, name: str) -> str:
        """An unused variable name like this one."""
        base = re.sub(r"\W+", "_", name)
        if not base.isidentifier():
            base = f"v{base}"
        name = base
        while name in self._taken:
            self._counters[base] = self._counters.get(base, 1) + 1
            name = f"{base}_{self._counters[base]}"
        self._taken.add(name)
        return name

    def function(self, name: str) -> str:
        """How one of :data:`FUNCTIONS` is called here."""
        return self._renamed.get(name, name)

    def literal(self, value: Any) -> str:
        """A scalar as Python source; never contains a placeholder's brackets."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"{self.function('float')}('{value}')"
        return ascii(value)

    def preamble(self) -> list[str]:
        """Lines before the function: tables, and functions whose names are parameters."""
        lines = [f"{alias} = {name}" for name, alias in self._renamed.items()]
        lines += [f"{name} = {text}" for text, name in self._tables.items()]
        return [*lines, ""] if lines else []

    def _set(self, node: int, text: str, level: int = ATOM) -> None:
        self._text[node], self._level[node] = text, level

    # Statements -------------------------------------------------------------------------------------------------

    def stage(self, index: int, block: Block) -> None:
        """Append the statements that this stage's roots need beyond those of earlier stages."""
        for node in self._where.top[index]:
            self._compute(node, block)

    def use(self, root: int) -> str:
        """A root's expression, without outer parentheses."""
        return self._bare(self._resolve(root))

    def refuted(self, root: int) -> str:
        """The expression that a bool root does not hold, without outer parentheses."""
        return negated(self._text[self._resolve(root)], self._level[self._resolve(root)])

    def _compute(self, node: int, block: Block) -> None:
        if node in self._where.arms:
            self._branch(node, block)
            return
        self._keep(node, *self._expression(node, block), block)

    def _keep(self, node: int, text: str, level: int, block: Block) -> None:
        if self._where.uses[node] == 1 and not self._name(node):
            self._set(node, text, level)
        else:
            self._assign(node, text, level, block)

    def _assign(self, node: int, text: str, level: int, block: Block) -> None:
        name = self.fresh(self._name(node) or "t")
        block.append(f"{name} = {strip(text, level)}")
        self._set(node, name)

    def _name(self, node: int) -> str:
        if not self.named:
            return ""
        return self.graph.names[node] or (self.graph.data[self._aliases[node]] if node in self._aliases else "")

    def _expression(self, node: int, block: Block) -> tuple[str, int]:
        kind, operands = self.graph.kinds[node], self._operands[node]
        if kind == "lookup":
            self._shorten(operands, block)
            return self._lookup(node, self._bare(operands[0])), ATOM
        form = shape(kind, self.graph.types[node], self._total(node))
        for operand, twice in zip(operands, form.twice, strict=True):
            if twice and self._is_inline(operand):
                self._assign(operand, self._text[operand], self._level[operand], block)
        self._shorten(operands, block)
        texts = [strip(self._text[a], self._level[a]) if slot <= self._level[a] else self._text[a]
                 for a, slot in zip(operands, form.slots, strict=True)]
        template = form.template
        if self._renamed:
            template = re.sub(r"\w+(?=\()", lambda match: self.function(match[0]), template)
        if kind in ("max", "min") and self.graph.kinds[operands[0]] == kind and self._is_inline(operands[0]):
            return f"{texts[0][:-1]}, {texts[1]})", ATOM  # Python's own max and min fold from the left
        return template.format(*texts), form.level

    def _total(self, node: int) -> bool:
        fails = SEMANTICS[self.graph.kinds[node]].fails
        if fails is None or (self.fails is not None and node not in self.fails):
            return False
        operand = self._operands[node][-1]
        if fails == "zero":
            return not (self.graph.kinds[operand] == "constant" and self.graph.data[operand])
        return self.graph.types[operand] not in ("int", "bool")

    def _is_inline(self, node: int) -> bool:
        """Whether a computed value is still an expression that no statement holds."""
        return node in self._operands and not self._text[node].isidentifier()

    def _shorten(self, operands: Sequence[int], block: Block) -> None:
        """Give the longest operands variables until an expression of all of them has a readable length."""
        while sum(len(self._text[a]) for a in operands) > WIDTH:
            inline = [a for a in operands if self._is_inline(a)]
            if not inline:
                return
            longest = max(inline, key=lambda a: len(self._text[a]))
            self._assign(longest, self._text[longest], self._level[longest], block)

    def _lookup(self, node: int, key: str) -> str:
        rows: dict[Any, Any] = {}
        for row, value in self.graph.data[node]:
            rows.setdefault(row, value)  # of equal keys the first counts
        entries = [f"{self.literal(row)}: {self.literal(value)}" for row, value in rows.items()]
        text = f"{{{', '.join(entries)}}}"
        if len(text) > WIDTH:
            text = "\n    ".join(("{", *_filled(entries))) + "\n}"
        if text not in self._tables:
            self._tables[text] = self.fresh((self._name(node) or "table").upper())
        return f"{self._tables[text]}.get({key}, {self.literal(self.graph.data[node][0][1])})"

    # Branches ---------------------------------------------------------------------------------------------------

    def _branch(self, head: int, block: Block) -> None:
        """Write a choice, with the choices that follow in its arms as one chain, as an expression or statements."""
        chain, steps, last, last_value = self._chain(head)
        statements = bool(last) or any(step.leave or step.before for step in steps)
        length = len(last_value) + sum(len(step.test) + len(step.value) + len("() if () else ") for step in steps)
        if not statements and length <= WIDTH:
            for node in reversed(chain[1:]):
                self._set(node, *self._expression(node, block))
            self._keep(head, *self._expression(head, block), block)
            return
        target = self.fresh(self._name(head) or "t")
        last.append(f"{target} = {last_value}")
        for step in steps:
            step.leave.append(f"{target} = {step.value}")
        block += chain_statements(steps, last)
        self._set(head, target)

    def _chain(self, head: int) -> tuple[list[int], list[Step], Block, str]:
        chain: list[int] = []
        steps: list[Step] = []
        node = head
        before: Block = []  # what the first test needs is written already
        while True:
            chain.append(node)
            condition, yes, no = arms_of(self.graph.kinds[node], self._operands[node])
            regions = self._where.arms[node]
            follower = self._where.follower.get(node)
            continues = follower in self._where.arms
            leave_if = not (continues and follower == yes)
            test = self._bare(condition) if leave_if else negated(self._text[condition], self._level[condition])
            leave, rest = (yes, no) if leave_if else (no, yes)
            leave_region, rest_region = regions if leave_if else regions[::-1]
            leave_block, value = self._arm(leave_region, leave, leave_if)
            steps.append(Step(before, test, leave_block, value))
            if not continues:
                return chain, steps, *self._arm(rest_region, rest, not leave_if)
            assert follower is not None
            node, before = follower, []
            for member in self._where.members[rest_region][:-1]:  # the last one is the follower
                self._compute(member, before)

    def _arm(self, region: int, value: int | None, constant: bool) -> tuple[Block, str]:
        block: Block = []
        for member in self._where.members[region]:
            self._compute(member, block)
        return block, str(constant) if value is None else self._bare(value)

    def _bare(self, node: int) -> str:
        return strip(self._text[node], self._level[node])


def _filled(entries: Iterable[str]) -> list[str]:
    """As many entries a line as its width allows."""
    lines: list[str] = []
    for entry in entries:
        if lines and len(lines[-1]) + len(entry) < WIDTH:
            lines[-1] += f" {entry},"
        else:
            lines.append(f"{entry},")
    return lines

"""Random programs of the language as Python text, with the facts and the small domains they are run on.

Every program is well typed, so that nothing but an operation that fails on some input may refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

HEADER = '''"""A random program."""

from __future__ import annotations

from detent.lang import F32, Request, Runtime, Table, Unpinnable, assume, ceil, f32, floor, knob, record, require, selection

LIMIT = {limit}
STEPS = (1, 2, 5)


@record
class Facts:
    """Facts of every type."""

    count: int
    ratio: float
    mode: str
    wide: bool
    absent: int | None
    table: Table
    sizes: tuple[int, ...]
    names: dict[str, int]
'''

MODES = ("a", "b", "long name")
COLUMNS = ("rows", "cols")
SCALARS = ("int", "bool", "float", "f32", "str")
POINTS = 90
"""Inputs of a program's domains at most, so that all are tried."""


@dataclass
class Source:
    """A program's text; ``facts`` by section; ``inputs``: values tried for each, in signature order."""

    text: str
    facts: dict[str, dict[str, Any]]
    inputs: dict[str, tuple[Any, ...]]


@dataclass
class Scope:
    """What an expression may use: variables by type. ``risky`` allows operations that fail for some operands."""

    variables: dict[str, str]
    risky: bool
    used: list[str] = field(default_factory=list)

    def of(self, kind: str) -> list[str]:
        return [name for name, type in self.variables.items() if type == kind]


class Writer:
    """Draws one program."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.helpers: dict[str, tuple[tuple[str, ...], str]] = {}
        self.fresh = 0

    # ---- choices -----------------------------------------------------------------------------------------------

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        found: int = self.draw(st.integers(low, high))
        return found

    def chance(self, of: int) -> bool:
        """True once in ``of`` times; the simplest program has False everywhere."""
        return self.number(0, of - 1) == of - 1

    def name(self, stem: str) -> str:
        self.fresh += 1
        return f"{stem}{self.fresh}"

    # ---- expressions -------------------------------------------------------------------------------------------

    def value(self, kind: str, scope: Scope, depth: int) -> str:
        """An expression of a type."""
        if depth <= 0 or self.chance(6):
            return self.leaf(kind, scope)
        if self.chance(7):
            test = self.value("bool", scope, depth - 1)
            return f"({self.value(kind, scope, depth - 1)} if {test} else {self.value(kind, scope, depth - 1)})"
        if self.chance(7):
            names = [name for name, (_, result) in self.helpers.items() if result == kind]
            if names:
                return self.call(self.pick(*names), scope, depth - 1)
        return {"int": self.integer, "bool": self.truth, "float": self.double, "f32": self.single,
                "str": self.text}[kind](scope, depth)

    def leaf(self, kind: str, scope: Scope) -> str:
        names = scope.of(kind)
        if names and not self.chance(4):
            return str(self.pick(*names))
        constants = {"int": ("0", "1", "2", "3", "7", "-2", "LIMIT"), "bool": ("True", "False"),
                     "float": ("0.5", "0.1", "-0.0", "3.0", "1e300"), "f32": ("f32(0.1)", "f32(2)", "f32(-0.0)", "f32(3e38)"),
                     "str": ("'a'", "'b'", "'long name'", "''")}
        return str(self.pick(*constants[kind]))

    def call(self, name: str, scope: Scope, depth: int) -> str:
        return f"{name}({', '.join(self.value(kind, scope, depth) for kind in self.helpers[name][0])})"

    def integer(self, scope: Scope, depth: int) -> str:
        def inner(kind: str = "int") -> str:
            return self.value(kind, scope, depth - 1)

        form = self.pick("arithmetic", "arithmetic", "divide", "extreme", "unary", "round", "sum", "reduce", "table", "row",
                         "index", "logic", "nearest")
        if form == "arithmetic":
            return f"({inner()} {self.pick('+', '-', '*')} {inner()})"
        if form == "divide":
            return f"({inner()} {self.pick('//', '%')} {self.divisor(scope, depth)})"
        if form == "extreme":
            return f"{self.pick('min', 'max')}({', '.join(inner() for _ in range(self.number(2, 3)))})"
        if form == "unary":
            return self.pick("abs({})", "(-{})").format(inner())
        if form == "round":
            kind = self.pick("f32", "float")
            scale = f"({inner(kind)})" if scope.risky and self.chance(3) else f"{self.pick('f32', 'float')}({inner()})"
            return f"{self.pick('ceil', 'floor', 'int')}({scale} * {self.pick('0.75', 'f32(1.1)', '3')})"
        if form == "sum":
            return self.pick("sum(({0} < x) for x in {1})", "sum(x for x in {1} if x > {0})",
                             "sum((x * {0} for x in {1}), 1)").format(inner(), self.collection())
        if form == "reduce":
            return self.reduction(scope, depth)
        if form == "table":
            keys = self.pick((1, 2, 4), (0, 1, 2, 3), (0, 5))
            table = "{" + ", ".join(f"{key}: {self.number(0, 9)}" for key in keys) + "}"
            if scope.risky and self.chance(3):
                return f"{table}[{inner()}]"
            return self.pick(f"{table}.get({inner()}, {inner()})",
                             f"(lambda_free({table}, {inner()}))" if False else f"{table}.get({inner()}, 3)")
        if form == "row":
            key = self.nearest(scope, depth)
            return f"facts.table[{key}][{self.pick(*COLUMNS)!r}]"
        if form == "index":
            values = ", ".join(inner() for _ in range(3)) if self.chance(2) else "4, 1, 6"
            return f"({values})[{inner()} % 3]"
        if form == "logic":
            return f"({inner()} {self.pick('and', 'or')} {inner()})"
        return self.nearest(scope, depth)

    def divisor(self, scope: Scope, depth: int) -> str:
        if scope.risky and self.chance(3):
            return self.value("int", scope, depth - 1)
        return str(self.pick("2", "3", "-2", "LIMIT", f"({self.value('int', scope, depth - 1)} % 3 + 1)",
                             f"max(1, {self.value('int', scope, depth - 1)})"))

    def collection(self) -> str:
        return str(self.pick("facts.sizes", "(1, 3, 4)", "range(4)", "facts.table", "STEPS"))

    def nearest(self, scope: Scope, depth: int) -> str:
        return f"min({self.pick('facts.table', 'facts.sizes')}, key=lambda row: abs(row - {self.value('int', scope, depth - 1)}))" \
            if self.chance(2) else f"min(facts.table, key=lambda row: abs(row - {self.value('int', scope, depth - 1)}))"

    def reduction(self, scope: Scope, depth: int) -> str:
        bound, values = self.value("int", scope, depth - 1), self.collection()
        return str(self.pick(
            f"next((x for x in {values} if x >= {bound}), {self.leaf('int', scope)})",
            f"max(x if x < {bound} else 0 for x in {values})",
            f"min((x * {bound} for x in {values}), default=1)",
            f"max(({bound}, 2), (1, {bound}), key=lambda pair: pair[0] - pair[1])[1]",
        ))

    def truth(self, scope: Scope, depth: int) -> str:
        def inner(kind: str = "bool") -> str:
            return self.value(kind, scope, depth - 1)

        form = self.pick("compare", "compare", "chain", "logic", "logic", "not", "member", "all", "text", "guard", "truth")
        if form == "compare":
            left, right = self.pick(("int", "int"), ("int", "int"), ("int", "float"), ("f32", "int"), ("f32", "f32"),
                                    ("f32", "float"), ("float", "float"), ("bool", "bool"))
            symbol = self.pick("<", "<=", ">", ">=", "==", "!=") if left != "bool" else self.pick("==", "!=")
            return f"({inner(left)} {symbol} {inner(right)})"
        if form == "chain":
            symbols = [self.pick("<", "<=", "==", "!=", ">") for _ in range(2)]
            return f"({inner('int')} {symbols[0]} {inner('int')} {symbols[1]} {inner('int')})"
        if form == "logic":
            return f"({inner()} {self.pick('and', 'or')} {inner()})"
        if form == "not":
            return f"(not {inner()})"
        if form == "member":
            members = self.pick("facts.sizes", "(0, 1, 5)", f"(1, {inner('int')})", "facts.table", "range(1, 4)")
            return f"({inner('int')} {self.pick('in', 'not in')} {members})"
        if form == "all":
            return (f"{self.pick('any', 'all')}(x {self.pick('<', '==', '>=')} {inner('int')} for x in {self.collection()}"
                    f"{self.pick('', f' if x != {inner('int')}')})")
        if form == "text":
            return str(self.pick(f"({inner('str')} {self.pick('==', '!=')} {inner('str')})",
                                 f"({inner('str')} in ('a', 'b'))", "(facts.absent is None)"))
        if form == "guard":
            x = inner("int")
            return str(self.pick(f"({x} != 0 and 7 // {x} > 1)", f"({x} == 0 or 9 % {x} == 0)",
                                 f"({x} in facts.table and facts.table[{x}]['rows'] > 2)"))
        return f"bool({inner(self.pick('int', 'str', 'float'))})"

    def double(self, scope: Scope, depth: int) -> str:
        def inner(kind: str = "float") -> str:
            return self.value(kind, scope, depth - 1)

        form = self.pick("arithmetic", "mixed", "quotient", "cast", "extreme", "unary", "whole", "sum")
        if form == "arithmetic":
            return f"({inner()} {self.pick('+', '-', '*')} {inner()})"
        if form == "mixed":
            return f"({inner()} {self.pick('+', '-', '*')} {inner(self.pick('int', 'f32'))})"
        if form == "quotient":
            kind = self.pick("int", "float")
            below = inner(kind) if scope.risky and self.chance(3) else self.pick("3", "0.3", "facts.ratio")
            return f"({inner(kind)} / {below})"
        if form == "cast":
            return f"float({inner(self.pick('int', 'f32', 'bool'))})"
        if form == "extreme":
            return f"{self.pick('min', 'max')}({inner()}, {inner()})"
        if form == "unary":
            return self.pick("abs({})", "(-{})").format(inner())
        if form == "whole":
            return f"({inner()} {self.pick('//', '%')} {self.pick('0.7', '-2.0', 'facts.ratio')})"
        return f"sum(x * {inner()} for x in {self.collection()})"

    def single(self, scope: Scope, depth: int) -> str:
        def inner(kind: str = "f32") -> str:
            return self.value(kind, scope, depth - 1)

        form = self.pick("cast", "cast", "arithmetic", "mixed", "quotient", "extreme", "unary")
        if form == "cast":
            return f"f32({inner(self.pick('int', 'float', 'bool'))})"
        if form == "arithmetic":
            return f"({inner()} {self.pick('+', '-', '*')} {inner()})"
        if form == "mixed":
            return f"({inner('int')} {self.pick('+', '-', '*')} {inner()})" if self.chance(2) else (
                f"({inner()} {self.pick('+', '-', '*')} {inner('int')})")
        if form == "quotient":
            below = inner(self.pick("int", "f32")) if scope.risky and self.chance(3) else self.pick("3", "f32(0.3)")
            return f"({inner()} / {below})"
        if form == "extreme":
            return f"{self.pick('min', 'max')}({inner()}, {inner()})"
        return self.pick("abs({})", "(-{})").format(inner())

    def text(self, scope: Scope, depth: int) -> str:
        x = self.value("int", scope, depth - 1)
        return str(self.pick(f"('a', 'b', '')[{x} % 3]", f"{{0: 'a', 1: 'b'}}.get({x}, 'c')", "f'{facts.mode}-{facts.count}'",
                             f"next((s for s in ('a', 'b') if s != {self.value('str', scope, depth - 1)}), 'a')"))

    # ---- statements --------------------------------------------------------------------------------------------

    def block(self, scope: Scope, size: int, depth: int, indent: str, conditions: bool) -> list[str]:
        """Statements that assign; the scope gains what every path assigns."""
        lines: list[str] = []
        for _ in range(size):
            form = self.pick("assign", "assign", "assign", "branch", "pair", "again", "require" if conditions else "assign")
            if form == "assign":
                kind, name = self.pick(*SCALARS), self.name("v")
                lines.append(f"{indent}{name} = {self.value(kind, scope, depth)}")
                scope.variables[name] = kind
            elif form == "pair":
                kinds, names = [self.pick(*SCALARS) for _ in range(2)], [self.name("v") for _ in range(2)]
                lines.append(f"{indent}{', '.join(names)} = {', '.join(self.value(kind, scope, depth) for kind in kinds)}")
                scope.variables |= dict(zip(names, kinds, strict=True))
            elif form == "again":
                names = [name for name in scope.of("int") if name.startswith("v")]
                if names:
                    lines.append(f"{indent}{self.pick(*names)} {self.pick('+=', '-=', '*=')} {self.value('int', scope, depth)}")
            elif form == "require":
                lines.append(f"{indent}require({self.value('bool', scope, depth)}, {self.name('rule ')!r})")
            else:
                lines += self.branch(scope, depth, indent, conditions)
        return lines

    def branch(self, scope: Scope, depth: int, indent: str, conditions: bool) -> list[str]:
        """An ``if`` whose arms assign the same new names, and may change old ones."""
        arms = self.number(2, 3)
        results = {self.name("v"): self.pick(*SCALARS) for _ in range(self.number(1, 2))}
        lines: list[str] = []
        for arm in range(arms):
            word = "if" if arm == 0 else "else" if arm == arms - 1 else "elif"
            lines.append(f"{indent}{word}:" if word == "else" else f"{indent}{word} {self.value('bool', scope, depth)}:")
            inner = Scope(dict(scope.variables), scope.risky)
            if depth > 1 and self.chance(3):
                lines += self.block(inner, 1, depth - 1, indent + "    ", conditions)
            lines += [f"{indent}    {name} = {self.value(kind, inner, depth - 1)}" for name, kind in results.items()]
        scope.variables |= results
        return lines

    def helper(self, risky: bool) -> list[str]:
        """A function of some scalars that returns early on some paths."""
        name, kinds = self.name("helper"), [self.pick(*SCALARS) for _ in range(self.number(1, 3))]
        params = [f"p{i}" for i in range(len(kinds))]
        result = self.pick(*SCALARS)
        scope = Scope(dict(zip(params, kinds, strict=True)), risky)
        lines = ["", "", f"def {name}({', '.join(params)}):"]
        own, self.helpers_in_use = self.helpers, None
        text = []
        if self.chance(2):
            text += self.block(scope, 1, 2, "    ", False)
        for _ in range(self.number(0, 2)):
            text += [f"    if {self.value('bool', scope, 2)}:", f"        return {self.value(result, scope, 2)}"]
        text.append(f"    return {self.value(result, scope, 2)}")
        self.helpers = own | {name: (tuple(kinds), result)}
        return lines + text

"""Random programs of the language as Python text, with facts and the small domains they are tried on.

Every program is well typed, so nothing but an operation that fails at some input may make the solver refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

HEADER = '''"""A random program."""

from __future__ import annotations

from detent.lang import (F32, Request, Runtime, Table, Unpinnable, assume, ceil, f32, floor, knob, record, require,
                         selection)

LIMIT = 5
STEPS = (1, 2, 5)


@record
class Facts:
    count: int
    ratio: float
    mode: str
    wide: bool
    absent: int | None
    table: Table
    sizes: tuple[int, ...]
'''
FACTS = {"facts.count": "int", "facts.ratio": "float", "facts.mode": "str", "facts.wide": "bool"}
SCALARS = ("int", "bool", "float", "f32", "str")
CONSTANTS = {"int": ("0", "1", "2", "3", "7", "-2", "LIMIT"), "bool": ("True", "False"),
             "float": ("0.5", "0.1", "-0.0", "3.0", "1e30"), "str": ("'a'", "'b'", "''"),
             "f32": ("f32(0.1)", "f32(2)", "f32(-0.0)", "f32(3e38)")}


@dataclass(frozen=True, repr=False)
class Source:
    """A program's text; ``facts`` by section; ``inputs``: the values of each that its bounds allow, in order;
    ``outside``: for each int a value beyond them."""

    text: str
    facts: dict[str, dict[str, Any]]
    inputs: dict[str, tuple[Any, ...]]
    outside: dict[str, int]

    def __repr__(self) -> str:
        return f"Source of\n{self.text}\nfacts {self.facts}\ninputs {self.inputs}\n"


@dataclass
class Scope:
    """What an expression may use: variables by type, and whether operations that fail for some operands."""

    variables: dict[str, str]
    risky: bool

    def of(self, kind: str) -> list[str]:
        return [name for name, type in self.variables.items() if type == kind]


class Expressions:
    """Draws expressions of a wanted type. The simplest choice always comes first."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.helpers: dict[str, tuple[tuple[str, ...], str]] = {}
        self._forms = {"int": self._int, "bool": self._bool, "float": self._float, "f32": self._f32, "str": self._str}

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        found: int = self.draw(st.integers(low, high))
        return found

    def chance(self, of: int) -> bool:
        """True once in so many times."""
        return self.number(1, of) == of

    def value(self, kind: str, scope: Scope, depth: int) -> str:
        form = self.pick(*["operation"] * 10, "leaf", "choice", "call") if depth > 0 else "leaf"
        calls = [name for name, (_, result) in self.helpers.items() if result == kind] if form == "call" else []
        if form == "leaf":
            names = scope.of(kind)
            own = [name for name in names if name not in FACTS] or names
            return str(self.pick(*CONSTANTS[kind]) if not names or self.chance(6)
                       else self.pick(*names) if self.chance(8) else self.pick(*own))
        if form == "choice":
            parts = [self.value(part, scope, depth - 1) for part in (kind, "bool", kind)]
            return "({} if {} else {})".format(*parts)
        if calls:
            name = self.pick(*calls)
            return f"{name}({', '.join(['facts', *(self.value(k, scope, depth - 1) for k in self.helpers[name][0])])})"
        return self._forms[kind](lambda part=kind: self.value(part, scope, depth - 1), scope)

    def _int(self, inner: Callable[..., str], scope: Scope) -> str:
        match self.pick("arithmetic", "divide", "extreme", "unary", "round", "sum", "reduce", "table", "row", "index",
                        "logic", "cast"):
            case "arithmetic":
                return f"({inner()} {self.pick('+', '-', '*')} {inner()})"
            case "divide":
                safe = self.pick("2", "3", "-2", "LIMIT", "facts.count", f"({inner()} % 3 + 1)", f"max(1, {inner()})")
                return f"({inner()} {self.pick('//', '%')} {inner() if scope.risky and self.chance(2) else safe})"
            case "extreme":
                return f"{self.pick('min', 'max')}({', '.join(inner() for _ in range(self.number(2, 3)))})"
            case "unary":
                return str(self.pick("abs({})", "(-{})").format(inner()))
            case "round":
                plain = f"{self.pick('f32', 'float')}({inner()}) * {self.pick('0.75', 'f32(1.1)', '3')}"
                value = inner(self.pick("f32", "float")) if scope.risky and self.chance(2) else plain
                return f"{self.pick('ceil', 'floor', 'int')}({value})"
            case "sum":
                form = self.pick("sum(({0} < x) for x in {1})", "sum(x for x in {1} if x > {0})",
                                 "sum((x * {0} for x in {1}), 1)")
                return str(form.format(inner(), self._collection()))
            case "reduce":
                form = self.pick("next((x for x in {1} if x >= {0}), {2})", "max(x if x < {0} else 0 for x in {1})",
                                 "min((x * {0} for x in {1}), default=1)",
                                 "max(({0}, 2), (1, {2}), key=lambda pair: pair[0] - pair[1])[1]")
                return str(form.format(inner(), self._collection(), inner()))
            case "table":
                keys = self.pick((1, 2, 4), (0, 1, 2, 3), (0, 5))
                table = f"{{{', '.join(f'{key}: {self.number(0, 9)}' for key in keys)}}}"
                if scope.risky and self.chance(2):
                    return f"{table}[{inner()}]"
                return f"{table}.get({inner()}, {inner()})"
            case "row":
                nearest = f"min(facts.table, key=lambda row: abs(row - {inner()}))"
                return str(self.pick(nearest, f"facts.table[{nearest}][{self.pick('rows', 'cols')!r}]"))
            case "index":
                values = f"{inner()}, {inner()}, 6" if self.chance(2) else "4, 1, 6"
                return f"({values})[{inner()} % 3]"
            case "logic":
                return f"({inner()} {self.pick('and', 'or')} {inner()})"
            case _:
                return f"int({inner('bool')})"

    def _collection(self) -> str:
        return str(self.pick("facts.sizes", "(1, 3, 4)", "range(4)", "facts.table", "STEPS"))

    def _bool(self, inner: Callable[..., str], scope: Scope) -> str:
        match self.pick("compare", "compare", "chain", "logic", "logic", "not", "member", "all", "text", "guard",
                        "truth"):
            case "compare":
                left, right = self.pick(("int", "int"), ("int", "int"), ("int", "float"), ("f32", "int"),
                                        ("f32", "f32"), ("f32", "float"), ("float", "float"), ("bool", "bool"))
                symbol = self.pick("==", "!=", *(("<", "<=", ">", ">=") if left != "bool" else ()))
                return f"({inner(left)} {symbol} {inner(right)})"
            case "chain":
                first, second = (self.pick("<", "<=", "==", "!=", ">") for _ in range(2))
                return f"({inner('int')} {first} {inner('int')} {second} {inner('int')})"
            case "logic":
                return f"({inner()} {self.pick('and', 'or')} {inner()})"
            case "not":
                return f"(not {inner()})"
            case "member":
                members = self.pick("facts.sizes", "(0, 1, 5)", f"(1, {inner('int')})", "facts.table", "range(1, 4)")
                return f"({inner('int')} {self.pick('in', 'not in')} {members})"
            case "all":
                some = self.pick("", f" if x != {inner('int')}")
                test = f"x {self.pick('<', '==', '>=')} {inner('int')} for x in {self._collection()}{some}"
                return f"{self.pick('any', 'all')}({test})"
            case "text":
                return str(self.pick(f"({inner('str')} {self.pick('==', '!=')} {inner('str')})",
                                     f"({inner('str')} in ('a', 'b'))", "(facts.absent is None)"))
            case "guard":
                form = self.pick("({0} != 0 and 7 // {0} > 1)", "({0} == 0 or 9 % {0} == 0)",
                                 "({0} in facts.table and facts.table[{0}]['rows'] > 2)")
                return str(form.format(inner("int")))
            case _:
                return f"bool({inner(self.pick('int', 'str', 'float'))})"

    def _float(self, inner: Callable[..., str], scope: Scope) -> str:
        match self.pick("arithmetic", "mixed", "quotient", "cast", "extreme", "unary", "whole", "sum"):
            case "arithmetic":
                return f"({inner()} {self.pick('+', '-', '*')} {inner()})"
            case "mixed":
                return f"({inner()} {self.pick('+', '-', '*')} {inner(self.pick('int', 'f32'))})"
            case "quotient":
                kind = self.pick("int", "float")
                below = inner(kind) if scope.risky and self.chance(2) else self.pick("3", "0.3", "facts.ratio")
                return f"({inner(kind)} / {below})"
            case "cast":
                return f"float({inner(self.pick('int', 'f32', 'bool'))})"
            case "extreme":
                return f"{self.pick('min', 'max')}({inner()}, {inner()})"
            case "unary":
                return str(self.pick("abs({})", "(-{})").format(inner()))
            case "whole":
                return f"({inner()} {self.pick('//', '%')} {self.pick('0.7', '-2.0', 'facts.ratio')})"
            case _:
                return f"sum(x * {inner()} for x in {self._collection()})"

    def _f32(self, inner: Callable[..., str], scope: Scope) -> str:
        match self.pick("cast", "cast", "arithmetic", "mixed", "quotient", "extreme", "unary"):
            case "cast":
                return f"f32({inner(self.pick('int', 'float', 'bool'))})"
            case "arithmetic":
                return f"({inner()} {self.pick('+', '-', '*')} {inner()})"
            case "mixed":
                left, right = self.pick(("f32", "int"), ("int", "f32"))
                return f"({inner(left)} {self.pick('+', '-', '*')} {inner(right)})"
            case "quotient":
                below = inner(self.pick("int", "f32")) if scope.risky and self.chance(2) else self.pick("3", "f32(0.3)")
                return f"({inner()} / {below})"
            case "extreme":
                return f"{self.pick('min', 'max')}({inner()}, {inner()})"
            case _:
                return str(self.pick("abs({})", "(-{})").format(inner()))

    def _str(self, inner: Callable[..., str], scope: Scope) -> str:
        form = self.pick("('a', 'b', '')[{0} % 3]", "{{0: 'a', 1: 'b'}}.get({0}, 'c')", "f'{{facts.mode}}-{{LIMIT}}'",
                         "next((s for s in ('a', 'b') if s != {1}), 'a')")
        return str(form.format(inner("int"), inner()))


class Programs(Expressions):
    """Draws statements, helpers and whole programs."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self._count = 0

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def block(self, scope: Scope, size: int, depth: int, indent: str, require: bool) -> list[str]:
        """Statements; the scope gains what every path assigns."""
        lines: list[str] = []
        for _ in range(size):
            form = self.pick("assign", "assign", "assign", "branch", "pair", "again", "require")
            own = [name for name in scope.of("int") if name.startswith("v")]
            if form == "branch":
                lines += self._branch(scope, depth, indent, require)
            elif form == "pair":
                kinds, names = [self.pick(*SCALARS) for _ in range(2)], [self.name("v") for _ in range(2)]
                values = [self.value(kind, scope, depth) for kind in kinds]
                lines.append(f"{indent}{', '.join(names)} = {', '.join(values)}")
                scope.variables |= dict(zip(names, kinds, strict=True))
            elif form == "again" and own:
                target = f"{self.pick(*own)} {self.pick('+=', '-=', '*=')}"
                lines.append(f"{indent}{target} {self.value('int', scope, depth)}")
            elif form == "require" and require:
                lines.append(f"{indent}require({self._moving(scope, depth)}, {self.name('rule ')!r})")
            else:
                kind, name = self.pick(*SCALARS), self.name("v")
                lines.append(f"{indent}{name} = {self.value(kind, scope, depth)}")
                scope.variables[name] = kind
        return lines

    def _branch(self, scope: Scope, depth: int, indent: str, require: bool) -> list[str]:
        """An ``if`` whose arms assign the same names."""
        results = {self.name("v"): self.pick(*SCALARS) for _ in range(self.number(1, 2))}
        arms = ["if", *["elif"] * self.number(0, 1), "else"]
        lines: list[str] = []
        for word in arms:
            test = "" if word == "else" else f" {self.value('bool', scope, depth)}"
            lines.append(f"{indent}{word}{test}:")
            inner = Scope(dict(scope.variables), scope.risky)
            if depth > 1 and self.chance(3):
                lines += self.block(inner, 1, depth - 1, indent + "    ", require)
            lines += [f"{indent}    {name} = {self.value(kind, inner, depth - 1)}" for name, kind in results.items()]
        scope.variables |= results
        return lines

    def _moving(self, scope: Scope, depth: int) -> str:
        """A condition that facts alone do not decide, mostly."""
        name, symbol = self.pick(*scope.of("int")), self.pick("!=", "<=", ">=")
        return f"{name} {symbol} {self.value('int', scope, depth - 1)} or {self.value('bool', scope, depth - 1)}"

    def helper(self, risky: bool) -> list[str]:
        """A function of facts and some scalars that may return early."""
        name, kinds, result = self.name("helper"), tuple(self.pick(*SCALARS) for _ in range(self.number(1, 3))), \
            self.pick(*SCALARS)
        params = [f"p{i}" for i in range(len(kinds))]
        scope = Scope({**dict(zip(params, kinds, strict=True)), **FACTS}, risky)
        lines = ["", "", f"def {name}({', '.join(['facts', *params])}):"]
        lines += self.block(scope, self.number(0, 1), 2, "    ", False)
        for _ in range(self.number(0, 2)):
            lines += [f"    if {self.value('bool', scope, 2)}:", f"        return {self.value(result, scope, 2)}"]
        lines.append(f"    return {self.value(result, scope, 2)}")
        self.helpers[name] = kinds, result
        return lines

    def bounds(self, name: str, kind: str) -> tuple[str, tuple[Any, ...]]:
        """An assume that gives an input its domain, and the domain."""
        low = self.pick(1, 0, -2)
        high = low + self.number(1, 4)
        values = tuple(range(low, high + 1))
        members = tuple(dict.fromkeys(self.pick(-3, 0, 1, 2, 4, 9) for _ in range(3)))
        match kind:
            case "int":
                return self.pick(
                    (f"{low} <= {name} <= {high}", values), (f"{name} >= {low} and {high + 1} > {name}", values),
                    (f"not ({name} < {low} or {name} > {high})", values),
                    (f"{name} in {(*members, members[0])}", members),
                    (f"{low} < {name} < {high + 3} and {name} % 2 == 0",
                     tuple(v for v in range(low + 1, high + 3) if v % 2 == 0)))
            case "str":
                return f"{name} in ('a', 'b', '')", ("a", "b", "")
            case "float":
                return f"{name} in (-0.5, 0.1, 4.0)", (-0.5, 0.1, 4.0)
            case "f32":
                return f"{name} in (f32(0.1), f32(3))", (0.10000000149011612, 3.0)
            case _:
                return self.pick(("True", (False, True)), (f"{name} or not {name}", (False, True)), (name, (True,)))

    def program(self) -> Source:
        risky = self.chance(3)
        kinds = ["int", *(self.pick("int", "int", "bool", "float", "f32", "str") for _ in range(self.number(1, 3)))]
        inputs: dict[str, tuple[Any, ...]] = {}
        declared, assumes = [], []
        room = 72
        for index, kind in enumerate(kinds):
            name = f"in{index}"
            text, values = self.bounds(f"call.{name}", kind)
            if room // len(values) == 0:
                break
            room //= len(values)
            inputs[name] = values
            source = self.pick("Runtime", "Unpinnable", "Unpinnable", "Request")
            declared.append(f"    {name}: {source}[{'F32' if kind == 'f32' else kind}]")
            assumes.append(f"    assume({text}, {self.name('bound ')!r})")
        types = {f"call.{name}": kind for name, kind in zip(inputs, kinds, strict=False)}
        if self.chance(3):
            assumes.append(f"    assume({self._moving(Scope(types, False), 1)}, {self.name('relation ')!r})")
        lines = ["", "", "@record", "class Call:", *declared]
        for _ in range(self.number(0, 2)):
            lines += self.helper(risky)
        lines += ["", "", '@selection(family="random")', "def program(facts: Facts, call: Call):", *assumes]
        scope = Scope({**types, **FACTS}, risky)
        if self.chance(3):
            lines.append('    step = knob("step", (1, 2, 4), default=2)')
            scope.variables["step"] = "int"
        lines += self.block(scope, self.number(3, 6), 3, "    ", True)
        own = {name: kind for name, kind in scope.variables.items() if name.startswith("v")}
        for _ in range(self.number(0, 3) if own else 0):
            lines.append(f"    require({self._about(self.pick(*own.items()), scope)}, {self.name('rule ')!r})")
        points = list(own.items())[-self.number(2, 5):]
        if self.chance(4):
            early = [self.value(kind, scope, 1) for _, kind in points]
            lines += [f"    if {self.value('bool', scope, 2)}:", f"        return {self._points(early)}"]
        last = [self.value(kind, scope, 2) if self.chance(5) else name for name, kind in points]
        lines += [f"    return {self._points(last)}", ""]
        table = {key: {"rows": self.number(0, 4), "cols": 8} for key in self.pick((1, 2, 4), (4, 1), (0, 1, 2, 3, 4))}
        facts = {"count": self.pick(1, 3, 4), "ratio": self.pick(0.5, 0.3), "mode": self.pick("a", "long name"),
                 "wide": self.pick(False, True), "table": table, "sizes": self.pick([3, 1, 2], [2], [0, 4, 4])}
        outside = {name: values[-1] + 9 for name, values in inputs.items() if type(values[0]) is int}
        return Source(HEADER + "\n".join(lines), {"facts": facts}, inputs, outside)

    def _about(self, named: tuple[str, str], scope: Scope) -> str:
        """What a require says of a value of the selection."""
        name, kind = named
        test = f"{name} != {self.pick(*CONSTANTS[kind])}" if kind != "bool" else self.pick(name, f"not {name}")
        input_ = self.pick(*(other for other in scope.of("int") if other.startswith("call.")))
        return str(self.pick(f"{test} or {input_} {self.pick('<', '>')} {self.value('int', scope, 1)}", test,
                             f"{test} and {self.value('bool', scope, 1)}",
                             f"{name} == {self.value(kind, Scope(scope.variables, False), 1)} or {input_} > 0"))

    def _points(self, values: list[str]) -> str:
        shown = [f"'p{i}': {value}" for i, value in enumerate(values)]
        return f"{{{', '.join(shown)}}} | {{f'{{facts.mode}}.count': facts.count, 'fixed': 'x'}}"


@st.composite
def sources(draw: st.DrawFn) -> Source:
    """A random program."""
    return Programs(draw).program()

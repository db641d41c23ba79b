"""Integer linear reasoning: whether comparisons contradict each other, whatever box their terms lie in.

Cutting boxes forgets that one input stands on both sides, so ``q <= k`` would never be proved from the assume
``q <= k``. Here comparisons become inequalities over *terms* (inputs, and whatever is not linear, told apart
by structure), and Fourier-Motzkin elimination combines them. Only ``int`` comparisons take part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from detent.dialects.selir.semantics import COMPARISONS, NEGATED
from detent.passes.boxes import LEAVES, Region
from detent.passes.domains import Abstract, hull

MAX_ROWS = 300
MAX_CASES = 64

ONE = -1
"""The constant's place in a row."""
Row = dict[int, int]
"""Coefficients by term, meaning ``sum(coefficient * term) + row[ONE] <= 0``."""
Literal = tuple[str, int, Any]
"""``("is", position, wanted)``, or a comparison with the positions of its operands."""
Choice = list[list[Literal]]
"""Alternatives, each a list of literals: one of them holds."""


def contradicts(region: Region, memo: Sequence[Abstract], goals: Iterable[tuple[int, bool]]) -> bool:
    """Whether the goals certainly cannot all hold in the memo's box; False says only that no proof was found."""
    literals: list[Literal] = [("is", region.position[node], wanted) for node, wanted in goals]
    return _System(region, memo).impossible(literals, [], {}, [], 0)


class _System:
    """What the nodes of one box say about each other; terms are numbered by the first position that has them."""

    def __init__(self, region: Region, memo: Sequence[Abstract]) -> None:
        self.region, self.memo = region, memo
        self._cases = 0
        self._quotients: dict[Any, int] = {}
        self._choices: list[Choice] = []  # what selects, minima and maxima may be, in order of discovery
        self._forms: dict[int, Row] = {}
        self._facts: dict[int, list[Row]] = {}
        numbers: dict[Any, int] = {}
        self._number: list[int] = []
        for i, operands in enumerate(region.operands):
            same = (region.kinds[i], region.types[i], region.data[i], *(self._number[arg] for arg in operands))
            self._number.append(self._number[operands[0]] if region.kinds[i] == "copy" else
                                numbers.setdefault(i if region.kinds[i] in LEAVES else same, i))

    def impossible(self, literals: Sequence[Literal], rows: Sequence[Row], truths: dict[int, bool],
                   choices: Sequence[Choice], known: int) -> bool:
        """Whether literals, rows, truths and one alternative of every choice certainly cannot hold together.

        The first ``known`` of the system's own choices are made, or among ``choices``.
        """
        self._cases += 1
        if self._cases > MAX_CASES:
            return False
        stack, rows, truths, choices = list(literals), list(rows), dict(truths), list(choices)
        while stack:
            kind, first, second = stack.pop()
            if kind != "is":
                rows.extend(self._compare(kind, first, second))
                continue
            kind, operands, wanted = self.region.kinds[first], self.region.operands[first], second
            if self.memo[first] == frozenset((not wanted,)) or truths.setdefault(self._number[first], wanted) != wanted:
                return True
            if kind in ("not", "copy"):
                stack.append(("is", operands[0], wanted if kind == "copy" else not wanted))
            elif kind in ("and", "or"):
                if (kind == "and") is wanted:
                    stack.extend(("is", operand, wanted) for operand in operands)
                elif all(self.memo[operand] != frozenset((wanted,)) for operand in operands):
                    choices.append([[("is", operand, wanted)] for operand in operands])
            elif kind in COMPARISONS and all(self.region.types[operand] == "int" for operand in operands):
                kind = kind if wanted else NEGATED[kind]
                left, right = operands
                if kind == "ne":
                    choices.append([[("lt", left, right)], [("gt", left, right)]])
                else:
                    stack.append((kind, left, right))
        if _infeasible(self._with_facts(rows)):
            return True
        choices.extend(self._choices[known:])
        known = len(self._choices)
        return bool(choices) and all(self.impossible(alternative, rows, truths, choices[1:], known)
                                     for alternative in choices[0])

    def _compare(self, kind: str, left: int, right: int) -> list[Row]:
        difference = _sum(self._form(left), self._form(right), -1)
        opposite = _sum({}, difference, -1)
        if kind == "eq":
            return [difference, opposite]
        row = difference if kind in ("lt", "le") else opposite
        return [_sum(row, {ONE: 1}) if kind in ("lt", "gt") else row]  # over integers, a < b is a + 1 <= b

    def _form(self, i: int) -> Row:
        """A node as constant plus multiples of terms."""
        if i not in self._forms:
            self._forms[i] = self._linear(i)
        return self._forms[i]

    def _linear(self, i: int) -> Row:
        value, kind, operands = self.memo[i], self.region.kinds[i], self.region.operands[i]
        if isinstance(value, frozenset) and len(value) == 1:
            return {ONE: next(iter(value))}
        if kind == "copy":
            return self._form(operands[0])
        if kind in ("add", "sub"):
            return _sum(self._form(operands[0]), self._form(operands[1]), 1 if kind == "add" else -1)
        if kind == "neg":
            return _sum({}, self._form(operands[0]), -1)
        if kind == "mul":
            for factor, other in (operands, operands[::-1]):
                if self._form(factor).keys() <= {ONE}:
                    return _sum({}, self._form(other), self._form(factor).get(ONE, 0))
        divided = self._divided(i) if kind in ("floordiv", "mod") else None
        if divided is not None:
            return divided
        term = self._term(self._number[i], value)
        if kind in ("min", "max"):
            sign = 1 if kind == "min" else -1
            self._facts[self._number[i]] += [_sum({}, _sum(term, self._form(operand), -1), sign)
                                             for operand in operands]
            self._choices.append([[("eq", i, operand)] for operand in operands])
        elif kind == "select":
            self._choices.append([[("is", operands[0], taken), ("eq", i, operands[1 if taken else 2])]
                                  for taken in (True, False)])
        return term

    def _term(self, number: int, value: Abstract) -> Row:
        """A new term with its bounds as facts."""
        if number not in self._facts:
            bounds = hull(value)
            self._facts[number] = [] if bounds is None else [
                {number: 1, ONE: -bounds.high}, {number: -1, ONE: bounds.low}]
        return {number: 1}

    def _divided(self, i: int) -> Row | None:
        """``a // m`` or ``a % m`` for a constant m > 0, by the quotient q with ``m*q <= a <= m*q + m - 1``."""
        dividend, divisor = (self._form(operand) for operand in self.region.operands[i])
        modulus = divisor.get(ONE, 0)
        if not divisor.keys() <= {ONE} or modulus <= 0:
            return None
        number = len(self.region.nodes) + len(self._quotients)
        number = self._quotients.setdefault((frozenset(dividend.items()), modulus), number)
        quotient = self._term(number, None)
        remainder = _sum(dividend, quotient, -modulus)
        self._facts[number] += [_sum({}, remainder, -1), _sum(remainder, {ONE: 1 - modulus})]
        return quotient if self.region.kinds[i] == "floordiv" else remainder

    def _with_facts(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with what is known of every term they mention, directly or through other facts."""
        result, seen, done = list(rows), {ONE}, 0
        while done < len(result):
            for number in result[done].keys() - seen:
                seen.add(number)
                result.extend(self._facts[number])
            done += 1
        return result


def _sum(a: Row, b: Row, factor: int = 1) -> Row:
    result = dict(a)
    for term, coefficient in b.items():
        result[term] = result.get(term, 0) + factor * coefficient
    return {term: coefficient for term, coefficient in result.items() if coefficient}


def _tight(row: Row) -> Row:
    """The strongest row over integers that a row implies: divided by the terms' common factor, rounded inwards."""
    shared = math.gcd(*(coefficient for term, coefficient in row.items() if term != ONE))
    return {term: -(-coefficient // shared) for term, coefficient in row.items()} if shared > 1 else row


def _infeasible(rows: Iterable[Row]) -> bool:
    """Fourier-Motzkin elimination; gives up (False) where it would grow too large."""
    system = {tuple(sorted(_tight(row).items())): _tight(row) for row in rows}
    while system:
        uses: dict[int, list[int]] = {}
        for row in system.values():
            for term, coefficient in row.items():
                if term != ONE:
                    uses.setdefault(term, [0, 0])[coefficient > 0] += 1
            if row.keys() <= {ONE} and row.get(ONE, 0) > 0:
                return True
        if not uses:
            return False
        chosen = min(uses, key=lambda term: (uses[term][0] * uses[term][1], term))
        if uses[chosen][0] * uses[chosen][1] > MAX_ROWS:
            return False
        above = [row for row in system.values() if row.get(chosen, 0) > 0]
        below = [row for row in system.values() if row.get(chosen, 0) < 0]
        system = {key: row for key, row in system.items() if chosen not in row}
        for upper in above:
            for lower in below:
                scaled = {term: coefficient * -lower[chosen] for term, coefficient in upper.items()}
                row = _tight(_sum(scaled, lower, upper[chosen]))
                system[tuple(sorted(row.items()))] = row
    return False

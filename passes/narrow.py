"""What a branch's condition says about the value chosen in it."""

from __future__ import annotations

from typing import Protocol

from xdsl.ir import SSAValue

from detent.dialects.selir.semantics import COMPARISONS, NEGATED, SWAPPED, evaluate
from detent.passes.domains import Abstract, Interval, hull


class Context(Protocol):
    """What narrowing asks of the simplifier."""

    def definition(self, value: SSAValue) -> tuple[str, tuple[SSAValue, ...]]: ...

    def abstract(self, value: SSAValue) -> Abstract: ...


def narrow(ctx: Context, subject: SSAValue, value: Abstract, condition: SSAValue, truth: bool) -> Abstract:
    """The values ``subject`` can take where ``condition`` has the given truth.

    Uses comparisons of the subject itself, through ``not``, ``and`` (where true) and ``or`` (where false).
    """
    stack = [(condition, truth)]
    for _ in range(16):  # conditions are short; the bound keeps a long chain from costing anything
        if not stack:
            break
        node, wanted = stack.pop()
        kind, operands = ctx.definition(node)
        if kind == "not":
            stack.append((operands[0], not wanted))
        elif kind == ("and" if wanted else "or"):
            stack.extend((operand, wanted) for operand in operands)
        elif node is subject:
            value = frozenset((wanted,))
        elif kind in COMPARISONS and subject in operands:
            other = operands[1] if operands[0] is subject else operands[0]
            relation = kind if operands[0] is subject else SWAPPED[kind]
            if str(subject.type) in ("!selir.int", "!selir.bool", "!selir.str"):  # NaN has no negated comparison
                value = _restrict(value, relation if wanted else NEGATED[relation], ctx.abstract(other))
    return value


def _restrict(value: Abstract, relation: str, other: Abstract) -> Abstract:
    if isinstance(value, frozenset) and isinstance(other, frozenset) and len(value) * len(other) <= 4096:
        kept = frozenset(v for v in value if any(evaluate(relation, (v, o), "bool") for o in other))
        return kept or value
    mine, theirs = hull(value), hull(other)
    if mine is None or theirs is None:
        return value
    low, high = mine
    if relation in ("lt", "le", "eq"):
        high = min(high, theirs.high - 1 if relation == "lt" else theirs.high)
    if relation in ("gt", "ge", "eq"):
        low = max(low, theirs.low + 1 if relation == "gt" else theirs.low)
    if low > high:
        return value  # the branch is never taken; nothing is gained by an empty set
    if isinstance(value, frozenset):
        return frozenset(v for v in value if low <= v <= high) or value
    return Interval(low, high)

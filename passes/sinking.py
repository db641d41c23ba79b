"""Where lazily emitted code computes each value: in the smallest arm of a branch that holds all its uses.

Python's ``if`` computes one arm only. A straight-line graph has no arms any more, so this analysis finds
them again: the operands of a ``select`` that are used nowhere else, directly or through others, belong to an
arm, and so does the second operand of ``and`` and ``or``. Arms form a tree; a value goes to the deepest arm
that is above all its uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

BRANCHING = ("select", "and", "or")
TOP = 0
"""The region of what is computed in any case."""
MAX_NEST = 16
"""Regions nest at most this deep, values below stay in the deepest: Python refuses more than 20 nested loops
and 100 levels of indentation."""


def arms_of(kind: str, operands: Sequence[int]) -> tuple[int, int | None, int | None]:
    """Condition, value if true and value if false; None stands for the constant that ``and`` and ``or`` give."""
    if kind == "and":
        return operands[0], operands[1], None
    if kind == "or":
        return operands[0], None, operands[1]
    return operands[0], operands[1], operands[2]


@dataclass
class Placement:
    """``uses``: how often each value is used, as an operand or as a root. ``arms``: the regions of a branching
    value's true and false arm; it has none where it is computed without laziness. ``follower``: an arm that is
    itself a branch used nowhere else, so that both can be one chain of tests at one level. ``members``: the
    values of each region, operands first; those of the top are in ``top``, by the first stage that needs them.
    An arm that holds no values has the region ``TOP``, whose ``members`` are empty.
    """

    uses: dict[int, int] = field(default_factory=dict)
    arms: dict[int, tuple[int, int]] = field(default_factory=dict)
    follower: dict[int, int] = field(default_factory=dict)
    members: list[list[int]] = field(default_factory=list)
    top: list[list[int]] = field(default_factory=list)


class _Tree:
    """Regions with constant-time growth and logarithmic lowest common ancestors (Myers' jump pointers)."""

    def __init__(self) -> None:
        self.parent, self.jump, self.depth, self.nest = [TOP], [TOP], [0], [0]

    def add(self, parent: int, nest: int) -> int:
        near, far = self.jump[parent], self.jump[self.jump[parent]]
        even = self.depth[parent] - self.depth[near] == self.depth[near] - self.depth[far]
        self.parent.append(parent)
        self.jump.append(far if even else parent)
        self.depth.append(self.depth[parent] + 1)
        self.nest.append(nest)
        return len(self.parent) - 1

    def common(self, a: int, b: int) -> int:
        parent, jump, depth = self.parent, self.jump, self.depth
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
        while a != b:
            a, b = (parent[a], parent[b]) if jump[a] == jump[b] else (jump[a], jump[b])
        return a


def place(kinds: Sequence[str], operands: Mapping[int, Sequence[int]], stages: Sequence[Iterable[int]]) -> Placement:
    """Place every value of ``operands`` (ascending; what is not in it is known already, like parameters).

    ``stages`` are the roots needed one stage after the other. What is needed in any case is computed in the
    first stage that uses it.
    """
    result = Placement()
    _count(result.uses, operands, stages)
    _chain(result, kinds, operands)
    tree = _Tree()
    region: dict[int, int] = {}
    stage: dict[int, int] = {}
    chained: set[int] = set()

    def use(operand: int, place: int, when: int) -> None:
        if operand in operands:
            region[operand] = tree.common(region[operand], place) if operand in region else place
            stage[operand] = min(stage.get(operand, when), when)

    for index, roots in enumerate(stages):
        for root in roots:
            use(root, TOP, index)
    for node in reversed(operands.keys()):  # type: ignore[call-overload]
        here, when = region[node], stage[node]
        if kinds[node] not in BRANCHING or tree.nest[here] >= MAX_NEST:
            for operand in operands[node]:
                use(operand, here, when)
            continue
        condition, *values = arms_of(kinds[node], operands[node])
        use(condition, here, when)
        follower = result.follower.get(node)
        inner = [TOP, TOP]
        for index, value in enumerate(values):
            if value is not None and value in operands:
                same_level = node in chained and value == follower
                inner[index] = tree.add(here, tree.nest[here] + (not same_level))
                use(value, inner[index], when)
        result.arms[node] = (inner[0], inner[1])
        if follower is not None:
            chained.add(follower)
    result.members = [[] for _ in tree.parent]
    result.top = [[] for _ in stages]
    for node in operands:
        (result.members[region[node]] if region[node] else result.top[stage[node]]).append(node)
    return result


def _count(uses: dict[int, int], operands: Mapping[int, Sequence[int]], stages: Sequence[Iterable[int]]) -> None:
    for group in (*stages, *operands.values()):
        for node in group:
            uses[node] = uses.get(node, 0) + 1


def _chain(result: Placement, kinds: Sequence[str], operands: Mapping[int, Sequence[int]]) -> None:
    """Of two arms that could follow, the one with more branches does, so nesting stays logarithmic."""
    weight: dict[int, int] = {}
    for node, args in operands.items():
        if kinds[node] in BRANCHING:
            weight[node] = 1
            for value in arms_of(kinds[node], args)[1:]:
                if value is not None and value in weight and result.uses[value] == 1:
                    weight[node] += weight[value]
                    best = result.follower.get(node)
                    if best is None or weight[value] >= weight[best]:
                        result.follower[node] = value

"""Input domains: the finite set of values each input may take, read off the assumes.

An assume is split at its ``and``s. A conjunct of one of the forms below narrows one input and is
absorbed into that input's domain; any other conjunct is a *relation*, which filters points later.

* ``fact <= input`` and its kin (``<``, ``>``, ``>=``, ``==``), a chained comparison included
* ``input in (fact, ...)``, an ``or`` of equalities of one input
* ``input % modulus == residue``
* ``flag`` or ``not flag`` of a bool input

Nothing else bounds an input: whatever a proof uses must also be checked while serving.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from detent.dialects.selir.semantics import COMPARISONS, NEGATED, SWAPPED, evaluate, round32
from detent.passes.boxes import Domain, Region, piece
from detent.passes.errors import AssumeNamesSelection, EmptyDomain, UnboundedInput
from detent.passes.graph import Condition, Graph, Location


@dataclass
class _Facts:
    """What the absorbed conjuncts say about one input; bounds are inclusive, ``x % modulus == residue``.

    ``comparisons`` are those that bound no integer: they filter the members of a float's finite set.
    """

    low: int | None = None
    high: int | None = None
    comparisons: list[tuple[str, Any]] = field(default_factory=list)
    members: set[Any] | None = None
    modulus: int = 1
    residue: int = 0
    contradiction: bool = False
    sources: list[Location | None] = field(default_factory=list)

    def at_least(self, bound: int) -> None:
        self.low = bound if self.low is None else max(self.low, bound)

    def at_most(self, bound: int) -> None:
        self.high = bound if self.high is None else min(self.high, bound)

    def among(self, values: set[Any]) -> None:
        self.members = values if self.members is None else self.members & values

    def congruent(self, modulus: int, residue: int) -> None:
        """Join with ``x % modulus == residue`` (Python's sign rule); two congruences meet in one or never."""
        if residue != residue % modulus:
            self.contradiction = True
            return
        modulus, residue = abs(modulus), residue % abs(modulus)
        shared = math.gcd(self.modulus, modulus)
        if (residue - self.residue) % shared:
            self.contradiction = True
            return
        inverse = pow(self.modulus // shared, -1, modulus // shared)
        steps = (residue - self.residue) // shared * inverse % (modulus // shared)
        self.residue += self.modulus * steps
        self.modulus *= modulus // shared
        self.residue %= self.modulus

    def admits(self, value: Any) -> bool:
        if self.low is not None and value < self.low or self.high is not None and value > self.high:
            return False
        if self.modulus > 1 and value % self.modulus != self.residue:
            return False
        return all(evaluate(kind, (value, constant), "bool") for kind, constant in self.comparisons)


def input_domains(graph: Graph) -> dict[int, Domain]:
    """The domain of every input node: ``range(low, high + 1, step)``, or a sorted tuple of values.

    Bools are finite by type; floats and strings need a finite ``in``. Raises
    :class:`AssumeNamesSelection`, :class:`UnboundedInput`, and :class:`EmptyDomain` where the absorbed
    conjuncts leave an input no value (:func:`relations` may still rule out every point).
    """
    facts: dict[int, _Facts] = {node: _Facts() for node in graph.of_kind("input")}
    for condition in _assumes(graph):
        check_names_no_selection(graph, condition)
        for literal in conjuncts(graph, condition.root, True):
            if _constant(graph, literal) is False:
                raise EmptyDomain("this assume never holds", condition.location, "loosen it")
            _absorb(graph, literal, facts, condition.location)
    return {node: _domain(graph, node, known) for node, known in facts.items()}


def relations(graph: Graph, domains: dict[int, Domain]) -> list[int]:
    """Indices of the assumes that rule out points of the domains' product.

    An assume that was absorbed whole, or that holds on the whole product, is none. Raises
    :class:`EmptyDomain` for an assume that certainly holds nowhere.
    """
    found = []
    for index, condition in enumerate(graph.conditions):
        if condition.kind != "assume":
            continue
        scratch: dict[int, _Facts] = {node: _Facts() for node in domains}
        rest = [literal for literal in conjuncts(graph, condition.root, True)
                if not _absorb(graph, literal, scratch, None)]
        if not rest:
            continue
        region = Region(graph, [node for node, _ in rest])
        memo = region.evaluate({leaf: piece(domains[leaf]) for leaf in region.leaves})
        outcomes = [(region.value(memo, node), wanted) for node, wanted in rest]
        if any(value == frozenset((not wanted,)) for value, wanted in outcomes):
            raise EmptyDomain("this assume holds nowhere on the inputs' domains", condition.location, "loosen it")
        if any(value != frozenset((wanted,)) for value, wanted in outcomes):
            found.append(index)
    return found


def check_names_no_selection(graph: Graph, condition: Condition) -> None:
    """Raise :class:`AssumeNamesSelection` if an assume reads anything but inputs, facts and its own values."""
    for node in graph.slice((condition.root,)):
        kind = graph.kinds[node]
        if graph.scopes[node] == 0 and kind not in ("input", "constant"):
            name = graph.names[node] or (graph.data[node].name if kind == "knob" else kind)
            raise AssumeNamesSelection(
                f"an assume reads {name!r}, which is {'a knob' if kind == 'knob' else 'a value of the selection'}",
                condition.location or graph.locations[node], "use require")


def conjuncts(graph: Graph, root: int, wanted: bool) -> list[tuple[int, bool]]:
    """Literals ``(node, wanted)`` that all hold exactly if ``root`` has the wanted value, in source order."""
    found: dict[tuple[int, bool], None] = {}
    stack = [(root, wanted)]
    while stack:
        node, wanted = stack.pop()
        kind = graph.kinds[node]
        if kind == "not":
            stack.append((graph.args[node][0], not wanted))
        elif kind == ("and" if wanted else "or"):
            stack.extend((operand, wanted) for operand in reversed(graph.args[node]))
        elif not (kind == "constant" and graph.data[node] is wanted):
            found[node, wanted] = None
    return list(found)


def _assumes(graph: Graph) -> Iterator[Condition]:
    return (condition for condition in graph.conditions if condition.kind == "assume")


def _constant(graph: Graph, literal: tuple[int, bool]) -> bool | None:
    node, wanted = literal
    return bool(graph.data[node]) is wanted if graph.kinds[node] == "constant" else None


def _absorb(graph: Graph, literal: tuple[int, bool], facts: dict[int, _Facts], location: Location | None) -> bool:
    """Note what a literal says about its one input; False if it has none of the absorbed forms."""
    node, wanted = literal
    if graph.kinds[node] == "input":
        facts[node].among({wanted})
        facts[node].sources.append(location)
        return True
    if graph.kinds[node] == "or":
        members = _membership(graph, node)
        if members is None:
            return False
        target, values = members
        facts[target].among(values)
        facts[target].sources.append(location)
        return True
    comparison = _comparison(graph, node)
    if comparison is None:
        return False
    kind, subject, constant = comparison
    kind = kind if wanted else NEGATED[kind]
    if graph.kinds[subject] == "mod":
        return _absorb_congruence(graph, kind, subject, constant, facts, location)
    if graph.kinds[subject] != "input" or not _narrow(facts[subject], graph.types[subject], kind, constant):
        return False
    facts[subject].sources.append(location)
    return True


def _comparison(graph: Graph, node: int) -> tuple[str, int, Any] | None:
    """``(kind, subject, constant)`` of a comparison with a constant on either side, the subject first."""
    kind = graph.kinds[node]
    if kind not in COMPARISONS:
        return None
    left, right = graph.args[node]
    if graph.kinds[right] == "constant":
        return kind, left, graph.data[right]
    if graph.kinds[left] == "constant":
        return SWAPPED[kind], right, graph.data[left]
    return None


def _membership(graph: Graph, root: int) -> tuple[int, set[Any]] | None:
    """``(input, values)`` of an or-tree of equalities of one input with constants."""
    subject, values, stack = -1, set(), [root]
    while stack:
        node = stack.pop()
        if graph.kinds[node] == "or":
            stack.extend(graph.args[node])
            continue
        comparison = _comparison(graph, node)
        if comparison is None or comparison[0] != "eq" or graph.kinds[comparison[1]] != "input":
            return None
        if subject not in (-1, comparison[1]):
            return None
        subject = comparison[1]
        values |= _exact(comparison[2], graph.types[subject])
    return subject, values


def _exact(constant: Any, type: str) -> set[Any]:
    """The value of an input's type that equals a constant; none if the type cannot represent it."""
    if type == "int" and isinstance(constant, float):
        return {int(constant)} if constant.is_integer() else set()
    if type in ("float", "f32"):
        value = float(constant)
        return {value} if value == constant and (type == "float" or round32(value) == value) else set()
    return {constant}


def _narrow(known: _Facts, type: str, kind: str, constant: Any) -> bool:
    if type == "bool":
        known.among({value for value in (False, True) if evaluate(kind, (value, constant), "bool")})
    elif kind == "eq":
        known.among(_exact(constant, type))
    elif kind == "ne":
        return False
    elif type != "int":
        known.comparisons.append((kind, constant))  # filters the finite set that such an input needs
    elif not math.isfinite(constant):
        return False
    elif kind in ("lt", "le"):
        known.at_most(math.ceil(constant) - 1 if kind == "lt" else math.floor(constant))
    else:
        known.at_least(math.floor(constant) + 1 if kind == "gt" else math.ceil(constant))
    return True


def _absorb_congruence(graph: Graph, kind: str, mod: int, residue: Any, facts: dict[int, _Facts],
                       location: Location | None) -> bool:
    subject, divisor = graph.args[mod]
    modulus = graph.data[divisor]
    if (kind != "eq" or graph.kinds[subject] != "input" or graph.kinds[divisor] != "constant" or not modulus
            or not all(isinstance(number, int) for number in (modulus, residue))):
        return False
    facts[subject].congruent(modulus, residue)
    facts[subject].sources.append(location)
    return True


def _domain(graph: Graph, node: int, known: _Facts) -> Domain:
    name, type = graph.data[node].name, graph.types[node]
    if type == "bool":
        known.among({False, True})
    if known.contradiction:
        raise _empty(name, known)
    domain: Domain
    if known.members is not None:
        domain = tuple(sorted(value for value in known.members if known.admits(value)))
    elif type != "int":
        raise UnboundedInput(f"input {name!r} has no finite domain: a {type} is only bounded by its values",
                             graph.locations[node], f"write assume({name} in (...))")
    elif known.low is None or known.high is None:
        missing = [side for side, bound in (("lower", known.low), ("upper", known.high)) if bound is None]
        raise UnboundedInput(f"input {name!r} has no {' and no '.join(missing)} bound", graph.locations[node],
                             f"write assume(low <= {name} <= high)")
    else:
        first = known.low + (known.residue - known.low) % known.modulus
        domain = range(first, known.high + 1, known.modulus)
    if not domain:
        raise _empty(name, known)
    return domain


def _empty(name: str, known: _Facts) -> EmptyDomain:
    places = list(dict.fromkeys(str(place) for place in known.sources if place is not None))
    said = f" (assumed at {', '.join(places)})" if places else ""
    location = next((place for place in reversed(known.sources) if place is not None), None)
    return EmptyDomain(f"no value of input {name!r} satisfies its assumes{said}", location, "loosen one of them")

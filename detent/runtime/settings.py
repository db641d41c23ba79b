"""Settings of an engine in a coverage table: what the plug-in sets, and what it refuses to start with."""

from __future__ import annotations

from detent.runtime.errors import BadFile, UnknownName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Facts = Callable[[str], Any]

KINDS = ("option", "env", "fact")
"""A path below the engine's configuration, an environment variable, ``section.name`` of a deployment."""


class FactValue:
    """In place of a value: what the deployment's fact ``name`` is."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FactValue) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"the fact {self.name}"


class Switch:
    """A setting the plug-in makes: ``value``, or where ``has`` is true a list that has ``value`` among its elements.

    ``value`` may be a :class:`FactValue`. ``rows`` are the ids of the rows that need it, ``why`` the first one's
    reason.
    """

    __slots__ = ("has", "kind", "name", "rows", "value", "why")

    def __init__(self, kind: str, name: str, value: Any, has: bool, row: str, why: str) -> None:
        self.kind, self.name, self.value, self.has = kind, name, value, has
        self.rows: tuple[str, ...] = (row,)
        self.why = why

    def of(self, facts: Facts) -> Switch:
        """The same with the value that the fact has."""
        if not isinstance(self.value, FactValue):
            return self
        found = Switch(self.kind, self.name, facts(self.value.name), self.has, self.rows[0], self.why)
        found.rows = self.rows
        return found

    def is_set(self, value: Any) -> bool:
        """Whether a setting with this value needs no change. Lists and tuples are the same."""
        if self.has:
            return isinstance(value, list | tuple | set | frozenset) and self.value in value
        return same(value, self.value)

    def __str__(self) -> str:
        return f"{self.name} {'has' if self.has else '='} {text(self.value)}"

    def __repr__(self) -> str:
        return f"Switch({str(self)!r})"


class Check:
    """A condition at start-up: a value among ``allowed``, None where ``absent`` is true, or a number up to ``at_most``.

    ``at_most`` may be a :class:`FactValue`. ``rows`` and ``why`` as for a :class:`Switch`.
    """

    __slots__ = ("absent", "allowed", "at_most", "kind", "name", "rows", "why")

    def __init__(self, kind: str, name: str, allowed: tuple[Any, ...], absent: bool,
                 at_most: float | FactValue | None, row: str, why: str) -> None:
        self.kind, self.name, self.allowed, self.absent, self.at_most = kind, name, allowed, absent, at_most
        self.rows: tuple[str, ...] = (row,)
        self.why = why

    def of(self, facts: Facts) -> Check:
        """The same with the number that the fact is."""
        if not isinstance(self.at_most, FactValue):
            return self
        found = Check(self.kind, self.name, self.allowed, self.absent, facts(self.at_most.name), self.rows[0], self.why)
        found.rows = self.rows
        return found

    def allows(self, value: Any) -> bool:
        """Whether the engine may start with this value; None is what is not set."""
        if value is None:
            return self.absent
        most = self.at_most
        if type(most) in (int, float) and type(value) in (int, float) and value <= most:
            return True
        return any(same(value, allowed) for allowed in self.allowed)

    def __str__(self) -> str:
        ways = [text(value) for value in self.allowed]
        if self.at_most is not None:
            ways.append(f"at most {self.at_most}")
        if self.absent:
            ways.append("absent")
        *first, last = ways
        return f"{self.name} is {', '.join(first)}{' or ' if first else ''}{last}"

    def __repr__(self) -> str:
        return f"Check({str(self)!r})"


def switch_of(path: str, place: str, each: Any, row: str, why: str) -> Switch:
    """A switch as a file has it. Raises BadFile or UnknownName, which name ``path`` and ``place``."""
    kind, name = _named(path, place, each, ("value", "has"))
    if ("value" in each) == ("has" in each):
        raise BadFile(path, f"{place}: {name} is set to nothing, or twice", "give value or has")
    if kind == "fact":
        raise BadFile(path, f"{place}: {name} is a fact, which nobody can set", "refuse the row where it does not hold")
    if kind == "env" and not isinstance(each.get("value"), str):
        raise BadFile(path, f"{place}: {name} is a variable", "its value is a string")
    value = _value(path, place, name, each.get("value", each.get("has")))
    return Switch(kind, name, value, "has" in each, row, why)


def check_of(path: str, place: str, each: Any, row: str, why: str) -> Check:
    """A check as a file has it. Raises as :func:`switch_of`."""
    kind, name = _named(path, place, each, ("allowed", "absent", "at_most"))
    allowed, absent = each.get("allowed", []), each.get("absent", False)
    at_most = _value(path, place, name, each.get("at_most"))
    if not isinstance(allowed, list) or not isinstance(absent, bool):
        raise BadFile(path, f"{place}: {name}: allowed is a list and absent a bool")
    if at_most is not None and type(at_most) not in (int, float, FactValue):
        raise BadFile(path, f"{place}: {name}: at_most is a number")
    if not allowed and not absent and at_most is None:
        raise BadFile(path, f"{place}: {name} allows nothing", "give allowed, absent or at_most")
    return Check(kind, name, tuple(allowed), absent, at_most, row, why)


def _value(path: str, place: str, name: str, value: Any) -> Any:
    """A value as a file has it; ``{ fact = "section.name" }`` is the fact's."""
    if not isinstance(value, dict):
        return value
    if list(value) != ["fact"] or not isinstance(value["fact"], str) or value["fact"].count(".") != 1:
        raise BadFile(path, f"{place}: {name} is {value!r}", 'write { fact = "section.name" } or a value')
    return FactValue(value["fact"])


def _named(path: str, place: str, each: Any, rest: tuple[str, ...]) -> tuple[str, str]:
    """Kind and name of a setting, whose other keys are among ``rest``."""
    if not isinstance(each, dict):
        raise BadFile(path, f"{place}: by holds {each!r}", "write { option = ..., ... } or { env = ..., ... }")
    kinds = [kind for kind in KINDS if kind in each]
    if len(kinds) != 1 or not isinstance(each[kinds[0]], str):
        raise BadFile(path, f"{place}: by names no one setting", f"name it with one of {', '.join(KINDS)}")
    for key in each:
        if key not in (*KINDS, *rest):
            raise UnknownName("key", key, rest, f"{path}: {place}")
    return kinds[0], each[kinds[0]]


def same(a: Any, b: Any) -> bool:
    """Equality that keeps 1, 1.0 and True apart and takes lists and tuples for the same."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def text(value: Any) -> str:
    """A setting's value for people; None is what is not set."""
    if value is None:
        return "absent"
    return str(value).lower() if isinstance(value, bool) else repr(value)

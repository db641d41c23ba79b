"""Swapping a selector's constants: another legal assignment, no lowering and no solving."""

from __future__ import annotations

from detent.runtime.errors import DetentError, NoCandidate, NotLegal, UnknownName, brief_repr, named, shorten
from detent.runtime.selector import Selector, brief, position

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Repin:
    """``Repin(document)(assignment) -> Selector``: prepare once a solution, then under a millisecond a call.

    An assignment gives a value to every pin and knob. Raises UnknownName for another name, DetentError for a
    missing one, NoCandidate for a value it cannot have, NotLegal for a combination that a ``require`` rules out.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.family = str(document["family"])
        self.values: dict[str, list[Any]] = {p["name"]: p["candidates"] for p in document["pins"]}
        self.values |= {k["name"]: k["values"] for k in document["knobs"]}
        self.types: dict[str, str] = {x["name"]: x["type"] for x in [*document["pins"], *document["knobs"]]}
        # True == 1 == 1.0, so values are looked up together with their types.
        self._known = {name: {(type(v), v) for v in values} for name, values in self.values.items()}
        self._components = [(tuple(part["names"]), {tuple(row) for row in part["legal"]})
                            for part in document["components"]]
        self._brief = brief(document)
        self._template = document["template"]

    def __call__(self, assignment: Mapping[str, Any]) -> Selector:
        """The selector of a legal assignment."""
        self.check(assignment)
        values = {name: assignment[name] for name in self.values}
        return Selector(**self._brief, source=self.source(values), assignment=values)

    def source(self, assignment: Mapping[str, Any]) -> str:
        """The template with the assignment's values in place; does not check that they are legal."""
        text: str = self._template
        for name in self.values:
            text = text.replace(f"⟦{name}⟧", repr(assignment[name]))
        return text

    def complete(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """A whole assignment: the choices, and the solution's default for what they leave open.

        Does not check that it is legal. Raises NotLegal if the solution has no legal assignment at all.
        """
        for name in choices:
            self._check_name(name)
        default = self.document["default"]
        if default is None:
            raise NotLegal(f"{self.family}: no assignment is legal on {self.document['deployment']}",
                           "loosen a require of the program or change the facts it names")
        return {name: choices.get(name, default[name]) for name in self.values}

    def check(self, assignment: Mapping[str, Any]) -> None:
        """Raise unless the assignment is legal."""
        known = self._known
        for name, value in assignment.items():
            if name not in known:
                self._check_name(name)
            try:
                candidate = (type(value), value) in known[name]
            except TypeError:  # not hashable, and no candidate is that
                candidate = False
            if not candidate:
                what = "pin" if any(p["name"] == name for p in self.document["pins"]) else "knob"
                raise NoCandidate(f"{self.family}.{name}: {brief_repr(value)} is no value of this {what}",
                                  f"its values are {shorten(self.values[name])}")
        if len(assignment) < len(known):
            missing = [name for name in known if name not in assignment]
            raise DetentError(f"{self.family}: no value for {shorten(missing)}", "give every pin and knob a value")
        for names, legal in self._components:
            if tuple([assignment[name] for name in names]) not in legal:
                raise self._refuted(names, assignment)

    def parse(self, name: str, text: str) -> Any:
        """A pin's or knob's value from its text on a command line. Raises UnknownName or NotLegal."""
        self._check_name(name)
        for value in self.values[name]:
            if text == (value if isinstance(value, str) else repr(value)) or (
                    isinstance(value, bool) and text.lower() == str(value).lower()):
                return value
        raise NoCandidate(f"{self.family}.{name}: {brief_repr(text)} is no value of type {self.types[name]} it can "
                          "take", f"its values are {shorten(self.values[name])}")

    def _check_name(self, name: str) -> None:
        if name not in self.values:
            raise UnknownName("pin or knob", name, list(self.values), self.family)

    def _refuted(self, names: tuple[str, ...], assignment: Mapping[str, Any]) -> NotLegal:
        """The error for an assignment outside a component's legal set, with what the solver found against it."""
        chosen = named({name: assignment[name] for name in names})
        remedy = self._alternatives(names, assignment)
        for refutation in self.document["refutations"]:
            row = [assignment.get(name) for name in refutation["names"]]
            witness = next((index for case, index in refutation["cases"] if case == row), None)
            if witness is None:
                continue
            condition = self.document["conditions"][refutation["condition"]]
            inputs = self.document["witnesses"][witness]
            place = position(condition["source"])
            why = f": {condition['message']}" if condition["message"] else ""
            return NotLegal(f"{self.family}: {chosen} is not legal: {place}: require {condition['text']}{why} "
                            f"does not hold with {named(inputs)}", remedy, condition, inputs)
        return NotLegal(f"{self.family}: {chosen} is not among the legal assignments", remedy)

    def _alternatives(self, names: tuple[str, ...], assignment: Mapping[str, Any]) -> str:
        """Legal values of one of the names with the others as they are, or the default."""
        legal = next(rows for part, rows in self._components if part == names)
        row = tuple(assignment[name] for name in names)
        for i, name in enumerate(names):
            values = [v for v in self.values[name] if (*row[:i], v, *row[i + 1:]) in legal]
            if values:
                return f"with the rest as it is, legal for {name}: {shorten(values)}"
        if not legal:
            return "nothing is legal here"
        return f"legal, for instance: {named(dict(zip(names, min(legal), strict=True)))}"


def repin(document: Mapping[str, Any], assignment: Mapping[str, Any]) -> Selector:
    """One selector of a solution; to make many, keep a :class:`Repin`."""
    return Repin(document)(assignment)

"""What :func:`detent.solve` returns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from detent.runtime.entry import Entry

if TYPE_CHECKING:
    from detent.passes.graph import Graph
    from detent.runtime.repin import Repin
    from detent.runtime.selector import Selector, UnpinnedSelector


class Solution:
    """A solved program for one deployment: the document with names for its parts.

    ``entry`` is whole: one that was just stored, or one that a lookup read with all of its parts.
    ``cached`` says whether it came from the cache, ``seconds`` what this call took.
    """

    def __init__(self, entry: Entry, *, cached: bool, seconds: float) -> None:
        self.entry, self.cached, self.seconds = entry, cached, seconds

    def __repr__(self) -> str:
        pins = ", ".join(pin["name"] for pin in self.pins) or "none"
        return (f"<Solution {self.program} for {self.deployment}: pins {pins}; {self.legal:,} of {self.candidates:,} "
                "assignments legal>")

    @property
    def document(self) -> dict[str, Any]:
        """The whole Solution document (see ``docs/language.md``)."""
        return self.entry.document

    @property
    def key(self) -> str:
        """The solution's cache key."""
        return self.entry.key

    @property
    def program(self) -> str:
        """The program's name."""
        return str(self.document["program"])

    @property
    def deployment(self) -> str:
        """The deployment's name."""
        return str(self.document["deployment"])

    @property
    def values(self) -> int:
        """Values in the optimised graph, conditions included, pins not."""
        return int(self.document["values"])

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Inputs in signature order: name, kind, type, domain, source."""
        return list(self.document["inputs"])

    @property
    def points(self) -> list[dict[str, Any]]:
        """Selection points: constant, or behind which pins, knobs and request inputs."""
        return list(self.document["points"])

    @property
    def pins(self) -> list[dict[str, Any]]:
        """Pins: name, source line, candidates, and whether these are the exact value set or its hull."""
        return list(self.document["pins"])

    @property
    def knobs(self) -> list[dict[str, Any]]:
        """Knobs: name, values, default."""
        return list(self.document["knobs"])

    @property
    def candidates(self) -> int:
        """Assignments: the product of the pins' and knobs' values."""
        return int(self.document["candidates"])

    @property
    def legal(self) -> int:
        """Assignments under which every require holds at every input that the assumes allow."""
        return int(self.document["legal"])

    @property
    def legality(self) -> dict[str, int]:
        """Assignments whose verdict is ``proved``, and those that were only ``sampled``."""
        return dict(self.document["legality"])

    @property
    def default(self) -> dict[str, Any] | None:
        """The default assignment; None if nothing is legal."""
        found = self.document["default"]
        return None if found is None else dict(found)

    def refutation(self, assignment: Mapping[str, Any]) -> dict[str, Any] | None:
        """Why an assignment is illegal: ``{"condition": ..., "witness": ...}``; None if it is legal.

        Raises UnknownName for a pin or knob the solution does not have, NoCandidate for a value that it cannot have,
        DetentError for one that is missing.
        """
        from detent.runtime.errors import NoCandidate, NotLegal

        try:
            self._repin.check(assignment)
        except NoCandidate:
            raise
        except NotLegal as error:
            return {"condition": error.condition, "witness": error.witness}
        return None

    def selector(self, assignment: Mapping[str, Any] | None = None) -> Selector:
        """The compiled selector under an assignment (the default one if None)."""
        return self._repin(self._repin.complete({} if assignment is None else assignment))

    @cached_property
    def _repin(self) -> Repin:
        from detent.runtime.repin import Repin

        return Repin(self.document)

    def unpinned(self) -> UnpinnedSelector:
        """The program as it is, without pins: checks assumes, reports requires."""
        from detent.runtime.selector import UnpinnedSelector

        source = self.entry.unpinned()
        assert source is not None
        return UnpinnedSelector(self.document, source)

    @cached_property
    def graph(self) -> Graph:
        """The optimised graph with its pins marked."""
        from detent.solver.graph_json import graph_from_document

        return graph_from_document(self.entry.graph())

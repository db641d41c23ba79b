"""What an analysis of a graph refuses, with the place and the remedy.

These say that a *program* is at fault, so callers show them as one line and no traceback. An analysis
that is called wrongly (an unknown node, a missing candidate list) raises ``ValueError`` instead.
"""

from __future__ import annotations

from detent.passes.graph import Location


class AnalysisError(Exception):
    """A program that cannot be analysed: what is wrong, where, and what to write instead."""

    def __init__(self, message: str, location: Location | None = None, remedy: str = "") -> None:
        super().__init__(message, location, remedy)  # all three, so that the error survives pickling
        self.message = message
        self.location = location
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location is not None else ""
        return f"{place}{self.message}" + (f"; {self.remedy}" if self.remedy else "")


class NotStraightLine(AnalysisError):
    """A pass ran before the one it builds on: facts are not bound, or branches are left."""


class EmptyDomain(AnalysisError):
    """The assumes contradict each other: no input satisfies all of them."""


class UnboundedInput(AnalysisError):
    """No assume gives this input a finite domain."""


class AssumeNamesSelection(AnalysisError):
    """An assume reads a value of the selection, a pin or a knob; it may read inputs and facts only."""


class UndecidedAssumes(AnalysisError):
    """The search found no input that satisfies all assumes, and no proof that there is none."""


class UnpinnedValue(AnalysisError):
    """A condition reads a batch-dependent value of the selection that is not pinned."""


class TooManyCombinations(AnalysisError):
    """Pins and knobs tied by conditions have more joint values than can be judged one by one."""

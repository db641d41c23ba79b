"""A cell as data: two ways to serve one request, and what must be seen for the comparison to count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from detent.engines.interface import Output, Submission

PAPER, STRONG, EXTENDED, RANDOM = "paper", "strong", "extended", "random"

SEEN, ABSENT, UNTOLD, UNFIT = "seen", "absent", "untold", "unfit"
"""States of evidence: the perturbation happened; it did not; the engine does not tell; the engine has no such thing."""


@dataclass(frozen=True)
class Scenario:
    """Requests served together, from an empty prefix cache.

    ``subjects``: places in ``batch`` of the compared request, several where it is there more than once. ``before``:
    batches served one after another first, without emptying the cache in between. ``fresh``: in a new process.
    """

    batch: tuple[Submission, ...]
    subjects: tuple[int, ...] = (0,)
    before: tuple[tuple[Submission, ...], ...] = ()
    fresh: bool = False


@dataclass(frozen=True)
class Served:
    """What came of a scenario; outputs stand in the order of its submissions."""

    scenario: Scenario
    outputs: tuple[Output, ...]
    before: tuple[tuple[Output, ...], ...] = ()

    @property
    def subjects(self) -> tuple[Output, ...]:
        return tuple(self.outputs[place] for place in self.scenario.subjects)

    @property
    def subject(self) -> Output:
        """The compared request's first copy."""
        return self.outputs[self.scenario.subjects[0]]

    @property
    def all_outputs(self) -> tuple[Output, ...]:
        return (*self.outputs, *(output for outputs in self.before for output in outputs))


@dataclass(frozen=True)
class Evidence:
    """Whether the perturbation is seen in what the engine told. ``text`` is what was seen, or what is missing."""

    state: str
    text: str


Judge = Callable[[Served, Served], Evidence]
"""Evidence from the served reference and the served perturbation."""


class Lab(Protocol):
    """What the plan of a cell may use: some scenarios are made of the outputs of others."""

    def serve(self, scenario: Scenario) -> Served:
        """The scenario's outputs; a scenario that was served before is not served again."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""


Plan = Callable[[Lab], tuple[Scenario, Scenario]]
"""The reference and the perturbed scenario."""

Control = Callable[[Lab, Served, Served], Evidence]
"""Evidence for which other scenarios must be served, beside the reference and the perturbation."""


@dataclass(frozen=True)
class Cell:
    """One comparison of a request's output bits in two batches.

    ``kind``: cells of one kind perturb the same thing. ``what``: the perturbation in words. ``skip``: output tokens
    of the reference which the perturbed scenario's prompt already holds. ``unfit``: why the cell does not apply to
    the target; empty where it does. ``control``: evidence that is needed too, sought only where all else is seen.
    """

    name: str
    group: str
    kind: str
    what: str
    plan: Plan
    judge: Judge
    skip: int = 0
    unfit: str = ""
    control: Control | None = None


def fixed(reference: Scenario, perturbed: Scenario) -> Plan:
    """The plan of a cell whose scenarios are known beforehand."""
    return lambda _: (reference, perturbed)

"""Serves the cells' scenarios on a target and judges what comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

from detent.battery import evidence
from detent.battery.cells import paper, strong
from detent.battery.compare import UNSTEADY, Difference, broken, compare, no_evidence, unsupported
from detent.battery.extended import extended
from detent.battery.random_batches import MOST_BATCHES, random_cell, random_name
from detent.battery.report import (
    CHANGED,
    COULD_NOT_RUN,
    NOT_APPLICABLE,
    NOT_EXERCISED,
    SAME,
    Progress,
    Report,
    Result,
)
from detent.battery.scenario import EXTENDED, PAPER, SEEN, STRONG, UNFIT, Cell, Evidence, Scenario, Served
from detent.battery.workload import Sizes, Workload, alone
from detent.engines.interface import Output, Submission, Target, Unsupported
from detent.runtime.errors import DetentError

SETS: dict[str, tuple[str, ...]] = {PAPER: (PAPER,), STRONG: (STRONG,), EXTENDED: (EXTENDED,),
                                    "all": (PAPER, STRONG, EXTENDED)}
FAILURES = 3
"""Cells in a row at which the target raises an error; after these it is left alone."""


@dataclass(frozen=True)
class Settings:
    """Which cells, and with which prompts. ``sets``: names of :data:`SETS`. ``random``: random batches beside them.
    ``long``: tokens of a long prompt (None: by the target). ``resume``: a file to go on from and to write.

    Raises DetentError for more random batches than a battery takes."""

    sets: tuple[str, ...] = (PAPER,)
    random: int = 0
    seed: int = 0
    long: int | None = None
    resume: str | None = None

    def __post_init__(self) -> None:
        if self.random > MOST_BATCHES:
            raise DetentError(f"{self.random} random batches are more than a battery takes",
                              f"give at most {MOST_BATCHES}; another seed draws others")


def cells_of(work: Workload, settings: Settings) -> list[Cell]:
    """The chosen cells, each once, in the order of the sets."""
    return [make() for make in _makers(work, settings).values()]


def _makers(work: Workload, settings: Settings) -> dict[str, Callable[[], Cell]]:
    """The chosen cells by name. Random batches are made one by one, when their turn comes."""
    groups = dict.fromkeys(group for name in settings.sets for group in SETS[name])
    makers: dict[str, Callable[[Workload], list[Cell]]] = {PAPER: paper, STRONG: strong, EXTENDED: extended}
    found: dict[str, Callable[[], Cell]] = {
        cell.name: partial(_itself, cell) for group in groups for cell in makers[group](work)}
    numbers = range(1, settings.random + 1)
    return found | {random_name(number): partial(random_cell, work, number, settings.seed) for number in numbers}


def _itself(cell: Cell) -> Cell:
    return cell


def verify(target: Target, settings: Settings, progress: Callable[[int, int, str], None] | None = None) -> Report:
    """Run the battery. ``progress`` is told the number of the cell that begins, how many there are, and its name.

    Raises DetentError for settings that do not fit the target; what goes wrong while serving is a cell's verdict.
    """
    traits = target.traits
    sizes = Sizes.of(traits, settings.long)
    # A cache that cannot be emptied may still hold an earlier run's prompts.
    salt = "" if traits.can_flush else os.urandom(4).hex()
    record = Progress(settings.resume, traits, sizes, settings.seed, salt)
    cells = _makers(Workload(traits, sizes, settings.seed, record.salt), settings)
    with Runner(target) as runner:
        for number, (name, make) in enumerate(cells.items(), 1):
            if name not in record.results:
                if progress is not None:
                    progress(number, len(cells), name)
                record.add(runner.run(make()))
    return record.report(list(cells))


def _result(cell: Cell, verdict: str, reason: str, reference: Served | None = None, perturbed: Served | None = None,
            differences: Sequence[Difference] = ()) -> Result:
    return Result(cell.name, cell.group, cell.kind, cell.what, verdict, reason,
                  None if reference is None else evidence.observed(reference),
                  None if perturbed is None else evidence.observed(perturbed), tuple(differences))


class Runner:
    """One target's cells. References that several cells share are served once, where the cache can be emptied."""

    def __init__(self, target: Target) -> None:
        self._target, self._bits = target, target.traits.resolution.endswith("bits")
        self._served: dict[Scenario, Served] = {}
        self._repeats: dict[Scenario, bool] = {}
        self._other: Target | None = None
        self._failures = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._other is not None:
            self._other.close()

    # ---- what a plan may use ------------------------------------------------------------------------------------

    def serve(self, scenario: Scenario) -> Served:
        if scenario not in self._served:
            served = self._run(scenario)
            if any(broken(output, self._bits) for output in served.all_outputs):
                return served  # not kept: it may come out better next time
            self._served[scenario] = served
        return self._served[scenario]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._target.decode(tokens)

    # ---- a cell -------------------------------------------------------------------------------------------------

    def run(self, cell: Cell) -> Result:
        """The cell's result. A target that fails cell after cell is not asked again."""
        if cell.unfit:
            return _result(cell, NOT_APPLICABLE, cell.unfit)
        if self._failures == FAILURES:
            return _result(cell, COULD_NOT_RUN, f"left out after {FAILURES} failures in a row")
        started = time.monotonic()
        try:
            result = self._judged(cell)
            self._failures = 0
        except Unsupported as error:
            result = _result(cell, NOT_APPLICABLE, error.message)
        except DetentError as error:
            result = _result(cell, COULD_NOT_RUN, str(error))
            self._failures += 1
        if not self._target.traits.can_flush:
            self._served.clear()  # its prompts are this cell's own
            self._repeats.clear()
        return replace(result, seconds=time.monotonic() - started)

    def _judged(self, cell: Cell) -> Result:
        reference, perturbed = self._pair(*cell.plan(self))
        for served in (reference, perturbed):
            for output, submission in _asked(served):
                whose = f"{submission.request.name}: " if submission.request.name else ""
                lacking, fault = unsupported(output), broken(output, self._bits)
                if lacking or fault:
                    verdict = NOT_APPLICABLE if lacking else COULD_NOT_RUN
                    return _result(cell, verdict, whose + (lacking or fault), reference, perturbed)
        found = cell.judge(reference, perturbed)
        differences = self._differences(reference, perturbed, cell.skip)
        if differences:
            differences = self._steady(reference, differences)
            doubt = "" if found.state == SEEN else "the perturbation was not seen: "
            return _result(cell, CHANGED, doubt + found.text, reference, perturbed, differences)
        if found.state == UNFIT:
            return _result(cell, NOT_APPLICABLE, found.text, reference, perturbed)
        asked = perturbed.scenario.batch[perturbed.scenario.subjects[0]].request.max_tokens
        nothing = no_evidence(perturbed.subject, asked, self._bits)
        if found.state == SEEN and cell.control is not None and not nothing:
            more = cell.control(self, reference, perturbed)
            found = Evidence(more.state, f"{found.text}; {more.text}" if more.state == SEEN else more.text)
        if found.state != SEEN or nothing:
            return _result(cell, NOT_EXERCISED, nothing or found.text, reference, perturbed)
        return _result(cell, SAME, found.text, reference, perturbed)

    def _pair(self, reference: Scenario, perturbed: Scenario) -> tuple[Served, Served]:
        """Both served, in the order that gives each the cache it needs."""
        if self._target.traits.can_flush or reference in self._served:
            return self.serve(reference), self._run(perturbed)
        if perturbed.before and not reference.before:
            # Nothing empties the cache. A prompt that is to be found whole is served first by the reference; one of
            # which a part is to be found must not be there, so its reference comes last and finds all of it.
            whole = perturbed.batch[perturbed.subjects[0]].request.prompt
            if any(s.request.prompt == whole for batch in perturbed.before for s in batch):
                return self.serve(reference), self._run(perturbed)
            served = self._run(perturbed)
            return self.serve(reference), served
        for place in reference.subjects:
            # Both find the whole prompt in the cache.
            self._run(alone(replace(reference.batch[place].request, max_tokens=1)))
        return self.serve(reference), self._run(perturbed)

    def _run(self, scenario: Scenario) -> Served:
        target = self._restarted() if scenario.fresh else self._target
        if target.traits.can_flush:
            target.flush()
        before = tuple(tuple(target.run(batch)) for batch in scenario.before)
        return Served(scenario, tuple(target.run(scenario.batch)), before)

    def _restarted(self) -> Target:
        """The fresh process. Raises DetentError where it is another engine: sources or a tuple changed meanwhile."""
        if self._other is None:
            try:
                self._other = self._target.fresh()
            except DetentError as error:
                raise Unsupported(str(error)) from error
        was, now = self._target.traits, self._other.traits
        different = [name for name in sorted({*was.environment, *now.environment})
                     if was.environment.get(name) != now.environment.get(name)]
        if different:
            raise DetentError(f"the new process has another {', '.join(different)}", "run the battery again")
        return self._other

    def _differences(self, reference: Served, perturbed: Served, skip: int) -> list[Difference]:
        before = [output for batch in perturbed.before for output in batch]
        found = (compare(reference.subject, output, skip, self._bits, copy, before)
                 for copy, output in enumerate(perturbed.subjects))
        return [difference for difference in found if difference is not None]

    def _steady(self, reference: Served, differences: list[Difference]) -> list[Difference]:
        """The differences, with another diagnosis where the reference does not come out the same once more."""
        scenario = reference.scenario
        if scenario not in self._repeats:
            again = self._run(scenario)
            self._repeats[scenario] = any(broken(output, self._bits) for output in again.subjects) or \
                compare(reference.subject, again.subject, 0, self._bits) is None
        return differences if self._repeats[scenario] else [replace(d, diagnosis=UNSTEADY) for d in differences]


def _asked(served: Served) -> list[tuple[Output, Submission]]:
    submissions = [*served.scenario.batch, *(s for batch in served.scenario.before for s in batch)]
    return list(zip(served.all_outputs, submissions, strict=True))

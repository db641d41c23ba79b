"""Programs on deployments, all with all: what the cache has is read, the rest is solved in several processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detent.cli.errors import does_not_apply, line

if TYPE_CHECKING:
    from concurrent.futures import Future

    from detent.runtime.cache import Store
    from detent.runtime.deployment import Deployment

SLOW_FIRST = ("attention", "moe", "allreduce")
"""Programs whose solves take longest, begun first so that no process is left with one at the end."""


@dataclass(frozen=True)
class Cell:
    """A program on a deployment: its solution's ``document``, or why there is none.

    ``status``: ``solved``, ``absent`` (the program does not apply to the deployment) or ``refused``. ``known``:
    without solving.
    """

    program: str
    deployment: Deployment
    status: str
    document: Mapping[str, Any] | None = None
    reason: str = ""
    known: bool = False


Job = tuple[str, "Deployment"]
Result = tuple[str, str, "Mapping[str, Any] | None"]
"""Status, reason and document of a job, as another process tells it."""


def overview(programs: Sequence[str], deployments: Sequence[Deployment], progress: Callable[[str], None],
             store: Store | None = None, workers: int | None = None) -> list[Cell]:
    """A cell for every pair, by deployment and then by program.

    ``workers``: processes at most, without it as many as there are processors. ``progress`` is told what is done.
    """
    from detent.runtime.cache import Store

    cache = store if store is not None else Store()
    memory = _Memory(cache)
    cells: dict[tuple[str, str], Cell] = {}
    jobs: list[Job] = []
    for deployment in deployments:
        for program in programs:
            found = memory.find(program, deployment)
            if found is None:
                jobs.append((program, deployment))
            else:
                cells[program, deployment.id] = found
    jobs.sort(key=lambda job: SLOW_FIRST.index(job[0]) if job[0] in SLOW_FIRST else len(SLOW_FIRST))
    for cell in _solved(jobs, memory, progress, workers or os.cpu_count() or 1):
        cells[cell.program, cell.deployment.id] = cell
    return [cells[program, deployment.id] for deployment in deployments for program in programs]


def _solved(jobs: list[Job], memory: _Memory, progress: Callable[[str], None], workers: int) -> Iterator[Cell]:
    """The jobs' cells in the order in which they are done.

    Before a job begins the cache is looked at again: a deployment that differs in nothing the program reads may have
    been solved meanwhile.
    """
    waiting = list(jobs)
    if len(waiting) < 2 or workers < 2:
        for done, job in enumerate(waiting):
            progress(f"{done} of {len(jobs)}, {_name(job)}")
            yield memory.find(*job) or memory.cell(job, _solve(*_told(job, memory)))
        return
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

    running: dict[Future[Result], Job] = {}
    done = 0
    # A forked child would inherit the progress line's thread half-way; a new interpreter imports the compiler once.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(waiting)), mp_context=context) as pool:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    job = _next(waiting, list(running.values()))
                    found = memory.find(*job)
                    if found is not None:
                        done += 1
                        yield found
                    else:
                        running[pool.submit(_solve, *_told(job, memory))] = job
                progress(f"{done} of {len(jobs)}, {', '.join(map(_name, running.values()))}")
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    done += 1
                    yield memory.cell(running.pop(future), future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _next(waiting: list[Job], running: Sequence[Job]) -> Job:
    """Take the next job, rather one of another model than is being solved: one model's often have one solution."""
    busy = [(program, deployment.facts.get("model")) for program, deployment in running]
    job = next((job for job in waiting if (job[0], job[1].facts.get("model")) not in busy), waiting[0])
    waiting.remove(job)
    return job


def _name(job: Job) -> str:
    return f"{job[0]} for {job[1].name}"


def _told(job: Job, memory: _Memory) -> tuple[str, str, str]:
    """A job as another process is told it: what it needs is on disk."""
    program, deployment = job
    return program, deployment.id, memory.store.directory


def _solve(program: str, deployment: str, directory: str) -> Result:
    """Solve one job, which also stores it."""
    from detent.passes.errors import AnalysisError
    from detent.runtime.cache import Store
    from detent.runtime.errors import DetentError
    from detent.solver.solve import solve

    try:
        document = solve(program, deployment, store=Store(directory)).document
    except (SyntaxError, AnalysisError, DetentError) as error:
        return ("absent" if does_not_apply(error) else "refused"), line(error), None
    return "solved", "", document


class _Memory:
    """What is known of a job before it is solved: its solution, or that the program does not apply.

    The latter is remembered under everything it can hang on: the programs' texts and all of the deployment's facts.
    """

    def __init__(self, store: Store) -> None:
        from detent.runtime.deployment import PROGRAMS
        from detent.runtime.sources import hash_sources

        self.store = store
        self._texts = hash_sources(PROGRAMS)

    def find(self, program: str, deployment: Deployment) -> Cell | None:
        from detent.runtime.entry import Entry
        from detent.runtime.sources import resolve

        found = self.store.find_solution(resolve(program), deployment)
        if isinstance(found, Entry):
            return Cell(program, deployment, "solved", found.document, known=True)
        section = self.store.shelf.read_memo(self._key(program, deployment)) if self.store.usable else None
        if section is None:
            return None
        return Cell(program, deployment, "absent", reason=f"no facts [{section}]", known=True)

    def cell(self, job: Job, result: Result) -> Cell:
        """The cell of a job that was just done."""
        program, deployment = job
        status, reason, document = result
        section = re.search(r"no facts \[(\w+)\]", reason)
        if status == "absent" and section is not None:
            if self.store.usable:
                self.store.shelf.write_memo(self._key(program, deployment), section[1])
            reason = section[0]
        return Cell(program, deployment, status, document, reason)

    def _key(self, program: str, deployment: Deployment) -> str:
        from detent.runtime.encoding import digest, ordered
        from detent.runtime.sources import resolve

        return digest("does not apply", self.store.key(resolve(program)), self._texts, ordered(deployment.facts))

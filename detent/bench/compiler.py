"""What the compiler and its serve-time half take: measured for ``detent bench compiler`` and for ``benchmarks/``.

Nothing here passes or fails. Times are wall clock; the compile side comes in as functions, so that this module
needs the runtime only.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from detent.runtime.cache import Store
from detent.runtime.errors import DetentError
from detent.runtime.load import load_selector
from detent.runtime.repin import Repin
from detent.runtime.sources import PACKAGE

PROGRAM = "attention"
DEPLOYMENT = "qwen3-30b-a3b-tp4-h100"
STEPS = 10_000
"""Decode steps of the trace."""

Inputs = tuple[int, int, int, int, int, bool]
"""``b, max_seqlen_q, max_seqlen_k, total_q, table_width, in_graph`` of the attention program."""


class Solved(Protocol):
    """What is needed of a solution."""

    @property
    def document(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Compiler:
    """The compile side: ``solve(program, deployment, store)``, and ``judging(solution)``, which prepares to judge
    all candidates and returns the function that does it."""

    solve: Callable[[str, str, Store], Solved]
    judging: Callable[[Any], Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One thing to measure. ``run`` is timed on what ``prepare`` made; one run does ``calls`` equal calls.

    ``must_s``: what one call must reach on two cores, in seconds. ``runs``: how often it is usually run.
    """

    name: str
    what: str
    must_s: float
    runs: int
    prepare: Callable[[], Any]
    run: Callable[[Any], object]
    calls: int = 1


@dataclass(frozen=True)
class Result:
    """Seconds a call: the median of the runs, and the quartiles as their spread (the extremes of few runs)."""

    case: Case
    median: float
    low: float
    high: float
    runs: int

    def as_json(self) -> dict[str, Any]:
        """Plain data, all times in seconds."""
        return {"name": self.case.name, "what": self.case.what, "median_s": self.median, "low_s": self.low,
                "high_s": self.high, "runs": self.runs, "calls": self.case.calls, "must_s": self.case.must_s}


def measure(case: Case, runs: int | None = None) -> Result:
    """Run a case ``runs`` times, by default as often as it says, after one run that is not counted."""
    count = case.runs if runs is None else runs
    case.run(case.prepare())
    times = []
    for _ in range(count):
        subject = case.prepare()
        started = time.perf_counter()
        case.run(subject)
        times.append((time.perf_counter() - started) / case.calls)
    low, high = min(times), max(times)
    if count >= 4:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return Result(case, statistics.median(times), low, high, count)


def cases(compiler: Compiler, folder: str) -> list[Case]:
    """Everything that is measured. ``folder`` is an empty directory that outlives the cases; caches go there."""
    store = Store(os.path.join(folder, "warm"))
    solution = compiler.solve(PROGRAM, DEPLOYMENT, store)
    document = solution.document
    load_selector(PROGRAM, DEPLOYMENT, on_miss="stop", store=store)  # the selector gets its entry
    repin = Repin(document)
    default = document["default"]
    other = next(dict(default, **dict(zip(part["names"], part["legal"][-1], strict=True)))
                 for part in document["components"])

    def empty() -> Store:
        return Store(tempfile.mkdtemp(dir=folder))

    def cold(cache: Store) -> None:
        compiler.solve(PROGRAM, DEPLOYMENT, cache)

    def cold_process(cache: Store) -> None:
        _python(cache, "-c", f"import detent; detent.solve({PROGRAM!r}, {DEPLOYMENT!r}).selector()")

    def load_process(cache: Store) -> None:
        _python(cache, "-c", "from detent.runtime import load_selector; "
                f"load_selector({PROGRAM!r}, {DEPLOYMENT!r}, on_miss='stop')")

    def solve_process(cache: Store) -> None:
        _python(cache, "-m", "detent", "solve", PROGRAM, "--deployment", DEPLOYMENT, "--json")

    judge = compiler.judging(solution)
    trace = decode_trace()
    distinct = list(dict.fromkeys(trace))
    seen = repin(default)
    _drive((seen, trace))
    return [
        Case("cold-process", "cold solve with judging and selector, process start to end", 2.5, 5, empty, cold_process),
        Case("cold", "cold solve in a running process", 2.5, 5, empty, cold),
        Case("judge", f"judging all {document['candidates']:,} candidates", 0.05, 15, lambda: None, lambda _: judge()),
        Case("hit", "cache hit in a running process", 0.005, 50, lambda: store, cold),
        Case("hit-runtime", "cache hit in a fresh process, detent.runtime", 0.08, 15, lambda: store, load_process),
        Case("hit-command", "cache hit in a fresh process, detent solve --json", 0.15, 15, lambda: store,
             solve_process),
        Case("repin", "repin", 0.001, 200, lambda: other, repin),
        Case("seen", f"selector, inputs seen before, {STEPS:,} decode steps", 0.5e-6, 15, lambda: (seen, trace),
             _drive, len(trace)),
        Case("new", f"selector, new inputs, {len(distinct):,} of these steps", 20e-6, 15,
             lambda: (repin(default), distinct), _drive, len(distinct)),
    ]


def decode_trace(steps: int = STEPS, seed: int = 2_026) -> list[Inputs]:
    """Attention inputs of an engine that decodes under load, as ``Inputs`` in the program's order.

    Requests arrive at random with prompts of a few thousand tokens and leave when they are done. Each step adds a
    token to every running request: a batch size repeats often, the longest context hardly ever.
    """
    rng = random.Random(seed)
    running: list[list[int]] = []  # context length, tokens left
    trace: list[Inputs] = []
    while len(trace) < steps:
        while len(running) < 64 and (not running or rng.random() < 0.2):
            running.append([min(int(rng.lognormvariate(7.5, 0.8)), 36_000), rng.randrange(16, 1_024)])
        for request in running:
            request[0] += 1
            request[1] -= 1
        size, longest = len(running), max(length for length, _ in running)
        trace.append((size, 1, longest, size, -(-longest // 16), True))
        running = [request for request in running if request[1] > 0]
    return trace


def _drive(subject: tuple[Callable[..., object], Sequence[Inputs]]) -> None:
    selector, trace = subject
    for step in trace:
        selector(*step)


def _python(cache: Store, *arguments: str) -> None:
    """Run Python to its end with this Detent and this cache. Raises DetentError if it fails."""
    paths: Iterable[str | None] = (os.path.dirname(PACKAGE), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "DETENT_CACHE_DIR": cache.directory,
                   "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = subprocess.run([sys.executable, "-P", *arguments], env=environment, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:] or [f"exit code {run.returncode}"]
        raise DetentError(f"a measured process failed: {last[0]}", "leave Detent's sources alone while it is measured")

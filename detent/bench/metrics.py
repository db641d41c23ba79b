"""One run in numbers: latency per output token, time to first token, decode step, throughput, and what was cached."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detent.bench.load import in_flight
from detent.bench.workloads import Replay
from detent.engines.interface import Output

PERCENTILES = (50, 90, 99)
GROWTH = 0.5
"""A queue grows if over the arrivals it rises by more than this share of its mean ..."""
CHANCE = 2.0
"""... and by more than so many standard deviations of the number of Poisson arrivals in that time."""


@dataclass(frozen=True)
class Run:
    """Times in seconds, by percentile where they are dicts. ``latency``: per output token, from arrival to the last
    token. ``ttft``: to the first. ``step``: between two tokens of a request. ``cached``: share of prompt tokens read
    from the prefix cache (None: the engine does not tell). ``beyond``: prompt tokens cached although no earlier
    request of the replay has them. ``growing``: whether the queue grew until the arrivals ended. ``latencies`` and
    ``digests``: one a request; a digest covers its tokens and the bits of their logprobs, and is empty where the
    engine shows neither. ``bare``: requests whose tokens came without logprobs.
    """

    latency: dict[str, float]
    ttft: dict[str, float]
    step: dict[str, float]
    requests_per_s: float
    tokens_per_s: float
    seconds: float
    cached: float | None
    beyond: int | None
    growing: bool
    latencies: tuple[float, ...]
    digests: tuple[str, ...]
    bare: int

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def measured(replay: Replay, outputs: Sequence[Output]) -> Run:
    """The numbers of a run, from its outputs in the order of the requests."""
    latencies = [(output.times[-1] - output.arrival) / len(output.tokens) for output in outputs]
    first = [output.times[0] - output.arrival for output in outputs]
    steps = [after - before for output in outputs
             for before, after in zip(output.times, output.times[1:], strict=False)]
    seconds = max(output.times[-1] for output in outputs) - min(output.arrival for output in outputs)
    tokens = sum(len(output.tokens) for output in outputs)
    cached = beyond = None
    known = [output.cached for output in outputs if output.cached is not None]
    if len(known) == len(outputs):
        cached = sum(known) / sum(len(request.prompt) for request in replay.requests)
        beyond = sum(max(0, have - may) for have, may in zip(known, replay.shared, strict=True))
    return Run(
        latency=percentiles(latencies), ttft=percentiles(first), step=percentiles(steps or [0.0]),
        requests_per_s=len(outputs) / seconds, tokens_per_s=tokens / seconds, seconds=seconds, cached=cached,
        beyond=beyond, growing=replay.concurrency is None and max(replay.arrivals or (0.0,)) > 0 and growing(outputs),
        latencies=tuple(latencies), digests=tuple(_digest(output) for output in outputs),
        bare=sum(not output.logprobs for output in outputs))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """``p50``, ``p90``, ``p99`` and ``mean``; between two values by their distance."""
    ranked = sorted(values)
    found = {}
    for percent in PERCENTILES:
        place = percent / 100 * (len(ranked) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ranked) - 1)
        found[f"p{percent}"] = ranked[low] + (ranked[high] - ranked[low]) * (place - low)
    return found | {"mean": math.fsum(values) / len(values)}


def growing(outputs: Sequence[Output]) -> bool:
    """Whether more and more requests were in flight while requests arrived.

    By the slope of the number in flight at each arrival. The first quarter is left out: every queue grows from none.
    """
    ordered = sorted(outputs, key=lambda output: output.arrival)
    counts = in_flight(ordered)[len(ordered) // 4:]
    times = [output.arrival for output in ordered][len(ordered) // 4:]
    if len(counts) < 2 or times[0] == times[-1]:
        return False
    slope = statistics.linear_regression(times, counts).slope
    rise = slope * (times[-1] - times[0])
    return rise > max(CHANCE * math.sqrt(len(counts)), GROWTH * statistics.fmean(counts))


def _digest(output: Output) -> str:
    """Empty where the engine shows neither ids (they are below zero) nor logprobs."""
    if not output.logprobs and min(output.tokens) < 0:
        return ""
    told = hashlib.sha256(repr(output.tokens).encode())
    for bits in output.logprobs:
        told.update(len(bits).to_bytes(2) + bits)
    return told.hexdigest()[:16]

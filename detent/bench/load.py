"""Driving an engine: requests at their times, whether or not it keeps up, or a fixed number in flight.

The driver is one thread. An engine that computes in this process does so inside :meth:`Server.poll`, so a request
whose time comes during a step is handed over after it; its latency counts from its time all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from detent.bench.workloads import Replay
from detent.engines.interface import Output, Request, Traits
from detent.runtime.errors import DetentError


class Server(Protocol):
    """An engine that is serving. Raises :class:`DetentError` for what a user can act on."""

    @property
    def traits(self) -> Traits: ...

    def now(self) -> float:
        """Seconds on the clock of arrivals and of ``Output.times``."""

    def submit(self, request: Request, arrival: float) -> int:
        """Hand a request over. ``arrival``: the time it counts from, not after now. A number that names it."""

    def poll(self, until: float | None) -> list[tuple[int, Output]]:
        """Serve or wait until a request has ended, or until the clock shows ``until``; what has ended by then.

        Without ``until`` it returns only once a request has ended.
        """

    def flush(self) -> None:
        """Empty the prefix cache. Only if ``traits.can_flush``."""

    def close(self) -> None:
        """Let go of the engine."""


Progress = Callable[[int, int], None]
"""Called with the number of requests that have ended and of all."""


def drive(server: Server, replay: Replay, progress: Progress = lambda done, count: None) -> list[Output]:
    """Send a replay and wait for its end: the outputs in its order.

    Raises DetentError if a request was refused, or gave another number of tokens than it was to give.
    """
    count = len(replay.requests)
    outputs: dict[int, Output] = {}
    indices: dict[int, int] = {}
    start = server.now()
    sent = 0

    def send(arrival: float) -> None:
        nonlocal sent
        indices[server.submit(replay.requests[sent], arrival)] = sent
        sent += 1

    while len(outputs) < count:
        until = None
        if replay.arrivals is not None:
            now = server.now()
            while sent < count and start + replay.arrivals[sent] <= now:
                send(start + replay.arrivals[sent])
            if sent < count:
                until = start + replay.arrivals[sent]
        else:
            while sent < count and sent - len(outputs) < (replay.concurrency or 1):
                send(server.now())
        for key, output in server.poll(until):
            index = indices.pop(key)
            check(replay.requests[index], output)
            outputs[index] = output
        progress(len(outputs), count)
    return [outputs[index] for index in range(count)]


def check(request: Request, output: Output) -> None:
    """Raise DetentError unless the request was served as the workload says."""
    what = f"request {request.name!r}"
    if output.finish == "refused":
        raise DetentError(f"{what} was refused: {output.error}", "start the engine with larger limits, or give a "
                          "smaller --scale")
    if len(output.tokens) != request.max_tokens or len(output.times) != request.max_tokens:
        raise DetentError(f"{what} has {len(output.tokens)} tokens with {len(output.times)} times and was to have "
                          f"{request.max_tokens}", "every request must run to its length: the engine must honour "
                          "ignore_eos and show when each token came")


def in_flight(outputs: Sequence[Output]) -> list[int]:
    """For each output, how many of the others had arrived before it and had not ended at its arrival."""
    import bisect

    ordered = sorted(outputs, key=lambda output: output.arrival)
    arrivals = [output.arrival for output in ordered]
    ends = sorted(output.times[-1] for output in outputs)
    return [bisect.bisect_left(arrivals, at) - bisect.bisect_right(ends, at)
            for at in (output.arrival for output in outputs)]

"""The embedded engine under load: requests come while it computes, one step at a time."""

from __future__ import annotations

import time

from detent.engines.embedded.engine import Engine
from detent.engines.interface import Output, Request, Traits


class Serving:
    """An engine that is driven by :func:`detent.bench.load.drive`. It computes inside :meth:`poll`, nowhere else."""

    def __init__(self, engine: Engine, traits: Traits) -> None:
        self._engine, self._traits = engine, traits

    @property
    def traits(self) -> Traits:
        return self._traits

    def now(self) -> float:
        return time.perf_counter()  # the engine's clock

    def submit(self, request: Request, arrival: float) -> int:
        return self._engine.add(request, arrival=arrival)

    def poll(self, until: float | None) -> list[tuple[int, Output]]:
        while self._engine.busy:
            ended = self._engine.step()
            if ended or (until is not None and self.now() >= until):
                return ended
        if until is not None:
            time.sleep(max(0.0, until - self.now()))
        return []

    def flush(self) -> None:
        self._engine.flush()

    def close(self) -> None:
        """The engine ends with its last reference."""

"""An engine that is a queue with a virtual clock: steps take the time that a formula says, and always the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from detent.engines.interface import Output, Request, Traits

TRAITS = Traits("simulated", "simulated", "stock", "toy", vocabulary=500, context=40_000, page=16, max_seqs=32,
                special=(0, 1), can_flush=True)


@dataclass
class Queue:
    """Serves up to ``max_seqs`` requests a step; a step takes ``base + per_request * requests + per_token * prompt
    tokens``. The prefix cache holds whole pages. ``bits`` gives a token's logprob from the requests of its step."""

    traits: Traits = TRAITS
    base: float = 0.01
    per_request: float = 0.001
    per_token: float = 0.0001
    bits: Callable[[int], bytes] = lambda batch: b"same"
    clock: float = 0.0
    waiting: list[tuple[int, Request, float]] = field(default_factory=list)
    running: list[tuple[int, Request, float, int, list[float], list[bytes]]] = field(default_factory=list)
    pages: set[tuple[int, ...]] = field(default_factory=set)
    submitted: int = 0
    flushes: int = 0
    closed: bool = False

    def now(self) -> float:
        return self.clock

    def submit(self, request: Request, arrival: float) -> int:
        assert arrival <= self.clock
        self.submitted += 1
        self.waiting.append((self.submitted, request, arrival))
        return self.submitted

    def flush(self) -> None:
        self.pages.clear()
        self.flushes += 1

    def close(self) -> None:
        self.closed = True

    def poll(self, until: float | None) -> list[tuple[int, Output]]:
        while self.waiting or self.running:
            if done := self._step():
                return done
            if until is not None and self.clock >= until:
                return []
        assert until is not None, "nothing to wait for"
        self.clock = max(self.clock, until)
        return []

    def _step(self) -> list[tuple[int, Output]]:
        new = 0
        while self.waiting and len(self.running) < (self.traits.max_seqs or 1):
            key, request, arrival = self.waiting.pop(0)
            cached = self._cached(request.prompt)
            new += len(request.prompt) - cached
            self.running.append((key, request, arrival, cached, [], []))
        self.clock += self.base + self.per_request * len(self.running) + self.per_token * new
        done = []
        for key, request, arrival, cached, times, bits in list(self.running):
            times.append(self.clock)
            bits.append(self.bits(len(self.running)))
            if len(times) == request.max_tokens:
                done.append((key, Output(tuple(range(len(times))), tuple(bits), cached=cached, arrival=arrival,
                                         times=tuple(times))))
        self.running = [entry for entry in self.running if len(entry[4]) < entry[1].max_tokens]
        return done

    def _cached(self, prompt: tuple[int, ...]) -> int:
        """Tokens of the prompt whose pages are there, never all of them; its own pages are there from now on."""
        page = self.traits.page or 1
        edges = range(page, len(prompt), page)
        found = 0
        for edge in edges:
            if prompt[:edge] not in self.pages:
                break
            found = edge
        self.pages.update(prompt[:edge] for edge in edges)
        return found

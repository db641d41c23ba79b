"""A scripted engine: schedules like a real one, computes nothing, and has the faults that a test gives it.

A token and its log-probability are functions of the ids before it, of the request's sampling and seed; a fault is a
function of how the token was computed, and its value goes into the last bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from detent.engines.interface import Output, Request, Step, Submission, Traits
from detent.runtime.errors import DetentError

MASK = (1 << 64) - 1
EVIDENCE = frozenset({"batch", "row", "tokens", "graph", "selections", "cached", "chunks", "preemptions"})
TRAITS = Traits(name="fake", engine="fake", arm="stock", model="none", vocabulary=1000, context=2048, page=16,
                budget=1024, max_seqs=300, captures=(1, 8, 64), boundaries=(24,), special=(0, 1), evidence=EVIDENCE,
                can_preempt=True, can_flush=True)


@dataclass
class Serving:
    """A request being served. ``index``: output tokens so far."""

    submission: Submission
    place: int
    tokens: list[int] = field(default_factory=list)
    probs: list[bytes] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    hashes: list[int] = field(default_factory=lambda: [0])  # of the first n ids
    paged: int = 0  # ids whose pages are in the cache
    computed: int = 0
    cached: int | None = None
    from_decode: bool = False  # whether pages that decoding wrote came from the cache
    chunks: list[int] = field(default_factory=list)
    preemptions: int = 0
    finish: str = ""

    @property
    def request(self) -> Request:
        return self.submission.request

    @property
    def index(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)

    def hash_of(self, count: int) -> int:
        """A number that stands for the first ``count`` ids."""
        prompt = len(self.request.prompt)
        for at in range(len(self.hashes) - 1, count):
            token = self.request.prompt[at] if at < prompt else self.tokens[at - prompt]
            self.hashes.append((self.hashes[-1] * 6364136223846793005 + (token + 1) * 1442695040888963407) & MASK)
        return self.hashes[count]


@dataclass(frozen=True)
class View:
    """What a fault may depend on: the step, the request and the engine's past."""

    mine: Serving
    batch: list[Serving]
    row: int
    tokens: int
    graph: bool
    engine: Fake

    @property
    def others(self) -> list[Serving]:
        return [each for each in self.batch if each is not self.mine]


Fault = Callable[[View], int]


class Fake:
    """The target. ``fault``: value for the last bits. ``select``: points in force. ``hidden``: evidence not told."""

    def __init__(self, fault: Fault = lambda view: 0, select: Callable[[View], Mapping[str, Any]] = lambda view: {},
                 hidden: frozenset[str] = frozenset(), **traits: Any) -> None:
        self.fault, self.select, self.hidden = fault, select, hidden
        self.traits = replace(TRAITS, evidence=EVIDENCE - hidden, **traits)
        self.pages: dict[int, bool] = {}
        self.runs = self.stops = self.preempted = self.unseeded = 0
        self.restarted = self.closed = False
        self.parent: Fake | None = None

    # ---- the interface ------------------------------------------------------------------------------------------

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        self.runs += 1
        for request in (s.request for s in submissions):
            assert request.prompt and 0 < request.max_tokens <= self.traits.context - len(request.prompt), request.name
            assert not set(request.prompt) & set(self.traits.special)
        waiting = [Serving(s, place) for place, s in enumerate(submissions)]
        every, running = list(waiting), list[Serving]()
        while waiting or running:
            self._step(every, waiting, running)
        return [self._output(each) for each in every]

    def flush(self) -> None:
        assert self.traits.can_flush
        self.pages.clear()

    def fresh(self) -> Fake:
        other = Fake(self.fault, self.select, self.hidden)
        other.traits, other.restarted, other.parent = self.traits, True, self
        return other

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(2 + ord(character) % 90 for character in text)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(97 + token % 26) for token in tokens)

    def close(self) -> None:
        self.closed = True

    # ---- one step -----------------------------------------------------------------------------------------------

    def _step(self, every: list[Serving], waiting: list[Serving], running: list[Serving]) -> None:
        started = every[0].index if not every[0].finish else MASK
        ready = [each for each in waiting if each.submission.start <= started]
        left, work = self.traits.budget or MASK, list[tuple[Serving, int]]()
        for each in running:
            count = min(each.length - each.computed, left)
            work.append((each, count))
            left -= count
        for each in ready:
            if left < 1 or len(work) >= (self.traits.max_seqs or MASK):
                break
            self._look_up(each)
            count = min(each.length - each.computed, left)
            work.append((each, count))
            left -= count
            waiting.remove(each)
            running.append(each)
        work = [(each, count) for each, count in work if count]
        batch, total = [each for each, _ in work], sum(count for _, count in work)
        graph = total <= max(self.traits.captures, default=0)
        for row, (each, count) in enumerate(work):
            if each.computed < len(each.request.prompt) and not each.preemptions:
                each.chunks.append(count)
            each.computed += count
            if each.computed == each.length:
                self._token(View(each, batch, row, total, graph, self))
        for each in batch:
            self._after(each, waiting, running)

    def _look_up(self, each: Serving) -> None:
        page, found = self.traits.page or 1, 0
        while found + page < each.length and each.hash_of(found + page) in self.pages:
            found += page
            each.from_decode |= self.pages[each.hash_of(found)]
        each.computed = found
        each.cached = found if each.cached is None else each.cached

    def _token(self, view: View) -> None:
        mine, sampling = view.mine, view.mine.request.sampling
        seed = -1 if sampling.seed is None else sampling.seed
        drawn = (sampling.temperature, seed, sampling.top_p, sampling.top_k) if sampling.temperature else ()
        state = hash((mine.hash_of(mine.length), drawn)) & MASK
        if sampling.temperature and sampling.seed is None:
            self.unseeded += 1
            state ^= self.unseeded * 0x9E3779B97F4A7C15 & MASK
        value = -1.0 - (state % 10**6) / 10**6
        (bits,) = struct.unpack(">Q", struct.pack(">d", value))
        probability = struct.pack(">Q", bits ^ self.fault(view))
        if not self.traits.resolution.endswith("bits"):
            probability = repr(struct.unpack(">d", probability)[0]).encode()
        mine.probs.append(probability)
        told = {"batch": len(view.batch), "row": view.row, "tokens": view.tokens, "graph": view.graph,
                "selections": self.select(view)}
        mine.steps.append(Step(**{k: v for k, v in told.items() if k not in self.hidden}))
        mine.tokens.append(2 + (state >> 20) % (self.traits.vocabulary - 2))

    def _after(self, each: Serving, waiting: list[Serving], running: list[Serving]) -> None:
        page = self.traits.page or 1
        while each.paged + page <= each.computed:
            each.paged += page
            self.pages.setdefault(each.hash_of(each.paged), each.paged > len(each.request.prompt))
        if each.request.stop and any(stop in self.decode(each.tokens) for stop in each.request.stop):
            each.finish = "stop"
            self.stops += 1
        elif each.index >= each.request.max_tokens:
            each.finish = "length"
        if each.finish:
            running.remove(each)
        elif each.submission.preempt == each.index and not each.preemptions:
            each.preemptions += 1
            self.preempted += 1
            running.remove(each)
            each.submission = replace(each.submission, start=0)
            waiting.append(each)

    def _output(self, each: Serving) -> Output:
        told = {"cached": each.cached, "chunks": tuple(each.chunks), "preemptions": each.preemptions}
        return Output(tuple(each.tokens), tuple(each.probs), tuple(each.steps), finish=each.finish,
                      **{k: v for k, v in told.items() if k not in self.hidden})


class Dead(Fake):
    """An engine that fails every run."""

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        self.runs += 1
        raise DetentError("http://127.0.0.1:9 does not answer", "start the server")

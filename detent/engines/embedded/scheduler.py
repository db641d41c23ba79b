"""Which requests compute how many tokens in the next step: continuous batching with chunked prefill."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from detent.engines.embedded.cache import Cache
from detent.engines.embedded.config import Limits
from detent.engines.interface import Request, Step, Written


@dataclass(eq=False)
class Sequence:
    """A request in the engine. ``tokens``: prompt and output so far; the first ``computed`` have keys and values in
    ``pages``. ``keys``: those of its whole pages. ``hash``: the tuple it runs under, once it has begun. ``began``:
    output tokens when it last began. ``given``: its last page, if it is not one of a stored prefix."""

    id: int
    request: Request
    arrival: float
    seed: int
    preempt: int | None = None
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    given: int | None = None
    keys: list[bytes] = field(default_factory=list)
    hash: str = ""
    cached: int | None = None
    chunks: list[int] = field(default_factory=list)
    preemptions: int = 0
    began: int = 0
    steps: list[Step] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)

    @property
    def output(self) -> list[int]:
        """Output tokens so far."""
        return self.tokens[len(self.request.prompt):]

    @property
    def outputs(self) -> int:
        """How many output tokens there are."""
        return len(self.tokens) - len(self.request.prompt)


@dataclass(frozen=True)
class Slice:
    """A request's part of a step: its next ``count`` tokens that have no keys and values yet."""

    sequence: Sequence
    count: int

    @property
    def last(self) -> bool:
        """Whether the step gives the request its next output token."""
        return self.sequence.computed + self.count == len(self.sequence.tokens)


class Scheduler:
    """Requests that run, in the order of their rows, and those that wait."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running
        yield from self.waiting

    @property
    def begun(self) -> bool:
        """Whether a request has begun and not ended, pre-empted ones included."""
        return any(sequence.hash for sequence in self)

    def plan(self, cache: Cache, hash: str, *, admit: bool = True) -> list[Slice]:
        """The next step. Requests that run go first, in their order; then, with what is left of the budget, those
        that wait. Pages are found by pre-empting the youngest. Without ``admit`` no request begins."""
        budget, plan, preempted = self.limits.budget, [], False
        for sequence in list(self.running):
            count = min(len(sequence.tokens) - sequence.computed, budget)
            if count == 0 or not sequence.pages:  # pre-empted a moment ago
                continue
            while sequence.pages and not self._reserve(sequence, count, cache):
                preempted = True
                self.preempt(self.running[-1], cache)
            if sequence.pages:
                plan.append(Slice(sequence, count))
                budget -= count
        while self.waiting and budget and not preempted and len(self.running) < self.limits.max_seqs:
            sequence = self.waiting[0]
            if not (admit or sequence.hash):
                break
            # At least one token is computed: its logits are the next token's.
            sequence.pages, sequence.keys, sequence.computed = cache.match(sequence.tokens[:-1])
            count = min(len(sequence.tokens) - sequence.computed, budget)
            if not self._reserve(sequence, count, cache):
                cache.release(sequence.pages)
                sequence.pages, sequence.given, sequence.keys, sequence.computed = [], None, [], 0
                break
            self.running.append(self.waiting.popleft())
            if sequence.cached is None:
                sequence.cached = sequence.computed
            sequence.hash, sequence.began = hash, sequence.outputs
            plan.append(Slice(sequence, count))
            budget -= count
        return plan

    def preempt(self, sequence: Sequence, cache: Cache) -> None:
        """Take a request's pages. It begins again as soon as it can, with its output as part of what it computes."""
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self._keep_evidence(sequence, cache)
        cache.release(sequence.pages, forget=True)  # so that the recomputation is one, and not a cache hit
        sequence.pages, sequence.given, sequence.keys, sequence.computed = [], None, [], 0
        sequence.preemptions += 1

    def advance(self, step: Slice, cache: Cache) -> None:
        """Count a slice's tokens as computed and let others find the pages that it filled."""
        sequence = step.sequence
        if not sequence.outputs:
            sequence.chunks.append(step.count)
        sequence.computed += step.count
        page = cache.page
        while len(sequence.keys) < sequence.computed // page:
            index = len(sequence.keys)
            sequence.keys.append(cache.publish(sequence.pages[index], self._parent(sequence, cache),
                                               sequence.tokens[index * page:(index + 1) * page]))

    def finish(self, sequence: Sequence, cache: Cache) -> None:
        """Let a request go; its last page, filled in part, can be found too."""
        self.running.remove(sequence)
        self._keep_evidence(sequence, cache)
        whole = len(sequence.keys)
        rest = sequence.tokens[whole * cache.page:sequence.computed]
        if rest:
            cache.publish(sequence.pages[whole], self._parent(sequence, cache), rest)
        cache.release(sequence.pages)

    @staticmethod
    def _keep_evidence(sequence: Sequence, cache: Cache) -> None:
        """How the keys and values were computed that the output rests on; nothing if none came since it began."""
        if sequence.outputs > sequence.began:
            sequence.written.append(Written(sequence.began, cache.origins(sequence.pages, sequence.computed)))

    @staticmethod
    def _parent(sequence: Sequence, cache: Cache) -> bytes:
        return sequence.keys[-1] if sequence.keys else cache.root

    def _reserve(self, sequence: Sequence, count: int, cache: Cache) -> bool:
        """Pages for the next ``count`` tokens, all of them or none."""
        missing = -(-(sequence.computed + count) // cache.page) - len(sequence.pages)
        if missing > cache.available:
            return False
        longest = min(len(sequence.request.prompt) + sequence.request.max_tokens, self.limits.context)
        for _ in range(missing):
            sequence.given = cache.allocate(sequence.given, -(-longest // cache.page) - len(sequence.pages))
            assert sequence.given is not None
            sequence.pages.append(sequence.given)
        return True

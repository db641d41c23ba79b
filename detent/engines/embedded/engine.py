"""The engine: requests in, tokens and evidence out, one step after the other."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from detent.engines.embedded import sampler, selfcheck, trace
from detent.engines.embedded.cache import Cache
from detent.engines.embedded.config import Limits
from detent.engines.embedded.deployment import deployment
from detent.engines.embedded.model import Model
from detent.engines.embedded.ops import Batch, Ops
from detent.engines.embedded.scheduler import Scheduler, Slice
from detent.engines.embedded.scheduler import Sequence as State
from detent.engines.interface import Output, Request, Step, Submission
from detent.kernels.embedded_linear import can_pack
from detent.runtime.errors import DetentError, brief_repr, shorten

if TYPE_CHECKING:
    from detent.runtime.deployment import Deployment
    from detent.runtime.tuple import CommitmentTuple

STOCK, DETENT = ARMS = ("stock", "detent")
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
"""What deployments call element types."""
PROBE = (40, 5)
"""Prompt tokens of the requests that are served at the start to see every call site; fewer where limits are lower."""


class Refused(DetentError):
    """A request that the engine cannot serve; others are not affected."""


@dataclass(frozen=True)
class Record:
    """One step, for whoever watches: the ``hash`` it ran under, ids of its requests in the order of their rows, how
    many tokens each computed and how many have keys and values after it, and the points in force."""

    hash: str
    ids: tuple[int, ...]
    counts: tuple[int, ...]
    lengths: tuple[int, ...]
    points: Mapping[str, Any]


class Engine:
    """Continuous batching over one model. ``record`` is called with every step's :class:`Record`, if it is set."""

    def __init__(self, model: Model, ops: Ops, limits: Limits, facts: Deployment | None = None) -> None:
        self.model, self.ops, self.limits, self.facts = model, ops, limits, facts
        self.cache = _cache(model, limits, ops.hash)
        self.scheduler = Scheduler(limits)
        self.record: Callable[[Record], None] | None = None
        self._next = 0
        self._ended: list[tuple[int, Output]] = []

    @classmethod
    def start(cls, model: Model, limits: Limits, arm: str = DETENT,
              commitment: CommitmentTuple | None = None) -> Engine:
        """An engine of an arm, under the default assignment where there is no tuple, whose kernels and call sites
        have been checked. Raises DetentError for a tuple of another deployment and for a call site that is not
        routed."""
        facts = deployment(model.config, limits, torch.get_num_threads(), dtype=NAMES[model.dtype],
                           packed=can_pack(model.weights.embedding))
        ops = Ops.stock(facts) if arm == STOCK else Ops.pinned(facts, commitment, identity(model))
        engine = cls(model, ops, limits, facts)
        engine.check(ops)
        return engine

    def check(self, ops: Ops) -> None:
        """Raises DetentError if a kernel that ``ops`` selects depends on a row's place, or if a forward pass asks torch
        for a product, reduction or norm that ``ops`` did not select."""
        selfcheck.check(ops, self.model.weights)
        limits, longest = self.limits, PROBE[0] + 3
        probe = Engine(self.model.first_layer(), ops, Limits(
            max_seqs=min(4, limits.max_seqs), budget=min(32, limits.budget), context=min(longest, limits.context),
            page=limits.page, pages=len(PROBE) * -(-longest // limits.page)))
        outputs = min(3, limits.context - 1)
        tokens = [token % self.model.config.vocabulary for token in range(PROBE[0])]
        requests = [Submission(Request(tuple(tokens[:min(length, limits.context - outputs)]), outputs))
                    for length in PROBE]
        trace.check(lambda: probe.run(requests), ops)

    @property
    def busy(self) -> bool:
        """Whether a request has not ended, or its output has not been taken."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._ended)

    def add(self, request: Request, *, preempt: int | None = None, arrival: float | None = None) -> int:
        """Take a request; its number. ``preempt``: pre-empt it after so many output tokens. ``arrival``: when it came,
        on ``time.perf_counter``'s clock (default now). Raises Refused."""
        self._check(request)
        seed = request.sampling.seed
        sequence = State(self._next, request, time.perf_counter() if arrival is None else arrival,
                         secrets.randbits(64) if seed is None else seed, preempt)
        self._next += 1
        self.scheduler.waiting.append(sequence)
        return sequence.id

    def step(self) -> list[tuple[int, Output]]:
        """Compute one step. Requests that have ended since the last call, with their numbers."""
        self._step()
        ended, self._ended = self._ended, []
        return ended

    def outputs(self, number: int) -> int | None:
        """Output tokens so far of a request that has not ended; None of any other."""
        return next((s.outputs for s in self.scheduler if s.id == number), None)

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        """Serve requests together until all have ended. One that cannot be served is refused in its output; raises
        Refused if that is so of all of them."""
        results: dict[int, Output] = {}
        numbers: dict[int, int] = {}  # of a request: its place among the submissions
        refused: list[Refused] = []
        others: list[tuple[int, Output]] = []  # of requests that were here before
        pending = sorted(range(len(submissions)), key=lambda place: submissions[place].start)
        first: int | None = None
        while pending or self.busy:
            done = 0 if first is None else self.outputs(first)
            while pending and (done is None or submissions[pending[0]].start <= done):
                place = pending.pop(0)
                try:
                    number = self.add(submissions[place].request, preempt=submissions[place].preempt)
                except Refused as error:
                    refused.append(error)
                    results[place] = Output((), (), finish="refused", error=str(error))
                    continue
                numbers[number] = place
                first = number if first is None else first
            if not self.busy and pending and first is None:
                done = None  # nobody is left whose tokens they could wait for
                first = -1
                continue
            for number, output in self.step():
                if number in numbers:
                    results[numbers[number]] = output
                else:
                    others.append((number, output))
        self._ended = others
        if refused and len(refused) == len(submissions):
            raise refused[0]
        return [results[place] for place in range(len(submissions))]

    def flush(self) -> None:
        """Empty the prefix cache."""
        self.cache.flush()

    def set_tuple(self, commitment: CommitmentTuple | None) -> None:
        """Serve under another tuple (None: the default assignment), as :meth:`switch`. Raises DetentError, and changes
        nothing, if the tuple is not for this engine."""
        assert self.facts is not None
        ops = Ops.pinned(self.facts, commitment, identity(self.model))
        self.check(ops)
        self.switch(ops)

    def switch(self, ops: Ops) -> None:
        """Drain, flush, and select with ``ops`` from then on.

        Requests that have begun end first, under what they began with; those that wait begin afterwards. Keys and
        values that are in the cache are not found again.
        """
        while self.scheduler.begun:
            self._step(admit=False)
        self.ops = ops
        self.cache.flush(ops.hash)

    def _check(self, request: Request) -> None:
        """Raises Refused for a request that could never be served."""
        config, limits = self.model.config, self.limits
        name = f"request {request.name!r}" if request.name else "a request"
        wrong = next((f"{what} {brief_repr(value)}, which is no {kind}" for what, value, kind in _parts(request)
                      if not _is(value, kind)), "")
        if wrong:
            raise Refused(f"{name} has {wrong}", "correct the request")
        length = len(request.prompt) + request.max_tokens
        pages = -(-(length - 1) // limits.page)  # the last token's keys and values are never needed
        if not request.prompt:
            raise Refused(f"{name} has no prompt", "give at least one token")
        if request.max_tokens < 1:
            raise Refused(f"{name} asks for {request.max_tokens} tokens", "ask for at least 1")
        outside = [token for token in request.prompt if not 0 <= token < config.vocabulary]
        if outside:
            raise Refused(f"{name} has token ids {shorten(outside)}", f"ids go from 0 to {config.vocabulary - 1}")
        if length > limits.context:
            raise Refused(f"{name} has {len(request.prompt)} prompt tokens and asks for {request.max_tokens}, which is "
                          f"more than the context of {limits.context} tokens",
                          "shorten the prompt or ask for fewer tokens")
        if pages > limits.pages:
            raise Refused(f"{name} needs {pages} KV pages of {limits.page} tokens, the pool has {limits.pages}",
                          "start the engine with more pages")
        try:
            sampler.check(request.sampling)
        except DetentError as error:
            raise Refused(f"{name}: {error.message}", error.remedy) from None

    def _step(self, admit: bool = True) -> None:
        plan = self.scheduler.plan(self.cache, self.ops.hash, admit=admit)
        if not plan:
            return
        mixed = {part.sequence.hash for part in plan} - {self.ops.hash}
        assert not mixed, f"a step under {self.ops.hash} has requests of {mixed}"
        self.ops.begin()
        with torch.inference_mode():
            tokens, logprobs = self._compute(plan)
        now = time.perf_counter()
        points = self.ops.points_in_force()
        total = sum(part.count for part in plan)
        if self.record is not None:
            self.record(Record(self.ops.hash, tuple(part.sequence.id for part in plan),
                               tuple(part.count for part in plan),
                               tuple(part.sequence.computed + part.count for part in plan), points))
        results = iter(zip(tokens, logprobs, strict=True))
        for row, part in enumerate(plan):
            sequence, last = part.sequence, part.last
            self.scheduler.advance(part, self.cache)
            if not last:
                continue
            token, logprob = next(results)
            sequence.tokens.append(token)
            sequence.logprobs.append(logprob)
            sequence.times.append(now)
            sequence.steps.append(Step(len(plan), row, total, False, points))
            finish = self._finish(sequence)
            if finish:
                self.scheduler.finish(sequence, self.cache)
                self._ended.append((sequence.id, _output(sequence, finish)))
            elif sequence.outputs == sequence.preempt:
                self.scheduler.preempt(sequence, self.cache)

    def _compute(self, plan: list[Slice]) -> tuple[list[int], list[bytes]]:
        """Tokens and log-probabilities of the requests whose slice is their last, in the order of the plan."""
        page, device = self.limits.page, self.model.device
        starts, lengths, ends = [0], [], []
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        tables: list[list[int]] = []
        width = max(len(part.sequence.pages) for part in plan)
        for part in plan:
            sequence, begin, end = part.sequence, part.sequence.computed, part.sequence.computed + part.count
            tokens += sequence.tokens[begin:end]
            positions += range(begin, end)
            slots += [sequence.pages[p // page] * page + p % page for p in range(begin, end)]
            starts.append(starts[-1] + part.count)
            lengths.append(end)
            tables.append(sequence.pages + sequence.pages[-1:] * (width - len(sequence.pages)))  # read and masked
            if part.last:
                ends.append(starts[-1] - 1)
        batch = Batch(starts, lengths, torch.tensor(tables, device=device), page)
        rows = torch.tensor([tokens, positions, slots], device=device)
        hidden = self.model.forward(rows[0], rows[1], rows[2], self.cache.pages, batch, self.ops)
        self.cache.wrote(slots, self.ops.points_in_force())
        if not ends:
            return [], []
        logits = self.model.logits(hidden[torch.tensor(ends, device=device)], self.ops)
        draws = [(part.sequence.request.sampling, part.sequence.seed, len(part.sequence.tokens))
                 for part in plan if part.last]
        return sampler.sample(logits, draws, self.ops)

    def _finish(self, sequence: State) -> str:
        """Why a request has ended with its newest token; empty if it has not."""
        request = sequence.request
        if sequence.tokens[-1] in request.stop_tokens:
            return "stop"
        if request.stop:
            text = self.model.tokenizer.decode(sequence.output)
            if any(stop in text for stop in request.stop):
                return "stop"
        return "length" if sequence.outputs == request.max_tokens else ""


def _cache(model: Model, limits: Limits, salt: str) -> Cache:
    """The cache of an engine. Raises DetentError where the machine has not the memory."""
    config, tokens = model.config, limits.pages * limits.page
    size = 2 * config.layers * tokens * config.kv_heads * config.head_dim * model.dtype.itemsize
    what = f"the KV pool of {limits.pages} pages of {limits.page} tokens needs {-(-size >> 20)} MiB"
    remedy = "start the engine with fewer pages"
    # A CPU's pool has memory once it is written to: what the machine has not would end the process only then.
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if model.device.type == "cpu" else None
    if have is not None and size > have:
        raise DetentError(f"{what}, and this machine has {have >> 20}", remedy)
    try:
        return Cache(config, limits, model.device, model.dtype, salt)
    except (MemoryError, torch.OutOfMemoryError):
        raise DetentError(f"{what}, which are not free", remedy) from None


def identity(model: Model) -> dict[str, str]:
    """The parts of a tuple's environment that are a model's."""
    return {"model": model.config.name, "weights": model.identity}


def _parts(request: Request) -> Iterator[tuple[str, object, str]]:
    """What a request is made of: its name, value and kind."""
    yield "a prompt", request.prompt, "list"
    yield from (("token id", token, "integer") for token in request.prompt)
    yield "max_tokens", request.max_tokens, "integer"
    yield "stop_tokens", request.stop_tokens, "list"
    yield from (("stop token", token, "integer") for token in request.stop_tokens)
    yield "stop", request.stop, "list"
    yield from (("stop string", text, "text") for text in request.stop)
    sampling = request.sampling
    yield "temperature", sampling.temperature, "number"
    yield "top_p", sampling.top_p, "number"
    yield "top_k", sampling.top_k, "integer"
    if sampling.seed is not None:
        yield "seed", sampling.seed, "integer"


def _is(value: object, kind: str) -> bool:
    """Whether a value is of a kind; a bool is no integer and no number."""
    kinds: dict[str, tuple[type, ...]] = {"list": (tuple, list), "integer": (int,), "text": (str,),
                                          "number": (int, float)}
    return isinstance(value, kinds[kind]) and not isinstance(value, bool)


def _output(sequence: State, finish: str) -> Output:
    return Output(tuple(sequence.output), tuple(sequence.logprobs), tuple(sequence.steps), sequence.cached,
                  tuple(sequence.chunks), sequence.preemptions, finish, arrival=sequence.arrival,
                  times=tuple(sequence.times), written=tuple(sequence.written))

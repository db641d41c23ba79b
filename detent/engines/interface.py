"""What the battery, the bench and the tuner ask of an engine, and what it tells them.

A target takes requests of token ids and gives back tokens, the bits of their log-probabilities, and evidence of how
each token was computed. It never guesses: what an engine does not show is ``None``, and a cell that needs it is not
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from detent.runtime.errors import DetentError


class Unsupported(DetentError):
    """The target has no such thing, so a cell that needs it does not apply."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1.0 are off; without a ``seed``
    a request cannot be replayed."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


@dataclass(frozen=True)
class Request:
    """One request. ``prompt``: token ids. It ends after ``max_tokens``, or earlier at one of ``stop_tokens`` (ids) or
    once its text holds one of the ``stop`` strings. ``name`` is for reports."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_tokens: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Submission:
    """A request and when it is given to the engine.

    ``start``: with the first request where 0; else once the first request of the run has this many output tokens.
    ``preempt``: the engine is to pre-empt it after this many of its own output tokens (None: never); only targets
    whose traits say so can.
    """

    request: Request
    start: int = 0
    preempt: int | None = None


@dataclass(frozen=True)
class Step:
    """Evidence: how one output token was computed.

    ``batch``: requests in the step. ``row``: the request's place among them. ``tokens``: tokens of all requests in
    the step, before padding. ``graph``: whether a captured graph was replayed. ``selections``: the points in force,
    by ``program.point``; ``program.point (site)`` where a call site of the step had another value. It is of this step
    alone: of what the token rests on beside it, :class:`Written` tells.
    """

    batch: int | None = None
    row: int | None = None
    tokens: int | None = None
    graph: bool | None = None
    selections: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Written:
    """Evidence: how the keys and values were computed that output tokens rest on, since a request began or, after a
    pre-emption, began again.

    ``after``: output tokens that it had then. ``spans``: from the prompt's first token to the last output token but
    one, how many tokens in a row have keys and values of which selection points; by this request's steps or by those of
    whoever wrote the prefix that it found in the cache.
    """

    after: int
    spans: tuple[tuple[int, Mapping[str, Any]], ...]


@dataclass(frozen=True)
class Output:
    """What came back of one request.

    ``tokens``: ids. ``logprobs``: for each token the bits of its log-probability as the engine shows them (``float``
    as IEEE double, big-endian, or the reply's own digits as text, see ``Traits.resolution``). ``steps``: one a token.
    ``cached``: prompt tokens read from the prefix cache. ``chunks``: prompt tokens computed in each step of the
    prefill. ``finish``: "length", "stop", "refused" with ``error``, or "unsupported" with ``error`` where the target
    cannot even be asked. ``text``: the tokens as text, where the engine sent it along.
    ``written``: one for each time that the request began and gave tokens. Times in seconds on one clock.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[bytes, ...]
    steps: tuple[Step, ...] = ()
    cached: int | None = None
    chunks: tuple[int, ...] | None = None
    preemptions: int | None = None
    finish: str = "length"
    error: str = ""
    arrival: float = 0.0
    times: tuple[float, ...] = ()  # when each token was there
    written: tuple[Written, ...] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Traits:
    """What is known of a target.

    ``context``: tokens a request can have, prompt and output. ``page``: tokens of a KV page. ``budget``: tokens of a
    step (chunked prefill). ``max_seqs``: requests of a step. ``captures``: token counts of captured graphs.
    ``boundaries``: token counts at which a selection changes. ``evidence``: names of the fields of Step and Output
    that are told. ``resolution``: "float32 bits", or how many digits a reply shows. ``vocabulary``: number of ids;
    ``special``: ids that prompts must not contain.
    """

    name: str
    engine: str
    arm: str
    model: str
    vocabulary: int
    context: int
    page: int | None = None
    budget: int | None = None
    max_seqs: int | None = None
    captures: tuple[int, ...] = ()
    boundaries: tuple[int, ...] = ()
    special: tuple[int, ...] = ()
    evidence: frozenset[str] = frozenset()
    resolution: str = "float32 bits"
    can_preempt: bool = False
    can_flush: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)


class Target(Protocol):
    """An engine under test. Raises :class:`detent.runtime.errors.DetentError` for what a user can act on."""

    @property
    def traits(self) -> Traits: ...

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        """Serve the requests together until all have ended. Outputs in the order of the submissions."""

    def flush(self) -> None:
        """Empty the prefix cache. Only if ``traits.can_flush``."""

    def fresh(self) -> Target:
        """The same engine in a new process with cold compile caches. Raises DetentError where it cannot."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, without special tokens."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids. Raises :class:`Unsupported` where the engine cannot tell it."""

    def close(self) -> None:
        """Let go of the engine."""

"""What the bench asks of an engine: seeded workloads in the paper's shapes, and their loads.

W-A: 600 requests of 160 chats, sent turn by turn. W-B: 200 documents of about 8k tokens. W-B-c: the first 64 of them.
Lengths follow quantiles of public traces (``data/lengths.json``). A replay is the same for every arm: same token ids,
output lengths and arrivals. A chat's history is written by the generator, not by the model, so that it is the same
whatever an arm answers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from detent.engines.interface import Request
from detent.runtime.errors import DetentError

CHATS, CHAT_REQUESTS, DOCUMENTS, CLOSED_LOOP = 160, 600, 200, 64
LONGEST_REPLY = 512
"""Output tokens of a request at most; longer ones in the traces are cut."""
DOCUMENT_STRETCH = 3
"""The arXiv lengths end at 4,096 tokens with a median of 2,730; documents are three times as long."""
SPREAD_OF_TURNS = 4.0
"""Shape of the gamma distribution of the chats' weights: at this one about 64 % of prompt tokens repeat the turn
before."""
REPEATED, DRAWS = 0.64, 16
"""That share, and how many drawn workloads there are to choose the nearest from: one alone is up to 4 % away."""
FEWEST, SHORTEST_OUTPUT = 8, 4
"""Requests of a workload and output tokens of a request, however small the scale."""

Segment = tuple[str, int]
"""A piece of a prompt: a name, which decides its token ids, and how many of these there are."""


@dataclass(frozen=True)
class Shape:
    """One request but for its token ids. Requests share a prefix where they begin with the same segments."""

    segments: tuple[Segment, ...]
    output: int
    name: str

    @property
    def tokens(self) -> int:
        """Of the prompt."""
        return sum(length for _, length in self.segments)


@dataclass(frozen=True)
class Traffic:
    """The requests of a workload in the order of their arrival.

    ``gaps``: time before each arrival, of mean 1, or in seconds where ``recorded``; ``context``: the limit that the
    paper sets for prompt and output. ``left_out``: requests of a recorded trace that were too long.
    """

    name: str
    shapes: tuple[Shape, ...]
    gaps: tuple[float, ...]
    context: int
    recorded: bool = False
    left_out: int = 0

    def first(self, count: int, name: str) -> Traffic:
        """The first requests alone."""
        return Traffic(name, self.shapes[:count], self.gaps[:count], self.context, self.recorded, self.left_out)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and output."""
        return max(shape.tokens + shape.output for shape in self.shapes)

    def shared(self) -> tuple[int, ...]:
        """For each request, how many of its first prompt tokens begin an earlier request too."""
        seen: dict[tuple[str, ...], int] = {}
        found = []
        for shape in self.shapes:
            names, common = tuple(name for name, _ in shape.segments), 0
            whole = True
            for depth, (_, length) in enumerate(shape.segments, 1):
                before = seen.get(names[:depth], 0) if whole else 0
                common += min(length, before)
                whole = before == length  # a shorter piece ends what is common
                seen[names[:depth]] = max(length, seen.get(names[:depth], 0))
            found.append(common)
        return tuple(found)


@dataclass(frozen=True)
class Load:
    """A workload and how hard it is driven.

    ``fraction`` of the offline maximum, Stock's or with ``own`` the arm's; or ``concurrency`` requests in flight; or
    neither: at the recorded times, or with ``offline`` all at once.
    """

    name: str
    workload: str
    fraction: float | None = None
    concurrency: int | None = None
    own: bool = False
    offline: bool = False

    @property
    def what(self) -> str:
        """How hard, in words."""
        if self.fraction is not None:
            return f"{self.fraction:g} of {'the arm’s own' if self.own else 'Stock’s'} maximum"
        if self.concurrency is not None:
            return f"{self.concurrency} in flight"
        return "all at once" if self.offline else "recorded times"


@dataclass(frozen=True)
class Replay:
    """Requests with their arrivals in seconds, or with how many are in flight at a time.

    ``shared``: prompt tokens that an earlier request of the replay has too. ``digest``: over token ids, output
    lengths, order, and gaps relative to the rate.
    """

    requests: tuple[Request, ...]
    arrivals: tuple[float, ...] | None
    concurrency: int | None
    shared: tuple[int, ...]
    digest: str


A_LOADS = tuple(Load(f"A{i}", "W-A", f) for i, f in enumerate((0.25, 0.5, 0.75, 1.0), 1))
B_LOADS = tuple(Load(f"B{i}", "W-B", f) for i, f in enumerate((0.33, 0.67, 1.0), 1))
C_LOADS = tuple(Load(f"C{i}", "W-B-c", concurrency=c) for i, c in enumerate((1, 8), 1))
OWN_LOADS = tuple(Load(f"{letter}{100 * f:.0f}", workload, f, own=True)
                  for letter, workload in (("A", "W-A"), ("B", "W-B")) for f in (0.67, 0.83, 1.0))
RECORDED = ("mooncake", "azure")
LOADS = {load.name: load for load in (*A_LOADS, *B_LOADS, *C_LOADS, *OWN_LOADS,
                                      *(Load(name, name) for name in RECORDED))}
"""By name. ``A67`` is W-A at 0.67 of the arm's own maximum."""
GROUPS = {"W-A": A_LOADS, "W-B": B_LOADS, "W-B-c": C_LOADS, "own": OWN_LOADS, "all": A_LOADS + B_LOADS + C_LOADS}


def loads(names: Iterable[str]) -> list[Load]:
    """The loads of those names and groups of names, each once, in the order given. Raises DetentError."""
    from detent.runtime.errors import UnknownName

    found: dict[str, Load] = {}
    for name in names:
        if name not in LOADS and name not in GROUPS:
            raise UnknownName("workload", name, [*LOADS, *GROUPS])
        found.update((load.name, load) for load in GROUPS.get(name) or (LOADS[name],))
    if not found:
        raise DetentError("no workload is named", "give --workloads all")
    return list(found.values())


def shrink(scale: float) -> float:
    """By what counts and lengths are multiplied each, so that their product, the tokens, shrinks to ``scale``."""
    if not 0 < scale <= 1:
        raise DetentError(f"scale {scale:g} is not above 0 and at most 1", "1 is the paper's size")
    return math.sqrt(scale)


def traffic(name: str, scale: float, seed: int) -> Traffic:
    """W-A, W-B or W-B-c at a scale. The same arguments give the same."""
    factor = shrink(scale)
    if name == "W-A":
        return _chats(factor, seed)
    documents = _documents(factor, seed)
    return documents if name == "W-B" else documents.first(_count(CLOSED_LOOP, factor), name)


def replay(source: Traffic, load: Load, *, rate: float | None, seed: int, salt: str, vocabulary: int,
           special: Sequence[int]) -> Replay:
    """What a run sends. ``rate``: requests a second, for a load that is a fraction of a maximum.

    ``salt`` changes all token ids and nothing else: for engines whose prefix cache cannot be emptied.
    """
    allowed = [token for token in range(vocabulary) if token not in set(special)]

    @cache
    def ids(piece: str, length: int) -> tuple[int, ...]:
        rng = random.Random(f"{seed}/{salt}/{piece}")
        return tuple(allowed[int(rng.random() * len(allowed))] for _ in range(length))

    requests = tuple(Request(tuple(itertools.chain.from_iterable(ids(*s) for s in shape.segments)), shape.output,
                             name=shape.name) for shape in source.shapes)
    # Digits, as sums of floats may differ in the last place between machines.
    digest = hashlib.sha256(json.dumps([[r.prompt, r.max_tokens] for r in requests]).encode())
    digest.update(" ".join(f"{gap:.9g}" for gap in source.gaps).encode())
    arrivals: tuple[float, ...] | None = None
    if load.offline:
        arrivals = (0.0,) * len(requests)
    elif load.concurrency is None:
        pace = 1.0 if source.recorded else rate
        assert pace is not None
        arrivals = tuple(at / pace for at in itertools.accumulate(source.gaps))
    return Replay(requests, arrivals, load.concurrency, source.shared(), digest.hexdigest())


def _chats(factor: float, seed: int) -> Traffic:
    drawn = (_drawn_chats(factor, f"{seed}/W-A/{number}") for number in range(DRAWS))
    return min(drawn, key=lambda chats: abs(sum(chats.shared()) / sum(s.tokens for s in chats.shapes) - REPEATED))


def _drawn_chats(factor: float, seed: str) -> Traffic:
    rng = random.Random(seed)
    count = _count(CHAT_REQUESTS, factor)
    chats = max(2, min(count, round(CHATS * factor)))
    weights = [rng.gammavariate(SPREAD_OF_TURNS, 1.0) for _ in range(chats)]
    turns = [1] * chats
    for chat in rng.choices(range(chats), weights, k=count - chats):
        turns[chat] += 1
    message = _lengths("message", count, factor, rng)
    reply = _lengths("reply", count, factor, rng, LONGEST_REPLY)
    found: list[tuple[float, Shape]] = []
    for chat in range(chats):
        segments: tuple[Segment, ...] = ()
        at = rng.random()
        for turn in range(turns[chat]):
            segments += ((f"message {chat}.{turn}", max(1, next(message))),)
            output = max(SHORTEST_OUTPUT, next(reply))
            found.append((at, Shape(segments, output, f"chat {chat} turn {turn + 1}")))
            segments += ((f"reply {chat}.{turn}", output),)
            at += rng.expovariate(1.0) * 0.1 + 0.02
    # Chats begin at any time, the turns of one follow each other with others between them.
    found.sort(key=lambda item: item[0])
    shapes = tuple(shape for _, shape in found)
    return Traffic("W-A", shapes, _poisson(count, rng), math.ceil(8192 * factor))


def _documents(factor: float, seed: int) -> Traffic:
    rng = random.Random(f"{seed}/W-B")
    count = _count(DOCUMENTS, factor)
    prompt = _lengths("document", count, factor * DOCUMENT_STRETCH, rng)
    output = _lengths("summary", count, factor, rng, LONGEST_REPLY)
    shapes = tuple(Shape(((f"document {i}", max(1, next(prompt))),), max(SHORTEST_OUTPUT, next(output)),
                         f"document {i}") for i in range(count))
    return Traffic("W-B", shapes, _poisson(count, rng), math.ceil(32768 * factor))


def _count(full: int, factor: float) -> int:
    return max(FEWEST, round(full * factor))


def _poisson(count: int, rng: random.Random) -> tuple[float, ...]:
    """Gaps of a Poisson process, scaled to a mean of exactly 1 so that the rate is the one asked for."""
    gaps = [rng.expovariate(1.0) for _ in range(count)]
    mean = math.fsum(gaps) / count
    return tuple(gap / mean for gap in gaps)


def _lengths(table: str, count: int, factor: float, rng: random.Random, longest: int | None = None) -> Iterator[int]:
    """``count`` lengths with the table's distribution: one from each of as many equal parts of it, in random order."""
    quantile = _quantiles(table)
    places = [(i + rng.random()) / count for i in range(count)]
    rng.shuffle(places)
    values = (quantile(place) for place in places)
    return iter([round((value if longest is None else min(value, longest)) * factor) for value in values])


@cache
def _quantiles(table: str) -> Callable[[float], float]:
    text = files("detent.bench").joinpath("data", "lengths.json").read_text(encoding="utf-8")
    known: list[int] = json.loads(text)[table]["quantiles"]

    def quantile(place: float) -> float:
        low = min(int(place * (len(known) - 1)), len(known) - 2)
        return known[low] + (known[low + 1] - known[low]) * (place * (len(known) - 1) - low)

    return quantile

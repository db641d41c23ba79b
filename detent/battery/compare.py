"""Two outputs of one request as bits: where they part, and what the engine says of that token."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detent.engines.interface import Output

KERNEL = "selection constant, bits differ"
PARTLY = "selection constant where it is told, bits differ"
PROGRAM = "selection differs"
UNKNOWN = "selections not told"
UNSTEADY = "the reference does not repeat"
PREFIX = -1
"""Stands for a token's number where keys and values of the prompt were computed, before the step of token 0."""
ENDED = "ended"
"""Stands for the value where one of two outputs has no more tokens."""


@dataclass(frozen=True)
class Difference:
    """The first token at which two outputs differ.

    ``at``: its number among the reference's output tokens. ``what``: "token", "logprob" or "length". ``reference``
    and ``perturbed``: both values, as text. ``tokens``: both ids. ``same_inputs`` and ``other_inputs``: how many more
    tokens differ, after the same ids and after other ids; the latter are no evidence of their own. ``copy``: which
    of several copies of the request it is. ``diagnosis``: one of this module's constants. ``points``: selection
    points that differed in what this token rests on: ``{point: (token, reference's value, perturbed value)}``, the
    token :data:`PREFIX` where the prompt was computed.
    """

    at: int
    what: str
    reference: str
    perturbed: str
    tokens: tuple[int | None, int | None]
    same_inputs: int
    other_inputs: int
    diagnosis: str
    points: dict[str, tuple[int, Any, Any]]
    copy: int = 0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "tokens": list(self.tokens),
                "points": {name: list(values) for name, values in self.points.items()}}


def compare(reference: Output, perturbed: Output, skip: int, bits: bool, copy: int = 0,
            before: Sequence[Output] = ()) -> Difference | None:
    """The first difference, or None. ``skip``: tokens of the reference that the perturbed prompt already holds.
    ``bits``: log-probabilities are IEEE doubles, not digits. ``before``: outputs that left KV in the cache, for the
    diagnosis. Token ids come first: where they differ, the log-probabilities are those of other tokens."""
    pairs = list(zip(reference.tokens[skip:], perturbed.tokens, strict=False))
    probs = list(zip(reference.logprobs[skip:], perturbed.logprobs, strict=False))
    differing = [i for i, ((a, b), (p, q)) in enumerate(zip(pairs, probs, strict=True)) if a != b or p != q]
    if not differing:
        lengths = len(reference.tokens) - skip, len(perturbed.tokens)
        if lengths[0] == lengths[1]:
            return None
        at = min(lengths)
        was, now = (ENDED if at >= length else "goes on" for length in lengths)
        diagnosis, points = _diagnosis(reference, perturbed, skip, at, before)
        ids = _token(reference, skip + at), _token(perturbed, at)
        return Difference(skip + at, "length", was, now, ids, 0, 0, diagnosis, points, copy)
    at = differing[0]
    parted = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    same = sum(at < i <= parted for i in differing)
    was, now = (shown(value, bits) for value in probs[at])
    diagnosis, points = _diagnosis(reference, perturbed, skip, at, before)
    return Difference(skip + at, "token" if at == parted else "logprob", was, now, pairs[at], same,
                      len(differing) - 1 - same, diagnosis, points, copy)


def _token(output: Output, at: int) -> int | None:
    return output.tokens[at] if at < len(output.tokens) else None


def _diagnosis(reference: Output, perturbed: Output, skip: int, at: int,
               before: Sequence[Output]) -> tuple[str, dict[str, tuple[int, Any, Any]]]:
    """What the selections say of the step that computed the token, and of the keys and values that it read."""
    pairs = _written(reference, perturbed, skip, at)
    whole = pairs is not None
    if pairs is None:
        pairs, whole = _earlier(reference, perturbed, skip, at, before)
    if len(reference.steps) > skip + at and len(perturbed.steps) > at:
        pairs.append((skip + at, reference.steps[skip + at].selections, perturbed.steps[at].selections))
    points: dict[str, tuple[int, Any, Any]] = {}
    told = False
    seen: set[tuple[int, int]] = set()
    for token, was, now in pairs:
        if was is None or now is None:
            continue
        told = True
        if was is now or (id(was), id(now)) in seen:
            continue
        seen.add((id(was), id(now)))
        for name in sorted({*was, *now}):
            values = _value(was, name), _value(now, name)
            if values[0] != values[1]:
                points.setdefault(name, (token, *values))
    if not told:
        return UNKNOWN, points
    return PROGRAM if points else KERNEL if whole else PARTLY, points


Pair = tuple[int, Mapping[str, Any] | None, Mapping[str, Any] | None]


def _value(points: Mapping[str, Any], name: str) -> Any:
    """A point's value; a call site that is not named had that of the others."""
    return points.get(name, points.get(name.partition(" (")[0]))


def _written(reference: Output, perturbed: Output, skip: int, at: int) -> list[Pair] | None:
    """Both selections for each token of prompt and output whose keys and values the compared one reads; None where
    they are not told of all."""
    was_all, now_all = _origins(reference, skip + at), _origins(perturbed, at)
    if was_all is None or now_all is None:
        return None
    last = len(was_all) - 1  # whose keys and values the compared token's own step computed
    return [(max(PREFIX, skip + at - last + place), was, now)
            for place, (was, now) in enumerate(zip(was_all, now_all, strict=False))]


def _origins(output: Output, at: int) -> list[Mapping[str, Any]] | None:
    """Of each token up to the one before an output token, the selections under which its keys and values came."""
    passes = output.written
    if not passes:
        return None
    found = [points for count, points in next(p for p in reversed(passes) if p.after <= at).spans
             for _ in range(count)]
    prompt = sum(count for count, _ in passes[-1].spans) - len(output.tokens) + 1
    return found[:prompt + at]


def _earlier(reference: Output, perturbed: Output, skip: int, at: int,
             before: Sequence[Output]) -> tuple[list[Pair], bool]:
    """The same as far as steps that gave output tokens tell it, and whether that is all. A prefix that came from the
    cache was computed by a request before, where the reference's prefill computed it."""
    cached = bool(perturbed.cached and before)
    pairs: list[Pair] = [(PREFIX, reference.steps[0].selections, step.selections)
                         for output in before for step in output.steps[:1] if cached and reference.steps]
    pairs += [(skip + token, was.selections, now.selections)
              for token, (was, now) in enumerate(zip(reference.steps[skip:], perturbed.steps, strict=False))
              if token < at]
    # A step that gave no output token tells no selections.
    return pairs, all(len(output.chunks or ()) <= 1 and not (output.cached and not cached)
                      for output in (reference, perturbed))


def shown(logprob: bytes, bits: bool) -> str:
    """A log-probability as text: the number and its bits (of a float32 where it is one), or the reply's digits."""
    if not bits:
        return logprob.decode("ascii", "replace")
    (value,) = struct.unpack(">d", logprob)
    try:
        single = struct.pack(">f", value)
    except OverflowError:
        return f"{value!r} ({logprob.hex()})"
    narrow = struct.unpack(">f", single)[0] == value
    return f"{value!r} ({single.hex()})" if narrow else f"{value!r} ({logprob.hex()})"


def no_evidence(output: Output, asked: int, bits: bool) -> str:
    """Why an output's bits show nothing although they did not change; empty where they do."""
    if not output.tokens:
        return "no output token"
    if len(output.tokens) < asked:
        return f"ended after {len(output.tokens)} of {asked} output tokens"
    if asked > 1 and len(set(output.logprobs)) == 1:
        return f"all log-probabilities are {shown(output.logprobs[0], bits)}: such bits cannot show a change"
    return ""


def unsupported(output: Output) -> str:
    """What the target cannot be asked, so that a cell does not apply; empty where it can."""
    return (output.error or "the target cannot be asked this") if output.finish == "unsupported" else ""


def broken(output: Output, bits: bool) -> str:
    """Why an output cannot be compared at all; empty where it can."""
    if output.finish in ("refused", "unsupported"):
        return output.error or "the engine refused the request"
    if len(output.logprobs) != len(output.tokens):
        return f"{len(output.tokens)} tokens came with {len(output.logprobs)} log-probabilities"
    if not all(_is_finite(logprob, bits) for logprob in output.logprobs):
        return "a log-probability is not a finite number"
    return ""


def _is_finite(logprob: bytes, bits: bool) -> bool:
    """Whether it is a finite number; as digits it may be any text."""
    try:
        return math.isfinite(struct.unpack(">d", logprob)[0] if bits else float(logprob))
    except (struct.error, ValueError):
        return False

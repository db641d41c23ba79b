"""Requests for the battery: seeded prompts of token ids that any vocabulary has, in lengths that fit the target."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from detent.battery.scenario import Scenario
from detent.engines.interface import Request, Sampling, Submission, Traits
from detent.runtime.errors import DetentError

COMPARED = 16
"""Output tokens of the compared request, where a cell does not say otherwise."""
SHORT = 12
"""Tokens of a short compared prompt: fewer than a page of 16."""
SHORT_NEIGHBOURS = (5, 9, 14, 20)
"""Prompt lengths of short neighbours, in turn."""
LONGEST = 2048
"""Tokens of a long prompt at most, unless the user asks for more."""
ASSUMED_BUDGET = 2048
"""Tokens of a step where the target does not tell."""
ASSUMED_PAGE = 16
LEAST_CONTEXT = 256
GREEDY = Sampling()


@dataclass(frozen=True)
class Sizes:
    """Lengths in tokens. ``long``: a long neighbour's prompt. ``subject``: the longer compared prompt, no multiple of
    a page. ``page`` and ``budget`` are the target's, or assumed."""

    long: int
    subject: int
    page: int
    budget: int
    context: int

    @classmethod
    def of(cls, traits: Traits, long: int | None = None) -> Sizes:
        """Sizes that fit the target. Raises DetentError where its context is too short for the battery."""
        if traits.context < LEAST_CONTEXT:
            raise DetentError(f"{traits.name}: a context of {traits.context} tokens is too short for the battery",
                              f"give it at least {LEAST_CONTEXT}")
        page = traits.page or ASSUMED_PAGE
        most = traits.context // 2
        chosen = min(max(traits.context // 32, 6 * ASSUMED_PAGE), LONGEST, most) if long is None else long
        if not SHORT < chosen <= most:
            raise DetentError(f"a long prompt of {chosen} tokens does not fit {traits.name}",
                              f"give {SHORT + 1} to {most}: half of the context is for the output")
        subject = max(chosen // 2, min(4 * page, most - 8)) + 5
        return cls(long=chosen, subject=subject, page=page, budget=traits.budget or ASSUMED_BUDGET,
                   context=traits.context)

    def lasting(self, prompts: Sequence[int]) -> int:
        """Output tokens of a neighbour that is still there when a request which came after all these prompts has
        its :data:`COMPARED` tokens. The prompts share the steps' budget with one token of each running request."""
        room = max(1, self.budget - len(prompts))
        return COMPARED + 2 + -(-sum(prompts) // room) + 1

    def capped(self, request: Request) -> Request:
        """The request with no more output than its context holds."""
        return replace(request, max_tokens=max(1, min(request.max_tokens, self.context - len(request.prompt))))


class Prompts:
    """Prompts by name: the same name, seed and vocabulary give the same ids, and two names share no prefix by more
    than chance. ``salt`` keeps runs on a server apart whose prefix cache cannot be emptied."""

    def __init__(self, traits: Traits, seed: int, salt: str = "") -> None:
        special = {token for token in traits.special if 0 <= token < traits.vocabulary}
        if traits.vocabulary - len(special) < 2:
            raise DetentError(f"{traits.name}: a vocabulary of {traits.vocabulary} ids, {len(special)} of them "
                              "special, leaves nothing to write prompts with", "check the model's vocabulary")
        self._vocabulary, self._special, self._key = traits.vocabulary, special, f"{seed}/{salt}"

    def ids(self, name: str, length: int) -> tuple[int, ...]:
        """A prompt of this many ids, none of them special."""
        draw = random.Random(f"{self._key}/{name}/{length}")
        found: list[int] = []
        while len(found) < length:
            token = draw.randrange(self._vocabulary)
            if token not in self._special:
                found.append(token)
        return tuple(found)


class Workload:
    """Requests and batches made of :class:`Prompts` in :class:`Sizes`."""

    def __init__(self, traits: Traits, sizes: Sizes, seed: int, salt: str = "") -> None:
        self.traits, self.sizes, self.prompts = traits, sizes, Prompts(traits, seed, salt)

    def subject(self, length: int, *, cell: str = "", tokens: int = COMPARED,
                sampling: Sampling = GREEDY) -> Request:
        """A compared request. Cells share it unless prompts must be new in each: where the prefix cache cannot be
        emptied, ``cell`` is part of the prompt's name."""
        own = "" if self.traits.can_flush else cell
        return self.sizes.capped(Request(self.prompts.ids(f"subject{own}", length), tokens, sampling,
                                         name=f"subject of {length}"))

    def neighbours(self, lengths: Sequence[int], *, cell: str = "", tokens: int | None = None, start: int = 0,
                   sampling: Sampling = GREEDY) -> tuple[Submission, ...]:
        """Requests with these prompt lengths that last until the compared one is done, or for ``tokens``."""
        own = "" if self.traits.can_flush else cell
        lasting = self.sizes.lasting(lengths) if tokens is None else tokens
        return tuple(Submission(self.sizes.capped(Request(self.prompts.ids(f"neighbour{i}{own}", length), lasting,
                                                          sampling, name=f"neighbour {i} of {length}")), start)
                     for i, length in enumerate(lengths))

    def lengths(self, kind: str, count: int) -> tuple[int, ...]:
        """Prompt lengths of this many "short", "long" or "mixed" neighbours."""
        short = [SHORT_NEIGHBOURS[i % len(SHORT_NEIGHBOURS)] for i in range(count)]
        if kind == "short":
            return tuple(short)
        # Long prompts of the same length would hide what only a length decides.
        long = [max(SHORT, self.sizes.long - 7 * (i % 5)) for i in range(count)]
        return tuple(long) if kind == "long" else tuple(long[i] if i % 2 == 0 else short[i] for i in range(count))


def alone(request: Request, before: Sequence[Request] = (), fresh: bool = False) -> Scenario:
    """The request by itself; ``before``: requests served one after another first, for what they leave behind."""
    return Scenario((Submission(request),), before=tuple((Submission(r),) for r in before), fresh=fresh)


def beside(request: Request, neighbours: Sequence[Submission], place: str = "first") -> Scenario:
    """The request with neighbours, "first", in the "middle" or "last" among them."""
    at = {"first": 0, "middle": len(neighbours) // 2, "last": len(neighbours)}[place]
    return Scenario((*neighbours[:at], Submission(request), *neighbours[at:]), subjects=(at,))

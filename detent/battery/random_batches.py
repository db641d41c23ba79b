"""Random batches: a request alone, against the same request in a batch that a seed draws."""

from __future__ import annotations

import random
from dataclasses import replace

from detent.battery import evidence
from detent.battery.scenario import ABSENT, RANDOM, SEEN, Cell, Evidence, Scenario, Served, fixed
from detent.battery.workload import COMPARED, GREEDY, SHORT, Workload, alone
from detent.engines.interface import Request, Sampling, Submission

MOST = 40
"""Neighbours in a random batch at most."""
MOST_BATCHES = 10_000
"""Random batches of one battery: hours on a fast engine, and a report that can still be read."""
LATEST = 12
"""Output tokens of the first request at most, when another one joins."""


def random_name(number: int) -> str:
    """The name of a random batch; the first one has number 1."""
    return f"random-{number:04}"


def random_cell(work: Workload, number: int, seed: int) -> Cell:
    """The random batch of that number: the same for the same seed, however many others there are."""
    return _cell(work, random_name(number), random.Random(f"random batch/{seed}/{number}"))


def _cell(work: Workload, name: str, draw: random.Random) -> Cell:
    subject = _subject(work, name, draw)
    most = MOST if work.traits.max_seqs is None else min(MOST, work.traits.max_seqs - 1)
    # Small batches are as likely as large ones: most selections change among the small.
    count = min(most, round(2 ** draw.uniform(0, MOST.bit_length())))
    others = [_neighbour(work, name, i, draw) for i in range(count)]
    place = draw.randint(0, count)
    preempt = draw.randint(1, LATEST) if work.traits.can_preempt and draw.random() < 0.1 else None
    batch = [*others[:place], Submission(subject, preempt=preempt), *others[place:]]
    start = draw.choice((0, 0, draw.randint(1, LATEST)))
    if start and place:
        batch[place] = replace(batch[place], start=start)
    # The first submission starts the run, and must be there when the last one joins.
    first = batch[0].request
    batch[0] = replace(batch[0], start=0, request=work.sizes.capped(
        replace(first, max_tokens=max(first.max_tokens, LATEST + 4))))
    before: tuple[tuple[Submission, ...], ...] = ()
    if draw.random() < 0.3:
        hit = draw.randint(1, len(subject.prompt))
        before = ((Submission(Request(subject.prompt[:hit], 1, name=f"prefix of {hit}")),),)
    what = (f"place {place + 1} of {count + 1}{', joins' * (batch[place].start > 0)}{', prefix cached' * bool(before)}"
            f"{', pre-empted' * (preempt is not None)}{', sampled' * (subject.sampling.temperature > 0)}")
    return Cell(name, RANDOM, "random", what,
                fixed(alone(subject), Scenario(tuple(batch), subjects=(place,), before=before)), _anything,
                unfit="" if most > 0 else "the target serves one request at a time")


def _subject(work: Workload, cell: str, draw: random.Random) -> Request:
    """One of few requests, so that most references are served once."""
    length = draw.choice((SHORT, 2 * work.sizes.page + 1, work.sizes.subject, work.sizes.long))
    sampling = draw.choice((GREEDY, GREEDY, GREEDY, Sampling(temperature=0.8, seed=3),
                            Sampling(temperature=0.8, seed=3, top_p=0.9), Sampling(temperature=0.8, seed=3, top_k=40)))
    return work.subject(length, cell=cell, sampling=sampling)


def _neighbour(work: Workload, cell: str, index: int, draw: random.Random) -> Submission:
    length = round(2 ** draw.uniform(2, work.sizes.long.bit_length() - 1))
    seed = draw.choice((None, draw.randrange(2**31)))
    sampling = draw.choice((GREEDY, Sampling(temperature=1.0, seed=seed),
                            Sampling(temperature=0.7, top_p=0.9, top_k=draw.choice((0, 40)), seed=seed)))
    preempt = draw.randint(1, 8) if work.traits.can_preempt and draw.random() < 0.1 else None
    prompt = work.prompts.ids(f"{cell}/{index}", length)
    request = Request(prompt, draw.randint(1, 2 * COMPARED), sampling, name=f"neighbour {index} of {length}")
    return Submission(work.sizes.capped(request), draw.choice((0, 0, 0, draw.randint(1, LATEST))), preempt)


def _anything(reference: Served, perturbed: Served) -> Evidence:
    """Another batch, another prefix hit, or a pre-emption: any is a perturbation."""
    found = [judge(reference, perturbed)
             for judge in (evidence.batch(2), evidence.cached(1, None), evidence.preempted())]
    seen = [each for each in found if each.state == SEEN]
    if seen:
        return Evidence(SEEN, "; ".join(each.text for each in seen))
    return next((each for each in found if each.state == ABSENT), found[0])

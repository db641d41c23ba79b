"""Evidence that requests were sampled as they asked: without a parameter of theirs they have other tokens.

An engine that ignores temperature, seed, top-p or top-k serves the same batch with and without them, and a cell about
sampling would pass on it although nothing was sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from detent.battery.scenario import ABSENT, SEEN, Evidence, Lab, Served
from detent.engines.interface import Sampling


def _reseeded(sampling: Sampling) -> Sampling:
    assert sampling.seed is not None
    return replace(sampling, seed=sampling.seed + 1)


Change = Callable[[Sampling], Sampling]
PARAMETERS: tuple[tuple[str, Callable[[Sampling], bool], Change], ...] = (
    ("without temperature", lambda s: s.temperature > 0, lambda s: Sampling()),
    # Without a seed, tokens change by themselves: what only a seeded request shows is sought in those.
    ("with another seed", lambda s: s.temperature > 0 and s.seed is not None, _reseeded),
    ("without top-p", lambda s: s.top_p < 1 and s.seed is not None, lambda s: replace(s, top_p=1.0)),
    ("without top-k", lambda s: s.top_k > 0 and s.seed is not None, lambda s: replace(s, top_k=0)),
)
"""What is changed, which requests have it, and what they ask for then."""


def sampled(lab: Lab, served: Served) -> Evidence:
    """The batch is served again with one parameter changed, and again: each time the compared request must have other
    tokens, where it has that parameter, and so must one of the neighbours that have it. Seeded neighbours must repeat
    their tokens when nothing is changed; the compared request's are compared anyway."""
    batch, subjects = served.scenario.batch, served.scenario.subjects
    seeded = [i for i, each in enumerate(batch) if i not in subjects
              and each.request.sampling.temperature > 0 and each.request.sampling.seed is not None]
    if seeded:
        again = lab.serve(served.scenario)
        if any(again.outputs[i].tokens != served.outputs[i].tokens for i in seeded):
            return Evidence(ABSENT, "a seeded neighbour has other tokens when it is served again")
    seen = []
    for how, has, change in PARAMETERS:
        places = [i for i, each in enumerate(batch) if has(each.request.sampling)]
        if not places:
            continue
        requests = [replace(each.request, sampling=change(each.request.sampling)) if i in places else each.request
                    for i, each in enumerate(batch)]
        other = lab.serve(replace(served.scenario, batch=tuple(
            replace(each, request=request) for each, request in zip(batch, requests, strict=True))))
        for who, group in (("the request", [i for i in places if i in subjects]),
                           ("neighbours", [i for i in places if i not in subjects])):
            if any(not other.outputs[i].tokens for i in group):
                return Evidence(ABSENT, f"{who} could not be served {how}, to see whether anything was sampled")
            if group and all(other.outputs[i].tokens == served.outputs[i].tokens for i in group):
                return Evidence(ABSENT, f"{who} had the same tokens {how}: nothing shows that it was heeded")
        seen.append(how)
    return Evidence(SEEN, f"other tokens {', '.join(seen)}")


def perturbed_sampled(lab: Lab, reference: Served, perturbed: Served) -> Evidence:
    """:func:`sampled`, of the perturbed batch."""
    return sampled(lab, perturbed)


def reference_sampled(lab: Lab, reference: Served, perturbed: Served) -> Evidence:
    """:func:`sampled`, of the reference."""
    return sampled(lab, reference)

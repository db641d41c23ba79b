"""The extended cells; each is made after a fault that some engine had.

Those about sampling, stop strings, pre-emption, restarts and long outputs are in ``extended_serving``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from detent.battery import evidence
from detent.battery.cells import JOINED, prefix, too_many
from detent.battery.extended_serving import SEEDED, serving
from detent.battery.sampling import reference_sampled
from detent.battery.scenario import EXTENDED, Cell, Lab, Scenario, fixed
from detent.battery.workload import COMPARED, GREEDY, SHORT, Workload, alone, beside
from detent.engines.interface import Request, Submission

CONCURRENCY = (43, 44, 45, 46, 255, 256, 257)
"""Requests in a batch: where vLLM's attention changed its split count on an H100, and around its default maximum."""
WHOLE, FIRST, BUDGET = 1500, 248, 1024
"""A prompt of 1,500 tokens in chunks of 1024+476 and of 248+1024+228; other budgets scale it."""
MOST_DECODING = 64
"""Requests in a decode batch for the boundary of a table; captured graphs are met at every size."""
OFFSETS = (1, 8, 15)
"""Output tokens that a prompt holds when decoded tokens are prefilled."""


def extended(work: Workload) -> list[Cell]:
    """All extended cells; how many depends on the target's captured graphs and table boundaries."""
    return [*_neighbour_lengths(work), *_concurrency(work), *_step_tokens(work), *_decode_batches(work),
            *_page_edges(work), *_chunks(work), _thrice(work), *_prefilled(work), *_graphs(work), *serving(work)]


def _neighbour_lengths(work: Workload) -> list[Cell]:
    cells = []
    base = 3 * work.sizes.page - 1  # one token fewer than whole pages: one more token is one more page below
    for name, other in (("neighbour-1-longer", base + 1), ("neighbour-page-longer", base + work.sizes.page),
                        ("neighbour-much-longer", max(work.sizes.long, 2 * base))):
        subject = work.subject(work.sizes.subject, cell=name)
        was, now = (work.neighbours((length,), cell=name, tokens=COMPARED + 8) for length in (base, other))
        cells.append(Cell(name, EXTENDED, "neighbour length", f"a neighbour of {other} tokens instead of {base}",
                          fixed(beside(subject, was), beside(subject, now)),
                          evidence.all_of(evidence.batch(2, changed=False), evidence.neighbour_length),
                          unfit=too_many(work, 2)))
    return cells


def _concurrency(work: Workload) -> list[Cell]:
    return [_crowd(work, f"concurrency-{count}", "concurrency", count) for count in CONCURRENCY]


def _crowd(work: Workload, name: str, kind: str, count: int) -> Cell:
    """The request alone against the same in a decode batch of exactly ``count`` requests."""
    subject = work.subject(SHORT, cell=name)
    others = work.neighbours([5 + i % 4 for i in range(count - 1)], cell=name)
    judge = evidence.all_of(evidence.batch(count), evidence.step_tokens(count))
    return Cell(name, EXTENDED, kind, f"alone, then last in a batch of {count}",
                fixed(alone(subject), beside(subject, others, "last")), judge, unfit=too_many(work, count))


def _around(counts: set[int]) -> list[int]:
    return sorted({count + step for count in counts for step in (-1, 0, 1) if count + step > 1})


def _step_tokens(work: Workload) -> list[Cell]:
    """One token of the request is decoded beside the prefill of a prompt that brings the step to a token count."""
    traits, cells = work.traits, []
    for count in _around({*traits.captures, *traits.boundaries}):
        name = f"tokens-{count}"
        subject = work.subject(SHORT + 1, cell=name)
        other = work.neighbours((count - 1,), cell=name, tokens=2, start=JOINED)
        unfit = too_many(work, 2)
        if count > work.sizes.budget:
            unfit = f"a step has at most {work.sizes.budget} tokens"
        elif count + 1 > work.sizes.context:
            unfit = f"the neighbour's prompt is longer than a context of {work.sizes.context}"
        cells.append(Cell(name, EXTENDED, "step tokens", f"a step of {count} tokens: decoded beside a prefill",
                          fixed(alone(subject), beside(subject, other)), evidence.step_tokens(count), unfit=unfit))
    return cells


def _decode_batches(work: Workload) -> list[Cell]:
    near = {count for count in work.traits.boundaries if count <= MOST_DECODING}
    return [_crowd(work, f"decode-{count}", "decode batch", count)
            for count in _around({*work.traits.captures, *near}) if count not in CONCURRENCY]


def _page_edges(work: Workload) -> list[Cell]:
    page = work.sizes.page
    length = 2 * page + 3
    cells = [prefix(work, name, EXTENDED, length, hit)
             for name, hit in (("prefix-1-token", 1), ("prefix-page-minus-1", page - 1),
                               ("prefix-one-page", page), ("prefix-page-plus-1", page + 1)) if hit > 0]
    # Whole pages, all of them there: the last token must be computed anew.
    cells.append(prefix(work, "prefix-whole-pages", EXTENDED, 3 * page, 3 * page))
    return [*cells, _second_turn(work)]


def _second_turn(work: Workload) -> Cell:
    """A prompt that holds an answer, whose KV is computed by prefill or was written while decoding."""
    name, page = "prefix-decoded", work.sizes.page
    first = work.subject(2 * page + 1, cell=name, tokens=2 * page)

    def plan(lab: Lab) -> tuple[Scenario, Scenario]:
        answer = lab.serve(alone(first)).subject.tokens
        prompt = (*first.prompt, *answer, *work.prompts.ids(name, page // 2 + 1))
        second = work.sizes.capped(Request(prompt, COMPARED, name="second turn"))
        return alone(second), alone(second, before=(first,))

    return Cell(name, EXTENDED, "prefix", "a second turn on cached pages that decoding wrote", plan,
                evidence.cached(4 * page, work.traits.page))


def _chunks(work: Workload) -> list[Cell]:
    """The same prompt in other chunks, because others take a part of the first steps."""
    budget, context = work.sizes.budget, work.sizes.context
    length = min(round(WHOLE * budget / BUDGET), context - 2 * COMPARED)
    head = min(round(FIRST * budget / BUDGET), length - 1)
    takes = [("chunks-short-head", budget - head, f"at most {head}"), ("chunks-1-token-head", budget - 1, "1"),
             ("chunks-half-page-head", budget - work.sizes.page // 2, f"{work.sizes.page // 2}")]
    cells = []
    for name, taken, says in takes:
        subject = work.subject(length, cell=name)
        # It ends with its prefill, so that the step after has the whole budget: 248+1024+228.
        first = work.neighbours((min(taken, context - 1),), cell=name, tokens=1)
        cells.append(Cell(name, EXTENDED, "chunks", f"a prompt of {length} tokens whose first chunk has {says}",
                          fixed(alone(subject), beside(subject, first, "last")), evidence.chunked,
                          unfit=too_many(work, 2)))
    name = "chunks-beside-decoding"
    subject = work.subject(length, cell=name)
    others = work.neighbours((5, 9, 14), cell=name)
    joined = Scenario((*others, Submission(subject, start=JOINED)), subjects=(3,))
    fits = f"{length} tokens are one chunk either way" if length + len(others) <= budget else ""
    return [*cells, Cell(name, EXTENDED, "chunks", f"a prompt of {length} tokens beside 3 that decode",
                         fixed(alone(subject), joined), evidence.chunked, unfit=fits or too_many(work, 4))]


def _thrice(work: Workload) -> Cell:
    name = "same-prompt-thrice"
    subject = work.subject(work.sizes.subject, cell=name)
    batch = Scenario((Submission(subject),) * 3, subjects=(0, 1, 2))
    return Cell(name, EXTENDED, "same prompt", "three times in one batch; all three are compared",
                fixed(alone(subject), batch), evidence.batch(3), unfit=too_many(work, 3))


def _prefilled(work: Workload) -> list[Cell]:
    """Tokens that were decoded, given back as the end of a prompt. Seeded noise must be keyed by a token's position:
    counted from the first output token, it would be another."""
    cells = []
    for sampling, offset in product((GREEDY, SEEDED), OFFSETS):
        seeded = sampling is SEEDED
        name = f"prefilled-{offset}{'-seeded' * seeded}"
        subject = work.subject(work.sizes.subject, cell=name, sampling=sampling)

        def plan(lab: Lab, subject: Request = subject, offset: int = offset) -> tuple[Scenario, Scenario]:
            tokens = lab.serve(alone(subject)).subject.tokens
            longer = replace(subject, prompt=(*subject.prompt, *tokens[:offset]), max_tokens=COMPARED - offset,
                             name=f"{subject.name} + {offset}")
            return alone(subject), alone(longer)

        what = f"{offset} {'seeded ' * seeded}output tokens given back as the end of the prompt"
        cells.append(Cell(name, EXTENDED, "prefilled", what, plan, evidence.prefilled, skip=offset,
                          control=reference_sampled if seeded else None))
    return cells


def _graphs(work: Workload) -> list[Cell]:
    """Within the largest captured graph, against above it, in one process."""
    largest = max(work.traits.captures, default=0)
    none = "" if largest else "the target has no captured graphs"
    name = "graph-left-by-prefill"
    subject = work.subject(SHORT + 1, cell=name)
    other = work.neighbours((largest + 1,), cell=name, tokens=2, start=JOINED)
    fits = "" if largest + 2 <= work.sizes.budget else f"a step has at most {work.sizes.budget} tokens"
    above, within = "graph-left-by-batch", work.neighbours([5 + i % 4 for i in range(largest)], cell=name)
    crowd = work.subject(SHORT, cell=above)
    return [
        Cell(name, EXTENDED, "graph", f"a step above the largest graph of {largest} tokens: beside a prefill",
             fixed(alone(subject), beside(subject, other)), evidence.left_the_graph, unfit=none or fits),
        Cell(above, EXTENDED, "graph", f"{largest + 1} requests, one more than the largest graph holds",
             fixed(beside(crowd, within[:-1]), beside(crowd, within)), evidence.left_the_graph,
             unfit=none or too_many(work, largest + 1)),
    ]

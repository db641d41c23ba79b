"""Whether a perturbation happened, read from what the engine told of each output token.

A function here makes the judge of a cell. What the engine does not tell is "untold"; what it tells otherwise than the
cell needs is "absent". Neither counts as passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from detent.battery.scenario import ABSENT, SEEN, UNFIT, UNTOLD, Evidence, Judge, Served
from detent.engines.interface import Output, Step, Submission

T = TypeVar("T")


def column(output: Output, read: Callable[[Step], T | None]) -> list[T]:
    """A field of the steps, without those that are not told."""
    return [value for step in output.steps if (value := read(step)) is not None]


def untold(*names: str) -> Evidence:
    return Evidence(UNTOLD, f"the target does not tell {' or '.join(names)}")


def span(values: Sequence[int]) -> str:
    """``3`` or ``1-3``."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def observed(served: Served) -> dict[str, Any]:
    """What was told of the compared request, for the report."""
    output = served.subject
    batch, rows = column(output, lambda s: s.batch), column(output, lambda s: s.row)
    tokens, graph = column(output, lambda s: s.tokens), column(output, lambda s: s.graph)
    return {
        "batch": [min(batch), max(batch)] if batch else None,
        "rows": sorted(set(rows)) if rows else None,
        "step_tokens": [min(tokens), max(tokens)] if tokens else None,
        "graph": sorted(set(graph)) if graph else None,
        "cached": output.cached,
        "chunks": list(output.chunks) if output.chunks is not None else None,
        "preemptions": output.preemptions,
    }


def repeated(how: str = "served again") -> Judge:
    """The same batch once more: that it was served is all there is to see. Where it has several requests, an engine
    that tells the batch must not have served them one at a time."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        told = [column(s.subject, lambda step: step.batch) for s in (perturbed, reference)]
        text = how + (f", {span(told[0])} in a step" if told[0] else "")
        apart = len(perturbed.scenario.batch) > 1 and any(sizes and max(sizes) < 2 for sizes in told)
        return Evidence(ABSENT if apart else SEEN, f"{text}: never in a batch" if apart else text)

    return judge


def batch(least: int, changed: bool = True) -> Judge:
    """A step of the compared request held at least this many requests; with ``changed`` the reference's did not hold
    as many at the same token, without it the reference reached ``least`` as well."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        mine, other = (column(s.subject, lambda step: step.batch) for s in (perturbed, reference))
        if not mine or not other:
            return untold("the batch")
        text = f"{span(mine)} requests in a step, reference {span(other)}"
        if max(mine) < least or (not changed and max(other) < least):
            return Evidence(ABSENT, f"{text}; {least} are needed")
        if changed and mine == other:
            return Evidence(ABSENT, f"{text}: the same at every token")
        return Evidence(SEEN, text)

    return judge


def moved(reference: Served, perturbed: Served) -> Evidence:
    """The compared request had another row at the same token, in as large a batch."""
    pairs = [(a.row, b.row) for a, b in zip(reference.subject.steps, perturbed.subject.steps, strict=False)
             if a.row is not None and b.row is not None and a.batch == b.batch]
    if not column(reference.subject, lambda s: s.row) or not column(perturbed.subject, lambda s: s.row):
        return untold("the row")
    for was, now in pairs:
        if was != now:
            return Evidence(SEEN, f"row {now}, reference {was}")
    return Evidence(ABSENT, "the same row at every token" if pairs else "no token in batches of the same size")


def cached(hit: int, page: int | None) -> Judge:
    """Prompt tokens came from the prefix cache that in the reference did not. ``hit``: how many are there. An engine
    that finds whole pages only has no shorter hit, and every engine must compute the last token."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        mine, other = perturbed.subject.cached, reference.subject.cached
        if mine is None or other is None:
            return untold("cached tokens")
        length = len(_prompt(perturbed))
        usable = min(hit, length - 1)
        text = f"{mine} of {hit} shared prompt tokens from the cache, reference {other}"
        if page is not None and usable < page and mine == other == 0:
            return Evidence(UNFIT, f"no hit in pages of {page}: {usable} tokens can be shared")
        if mine == other:
            return Evidence(ABSENT, text)
        # The last token's page may have to be computed whole.
        if page is not None and other < mine < min(hit // page * page, length - page):
            return Evidence(ABSENT, f"{text}; {hit // page * page} are needed")
        return Evidence(SEEN, text)

    return judge


def _prompt(served: Served) -> tuple[int, ...]:
    return served.scenario.batch[served.scenario.subjects[0]].request.prompt


def chunked(reference: Served, perturbed: Served) -> Evidence:
    """The prompt was computed in other chunks."""
    mine, other = perturbed.subject.chunks, reference.subject.chunks
    if mine is None or other is None:
        return untold("chunks of the prefill")
    text = f"chunks {'+'.join(map(str, mine))}, reference {'+'.join(map(str, other))}"
    return Evidence(ABSENT if mine == other else SEEN, text)


def step_tokens(count: int) -> Judge:
    """A step of the compared request held exactly this many tokens, and the reference's had none such."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        mine, other = (column(s.subject, lambda step: step.tokens) for s in (perturbed, reference))
        if not mine or not other:
            return untold("tokens of a step")
        if count in other:
            return Evidence(ABSENT, f"the reference has a step of {count} tokens too")
        if count not in mine:
            return Evidence(ABSENT, f"steps of {span(mine)} tokens, none of {count}")
        return Evidence(SEEN, f"a step of {count} tokens, reference {span(other)}")

    return judge


def left_the_graph(reference: Served, perturbed: Served) -> Evidence:
    """A token that a captured graph computed in the reference was computed without one."""
    if not all(column(s.subject, lambda step: step.graph) for s in (reference, perturbed)):
        return untold("whether a graph was replayed")
    for at, (was, now) in enumerate(zip(reference.subject.steps, perturbed.subject.steps, strict=False)):
        if was.graph and now.graph is False:
            return Evidence(SEEN, f"token {at} without a graph, in the reference with one")
    return Evidence(ABSENT, "no token left the graph")


def neighbour_length(reference: Served, perturbed: Served) -> Evidence:
    """The neighbour's prompt had another length for the engine too: its chunks and its hit tell so, or else a step of
    the compared request that held other tokens in as large a batch."""
    lengths = [[_computed(served.outputs[place]) for place in range(len(served.outputs))
                if place not in served.scenario.subjects] for served in (perturbed, reference)]
    if all(length is not None for side in lengths for length in side):
        mine, other = (sum(length or 0 for length in side) for side in lengths)
        return Evidence(ABSENT if mine == other else SEEN,
                        f"the neighbour's prompt had {mine} tokens, in the reference {other}")
    steps = [(was, now) for was, now in zip(reference.subject.steps, perturbed.subject.steps, strict=False)
             if was.tokens is not None and now.tokens is not None]
    if not steps:
        return untold("the neighbour's chunks", "tokens of a step")
    for was, now in steps:
        if was.batch == now.batch != 1 and was.tokens != now.tokens:
            return Evidence(SEEN, f"a step of {now.tokens} tokens, reference {was.tokens}, in as large a batch")
    return Evidence(ABSENT, "as many tokens in every step: the neighbour's length is not seen")


def _computed(output: Output) -> int | None:
    """Prompt tokens that the engine computed or found in its cache; None where it does not tell."""
    return None if output.chunks is None else sum(output.chunks) + (output.cached or 0)


def preempted(whose: str = "the request") -> Judge:
    """The compared request was pre-empted, or "a neighbour", or one of the batch "before"; in the reference, no
    request was, also none of a batch before."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        outputs, _ = _asked(perturbed, whose)
        mine, other = ([o.preemptions for o in side] for side in (outputs, reference.all_outputs))
        if None in mine or None in other:
            return untold("pre-emptions")
        now, was = (sum(count or 0 for count in side) for side in (mine, other))
        text = f"{'one of the batch before' if whose == 'before' else whose} pre-empted {now} times, reference {was}"
        return Evidence(SEEN if now and not was else ABSENT, text)

    return judge


def stopped(whose: str = "a neighbour") -> Judge:
    """A request that was given a stop string ended at it: "a neighbour", or one of the batch "before". In the
    reference none did."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        outputs, submissions = _asked(perturbed, whose)
        asked = [output for output, each in zip(outputs, submissions, strict=True) if each.request.stop]
        now, was = (sum(output.finish == "stop" for output in side) for side in (asked, reference.all_outputs))
        if not asked:
            return Evidence(ABSENT, "the neighbour said nothing printable to stop at")
        return Evidence(SEEN if now and not was else ABSENT, f"{now} stopped at a string, reference {was}")

    return judge


def _asked(served: Served, whose: str) -> tuple[list[Output], list[Submission]]:
    """Outputs and submissions of the compared request, of "a neighbour" or of the batches "before"."""
    if whose == "before":
        return [o for batch in served.before for o in batch], [s for batch in served.scenario.before for s in batch]
    compared = served.scenario.subjects
    places = compared if whose == "the request" else [i for i in range(len(served.outputs)) if i not in compared]
    return [served.outputs[i] for i in places], [served.scenario.batch[i] for i in places]


def prefilled(reference: Served, perturbed: Served) -> Evidence:
    """The whole prompt, with tokens that the reference had decoded, was computed and not read from the cache."""
    mine = perturbed.subject.cached
    if mine is None:
        return untold("cached tokens")
    return Evidence(ABSENT if mine else SEEN, f"{mine} prompt tokens from the cache")


def all_of(*judges: Judge) -> Judge:
    """Every one of the judges sees its perturbation."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        found = [each(reference, perturbed) for each in judges]
        missing = next((e for e in found if e.state != SEEN), None)
        return missing or Evidence(SEEN, "; ".join(e.text for e in found))

    return judge

"""Whether a perturbation happened, read from what the engine told of each output token.

A function here makes the judge of a cell. What the engine does not tell is "untold"; what it tells otherwise than the
cell needs is "absent". Neither counts as passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from detent.battery.scenario import ABSENT, SEEN, UNFIT, UNTOLD, Evidence, Judge, Served
from detent.engines.interface import Output, Step

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


def repeated(reference: Served, perturbed: Served) -> Evidence:
    """The same batch once more: that it was served is all there is to see."""
    told = column(perturbed.subject, lambda s: s.batch)
    return Evidence(SEEN, f"served again{f', {span(told)} in a step' if told else ''}")


def restarted(reference: Served, perturbed: Served) -> Evidence:
    return Evidence(SEEN, "served by a new process")


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


def preempted(before: bool = False) -> Judge:
    """A request was pre-empted, and in the reference none was; ``before``: in a batch that was served first."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        def total(served: Served) -> int | None:
            outputs = [o for batch in served.before for o in batch] if before else list(served.outputs)
            counts = [o.preemptions for o in outputs if o.preemptions is not None]
            return sum(counts) if len(counts) == len(outputs) else None

        mine, other = total(perturbed), total(reference)
        if mine is None or other is None:
            return untold("pre-emptions")
        return Evidence(SEEN if mine > other else ABSENT, f"{mine} pre-emptions, reference {other}")

    return judge


def stopped(before: bool = False) -> Judge:
    """A request ended at a stop string, and in the reference none did; ``before``: in a batch served first."""

    def judge(reference: Served, perturbed: Served) -> Evidence:
        def count(served: Served) -> int:
            outputs = [o for batch in served.before for o in batch] if before else list(served.outputs)
            return sum(output.finish == "stop" for output in outputs)

        mine, other = count(perturbed), count(reference)
        return Evidence(SEEN if mine > other else ABSENT, f"{mine} stopped at a string, reference {other}")

    return judge


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

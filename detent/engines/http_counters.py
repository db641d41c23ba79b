"""What a server counts, read from its Prometheus metrics before and after a run: evidence of how tokens were made.

vLLM's names. A server without these tells nothing here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NEAR = 0.75
"""How near the counted requests of a step must come to the overlapping replies. Two engines behind one address halve
them; steps that only compute prompts lower them a little."""


@dataclass(frozen=True)
class Counters:
    """Totals since the server began: engine ``steps``, ``generated`` tokens, prompt tokens read from the prefix cache
    (``cached``; None where it is not counted) and ``preemptions``."""

    steps: int
    generated: int
    cached: int | None
    preemptions: int | None

    def since(self, before: Counters) -> Counters:
        """What was added."""
        def less(now: int | None, was: int | None) -> int | None:
            return None if now is None or was is None else now - was

        return Counters(self.steps - before.steps, self.generated - before.generated,
                        less(self.cached, before.cached), less(self.preemptions, before.preemptions))


def counters(metrics: str) -> Counters | None:
    """The totals in a text of metrics, over all its engines; None where steps or tokens are not counted."""
    sums: dict[str, float] = {}
    for found in LINE.finditer(metrics):
        try:
            sums[found["name"]] = sums.get(found["name"], 0.0) + float(found["value"])
        except ValueError:
            continue

    def total(name: str) -> int | None:
        value = sums.get(f"vllm:{name}")
        return None if value is None or not math.isfinite(value) else int(value)

    steps, generated = total("iteration_tokens_total_count"), total("generation_tokens_total")
    if steps is None or generated is None:
        return None
    return Counters(steps, generated, total("prefix_cache_hits_total"), total("num_preemptions_total"))


def page(metrics: str) -> int | None:
    """Tokens of a KV page, if the metrics tell."""
    for found in LINE.finditer(metrics):
        if found["name"] == "vllm:cache_config_info":
            size = dict(LABEL.findall(found["labels"] or "")).get("block_size", "")
            return int(size) if size.isdecimal() and len(size) < 10 and int(size) > 0 else None
    return None


def overlaps(times: Sequence[Sequence[float]]) -> list[list[int]]:
    """For each token of each reply, how many replies were between their first and last token when it came. Those had
    been admitted and were not done: a continuous batch holds them all."""
    spans = [(reply[0], reply[-1]) for reply in times if reply]
    return [[sum(first <= at <= last for first, last in spans) for at in reply] for reply in times]


def confirmed(batches: Sequence[Sequence[int]], added: Counters) -> str:
    """Why overlapping replies do not show batches of these sizes; empty where the server's own count agrees.

    ``batches``: of each token of each reply. A step with b requests makes b tokens, so the replies imply the sum of
    1/b over all tokens as the number of steps; the server says how many there were.
    """
    tokens = sum(map(len, batches))
    if added.generated > tokens + len(batches):  # a stop string is found up to one token late
        return "other clients used the server at the same time"
    implied = sum(1 / b for reply in batches for b in reply)
    if added.steps <= 0 or implied < NEAR * added.steps - 1:
        return f"the server took {added.steps} steps where overlapping replies imply {implied:.0f}"
    return ""

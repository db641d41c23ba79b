"""Records of a deployment's facts, and random calls that keep to what the programs assume."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from detent.lang import Violation, report
from detent.runtime.deployment import known, load

Facts = Mapping[str, Mapping[str, Any]]


def on_gpus() -> list[str]:
    """Names of the deployments that come with Detent for an engine on GPUs."""
    return [name for name in known() if "gpu" in load(name).facts]


def parameters(program: Callable[..., Any]) -> dict[str, Any]:
    """The record class of each parameter."""
    classes = {name: program.__globals__[kind] for name, kind in program.__annotations__.items() if name != "return"}
    assert all(hasattr(cls, "__detent_fields__") for cls in classes.values())
    return classes


def is_call(cls: Any) -> bool:
    return any(kind != "fact" for kind, _ in cls.__detent_fields__.values())


def fact_records(program: Callable[..., Any], deployment: str | Facts) -> dict[str, Any]:
    """The program's arguments but for the call, from a deployment's name or its facts."""
    facts = load(deployment).facts if isinstance(deployment, str) else deployment
    sections = {name: (cls, re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower())
                for name, cls in parameters(program).items() if not is_call(cls)}
    return {name: cls(**facts[section]) for name, (cls, section) in sections.items()}


def changed(deployment: str, **sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A deployment's facts with some replaced."""
    facts = {name: dict(values) for name, values in load(deployment).facts.items()}
    for section, values in sections.items():
        facts[section] |= values
    return facts


def run(program: Callable[..., Any], records: Mapping[str, Any],
        **inputs: Any) -> tuple[dict[str, Any], list[Violation]]:
    """Points and violations of one call in plain Python."""
    name, cls = next((name, cls) for name, cls in parameters(program).items() if is_call(cls))
    with report() as found:
        points = program(**records, **{name: cls(**inputs)})
    return points, found


def varying(samples: list[dict[str, Any]]) -> set[str]:
    """Names of the points that are not the same in all samples; their set and order is."""
    assert all(list(sample) == list(samples[0]) for sample in samples)
    return {name for name in samples[0] if len({(type(s[name]), s[name]) for s in samples}) > 1}


def log_uniform(rng: random.Random, low: int, high: int) -> int:
    """An int of any magnitude between the bounds: thresholds are near small numbers, limits are large."""
    return min(high, max(low, int(low * float(high / low) ** rng.random())))


def attention_batch(rng: random.Random, limits: Any, engine: Any) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """(query tokens, KV tokens) of each sequence of a random batch, and the inputs that describe the batch."""
    b = log_uniform(rng, 1, limits.max_num_seqs) if rng.random() < 0.8 else rng.randint(900, limits.max_num_seqs)
    longest = 1 if rng.random() < 0.5 else log_uniform(rng, 1, limits.max_num_batched_tokens - b + 1)
    context = log_uniform(rng, longest, limits.max_context)
    lengths = [(longest, context)]
    lengths += [(1, log_uniform(rng, 1, context)) for _ in range(b - 1)]
    width = -(-context // engine.page_size)
    inputs = {
        "b": b,
        "max_seqlen_q": longest,
        "max_seqlen_k": context,
        "total_q": sum(q for q, _ in lengths),
        "table_width": rng.randint(width, -(-limits.max_context // engine.page_size)),
        "in_graph": longest == 1 and b <= engine.max_capture_size and rng.random() < 0.5,
    }
    return lengths, inputs

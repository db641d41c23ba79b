"""The embedded engine with kernels chosen by hand, for tests that need no program to be solved."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from detent.engines.embedded.config import Limits
from detent.engines.embedded.engine import Engine
from detent.engines.embedded.model import Model, load
from detent.engines.embedded.ops import Ops
from detent.engines.interface import Output, Request, Sampling, Submission

LAYERS = ("qkv", "output", "gate_up", "down", "router", "logits")
SMALL = {"max_seqs": 8, "budget": 64, "context": 512, "page": 16, "pages": 64}


@lru_cache
def model(name: str) -> Model:
    """A random model, loaded once."""
    return load(name)


def ops(hash: str = "tuple a", stride: int = 64) -> Ops:
    """Operations under one selection, as a tuple has it: packed products, splits of ``stride`` keys."""
    points: dict[str, dict[str, Any]] = {
        "attention": {"kernel": "split", "query_rows": 8, "split_stride": stride},
        "gemm": {"rows": 1024, "fill": False, **{f"kernel.{layer}": "packed" for layer in LAYERS}},
        "moe": {"kernel": "packed", "rows": 1024, "fill": False}, "norm": {"kernel": "torch"}}

    def always(family: str) -> Any:
        return lambda *inputs: points[family]

    return Ops(SimpleNamespace(hash=hash, select={family: always(family) for family in points}, shapes={}, router=None,  # type: ignore[arg-type]
                               constant=points, commitment=None, boundaries=lambda tokens: ()))


def engine(name: str = "tiny", operations: Ops | None = None, **limits: int) -> Engine:
    """An engine of few pages."""
    loaded = model(name)
    return Engine(loaded, operations or ops(), Limits.of(loaded.config, **{**SMALL, **limits}))


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    """Token ids below 256; another salt makes all of them others."""
    return tuple((37 * place + 101 * salt + place * place) % 256 for place in range(length))


def request(length: int = 20, tokens: int = 8, salt: int = 0, **settings: Any) -> Request:
    """A request; ``settings`` are those of Sampling."""
    return Request(prompt(length, salt), tokens, Sampling(**settings))


def serve(served: Engine, *requests: Request) -> list[Output]:
    """Outputs of requests that are given together."""
    return served.run([Submission(each) for each in requests])


def bits(output: Output) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """What must not change."""
    return output.tokens, output.logprobs

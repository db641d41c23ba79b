"""The selector of a program without pins, as an engine loads it: what a Stock arm runs."""

from __future__ import annotations

from types import MappingProxyType

from detent.runtime import deployment as deployments
from detent.runtime.cache import Store
from detent.runtime.entry import Entry, Miss
from detent.runtime.errors import SolveFailed
from detent.runtime.load import _solved
from detent.runtime.selector import UnpinnedSelector
from detent.runtime.sources import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from detent.runtime.deployment import Deployment

STOCK_KNOBS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "attention-cpu": MappingProxyType({"always_split": False}),
    "gemm-cpu": MappingProxyType({"fill": False}),
    "moe-cpu": MappingProxyType({"fill": False}),
})
"""By program, knobs that a Stock arm sets where the defaults, which are for a tuple, are not as shipped."""


def load_unpinned(program: str, deployment: str | Deployment, knobs: Mapping[str, Any] | None = None, *,
                  store: Store | None = None) -> UnpinnedSelector:
    """The program as it is on a deployment, knobs at their defaults unless given. Raises as ``load_selector``."""
    entry = solution(program, deployment, store=store)
    source = entry.unpinned()
    if source is None:
        raise SolveFailed(f"the entry of {program} was damaged while it was read", "start again")
    return UnpinnedSelector(entry.document, source, knobs)


def solution(program: str, deployment: str | Deployment, *, store: Store | None = None) -> Entry:
    """The stored solution of a program on a deployment, solved in a process of its own if there is none."""
    where = resolve(program)
    cache = store or Store()
    facts = deployments.load(deployment, cache.toml) if isinstance(deployment, str) else deployment
    found = cache.find_solution(where, facts)
    return _solved(cache, where, facts, found, "solve") if isinstance(found, Miss) else found

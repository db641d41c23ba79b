"""What an engine process needs to run a solved selection: standard library only, names loaded on first use.

Nothing here imports the compiler. The cache is the wall between the two halves: the solver writes
entries, this package reads them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from detent.runtime.cache import Store
    from detent.runtime.deployment import Deployment
    from detent.runtime.deployment import load as load_deployment
    from detent.runtime.errors import CacheMiss, DetentError, NotLegal, TupleMismatch, UnknownName, Violation
    from detent.runtime.load import load_selector
    from detent.runtime.repin import Repin
    from detent.runtime.selector import Selector, UnpinnedSelector
    from detent.runtime.tuple import CommitmentTuple

__all__ = [
    "CacheMiss", "CommitmentTuple", "Deployment", "DetentError", "NotLegal", "Repin", "Selector", "Store",
    "TupleMismatch", "UnknownName", "UnpinnedSelector", "Violation", "load_deployment", "load_selector",
]

_HOMES = {
    "CacheMiss": "errors", "CommitmentTuple": "tuple", "Deployment": "deployment", "DetentError": "errors",
    "NotLegal": "errors", "Repin": "repin", "Selector": "selector", "Store": "cache", "TupleMismatch": "errors",
    "UnknownName": "errors", "UnpinnedSelector": "selector", "Violation": "errors",
    "load_deployment": "deployment", "load_selector": "load",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detent.runtime' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"detent.runtime.{home}"), "load" if name == "load_deployment" else name)
    globals()[name] = value
    return value

"""Detent: batch-invariant kernel selection for LLM engines.

Importing this package imports nothing else. Its names are looked up on first use, so that an engine
which only loads a selector never pays for the compiler.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from detent.runtime.load import load_selector
    from detent.solver.solution import Solution
    from detent.solver.solve import solve

__version__ = "0.1.0"
__all__ = ["Solution", "__version__", "load_selector", "solve"]

_HOMES = {"Solution": "detent.solver.solution", "load_selector": "detent.runtime.load", "solve": "detent.solver.solve"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detent' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value

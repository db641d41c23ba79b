"""What Detent adds to xDSL: its dialect, passes, targets and front end, each imported on first use.

``detent-opt`` registers exactly these, and stock ``xdsl-opt`` finds them through the entry-point group
``xdsl.universe``. xDSL refuses to start when two plug-ins share a name, hence the prefix ``selir-``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from xdsl.universe import Universe

PREFIX = "selir-"

PASSES = (
    "partial-eval",
    "control-dependence",
    "simplify",
    "constant-fold",
    "cse",
    "dce",
    "check-failures",
    "min-cut",
    "value-ranges",
    "pipeline",
)
"""Pass names without the prefix. A pass's module and class carry the same name."""

TARGETS = {"python": "PythonTarget", "dot": "DotTarget", "mermaid": "MermaidTarget", "html": "HtmlTarget"}
"""Target names without the prefix, with their classes in ``detent.solver.targets``."""


def _later(module: str, attribute: str) -> Callable[[], Any]:
    """A loader that imports ``module`` when it is called and not before."""

    def load() -> Any:
        return getattr(import_module(module), attribute)

    return load


def _pass_loader(name: str) -> Callable[[], Any]:
    words = name.split("-")
    return _later("detent.passes." + "_".join(words), "".join(word.capitalize() for word in words))


UNIVERSE = Universe(
    all_dialects={"selir": _later("detent.dialects.selir", "SELIR")},
    all_passes={PREFIX + name: _pass_loader(name) for name in PASSES},
    all_targets={PREFIX + name: _later("detent.solver.targets", cls) for name, cls in TARGETS.items()},
    all_frontends={"py": _later("detent.lang.frontend", "PythonFrontend")},
)

"""What is suspicious about a program on one deployment, though it is solved and sound.

``lint`` applies every rule of ``RULES``; each is a function of a :class:`Subject` that returns findings. A *warning*
says that something has no effect, or one that its author hardly wants; a *note* says what holds and is easily missed.
``equivalent`` groups legal assignments that behave alike, for the tuner as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detent.runtime.cache import Store
from detent.runtime.deployment import Deployment, load
from detent.solver.lint.classes import Behaviour, behaviour_in, equivalent, identical_assignments
from detent.solver.lint.controls import constant_points, dead_knobs, pinned_counts, settled_points
from detent.solver.lint.finding import NOTE, WARNING, Finding
from detent.solver.lint.rows import ties, unreached_rows, untuned_rows
from detent.solver.lint.subject import Subject
from detent.solver.lint.tables import unread_tables
from detent.solver.solve import Progress, solve

__all__ = ["NOTE", "RULES", "WARNING", "Behaviour", "Finding", "Subject", "behaviour_in", "equivalent", "lint"]

RULES: dict[str, Callable[[Subject], list[Finding]]] = {
    "unread-table": unread_tables,
    "unreached-row": unreached_rows,
    "untuned-row": untuned_rows,
    "tie": ties,
    "dead-knob": dead_knobs,
    "pinned-count": pinned_counts,
    "constant-point": constant_points,
    "settled-point": settled_points,
    "identical": identical_assignments,
}
"""Rules by the name that their findings carry."""


def lint(program: str | Callable[..., Any], deployment: str | Deployment, *, store: Store | None = None,
         progress: Progress = lambda step: None) -> list[Finding]:
    """Findings of all rules, warnings first, otherwise in the order of ``RULES``.

    Raises what :func:`detent.solver.solve.solve` raises: only a program that can be solved is looked at.
    """
    facts = load(deployment) if isinstance(deployment, str) else deployment
    solution = solve(program, facts, store=store, progress=progress)
    progress("bind facts")
    subject = Subject(program, facts, solution)
    found: list[Finding] = []
    for name, rule in RULES.items():
        progress(name)
        found += rule(subject)
    return sorted(found, key=lambda finding: finding.severity != WARNING)

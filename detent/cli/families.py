"""The adapted programs, one a kernel family, on a deployment: what ``detent run`` and ``detent tuple`` work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from detent.cli.errors import does_not_apply, line
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.runtime.deployment import Deployment
    from detent.solver.solution import Solution


def is_stock(name: str) -> bool:
    """Whether a program transcribes an engine's own selection; such programs are named so."""
    return name.endswith("-stock")


def is_cpu(name: str) -> bool:
    """Whether a program is for the embedded engine on a machine's own processors; such programs are named so."""
    return name.endswith("-cpu")


def adapted() -> list[str]:
    """Names of the adapted programs for GPUs, sorted: one a family."""
    from detent.runtime.sources import registry

    return sorted(name for name in registry() if not is_stock(name) and not is_cpu(name))


def adapted_for(deployment: Deployment) -> list[str]:
    """Names of the adapted programs for a deployment, sorted: those for GPUs, or those for a machine without one."""
    from detent.runtime.sources import registry

    return sorted(filter(is_cpu, registry())) if "machine" in deployment.facts else adapted()


def solve_all(deployment: Deployment, programs: Sequence[str]) -> tuple[list[Solution], dict[str, str]]:
    """Solutions of the programs that apply to a deployment, and for each that does not the reason."""
    from detent.solver.solve import solve

    solutions: list[Solution] = []
    skipped: dict[str, str] = {}
    for program in programs:
        try:
            with Steps(f"{program} for {deployment.name}") as step:
                solutions.append(solve(program, deployment, progress=step))
        except SyntaxError as error:
            if not does_not_apply(error):
                raise
            skipped[program] = line(error)
    return solutions, skipped

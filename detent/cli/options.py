"""Arguments that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


ABLATIONS = ("ranges", "value-sets", "equal-arms", "boolean", "identities", "cse", "lookup", "simplification",
             "control-dependence", "cut")
"""Names of ``detent.solver.compiled.ABLATIONS``, which is only imported when something is solved."""


def program_argument(function: F) -> F:
    """``PROGRAM``: a name, or ``path.py:function``."""
    return click.argument("program", metavar="PROGRAM")(function)


def deployment_option(function: F) -> F:
    """``--deployment``: a name, or the path of a TOML file."""
    return click.option("--deployment", "-d", required=True, metavar="D",
                        help="Deployment: a name (see detent deployments) or the path of a TOML file.")(function)


def ablate_option(text: str) -> Callable[[F], F]:
    """``--ablate``: the name of an ablation; ``text`` is its help."""
    return click.option("--ablate", type=click.Choice(ABLATIONS), metavar="X",
                        help=f"{text} One of: {', '.join(ABLATIONS)}.")


def json_option(function: F) -> F:
    """``--json``: standard output holds JSON and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(function)

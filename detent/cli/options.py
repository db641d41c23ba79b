"""Arguments that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


ABLATIONS = ("ranges", "value-sets", "equal-arms", "boolean", "identities", "cse", "lookup", "simplification",
             "control-dependence", "cut")
"""Names of ``detent.solver.compiled.ABLATIONS``, which is only imported when something is solved."""


def named_program(ctx: click.Context, parameter: click.Parameter, program: str | None) -> str | None:
    """The argument ``PROGRAM`` as given. Raises BadInput for a path that leads to no function of a file."""
    from detent.runtime.errors import BadInput

    if program is None or not (".py" in program or "/" in program):
        return program  # a name; whoever solves it lists those that there are
    path, colon, function = program.rpartition(":") if ".py:" in program else (program, "", "")
    problem, remedy = "", "give path.py:function, with a path from this folder or from /"
    if not os.path.exists(path):
        problem = f"there is no file {path}"
    elif not os.path.isfile(path) or not path.endswith(".py"):
        problem = f"{path} is no Python file"
    elif not function:
        problem, remedy = "it names no function of the file", f"write {path}:{' or '.join(_selections(path))}"
    if problem:
        raise BadInput(f"unknown program {program!r}: {problem}", remedy)
    return program


def _selections(path: str) -> list[str]:
    """Names of the functions below ``@selection(...)`` in a file, without running it; ``function`` if none is found."""
    import re

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        text = ""
    return re.findall(r"^@[\w.]*selection\(.*\)\s*\n(?:@.*\n)*def (\w+)", text, re.MULTILINE) or ["function"]


def program_argument(function: F) -> F:
    """``PROGRAM``: a name, or ``path.py:function``."""
    return click.argument("program", metavar="PROGRAM", callback=named_program)(function)


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

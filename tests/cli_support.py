"""Running ``detent`` in this process, as the tests of the command line do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from detent.cli.app import detent
from detent.runtime.deployment import load
from detent.runtime.spec import defaults

CONFIGS = Path(__file__).parent / "data" / "configs"
DEPLOYMENT = "qwen3-30b-a3b-tp4-h200"


def invoke(*arguments: str | os.PathLike[str]) -> Result:
    """The finished command; an exception that it let through is raised here."""
    return CliRunner().invoke(detent, [os.fspath(argument) for argument in arguments], catch_exceptions=False)


def done(*arguments: str | os.PathLike[str]) -> str:
    """Standard output of a command that must succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def loaded(*arguments: str | os.PathLike[str]) -> Any:
    """What a command that must succeed prints with ``--json``."""
    return json.loads(done(*arguments, "--json"))


def refused(*arguments: str | os.PathLike[str]) -> str:
    """The one line of a command that must end with exit code 2 and print nothing else."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and result.stderr.rstrip().endswith(lines[0]), result.stderr
    assert "Traceback" not in result.stderr
    return lines[0].removeprefix("error: ")


def arguments_of(name: str) -> list[str]:
    """How a deployment that comes with Detent is written anew."""
    facts = load(name).facts
    gpu = next(label for label, gpu in defaults()["gpu"].items() if gpu["name"] == facts["gpu"]["name"])
    config = CONFIGS / facts["model"]["name"] / "config.json"
    return ["--model-config", str(config), "--gpu", gpu, "--tp", str(facts["parallel"]["tensor_parallel"]),
            "--engine", facts["engine"]["name"]]

"""What a new process imports: a hit of ``detent solve --json`` pays for the command line and the cache only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import DEPLOYMENT, done

HEAVY = ("rich", "xdsl", "numpy", "networkx", "torch", "triton", "detent.dialects", "detent.lang", "detent.passes",
         "detent.programs")


def imported(root: Path, *arguments: str) -> tuple[str, list[str]]:
    """Standard output of a command in a new process, and which heavy modules it had imported at its end."""
    code = (f"import sys; from detent.cli import main; code = main({list(arguments)!r}); "
            f"print(*(name for name in {HEAVY!r} if name in sys.modules), sep='\\n', file=sys.stderr); sys.exit(code)")
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return run.stdout, run.stderr.split()


def test_a_hit_imports_neither_xdsl_nor_rich(root: Path) -> None:
    done("solve", "moe", "-d", DEPLOYMENT)
    out, heavy = imported(root, "solve", "moe", "-d", DEPLOYMENT, "--json")
    assert json.loads(out)["cache"] == "hit"
    assert heavy == []


def test_the_check_notices_what_a_miss_imports(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENT_CACHE_DIR", os.fspath(tmp_path / "empty"))
    out, heavy = imported(root, "solve", "moe", "-d", DEPLOYMENT, "--json")
    assert json.loads(out)["cache"] == "miss"
    assert {"xdsl", "detent.passes"} <= set(heavy) and "rich" not in heavy


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tuple", "new", "--help"], ["solve", "--help"]])
def test_help_imports_nothing_heavy(root: Path, arguments: list[str]) -> None:
    out, heavy = imported(root, *arguments)
    assert out and heavy == []


def test_importing_the_command_line_imports_nothing(root: Path) -> None:
    code = "import sys; import detent.cli; print('click' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"

"""``make`` with a Python that cannot be used: one clear line, and no environment is left."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

OLD = """\
#!/bin/sh
case "$1" in
    --version) echo "Python 3.10.14" ;;
    -c) test -z "$2" ;;
    *) mkdir -p "$3/bin" ;;
esac
"""
BROKEN = """\
#!/bin/sh
test "$1" = -c && exit 0
mkdir -p "$3/bin"
exit 1
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(root: Path, *arguments: str) -> tuple[int, list[str]]:
    run = subprocess.run(["make", "-C", str(root), "--no-print-directory", *arguments], capture_output=True, text=True)
    return run.returncode, [line for line in run.stderr.splitlines() if line.startswith("error: ")]


def interpreter(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("target", ["run", "test", "lint"])
def test_an_old_python(target: str, root: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    code, lines = make(root, target, f"VENV={environment}", f"PYTHON={interpreter(tmp_path / 'old', OLD)}")
    assert code != 0 and not environment.exists()
    assert lines == ["error: Python 3.10.14 is too old: Detent needs 3.11 or later; name one: make PYTHON=python3.11"]


def test_no_python(root: Path, tmp_path: Path) -> None:
    code, lines = make(root, "run", f"VENV={tmp_path / 'venv'}", f"PYTHON={tmp_path / 'none'}")
    assert code != 0 and lines == [f"error: {tmp_path / 'none'} is no Python; name one: make PYTHON=python3.11"]


def test_a_failed_environment_is_removed(root: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    broken = interpreter(tmp_path / "broken", BROKEN)
    code, lines = make(root, "run", f"VENV={environment}", f"PYTHON={broken}")
    assert code != 0 and not environment.exists()
    assert lines == [f"error: {broken} cannot make an environment in {environment}"]
    environment.mkdir()  # what was there before is the user's
    assert make(root, "run", f"VENV={environment}", f"PYTHON={broken}")[0] != 0 and environment.exists()


def test_an_environment_of_an_old_python(root: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    interpreter(environment / "bin" / "python", OLD)
    code, lines = make(root, "run", f"VENV={environment}")
    assert code != 0 and lines == [f"error: {environment} is of Python 3.10.14, Detent needs 3.11 or later; remove "
                                   f"{environment} or set another VENV"]


def test_the_battery_runs_as_many_random_batches_as_it_says(root: Path, tmp_path: Path) -> None:
    run = subprocess.run(["make", "-n", "-C", str(root), "test-battery", f"VENV={tmp_path / 'venv'}"],
                         capture_output=True, text=True, check=True)
    counts = {model: int(count) for model, count in re.findall(r"--model (\S+) --set all --random (\d+)", run.stdout)}
    assert counts == {"tiny": 200, "tiny-moe": 200, "smollm2": 100}
    told = re.search(r"^test-battery:.* (\d+) random batches", (root / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert told is not None and int(told[1]) == sum(counts.values())

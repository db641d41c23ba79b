"""The worked family of examples/ runs as docs/embedding.md says."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.runtime.errors import NotLegal

ARMS = ("stock", "default", "tuned")


@pytest.fixture(scope="module")
def rowsum(root: Path) -> Path:
    return root / "examples" / "rowsum"


@pytest.fixture(scope="module")
def output(root: Path, rowsum: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the engine prints in a process of its own, from another folder and with an empty cache."""
    scratch = tmp_path_factory.mktemp("engine")
    environment = {**os.environ, "DETENT_CACHE_DIR": str(scratch / "cache"), "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, str(rowsum / "engine.py")], cwd=scratch, env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert [path.name for path in scratch.iterdir()] == ["cache"]
    return done.stdout.splitlines()


def test_five_of_six_assignments_are_legal(output: list[str]) -> None:
    assert output[0] == "5 of 6 assignments are legal, by default {'width': 8, 'kernel': 'sequential'}"
    assert len(output) == 1 + len(ARMS)


def test_the_batch_is_in_the_bits_of_the_stock_arm_only(output: list[str]) -> None:
    bits = {name: line.split()[1:5] for name, line in zip(ARMS, output[1:], strict=True) if line.startswith(f"{name} ")}
    assert len(set(bits["stock"])) == 2
    assert len(set(bits["default"])) == len(set(bits["tuned"])) == 1
    # Each arm runs one of the two kernels that the stock arm switches between.
    assert {bits["default"][0], bits["tuned"][0]} == set(bits["stock"])
    assert all(len(value) == 8 for values in bits.values() for value in values)
    said = [line.split("  ")[-1] for line in output[1:]]
    assert said == ["the batch is in the bits", "same bits", "same bits"]


def test_legality_is_what_brute_force_finds(rowsum: Path) -> None:
    """Every assignment against the conditions as the deployment has them, at every batch."""
    solution = detent.solve(f"{rowsum / 'program.py'}:rowsum", str(rowsum / "deployment.toml"))
    machine = tomllib.loads((rowsum / "deployment.toml").read_text(encoding="utf-8"))["machine"]
    legal: list[dict[str, Any]] = []
    for kernel in ("blocked", "sequential"):
        for width in (4, 8, 16):
            blocks, rest = divmod(machine["columns"], width)
            assignment = {"kernel": kernel, "width": width}
            if kernel == "sequential" or (rest == 0 and blocks >= machine["cores"]):
                legal.append(assignment)
                assert solution.refutation(assignment) is None
                select = solution.selector(assignment)
                points = {tuple(select(rows, hot).items()) for rows in range(1, 33) for hot in (False, True)}
                assert points == {(("kernel", kernel), ("width", width), ("columns", 64))}
            else:
                with pytest.raises(NotLegal, match="every core has a block"):
                    solution.selector(assignment)
    assert (len(legal), solution.legal, solution.candidates) == (5, 5, 6)


def test_the_loop_stays_short(rowsum: Path) -> None:
    lines = (rowsum / "engine.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 40

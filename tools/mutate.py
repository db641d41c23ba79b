"""Mutation check: break one rule at a time in a copy of the checkout and see that a test fails.

``python -m detent.tools.mutate [WORD ...]`` tries the mutations of :mod:`detent.tools.mutations` whose description
has every word (all without words) and prints a table. Exit code 1 if one survives, 2 if one cannot be tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from detent.tools.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("pyproject.toml", "detent", "dialects", "kernels", "passes", "programs", "tools", "tests")
LIMIT = 120
"""Seconds after which a test run counts as failed: a broken rule may make a search endless."""


class Stale(Exception):
    """A mutation whose text is not in its file exactly once."""


def mutated(text: str, mutation: Mutation) -> str:
    """A file's text with the mutation; raises Stale."""
    if text.count(mutation.old) != 1:
        raise Stale(f"{mutation.file}: {mutation.old.strip()!r} stands there {text.count(mutation.old)} times")
    return text.replace(mutation.old, mutation.new)


def copy_tree(target: Path) -> None:
    """A copy of what the tests need; links between the source folders stay links."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def first_failure(tree: Path, tests: Sequence[str]) -> str:
    """The first of the tests that fails in a tree, "" if none does. Raises Stale if pytest cannot run them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((os.fspath(tree), os.fspath(tree / "tests"))),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    for test in tests:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider",
                   "--hypothesis-seed=0", test]
        try:
            done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"{test} (no end)"
        if done.returncode == 1:
            failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
            return failed[0] if failed else test
        if done.returncode:
            raise Stale(f"pytest {test}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m detent.tools.mutate", description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="try only mutations whose description has all of these")
    wanted = [m for m in MUTATIONS if all(word in m.what for word in parser.parse_args(argv).words)]
    survived = stale = 0
    with tempfile.TemporaryDirectory(prefix="mutate") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for mutation in wanted:
            started, file = time.perf_counter(), tree / mutation.file
            text = file.read_text(encoding="utf-8")
            try:
                file.write_text(mutated(text, mutation), encoding="utf-8")
                found = first_failure(tree, mutation.tests)
                survived += not found
                outcome = f"killed    {found.removeprefix('tests/')}" if found else "SURVIVED"
            except Stale as error:
                stale, outcome = stale + 1, f"NOT TRIED {error}"
            file.write_text(text, encoding="utf-8")
            print(f"{mutation.what:66} {time.perf_counter() - started:5.1f} s  {outcome}", flush=True)
    print(f"{len(wanted)} mutations, {len(wanted) - survived - stale} killed, {survived} survived, {stale} not tried")
    return 2 if stale else int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())

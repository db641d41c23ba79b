"""From a program, a deployment and a tuple to a selector: what an engine does once, when it starts."""

from __future__ import annotations

import os
import sys

from detent.runtime import deployment as deployments
from detent.runtime.cache import Store
from detent.runtime.consistent import require_consistent
from detent.runtime.entry import Entry, Miss
from detent.runtime.errors import CacheMiss, NotLegal, SolveFailed
from detent.runtime.records import Corrupt
from detent.runtime.sources import PACKAGE, Program, resolve
from detent.runtime.tuple import CommitmentTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from detent.runtime.deployment import Deployment
    from detent.runtime.selector import Selector

SOLVE_LIMIT_S = 600.0
TRIES = 2
"""Solving once more is enough where another process cleared the cache meanwhile."""


def load_selector(program: str | Program, deployment: str | Deployment,
                  assignment: CommitmentTuple | Mapping[str, Any] | None = None, *, on_miss: str = "solve",
                  store: Store | None = None) -> Selector:
    """The selector of a program (name or ``path.py:function``) on a deployment (name, ``.toml`` path or loaded).

    ``assignment``: a commitment tuple, values for every pin and knob, or None for the default assignment.
    Without a stored solution, ``on_miss="solve"`` solves in a process of its own, one at a time on this machine,
    and ``"stop"`` raises CacheMiss with the command to run. Raises TupleMismatch for a tuple of another
    program text, deployment or facts, NotLegal for values that are not legal, SolveFailed.
    """
    if on_miss not in ("solve", "stop"):
        raise ValueError(f"on_miss is 'solve' or 'stop', not {on_miss!r}")
    where = resolve(program) if isinstance(program, str) else program
    cache = store or Store()
    facts = deployments.load(deployment, cache.toml) if isinstance(deployment, str) else deployment
    if where.shipped:
        require_consistent(facts)
    found = cache.find_solution(where, facts, body=False)
    if isinstance(found, Entry):
        selector = _selector(cache, found, where, facts, assignment)
        if selector is not None:
            return selector
        found = cache.find_solution(where, facts)
    if isinstance(found, Miss):
        found = _solved(cache, where, facts, found, on_miss)
    selector = _selector(cache, found, where, facts, assignment)
    if selector is None:
        raise SolveFailed(f"the entry of {where.name} was damaged while it was read", f"check {cache.directory}")
    return selector


def _selector(cache: Store, entry: Entry, program: Program, deployment: Deployment,
              assignment: CommitmentTuple | Mapping[str, Any] | None) -> Selector | None:
    """The stored selector of an entry, or one made from its document; None if the document was lost."""
    values: Mapping[str, Any] | None
    if isinstance(assignment, CommitmentTuple):
        values = _from_tuple(entry, program, deployment, assignment)
    else:
        values = entry.header["default"] if assignment is None else assignment
    if values is None:
        raise NotLegal(f"{program.name}: no assignment is legal on {deployment.name}",
                       "loosen a require of the program or change the facts it names")
    selector = cache.find_selector(entry, values)
    if selector is not None:
        return selector
    from detent.runtime.repin import Repin

    try:
        document = entry.document
    except (Corrupt, OSError) as error:
        cache.shelf.lost(entry, error)
        return None
    selector = Repin(document)(values)
    cache.put_selector(entry, selector)
    return selector


def _from_tuple(entry: Entry, program: Program, deployment: Deployment, commitment: CommitmentTuple) -> dict[str, Any]:
    from detent.runtime.facts import summary

    header = entry.header
    return commitment.assignment_for({"family": header["family"], "program": program.name, "facts":
                                      summary(header["facts"]), "program_key": header["program_key"],
                                      "deployment": deployment.name}, program.id, deployment.id)


def _solved(cache: Store, program: Program, deployment: Deployment, miss: Miss, on_miss: str) -> Entry:
    """Solve in a subprocess, which stores the entry; processes that wait for the same one find it."""
    import shlex

    arguments = ["solve", program.id, "--deployment", deployment.id]
    command = shlex.join(["detent", *arguments])
    reasons = [str(change) for change in miss.reasons]
    if on_miss == "stop" or not cache.usable or not deployment.path:
        raise CacheMiss(program.name, deployment.name, reasons, command)
    with cache.lock(f"{cache.key(program)}.load", SOLVE_LIMIT_S):
        found = cache.find_solution(program, deployment)
        for _ in range(TRIES):
            if not isinstance(found, Miss):
                break
            _run([sys.executable, "-P", "-m", "detent", *arguments, "--json"], cache, command)
            found = cache.find_solution(program, deployment)
    if isinstance(found, Miss):
        raise SolveFailed(f"{command} stored nothing that fits ({'; '.join(map(str, found.reasons))})",
                          "the program, the deployment's file or Detent itself changed meanwhile: start again")
    return found


def _run(arguments: list[str], cache: Store, command: str) -> None:
    import subprocess

    environment = {**os.environ, "DETENT_CACHE_DIR": cache.directory}
    root = os.path.dirname(PACKAGE)
    # -P keeps the working directory off the path, so a package that is not installed has to be named.
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))
    try:
        done = subprocess.run(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=SOLVE_LIMIT_S, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        raise SolveFailed(f"{command} took more than {SOLVE_LIMIT_S:.0f} s", "run it by hand") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SolveFailed(f"{command} failed: {last[0]}", "run it by hand to see all of its output")

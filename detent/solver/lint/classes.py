"""Legal assignments that behave alike.

Two assignments whose selection points have the same values at every input are one and the same to the kernels. A
program may know more: a function ``behaviour(points, facts)`` in its module maps the points' values and the facts that
the program reads to a key, and assignments with equal keys give every request the same bits, whatever the points say.
That is the program's promise about its kernels; like them it is tested by running them and not proved here. It
promises nothing about speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from detent.runtime.errors import DetentError
from detent.runtime.facts import ABSENT
from detent.runtime.sources import BUILT_IN, resolve, tag
from detent.solver.choices import MAX_ASSIGNMENTS, legal_assignments
from detent.solver.document import name_of
from detent.solver.lint.finding import NOTE, Finding
from detent.solver.solution import Solution
from detent.solver.trials import tuple_function
from detent.solver.views.wording import bindings

if TYPE_CHECKING:
    from detent.passes.graph import Graph
    from detent.solver.lint.subject import Subject

Behaviour = Callable[[Mapping[str, Any], Mapping[str, Mapping[str, Any]]], Hashable]
"""``behaviour(points, facts)``: equal keys mean equal bits."""


def equivalent(solution: Solution, behaviour: Behaviour | None = None) -> dict[Hashable, list[dict[str, Any]]]:
    """The legal assignments of a solution in classes that behave alike, in the order of their first members.

    A class's key is what the program's ``behaviour`` gives, else the tuple of its points' values. ``behaviour``
    defaults to that of a program that comes with Detent; for one of your own pass it (see :func:`behaviour_in`). A
    point that an input of the request itself still reaches is represented by the values of the pins and knobs behind
    it. Raises DetentError for more than 200,000 legal assignments.
    """
    found = behaviour if behaviour is not None else _own_behaviour(solution)
    legal = legal_assignments(solution.document)
    if legal is None:
        raise DetentError(f"{solution.program}: {solution.legal:,} legal assignments are too many to compare",
                          f"up to {MAX_ASSIGNMENTS:,} are; add a require, or give knobs fewer values")
    graph, facts = solution.graph, facts_of(solution)
    controls = [*graph.of_kind("pin"), *graph.of_kind("knob")]
    titles = [name_of(graph, node) for node in controls]
    behind = _by_request(graph)
    fixed = [node for _, node in graph.points if node not in behind]
    values_at = tuple_function(graph, fixed, controls)
    classes: dict[Hashable, list[dict[str, Any]]] = {}
    for assignment in legal:
        values = dict(zip(fixed, values_at(*[assignment[title] for title in titles]), strict=True))
        values |= {node: tuple([assignment[name] for name in names]) for node, names in behind.items()}
        points = {name: values[node] for name, node in graph.points}
        key = tuple(points.values()) if found is None else found(points, facts)
        classes.setdefault(key, []).append(assignment)
    return classes


def _by_request(graph: Graph) -> dict[int, list[str]]:
    """The points that an input still reaches, with the pins and knobs behind them."""
    found = {}
    for _, node in graph.points:
        leaves = list(graph.leaves([node]))
        if any(graph.kinds[leaf] == "input" for leaf in leaves):
            found[node] = [name_of(graph, leaf) for leaf in leaves if graph.kinds[leaf] != "input"]
    return found


def behaviour_in(module: Mapping[str, Any]) -> Behaviour | None:
    """The function ``behaviour`` among a program's module's names; None if it has none."""
    found = module.get("behaviour")
    return found if callable(found) else None


def _own_behaviour(solution: Solution) -> Behaviour | None:
    """The behaviour of a program that comes with Detent; a file of one's own may call its function the same."""
    from detent.lang.load import load_program
    from detent.runtime.errors import UnknownName

    try:
        target = resolve(solution.program)
    except UnknownName:
        return None
    own = tag(target.path, target.path)
    if not own.startswith(BUILT_IN) or own not in {file["path"] for file in solution.entry.header["files"]}:
        return None
    return behaviour_in(load_program(target.id).__globals__)


def facts_of(solution: Solution) -> dict[str, dict[str, Any]]:
    """The facts that the solution was made from, by section: those that the program read."""
    facts: dict[str, dict[str, Any]] = {}
    for name, text in solution.entry.header["facts"].items():
        section, _, key = name.partition(".")
        if key and text != ABSENT:
            facts.setdefault(section, {})[key] = _revived(json.loads(text))
    return facts


def _revived(value: Any) -> Any:
    """A fact as a deployment has it: keys of a table are ints, lists are tuples."""
    if isinstance(value, dict):
        return {int(key): row for key, row in value.items()}
    return tuple(value) if isinstance(value, list) else value


def identical_assignments(subject: Subject) -> list[Finding]:
    """Whether legal assignments fall into fewer classes than there are."""
    solution = subject.solution
    behaviour = behaviour_in(subject.globals)
    if solution.legal > MAX_ASSIGNMENTS:
        return [Finding("identical", NOTE, f"{solution.legal:,} legal assignments", "",
                        f"are not compared: more than {MAX_ASSIGNMENTS:,}", {"legal": solution.legal})]
    classes = equivalent(solution, behaviour)
    if len(classes) == solution.legal:
        return []
    how = ("have the same value of every point" if behaviour is None
           else "give the same bits, as the program's function behaviour says")
    sizes = [len(members) for members in classes.values()]
    largest = max(classes.values(), key=len)
    return [Finding("identical", NOTE, f"{solution.legal:,} legal assignments", "",
                    f"behave in {len(classes):,} ways: up to {max(sizes):,} of them {how}, for instance "
                    f"{bindings(largest[0])} and {bindings(largest[-1])}",
                    {"legal": solution.legal, "classes": [{"size": len(members), "first": members[0]}
                                                          for members in classes.values()]})]

"""``detent.solve``: a program and a deployment in, a Solution out, through the cache."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from detent.runtime.cache import Store
from detent.runtime.consistent import require_consistent
from detent.runtime.deployment import Deployment, load
from detent.runtime.encoding import digest, ordered
from detent.runtime.entry import Entry
from detent.runtime.errors import BadInput, UnknownName
from detent.runtime.repin import Repin
from detent.runtime.sources import Program, SourceFile, display_name, resolve
from detent.solver.solution import Solution

if TYPE_CHECKING:
    from detent.solver.compiled import Compiled, Pinned, Switches

Progress = Callable[[str], None]


def solve(program: str | Callable[..., Any], deployment: str | Deployment, *, ablate: str | None = None,
          store: Store | None = None, progress: Progress = lambda step: None) -> Solution:
    """Solve a program for a deployment, or take the solution from the cache.

    ``program``: a name, ``path.py:function``, or the decorated function itself. ``deployment``: a name, the
    path of a TOML file, or a loaded one. ``ablate`` switches one analysis off (see ``ABLATIONS``); such a
    solution only reports. ``progress`` is called with the name of each step.

    Raises DetentError (unknown names, bad files), SourceError (the program's text) or AnalysisError (what
    the analyses refuse); each says in one line where and what to do.
    """
    started = time.perf_counter()
    target = program_of(program)
    cache = store if store is not None else Store()
    facts = load(deployment, cache.toml) if isinstance(deployment, str) else deployment
    if target.shipped:
        require_consistent(facts)
    try:
        return _through(program, target, facts, ablate, cache, progress, started)
    except RecursionError:  # also of Python's parser, which the cache's key needs first
        from detent.lang.load import load_program

        load_program(program if callable(program) else target.id)  # says where, if it is the text itself
        raise BadInput(f"{target.id} nests too deeply to be solved",
                       "split it: assign parts of long expressions to names, and move long chains of branches to "
                       "helper functions") from None


def _through(program: str | Callable[..., Any], target: Program, facts: Deployment, ablate: str | None, cache: Store,
             progress: Progress, started: float) -> Solution:
    """The solution from the cache, or solved and put there."""
    parts = [("ablate", ablate)] if ablate else []
    found = cache.find_solution(target, facts, parts)
    if isinstance(found, Entry):
        return Solution(found, cached=True, seconds=time.perf_counter() - started)
    # Deployments that differ are solved at the same time: which facts the program reads is not known yet.
    lock = digest(cache.key(target, parts), ordered(facts.facts))
    with cache.lock(lock), _collector_paused():
        found = cache.find_solution(target, facts, parts)
        if isinstance(found, Entry):
            return Solution(found, cached=True, seconds=time.perf_counter() - started)
        entry = _solve(program if callable(program) else None, target, facts, ablate, cache, progress)
    return Solution(entry, cached=False, seconds=time.perf_counter() - started)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Without the cyclic garbage collector, which costs a tenth of a solve and finds nothing: IR only grows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def program_of(program: str | Callable[..., Any]) -> Program:
    """Where a program is. Raises UnknownName, or BadInput for a function without a source file."""
    if isinstance(program, str):
        return resolve(program)
    code = getattr(program, "__code__", None)
    if code is None:
        raise BadInput(f"{program!r} is not a program", "pass a function decorated with @selection, or its name")
    return Program(program.__name__, code.co_filename, program.__name__)


def switches_of(ablate: str | None) -> Switches:
    """The switches of an ablation. Raises UnknownName."""
    from detent.solver.compiled import ABLATIONS, Switches

    if ablate is None:
        return Switches()
    if ablate not in ABLATIONS:
        raise UnknownName("ablation", ablate, list(ABLATIONS))
    return ABLATIONS[ablate][1]


def _solve(function: Callable[..., Any] | None, target: Program, deployment: Deployment, ablate: str | None,
           cache: Store, progress: Progress) -> Entry:
    started = time.perf_counter()
    switches = switches_of(ablate)
    progress("read the program")
    from detent.lang.builder import build_module
    from detent.lang.load import load_program
    from detent.solver.compiled import compile_program

    built = build_module(load_program(function if function is not None else target.id))
    compiled = compile_program(built.module, deployment.facts, deployment.name, switches, progress)
    files = name_files(compiled.pinned, built.texts, target)
    progress("write the selector")
    document, graph, unpinned = describe(compiled)
    document = {**document, "program": target.name, "deployment": deployment.name, "detent": _version(),
                "seconds": time.perf_counter() - started}
    entry = cache.put_solution(target, deployment, [("ablate", ablate)] if ablate else [], compiled.pinned.facts_read,
                               files, document, graph, unpinned)
    if ablate is None and document["default"] is not None:
        cache.put_selector(entry, Repin(entry.document)(document["default"]))
    return entry


def name_files(pinned: Pinned, texts: Mapping[str, str], target: Program) -> list[SourceFile]:
    """The files a program was read from, called by names without a directory, also in the graph's locations."""
    from detent.dialects.selir.source import display_path, real_path
    from detent.solver.compiled import relabel

    files = [SourceFile(display_name(path, target.path), path, text) for path, text in texts.items()]
    shown = {display_path(file.path): file.name for file in files}
    relabel(pinned, lambda name: shown.get(name, display_name(real_path(name), target.path)))
    return files


def describe(compiled: Compiled) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The document, the graph document and the unpinned selector's source of a compiled program."""
    from detent.passes.lowering import unpinned_source
    from detent.solver.compiled import without_pins
    from detent.solver.defaults import default_of
    from detent.solver.document import document
    from detent.solver.graph_json import graph_document

    return (document(compiled, default_of(compiled)), graph_document(compiled.graph),
            unpinned_source(without_pins(compiled.graph), compiled.pinned.fails))


def _version() -> str:
    from detent import __version__

    return __version__

"""``detent bench``."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from detent import __version__
from detent.cli.bench_kernels import kernels_command
from detent.cli.bench_serve import serve_command
from detent.cli.options import json_option
from detent.cli.output import show, show_json
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from detent.bench.compiler import Compiler


@click.group("bench")
def bench_command() -> None:
    """Measure Detent on this machine."""


bench_command.add_command(serve_command)
bench_command.add_command(kernels_command)


@bench_command.command("compiler")
@click.option("--runs", type=click.IntRange(1), metavar="N",
              help="Runs of each measurement, instead of its own number.")
@json_option
def compiler_(runs: int | None, as_json: bool) -> None:
    """Measure solving, judging, cache hits, repinning and selectors: medians with quartiles."""
    import tempfile

    from detent.bench.compiler import DEPLOYMENT, PROGRAM, cases, measure

    results = []
    with tempfile.TemporaryDirectory() as folder, Steps("bench compiler") as step:
        step("solve")
        for case in cases(compiler(), folder):
            step(case.what)
            results.append(measure(case, runs))
    machine = {"detent": __version__, "python": platform.python_version(), "cpus": os.cpu_count()}
    if as_json:
        show_json({**machine, "program": PROGRAM, "deployment": DEPLOYMENT, "results": [r.as_json() for r in results]})
        return
    from detent.solver.views.sections import Paragraph, Table

    rows = tuple((r.case.what, _seconds(r.median), f"{_seconds(r.low)} – {_seconds(r.high)}",
                  _seconds(r.case.must_s), str(r.runs)) for r in results)
    show([Paragraph((f"{PROGRAM} for {DEPLOYMENT}; Detent {__version__}, Python {machine['python']}, "
                     f"{machine['cpus']} CPUs",)),
          Table("Wall clock, a call", ("measured", "median", "quartiles", "must", "runs"), rows,
                right=("median", "quartiles", "must", "runs"))])


def compiler() -> Compiler:
    """The compile side, for the measurements."""
    from detent.bench.compiler import Compiler
    from detent.solver.solve import solve

    return Compiler(lambda program, deployment, store: solve(program, deployment, store=store), judging)


def judging(solution: Any) -> Callable[[], object]:
    """A function that judges all of a solution's candidates anew."""
    from detent.passes.input_domains import input_domains
    from detent.passes.legality import judge
    from detent.solver.document import name_of

    graph, document = solution.graph, solution.document
    values = {pin["name"]: pin["candidates"] for pin in document["pins"]}
    values |= {knob["name"]: sorted(knob["values"]) for knob in document["knobs"]}
    candidates = {node: values[name_of(graph, node)] for node in (*graph.of_kind("pin"), *graph.of_kind("knob"))}
    domains = input_domains(graph)
    return lambda: judge(graph, candidates, domains)


def _seconds(value: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"

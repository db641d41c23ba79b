"""``detent bench serve``."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from detent.cli.output import check_places, show
from detent.cli.progress import Steps
from detent.cli.targets import DEFAULT_MODEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detent.bench.arms import Arm, Spec
    from detent.bench.load import Server
    from detent.solver.views.sections import Section


@click.command("serve")
@click.option("--engine", type=click.Choice(["embedded"]), default="embedded", show_default=True,
              help="Engine of the arms that are no URL.")
@click.option("--model", metavar="M", help=f"Model: a name or path; {DEFAULT_MODEL} for the embedded engine, the "
                                           "first that a server lists.")
@click.option("--arms", default="stock,detent", show_default=True, metavar="A,...",
              help="What is compared: stock, detent (the default tuple), FILE.json of a tuple, name=URL; each also as "
                   "name=... Ratios are over the arm called stock.")
@click.option("--workloads", default="all", show_default=True, metavar="W,...",
              help="Loads (A1 to A4, B1 to B3, C1, C2; A67, A83, A100, B67, ... at a share of the arm's own maximum; "
                   "mooncake, azure) or groups of them (W-A, W-B, W-B-c, own, all).")
@click.option("--scale", type=float, default=1.0, show_default=True, metavar="S",
              help="Share of the tokens: requests and their lengths shrink by its square root each.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Runs of each load.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Of the workloads.")
@click.option("--trace", "traces", multiple=True, metavar="NAME=FILE",
              help="File of a recorded workload: mooncake=FILE or azure=FILE.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), metavar="FILE",
              help="Write what is measured; an existing FILE of the same measurement is continued.")
@click.option("--html", "html_file", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page with plots.")
def serve_command(engine: str, model: str | None, arms: str, workloads: str, scale: float, runs: int, seed: int,
                  traces: tuple[str, ...], json_file: str | None, html_file: str | None) -> None:
    """Measure latency per output token under load: every arm under every load, over Stock."""
    from detent.bench.arms import URL, specs
    from detent.bench.page import page
    from detent.bench.serve import Plan, serve
    from detent.bench.statistics import load
    from detent.bench.summary import summary
    from detent.bench.workloads import loads, shrink

    for module in ("scipy.stats", "statsmodels.stats.proportion"):
        load(module)  # before hours of measuring, not after
    shrink(scale)
    wanted = specs(_list(arms))
    remote = all(spec.kind == URL for spec in wanted)
    plan = Plan("HTTP" if remote else engine, model or ("" if remote else DEFAULT_MODEL),
                [_arm(spec, model) for spec in wanted], loads(_list(workloads)), runs, scale, seed, _traces(traces))
    earlier = _earlier(json_file)
    check_places(json_file, html_file)
    with Steps("bench serve") as step:
        document = serve(plan, lambda found: _write(json_file, json.dumps(found)), step, earlier)
        step("summary")
        document["summary"] = summary(document)
        _write(json_file, json.dumps(document))
        _write(html_file, page(document))
    show(sections(document))


def sections(document: Mapping[str, Any]) -> list[Section]:
    """The summary as text."""
    from detent.bench.page import headline, notes
    from detent.bench.summary import described, milliseconds
    from detent.solver.views.sections import Paragraph, Table

    found = document["summary"]
    rows: list[tuple[str, ...]] = []
    told: dict[str, list[str]] = {}
    for load, by_arm in found["cells"].items():
        for index, (arm, cell) in enumerate(by_arm.items()):
            ratio, marks, (median, least, greatest) = cell["ratio"], notes(cell), cell["p50"]
            times = [milliseconds(cell[name][0]) for name in ("p50", "p90", "p99", "ttft", "step")]
            times.insert(1, f"{least / median:.2f} – {greatest / median:.2f}")
            rows.append(("" if index else load, arm, f"{ratio['p50']:.3f}" if ratio else "", *times,
                         f"{cell['tokens_per_s'][0]:.4g}" + ("*" if marks else "")))
            for mark in marks:
                told.setdefault(f"* {load}: {mark}", []).append(arm)
    figures = ("over Stock", "p50", "spread", "p90", "p99", "TTFT", "step", "tokens/s")
    shown: list[Section] = [Paragraph((headline(document),)),
                            Table("Latency per output token, ms: medians of the runs, and their spread at p50",
                                  ("load", "arm", *figures), tuple(rows), right=figures)]
    if told:
        shown.append(Paragraph(tuple(f"{mark} ({', '.join(arms)})" for mark, arms in told.items())))
    lines = tuple((workload, arm, f"{one['requests_per_s'][0]:.4g}", f"{one['tokens_per_s'][0]:.4g}",
                   f"{one['ratio']:.3f}" if "ratio" in one else "")
                  for workload, by_arm in found["offline"].items() for arm, one in by_arm.items())
    if lines:
        shown.append(Table("Everything at once", ("workload", "arm", "requests/s", "tokens/s", "over Stock"), lines,
                           right=("requests/s", "tokens/s", "over Stock")))
    bits = tuple((workload, arm, f"{one['changed']} of {one['requests']}", str(one["runs"]), one["compared"])
                 for workload, by_arm in found["changed"].items() for arm, one in by_arm.items())
    if bits:
        shown.append(Table("Requests whose bits changed between runs",
                           ("workload", "arm", "changed", "runs", "compared"), bits, right=("changed", "runs")))
    shown.append(Paragraph(tuple(f"{load}: {described(load)}" for load in found["cells"])))
    return shown


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _arm(spec: Spec, model: str | None) -> Arm:
    """The arm of a spec. A tuple is read here, so that a wrong file ends the command before anything is measured."""
    from detent.bench.arms import TUPLE, URL, Arm

    if spec.kind == URL:
        return Arm(spec.name, spec.what, lambda: _http(spec, model), {"url": spec.what})
    identity = {}
    if spec.kind == TUPLE:
        from detent.runtime.tuple import CommitmentTuple

        identity["tuple"] = CommitmentTuple.load(spec.what).hash
    return Arm(spec.name, spec.what, lambda: _embedded(spec, model), identity)


def _http(spec: Spec, model: str | None) -> Server:
    from detent.engines.http_serving import HttpServing

    return HttpServing(spec.what, model, spec.name)


def _embedded(spec: Spec, model: str | None) -> Server:
    from detent.bench.arms import STOCK, TUPLE
    from detent.engines.embedded.serving import Serving
    from detent.engines.embedded.target import EmbeddedTarget

    target = EmbeddedTarget.open(model or DEFAULT_MODEL, arm="stock" if spec.kind == STOCK else "detent",
                                 commitment=spec.what if spec.kind == TUPLE else None)
    return Serving(target.engine, target.traits)


def _traces(texts: tuple[str, ...]) -> dict[str, str]:
    from detent.bench.workloads import RECORDED
    from detent.runtime.errors import BadInput, UnknownName

    found = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            raise BadInput(f"--trace {text!r} names no workload", f"write --trace {RECORDED[0]}=FILE")
        if name not in RECORDED:
            raise UnknownName("recorded workload", name, RECORDED, "--trace")
        found[name] = path
    return found


def _earlier(path: str | None) -> dict[str, Any] | None:
    """What a file holds that is to be continued. Raises BadFile for one that is something else."""
    from detent.bench.serve import checked
    from detent.runtime.errors import BadFile

    if path is None or not os.path.exists(path) or os.path.getsize(path) == 0:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            return checked(path, json.load(file))
    except ValueError as error:
        raise BadFile(path, f"is not JSON: {error}", "name another file") from None


def _write(path: str | None, text: str) -> None:
    """Write a file in one step: a measurement that is interrupted leaves the last whole one."""
    if path is not None:
        from detent.runtime.encoding import new_file_mode, write_atomic

        write_atomic(path, text.encode(), mode=new_file_mode())

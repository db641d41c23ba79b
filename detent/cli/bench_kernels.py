"""``detent bench kernels``."""

from __future__ import annotations

import lzma
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import click

from detent.bench.gpu import KERNELS
from detent.cli.options import json_option
from detent.cli.output import check_places, show, show_json
from detent.cli.progress import Steps
from detent.runtime.errors import BadInput, DetentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from detent.bench.gpu import Bound, Options
    from detent.bench.gpu.record import Record, Row
    from detent.solver.views.sections import Section

LIBRARIES = ("fa3",)
LEAST_FLOOR_US = 0.05
"""What the table's digit can show: how far a call is from a smaller floor says nothing but what a launch takes."""


@click.command("kernels", epilog="""\b
On one GPU, with FlashAttention-3 as vLLM ships it beside:
  detent bench kernels --library fa3=.../vllm_flash_attn/_vllm_fa3_C.abi3.so --out kernels.json
Anywhere, what such a run has found:
  detent bench kernels --show kernels.json
Exit code 1 if a bound is missed, else 2 if one was not measured.""")
@click.option("--kernel", "kernels", multiple=True, type=click.Choice(KERNELS), help="Only this one; may be repeated.")
@click.option("--only", multiple=True, metavar="TEXT",
              help="Time only cases with TEXT in KERNEL/GROUP/CASE; may be repeated.")
@click.option("--quick", is_flag=True, help="Fewer shapes.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Runs of each case in all; those in the file count.")
@click.option("--library", "libraries", multiple=True, metavar="NAME=FILE",
              help=f"A stock kernel's library ({', '.join(LIBRARIES)}), also as .xz.")
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE",
              help="Keep the times in this file, and go on from what is in it.")
@click.option("--show", "shown", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Measure nothing: print what is in a file.")
@json_option
def kernels_command(kernels: Sequence[str], only: Sequence[str], quick: bool, runs: int, libraries: Sequence[str],
                    out: str | None, shown: str | None, as_json: bool) -> int:
    """Time Detent's GPU kernels beside the stock ones, each case with the least time the machine allows."""
    from detent.bench.gpu import Options
    from detent.bench.gpu.record import Record, read

    check_places(out)
    chosen = list(kernels or KERNELS)
    not_here: dict[str, str] = {}
    if shown is not None:
        record = read(shown)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            options = Options(quick, {name: _library(name, file, scratch) for name, file in map(_pair, libraries)})
            record = Record(out, environment(sys.argv[1:], chosen))
            not_here = _measure(record, chosen, options, runs, only)
    bounds = [bound for kernel in chosen for bound in _bounds(kernel, record)]
    if as_json:
        show_json({**record.as_json(), "not_here": not_here,
                   "bounds": [{**vars(bound), "met": bound.met} for bound in bounds]})
    else:
        show(_sections(record, chosen, bounds, not_here))
    if any(bound.met is False for bound in bounds):
        return 1
    return 2 if any(bound.open for bound in bounds) else 0


def environment(arguments: Sequence[str], kernels: Sequence[str]) -> dict[str, Any]:
    """This GPU and what runs on it; of these kernels the code. Raises DetentError where there is no GPU."""
    try:
        import torch
    except ImportError:
        raise DetentError("PyTorch is not installed here", "pip install 'detent[torch]', on a machine with a GPU, or "
                          "print a stored run: --show FILE") from None
    if not torch.cuda.is_available():
        raise DetentError("no CUDA device here", "run it on a machine with a GPU, or print a stored run: --show FILE")
    from detent.bench.gpu import environment as on_gpu
    from detent.bench.gpu.timing import copy_tb_s, matrix_tflop_s

    return {**on_gpu.environment(["detent", *arguments]), "code": {kernel: on_gpu.code(kernel) for kernel in kernels},
            "copy_tb_s": copy_tb_s(), "matrix_tflop_s": matrix_tflop_s()}


def _pair(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if not equals or name not in LIBRARIES:
        raise BadInput(f"--library {text!r}", f"give NAME=FILE with one of the names {', '.join(LIBRARIES)}")
    return name, file


def _library(name: str, file: str, scratch: str) -> str:
    """The library's file, unpacked where it is packed."""
    if not os.path.isfile(file):
        raise BadInput(f"--library {name}: there is no file {file}", "give the library's path")
    if not file.endswith(".xz"):
        return os.path.abspath(file)
    target = os.path.join(scratch, os.path.basename(file).removesuffix(".xz"))
    with lzma.open(file) as packed, open(target, "wb") as unpacked:
        unpacked.write(packed.read())
    return target


def _measure(record: Record, kernels: Sequence[str], options: Options, runs: int,
             only: Sequence[str]) -> dict[str, str]:
    """Time what the record lacks; the kernels that cannot be timed here, and why."""
    from detent.bench.gpu import NotHere, cases

    not_here: dict[str, str] = {}
    with Steps("bench kernels") as step:
        for _ in range(runs):
            for kernel in kernels:
                try:
                    for case in cases(kernel, options):
                        wanted = not only or any(text in case.key for text in only)
                        if wanted and record.runs(case) < runs:
                            step(case.key)
                            record.add(case, case.times())
                except NotHere as why:
                    not_here[kernel] = str(why)
    return not_here


def _bounds(kernel: str, record: Record) -> list[Bound]:
    from importlib import import_module

    return list(import_module(f"detent.bench.gpu.{kernel}").bounds(record))


def _sections(record: Record, kernels: Sequence[str], bounds: Sequence[Bound],
              not_here: Mapping[str, str]) -> list[Section]:
    from detent.solver.views.sections import Paragraph, Table

    facts = record.environment
    shown: list[Section] = [Paragraph((f"{facts['gpu']}, torch {facts['torch']}, Triton {facts['triton']}, "
                                       f"{facts['date']}; copy {facts['copy_tb_s']} TB/s, bf16 product "
                                       f"{facts['matrix_tflop_s']} TFLOP/s; medians of graph replays",))]
    notes = [f"{kernel}: not measured, {why}" for kernel, why in not_here.items()]
    notes += [f"{kernel}: {count} of {len(record.of(kernel))} cases were timed with other code than the last run's"
              for kernel in kernels if (count := record.earlier(kernel))]
    if notes:
        shown.append(Paragraph(tuple(notes)))
    columns = ("case", "floor us", "stock us", "by", "Detent us", "by", "over stock", "over floor", "runs")
    for kernel in kernels:
        groups = dict.fromkeys(row.group for row in record.of(kernel))
        for group in groups:
            rows = tuple(_line(row) for row in record.of(kernel, group))
            shown.append(Table(f"{kernel}, {group}", columns, rows, right=columns[1:3] + columns[4:5] + columns[6:]))
    if bounds:
        rows = tuple((bound.what, "–" if bound.value is None else f"{bound.value:.3f}", bound.detail,
                      _limit(bound.must, bound.least), _limit(bound.aim, bound.least),
                      "not measured" if bound.open else {True: "met", False: "MISSED", None: ""}[bound.met])
                     for bound in bounds)
        shown.append(Table("Bounds", ("what", "measured", "at", "must", "aim", ""), rows,
                           right=("measured", "must", "aim")))
    return shown


def _line(row: Row) -> tuple[str, ...]:
    stock, (arm, took) = row.best_stock, row.best
    ratio = row.ratio()
    seen = row.floor_us >= LEAST_FLOOR_US
    return (row.name, f"{row.floor_us:.1f}" if seen else "–", f"{stock[1]:.1f}" if stock else "–",
            stock[0] if stock else "–", f"{took:.1f}", arm, f"{ratio:.3f}" if ratio is not None else "–",
            f"{took / row.floor_us:.2f}" if seen else "–", str(row.runs))


def _limit(value: float | None, least: bool) -> str:
    return "" if value is None else f"{'≥' if least else '≤'} {value:.2f}"

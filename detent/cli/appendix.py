"""The paper's counts of the selection space and of its ablations, beside ours.

The paper: arXiv 2611.10611, section 8.2 and appendix B. The library it counts is the FlashAttention-3 of
sglang-kernel 0.4.5, whose symbols give the same numbers: 3,280 forward kernels for sm_90, 1,296 of them split; at head
dim 128 in bf16 184, of them 72 split. A split kernel takes 2 to 256 splits, so 255 configurations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from detent.solver.ablation import Ablations
    from detent.solver.solution import Solution

TEMPLATE = 19
"""Of the points that ``attention`` returns, the first so many are template parameters of the kernel."""
ELEMENTS = 2
"""KV cache element types that ``attention`` knows: bf16 and e4m3."""


class Row(NamedTuple):
    """One count; ``how`` says how ours is counted."""

    program: str
    what: str
    paper: str
    ours: str
    how: str


def beside_the_paper(reports: Sequence[Ablations]) -> list[Row]:
    """Rows for the programs that were ablated, each on the deployment of the paper that the count is about."""
    rows: list[Row] = []
    for program, make in _ROWS.items():
        found = [report for report in reports if report.full.program == program]
        if found:
            rows += make(found)
    return rows


def _attention(reports: Sequence[Ablations]) -> list[Row]:
    from detent.cli.ablate import power

    report = reports[-1]
    solution, where = report.full, report.full.deployment
    parameters = solution.points[:TEMPLATE]
    flags = sum(point["type"] == "bool" for point in parameters)
    heads, values = _head_dims()
    kernels, split, candidates, legal = _kernels(solution)
    others = ", ".join(f"{name} {count}" for name, count in report.free.items() if count != 2)
    return [
        Row("attention", "pins with constant folding alone", "12", str(_without(report, "simplification").rows[1].pins),
            f"{where}; facts decide masks, windows and packing before any range is needed"),
        Row("attention", "assignments without the analysis", power(2**27), power(math.prod(report.free.values())),
            f"every Boolean that it returns, 2 values; {others}; facts settle the rest"),
        Row("attention", "template parameters, Boolean ones", "19, 13", f"{len(parameters)}, {flags}",
            "points that are parameters of the kernel"),
        Row("attention", "product of their values on sm_90", "737,280", f"{2**flags * heads * values * ELEMENTS:,}",
            f"2^{flags} × {heads} head dims × {values} of V × {ELEMENTS} element types (fp16 is none of ours)"),
        Row("attention", "forward kernels of a full build", "4,720", "–", "Detent builds what a deployment names"),
        Row("attention", "forward kernels for sm_90", "3,280", "–", "as above"),
        Row("attention", "kernels × split counts on sm_90", "332,464", "–", "paper: 1,984 + 1,296 × 255"),
        Row("attention", "the same at head dim 128 in bf16", "18,472", f"{candidates:,}",
            f"paper: 112 + 72 × 255; ours: {kernels - split} + {split} × 255, what the candidates name for {where}, "
            f"{legal:,} of them legal"),
    ]


def _moe(reports: Sequence[Ablations]) -> list[Row]:
    report = reports[0]
    full, cut = report.full, _without(report, "cut").rows[1]
    return [Row("moe", "pins, and pins without a cut", "3, 10", f"{len(full.pins)}, {cut.pins}",
                f"{full.deployment}; every batch-dependent value that a point or a condition reads")]


def _allreduce(reports: Sequence[Ablations]) -> list[Row]:
    report = reports[0]
    judged = [(found.name, found.choices) for found in report.comparisons
              if found.choices is not None and found.name not in ("cut", "simplification")]
    name, most = max(judged, key=lambda item: len(item[1].bypassing))
    values = "; ".join(f"{pin} {', '.join(map(str, unused))}" for pin, unused in most.unused.items())
    return [Row("allreduce", "legal assignments that bypass its own table without one simplification", "all but one",
                f"{len(most.bypassing)} of {most.legal}",
                f"{report.full.deployment} without {name}: no message takes {values}")]


def _gemm(reports: Sequence[Ablations]) -> list[Row]:
    full = reports[0].full
    moving = sum(point["batch_dependent"] for point in full.points)
    return [Row("gemm", "points, of which the batch reaches", "2, 0", f"{len(full.points)}, {moving}", full.deployment)]


_ROWS: dict[str, Callable[[Sequence[Ablations]], list[Row]]] = {
    "attention": _attention, "moe": _moe, "allreduce": _allreduce, "gemm": _gemm}


def _without(report: Ablations, name: str) -> Any:
    return next(found for found in report.comparisons if found.name == name)


def _head_dims() -> tuple[int, int]:
    """How many head dims of queries and keys, and of values, the tile table of ``attention`` tells apart."""
    from detent.programs.fa3_tiles import bucket

    return len({bucket(size) for size in range(8, 257, 8)}), len({bucket(size) for size in range(8, 513, 8)})


def _kernels(solution: Solution) -> tuple[int, int, int, int]:
    """Kernels that the candidates name, split ones among them; kernels with their split counts; the legal of these."""
    from detent.solver.choices import legal_assignments
    from detent.solver.document import name_of
    from detent.solver.trials import tuple_function

    graph = solution.graph
    controls = [*graph.of_kind("pin"), *graph.of_kind("knob")]
    values = {pin["name"]: pin["candidates"] for pin in solution.pins}
    values |= {knob["name"]: knob["values"] for knob in solution.knobs}
    names = [name_of(graph, node) for node in controls]
    nodes = dict(graph.points)
    wanted = [*list(nodes.values())[:TEMPLATE], nodes["split"], nodes["num_splits"]]
    row_at = tuple_function(graph, wanted, controls)
    rows = {row_at(*row) for row in itertools.product(*(values[name] for name in names))}
    kernels = {row[:-1] for row in rows}
    legal = {row_at(*[assignment[name] for name in names]) for assignment in legal_assignments(solution.document) or []}
    return len(kernels), sum(kernel[-1] for kernel in kernels), len(rows), len(legal)

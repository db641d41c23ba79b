"""``gemm`` beside cuBLAS (``torch.mm``) on the linear layers of three models.

Consecutive calls read other copies of a weight, so that no cache serves what a model's layers would fetch from memory.
``x`` has room for its padding behind it, as an engine's buffers have. Where DeepGEMM is there, the configurations that
are not in its cache are compiled first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from detent.bench.gpu import Bound, Case, Options
from detent.bench.gpu.record import Record, Row, geometric_mean
from detent.bench.gpu.timing import floor

MODELS = {  # (N, K) of qkv, output, gate and up, down, head; Qwen's experts are not linear layers, its router is
    "llama-3.1-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    "llama-3.1-70b-tp2": ((5120, 8192), (8192, 4096), (28672, 8192), (8192, 14336), (64128, 8192)),
    "qwen3-30b-a3b": ((5120, 2048), (2048, 4096), (128, 2048), (151936, 2048)),
}
ROWS = (1, 2, 7, 8, 16, 17, 33, 64, 65, 127, 129, 256, 257, 700, 1024, 2047, 4096, 8192)
FEW_ROWS = (1, 16, 129, 1024)
PADDINGS = (1, 64, 128, 256)
"""8 to 32 lead to the same configurations of DeepGEMM as 1 and 64."""
MUST, AIM = 1.04, 1.00
COLD = 160 << 20
"""Bytes of weights that are read before the first copy is read again."""


def cases(options: Options) -> Iterator[Case]:
    """Every weight shape at every number of rows; all numbers of rows of a shape share its copies."""
    import torch

    from detent.kernels.gemm import padded
    from detent.kernels.gemm_deep import available, compile_all

    rows = FEW_ROWS if options.quick else ROWS
    deep = available()
    if deep:
        compile_all([shape for shapes in MODELS.values() for shape in shapes],
                    {padded(m, padding) for m in rows for padding in PADDINGS})
    for model, shapes in MODELS.items():
        for n, k in shapes:
            weights = torch.randn(max(2, math.ceil(COLD / (2 * n * k))), n, k, device="cuda", dtype=torch.bfloat16)
            space = torch.randn(max(rows) + max(PADDINGS), k, device="cuda", dtype=torch.bfloat16)
            for m in rows:
                yield _case(model, m, space[:m], weights, deep)


def _case(model: str, m: int, x: Any, weights: Any, deep: bool) -> Case:
    import torch

    from detent.kernels.gemm import gemm, padded

    _, n, k = weights.shape

    def turns(product: Callable[[Any, Any], Any]) -> Callable[[int], Any]:
        return lambda turn: product(x, weights[turn % len(weights)])

    paddings: dict[int, int] = {}  # the least one that leads to a count
    for padding in PADDINGS if deep else ():
        paddings.setdefault(padded(m, padding), padding)
    ours = {f"deep {padding}": turns(partial(gemm, padding=padding, implementation="deep_gemm"))
            for padding in paddings.values()}
    if deep:
        ours |= {f"early {padding}": turns(partial(gemm, padding=padding, implementation="deep_gemm", early=True))
                 for padding in paddings.values()}
        ours["fastest 1"] = turns(partial(gemm, padding=1, implementation="fastest"))
    ours["triton"] = turns(partial(gemm, padding=1, implementation="triton"))
    least, what = floor(2 * (m * k + n * k + m * n), 2 * m * n * k)
    return Case("gemm", model, f"m{m} {n}x{k}", {"cublas": turns(lambda a, w: torch.mm(a, w.T)), **ours}, ("cublas",),
                tuple(ours), least, what)


def bounds(record: Record) -> Iterator[Bound]:
    """Over cuBLAS: the bound, on the implementation that ``gemm`` takes (DeepGEMM where it was timed) at the best
    padding of each case; each model's own mean; Triton alone; and the faster of both, which have the same bits."""
    rows = [row for row in record.of("gemm") if row.stock]
    deep = [_best(row, "deep ") or _best(row, "triton") for row in rows]
    yield Bound("gemm over cuBLAS, geometric mean, best padding", geometric_mean(deep) if rows else None, MUST, AIM,
                f"{len(rows)} cases")
    if not rows:
        return
    for model in MODELS:
        own = [ratio for row, ratio in zip(rows, deep, strict=True) if row.group == model]
        if own:
            yield Bound(f"gemm over cuBLAS, {model}", geometric_mean(own), None, None, f"{len(own)} cases")
    yield Bound("gemm in Triton over cuBLAS", geometric_mean(_best(row, "triton") for row in rows), None, None)
    both = [min(_best(row, "triton"), _best(row, "deep ") or math.inf) for row in rows]
    yield Bound("gemm, the faster of both over cuBLAS", geometric_mean(both), None, None)
    every = [min(row.ratio(arm) or 0.0 for arm in row.ours if not arm.startswith("fastest")) for row in rows]
    yield Bound("gemm, the fastest arm of each case over cuBLAS", geometric_mean(every), None, None,
                "what a table made of these times would take")
    for what, arm, plain in (("the table's choice", "fastest 1", "cublas"),
                             ("DeepGEMM launched early", "early 1", "deep 1")):
        ratios = [row.median(arm) / row.median(plain) for row in rows if arm in row.us]
        if ratios:
            yield Bound(f"gemm, {what} over {plain}", geometric_mean(ratios), None, None, "padding 1")


def _best(row: Row, prefix: str) -> float:
    """The least ratio over cuBLAS of the arms with such names; 0 where there are none."""
    return min((row.ratio(arm) or 0.0 for arm in row.ours if arm.startswith(prefix)), default=0.0)

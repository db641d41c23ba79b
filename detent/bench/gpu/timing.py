"""Times on a GPU: medians of CUDA graph replays, the arms of a case by turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

REPLAYS = 11
TARGET_US = 4e3
"""What a graph should last, so that a launch is no part of the result."""
MATRIX = 8192
"""Rows and columns of the product that measures arithmetic."""


def captured(call: Callable[[int], Any], calls: int) -> Any:
    """A CUDA graph of ``call(0)`` to ``call(calls - 1)``, replayed once."""
    import torch

    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            call(turn)
    graph.replay()
    return graph


def microseconds(arms: Mapping[str, Callable[[int], Any]], floor_us: float) -> dict[str, float]:
    """Each arm's time a call. All arms meet the same clocks and power limit, as they are replayed by turns."""
    import torch

    calls = max(2, min(20, int(TARGET_US / (floor_us + 10))))
    graphs = {name: captured(call, calls) for name, call in arms.items()}
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in arms}
    for _ in range(REPLAYS):
        for name, graph in graphs.items():
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            graph.replay()
            after.record()
            marks[name].append((before, after))
    torch.cuda.synchronize()
    return {name: round(statistics.median(before.elapsed_time(after) for before, after in pairs) * 1e3 / calls, 2)
            for name, pairs in marks.items()}


@cache
def copy_tb_s() -> float:
    """TB/s of a device-to-device copy, bytes read and written."""
    import torch

    source, target = (torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def copy() -> None:
        for _ in range(4):
            target.copy_(source)

    # In no graph: there a copy is the copy engine's, which is slower.
    return round(4 * 4 * source.numel() / _seconds(copy) / 1e12, 3)


@cache
def matrix_tflop_s() -> float:
    """TFLOP/s of a large bf16 product on random data."""
    import torch

    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def product() -> None:
        for _ in range(4):
            torch.mm(a, b)

    return round(4 * 2 * MATRIX ** 3 / _seconds(product) / 1e12, 1)


@cache
def link_tb_s() -> float:
    """TB/s of a copy from GPU 1 to GPU 0, one way."""
    import torch

    source, target = (torch.zeros(1 << 29, device=f"cuda:{at}", dtype=torch.bfloat16) for at in (1, 0))

    def copy() -> None:
        for _ in range(4):
            target.copy_(source)

    return round(4 * 2 * source.numel() / _seconds(copy) / 1e12, 4)


def floor(bytes_moved: float, operations: float) -> tuple[float, str]:
    """Microseconds that these bytes and operations take at the measured ceilings, and which of them takes longer."""
    by_bytes, by_operations = bytes_moved / copy_tb_s() / 1e6, operations / matrix_tflop_s() / 1e6
    return max((by_bytes, "bytes"), (by_operations, "operations"))


def _seconds(run: Callable[[], None]) -> float:
    import torch

    run()
    times: list[float] = []
    for _ in range(REPLAYS):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / 1e3)
    return statistics.median(times)

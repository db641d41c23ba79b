"""How a linear layer is computed fastest: which implementation, at which padding, launched early or not.

A row must not have other bits among other numbers of rows, so ways may take turns only for shapes of which a run on a
GPU has compared them: those in ``gemm_fastest.json``, which ``benchmarks/gemm_fastest.py`` makes of stored runs, and
only with the versions that ran there.
"""

from __future__ import annotations

import functools
import json
from bisect import bisect_left
from pathlib import Path
from typing import Any, NamedTuple

DATA = "gemm_fastest.json"


class Way(NamedTuple):
    """Arguments of ``gemm``."""

    implementation: str
    padding: int
    early: bool = False


class Ways(NamedTuple):
    """The fastest, and the fastest that pads no further than was asked: what is padded further needs room."""

    best: Way
    plain: Way


@functools.cache
def data() -> dict[str, Any]:
    """``from``: the runs. ``versions``: of what ran. ``shapes``: by ``NxK``, number of rows and padding asked for, the
    fastest way and, if that one pads further, the fastest that does not."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / DATA).read_text(encoding="utf-8"))
    return found


@functools.cache
def table() -> dict[tuple[int, int], tuple[list[int], dict[int, list[Ways]]]]:
    """By (N, K): up to how many rows each entry reaches but the last, and the entries by padding asked for. An entry
    reaches half way to the next number of rows that was timed."""
    found = {}
    for shape, timed in data()["shapes"].items():
        n, k = map(int, shape.split("x"))
        counts = sorted(map(int, timed))
        ends = [(a + b) // 2 for a, b in zip(counts, counts[1:], strict=False)]
        paddings = sorted(map(int, timed[str(counts[0])]))
        found[n, k] = ends, {padding: [_ways(timed[str(m)][str(padding)]) for m in counts] for padding in paddings}
    return found


def _ways(names: list[str]) -> Ways:
    return Ways(_way(names[0]), _way(names[-1]))


def _way(name: str) -> Way:
    """Of an arm of ``detent bench kernels``: "triton", "deep 64", or "early 1", which is DeepGEMM as well."""
    kind, _, padding = name.partition(" ")
    return Way("triton", 1) if kind == "triton" else Way("deep_gemm", int(padding), kind == "early")


def choice(rows: int, n: int, k: int, padding: int) -> Ways | None:
    """None for a shape whose bits were not compared.

    As the nearest number of rows that was timed has it, the lower of two, at the widest timed padding that is not wider
    than ``padding`` (0, whose steps grow, pads little: as 1).
    """
    timed = table().get((n, k))
    if timed is None:
        return None
    ends, by_padding = timed
    ways = by_padding.get(padding)
    if ways is None:
        ways = by_padding[max(each for each in by_padding if each <= max(1, padding))]
    return ways[bisect_left(ends, rows)]


def comparable(versions: dict[str, Any]) -> bool:
    """Whether these are the versions whose bits were compared."""
    return bool(versions == data()["versions"])

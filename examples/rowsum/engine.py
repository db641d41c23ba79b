"""An engine's loop around a selection: as shipped the batch is in a request's bits, under a pin it is not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from toy_kernels import KERNELS

import detent
from detent.runtime import load_selector

HERE = Path(__file__).resolve().parent
PROGRAM, DEPLOYMENT = f"{HERE / 'program.py'}:rowsum", str(HERE / "deployment.toml")
TUNED = {"kernel": "blocked", "width": 8}  # by hand: the fastest here, whatever the batch


def step(select: Callable[..., Mapping[str, Any]], batch: Sequence[Sequence[float]]) -> list[float]:
    """One engine step: select once for the whole batch, then run the kernel on every request's row."""
    points = select(len(batch), False)
    return [KERNELS[points["kernel"]](row, points["width"]) for row in batch]


def main() -> None:
    solution = detent.solve(PROGRAM, DEPLOYMENT)
    print(f"{solution.legal} of {solution.candidates} assignments are legal, by default {solution.default}")
    stock = solution.unpinned()
    arms: dict[str, Callable[..., Mapping[str, Any]]] = {
        "stock": lambda rows, hot: stock(rows, hot)[0],  # points, and the requires that do not hold
        "default": load_selector(PROGRAM, DEPLOYMENT),
        "tuned": load_selector(PROGRAM, DEPLOYMENT, TUNED),
    }
    rng = random.Random(1)
    request, *others = [[rng.uniform(-1, 1) for _ in range(64)] for _ in range(32)]
    for name, select in arms.items():
        results = [step(select, [request, *others[:more]])[0] for more in (0, 3, 7, 31)]
        bits = [struct.pack(">f", result).hex() for result in results]
        print(f"{name:8} {' '.join(bits)}  {'same bits' if len(set(bits)) == 1 else 'the batch is in the bits'}")


if __name__ == "__main__":
    main()

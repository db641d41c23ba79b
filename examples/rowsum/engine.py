"""An engine loop of forty lines around a selection: stock it lets the batch in, under a tuple it does not."""

import random
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kernels import KERNELS  # noqa: E402

import detent  # noqa: E402

PROGRAM, DEPLOYMENT = f"{HERE / 'program.py'}:rowsum", str(HERE / "deployment.toml")


def step(choose, batch):
    """One engine step: select once for the whole batch, then run every request's row."""
    points = choose(len(batch), False)
    return [KERNELS[points["kernel"]](row, points["width"]) for row in batch]


def bits(value):
    return struct.pack("f", value).hex()


def main():
    solution = detent.solve(PROGRAM, DEPLOYMENT)
    print(f"{solution.legal} of {solution.candidates} assignments are legal; default {solution.default}")
    unpinned = solution.unpinned()
    arms = {
        "stock": lambda rows, hot: unpinned(rows, hot)[0],
        "default": solution.selector(),
        "tuned": solution.selector({"kernel": "blocked", "width": 8}),
    }
    random.seed(1)
    request = [random.uniform(-1, 1) for _ in range(64)]
    neighbours = [[random.uniform(-1, 1) for _ in range(64)] for _ in range(31)]
    for name, choose in arms.items():
        seen = [bits(step(choose, [request, *neighbours[:n]])[0]) for n in (0, 3, 7, 31)]
        print(f"{name:8} {' '.join(seen)}  {'the batch is in the bits' if len(set(seen)) > 1 else 'same bits'}")


if __name__ == "__main__":
    main()

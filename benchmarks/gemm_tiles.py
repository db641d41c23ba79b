"""The table of tiles that ``gemm_triton.tile`` reads, from a run of ``gpu_gemm.py``: give that run's JSON file.

Also which tiles that run times: those that an estimate takes for not much slower than the best.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from detent.kernels.gemm_triton import TILES, WIDTHS, Tile

SHARED_BYTES = 227 << 10
# A multiprocessor of H200, in clocks: bytes that it gets of memory's and of the second-level cache's bandwidth,
# multiply-adds, and how long a fetch takes. Round figures for ``clocks``.
MEMORY, CACHE, PRODUCTS, LATENCY = 18, 40, 1500, 1000


def fits(tile: Tile, m: int) -> bool:
    """Whether a tile is worth considering: not mostly empty."""
    return tile.rows <= 64 or tile.rows < 2 * m


def clocks(tile: Tile, m: int, n: int, k: int, multiprocessors: int) -> float:
    """An estimate of a product's time, for choosing among tiles."""
    tiles = -(-m // tile.rows) * -(-n // tile.columns)
    shared = (tile.rows + tile.columns) * tile.step * 2 * tile.stages
    shared += 0 if tile.programs == 0 else tile.rows * tile.columns * (1 if tile.halves else 2)
    resident = tile.programs or max(1, min(SHARED_BYTES // shared, 16 // tile.warps))
    waves = -(-tiles // (multiprocessors * resident))
    beside = min(resident, -(-tiles // multiprocessors))
    bytes_tile = (min(tile.rows, m) + tile.columns) * k * 2 + tile.rows * tile.columns * 2
    busy = max(beside * bytes_tile / CACHE, beside * tile.rows * tile.columns * k / PRODUCTS)
    alone = k / tile.step * LATENCY / tile.stages
    memory = 2 * (n * k + m * k + m * n) / (MEMORY * multiprocessors)
    return LATENCY + max(memory, waves * max(busy, alone))


def name(tile: Tile) -> str:
    """A tile's arm in the run's file."""
    return "triton " + "x".join(str(int(part)) for part in tile)


def table(times: list[dict[str, Any]]) -> dict[int, tuple[int, ...]]:
    """By rows of x and width of the result: the tile with the least geometric mean over cuBLAS of the cases there."""
    found = {}
    for m in sorted({case["m"] for case in times}):
        row = []
        for width in range(len(WIDTHS) + 1):
            cases = [case["us"] for case in times
                     if case["m"] == m and sum(case["n"] > most for most in WIDTHS) == width]
            timed = [i for i, tile in enumerate(TILES) if all(name(tile) in us for us in cases)]
            row.append(min(timed, key=lambda i: sum(math.log(us[name(TILES[i])] / us["cublas"]) for us in cases)))
        found[m] = tuple(row)
    return found


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        for rows, chosen in table(json.load(file)["times"]).items():
            print(f"    {rows}: {chosen},")

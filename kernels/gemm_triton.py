# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton half of :mod:`detent.kernels.gemm`; import it through there, it needs triton.

An element of the result is one fp32 accumulator. The tensor cores add to it 16 products at a time, in ascending order
of K, from 0 to the end: the sum over K is never cut. So a tile decides which program computes an element and beside
which others, and not what is added to what. The tile is therefore free to follow the number of rows, and ``BK``, the
number of columns fetched at a time, enters no bit either; what stays fixed is the operand order (rows of ``x`` times
rows of ``weight``, or, where ``SWAP``, the same products with the factors exchanged) and the step of 16, which is
the only one that these instructions have for bf16 (wgmma, m64 nX k16). What no document promises is that one
instruction adds its 16 products alike whatever its X and wherever in it the element lies. The tests compare exactly
that on the device, over all tiles.

A tile of fewer than 64 rows on both sides would be given to other instructions (mma.sync), which may add otherwise:
``tile`` and ``launch`` never choose one.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from triton.tools.tensor_descriptor import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    TensorDescriptor,
)

WGMMA_ROWS = 64  # rows of the left operand of one instruction


class Tile(NamedTuple):
    """How a product is cut. Nothing here enters a row's bits."""

    rows: int  # of x
    columns: int  # rows of weight
    step: int  # columns of both fetched at a time
    stages: int
    warps: int
    swap: bool = False  # weight is the left operand
    group: int = 8  # tiles of rows that take a block of columns by turns
    programs: int = 1  # a multiprocessor's; 0: one program a tile
    halves: bool = False  # the result leaves in two halves, which takes half the shared memory


# What ``tile`` chooses from: about what one multiprocessor can hold once (large products) or several times (few rows).
TILES = (
    Tile(16, 64, 128, 4, 4, swap=True, programs=0),
    Tile(16, 64, 128, 8, 4, swap=True, programs=0),
    Tile(16, 128, 64, 8, 4, swap=True, programs=0),
    Tile(32, 64, 128, 4, 4, swap=True, programs=0),
    Tile(64, 16, 128, 4, 4, programs=0),
    Tile(64, 32, 128, 4, 4, programs=0),
    Tile(64, 32, 128, 8, 4, programs=0),
    Tile(64, 64, 64, 6, 4, programs=0),
    Tile(64, 128, 64, 4, 4, programs=0),
    Tile(64, 128, 64, 7, 4, programs=0),
    Tile(128, 32, 64, 5, 4, programs=0),
    Tile(128, 64, 64, 4, 4, programs=0),
    Tile(128, 64, 64, 7, 4),
    Tile(128, 128, 64, 3, 8, programs=0),
    Tile(128, 128, 64, 5, 8),
    Tile(64, 256, 64, 4, 4),
    Tile(128, 256, 64, 3, 8),
    Tile(128, 256, 64, 4, 8, halves=True),
    Tile(256, 128, 64, 3, 8),
)
WIDTHS = (1000, 5000, 10000, 40000)
CHOSEN = {
    1: (1, 1, 0, 2, 0),
    2: (1, 1, 0, 2, 0),
    7: (1, 1, 0, 0, 0),
    8: (1, 1, 0, 0, 0),
    16: (1, 1, 0, 0, 0),
    17: (1, 1, 3, 3, 3),
    33: (1, 1, 9, 15, 15),
    64: (1, 6, 9, 9, 8),
    65: (1, 9, 15, 16, 17),
    127: (1, 9, 12, 17, 17),
    129: (1, 9, 15, 15, 15),
    256: (1, 9, 14, 17, 17),
    257: (1, 15, 15, 15, 15),
    700: (1, 9, 15, 15, 16),
    1024: (1, 15, 15, 16, 16),
    2047: (6, 17, 15, 17, 16),
    4096: (9, 16, 17, 16, 16),
    8192: (9, 16, 16, 16, 18),
}
"""By the most rows of x: which of ``TILES``, for results of up to as many columns as each of ``WIDTHS``, and for wider.

Measured on one H200; ``benchmarks/gemm_tiles.py`` makes it from a run of ``gpu_gemm.py``."""


@functools.lru_cache(maxsize=4096)
def tile(m: int, n: int) -> Tile:
    """The tile that ``gemm`` uses; speed alone depends on it."""
    row = CHOSEN[next((most for most in CHOSEN if most >= m), max(CHOSEN))]
    return TILES[row[sum(n > width for width in WIDTHS)]]


@triton.jit(do_not_specialize=["M"])
def gemm_kernel(
    X, W, OUT, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, SWAP: tl.constexpr,
    GROUP: tl.constexpr, PERSISTENT: tl.constexpr, HALVES: tl.constexpr, EARLY: tl.constexpr,
):
    """``X``, ``W`` and ``OUT`` are descriptors with blocks (BM, BK), (BN, BK) and (BM, BN, or half of it).

    What lies outside of a matrix is read as zero and not written. ``EARLY``: the launch may begin before the kernel
    in front has ended, and waits here for what that stores.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    across = (M + BM - 1) // BM
    down = (N + BN - 1) // BN
    if PERSISTENT:
        for tile in tl.range(tl.program_id(0), across * down, tl.num_programs(0), flatten=True):
            _tile(X, W, OUT, K, tile, across, down, BM, BN, BK, STAGES, SWAP, GROUP, HALVES)
    else:
        _tile(X, W, OUT, K, tl.program_id(0), across, down, BM, BN, BK, STAGES, SWAP, GROUP, HALVES)


@triton.jit
def _tile(
    X, W, OUT, K, tile, across, down, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    SWAP: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr,
):
    """Compute and store one tile. GROUP tiles of rows share a block of columns before the next block is fetched."""
    first = tile // (GROUP * down) * GROUP
    there = tl.minimum(across - first, GROUP)
    row = (first + tile % (GROUP * down) % there) * BM
    column = tile % (GROUP * down) // there * BN
    if SWAP:
        acc = tl.zeros((BN, BM), tl.float32)
    else:
        acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, num_stages=STAGES):
        x = X.load([row, k])
        w = W.load([column, k])
        if SWAP:
            acc = tl.dot(w, x.T, acc)
        else:
            acc = tl.dot(x, w.T, acc)
    if SWAP:
        acc = acc.T
    if HALVES:
        left, right = acc.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
        OUT.store([row, column], left.to(OUT.dtype))
        OUT.store([row, column + BN // 2], right.to(OUT.dtype))
    else:
        OUT.store([row, column], acc.to(OUT.dtype))


def launch(x: Any, weight: Any, out: Any, tile: Tile, multiprocessors: int, interpreted: bool = False) -> None:
    """Multiply checked arguments with a tile. ``multiprocessors`` bounds the programs of a persistent launch."""
    m, k = x.shape
    n = weight.shape[0]
    if (tile.columns if tile.swap else tile.rows) < WGMMA_ROWS:
        raise ValueError(f"gemm: a tile of {tile.rows} x {tile.columns} would be multiplied by other instructions")
    tiles = -(-m // tile.rows) * -(-n // tile.columns)
    grid = min(tiles, tile.programs * multiprocessors) if tile.programs else tiles
    options = {} if interpreted else {"launch_pdl": True}
    gemm_kernel[(grid,)](
        TensorDescriptor(x, [m, k], [x.stride(0), 1], [tile.rows, tile.step]),
        TensorDescriptor(weight, [n, k], [weight.stride(0), 1], [tile.columns, tile.step]),
        TensorDescriptor(out, [m, n], [out.stride(0), 1],
                         [tile.rows, tile.columns // 2 if tile.halves else tile.columns]),
        m, n, k, tile.rows, tile.columns, tile.step, tile.stages, tile.swap, tile.group, tile.programs > 0, tile.halves,
        not interpreted, num_warps=tile.warps, num_stages=tile.stages, **options)

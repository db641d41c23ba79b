# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton half of :mod:`detent.kernels.rows`; import it through there, it needs triton.

A program owns whole rows, or a fixed piece of one, and no argument knows how many rows there are. What a reduction's
order hangs on is fixed by the row's length and type alone: tile, warps, and how threads share a tile. Triton lays a
tile out by what it knows of a pointer's alignment, so that must be one thing for every call: steps between rows come
in units of ``UNIT`` elements and are never specialised, and the host refuses bases off 16 bytes.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

UNIT: tl.constexpr = tl.constexpr(8)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2_HIGH: tl.constexpr = tl.constexpr(0.693145751953125)  # few bits, so that its product with an exponent is exact
LN2_LOW: tl.constexpr = tl.constexpr(1.42860682030941723212e-6)
SQRT_2_OVER_PI: tl.constexpr = tl.constexpr(0.7978845608028654)
GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)  # SplitMix64's constants
FIRST: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _exp(x):
    """``e ** x`` in fp32 for ``x <= 0``, also -inf. The power of two of ``x / ln 2`` alone loses bits at large x."""
    x = tl.where(x < -110.0, -110.0, x)
    n = tl.floor(x * LOG2_E + 0.5)
    rest = tl.fma(n, -LN2_LOW, tl.fma(n, -LN2_HIGH, x))
    return tl.exp2(rest * LOG2_E) * tl.exp2(n)


@triton.jit
def _scaled(x, weight, square, eps, SIZE: tl.constexpr):
    root = tl.sqrt_rn(tl.div_rn(square, SIZE * 1.0) + eps)
    return x * tl.div_rn(1.0, root) * weight


@triton.jit(do_not_specialize=["x_step", "r_step", "t_step", "o_step"])
def rms_norm_kernel(
    X, RESIDUAL, TOTAL, WEIGHT, OUT, eps, x_step, r_step, t_step, o_step, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < SIZE
    x = tl.load(X + row * x_step * UNIT + column, mask=there, other=0.0).to(tl.float32)
    if ADD:
        other = tl.load(RESIDUAL + row * r_step * UNIT + column, mask=there, other=0.0).to(tl.float32)
        total = (x + other).to(TOTAL.dtype.element_ty)
        tl.store(TOTAL + row * t_step * UNIT + column, total, mask=there)
        x = total.to(tl.float32)  # as stored: the norm of what the next layer will read
    weight = tl.load(WEIGHT + column, mask=there, other=0.0).to(tl.float32)
    y = _scaled(x, weight, tl.sum(x * x, 0), eps, SIZE)
    tl.store(OUT + row * o_step * UNIT + column, y.to(OUT.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "heads", "x_token", "x_head", "o_token", "o_head"])
def head_norm_kernel(
    X, WEIGHT, OUT, eps, rows, heads, x_token, x_head, o_token, o_head, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """One program ROWS heads, counted over all tokens; ``rows`` only masks the last."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    token, head = row // heads, row % heads
    column = tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < SIZE)[None, :]
    at = (token * x_token + head * x_head) * UNIT
    x = tl.load(X + at[:, None] + column[None, :], mask=there, other=0.0).to(tl.float32)
    weight = tl.load(WEIGHT + column, mask=column < SIZE, other=0.0).to(tl.float32)
    y = _scaled(x, weight[None, :], tl.sum(x * x, 1)[:, None], eps, SIZE)
    at = (token * o_token + head * o_head) * UNIT
    tl.store(OUT + at[:, None] + column[None, :], y.to(OUT.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["x_step", "o_step"])
def gated_kernel(X, OUT, x_step, o_step, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):
    """One program BLOCK columns of a row: the first half's activation times the second half."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < SIZE
    at = X + row * x_step * UNIT + column
    x = tl.load(at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(at + SIZE, mask=there, other=0.0).to(tl.float32)
    if GELU:  # (1 + tanh u) / 2 is the logistic function of 2u, which cancels nothing
        gate = 2.0 * SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
    else:
        gate = x
    y = tl.div_rn(x, 1.0 + tl.exp(-gate)) * up
    tl.store(OUT + row * o_step * UNIT + column, y.to(OUT.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["q_token", "q_head", "k_token", "k_head", "places"])
def rotary_kernel(
    POSITION, Q, K, TABLE, q_token, q_head, k_token, k_head, places, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
):
    """One program HEADS heads of a token, of q's first and then of k's, in place. No number comes of no position."""
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    q_tiles: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    column = tl.arange(0, BLOCK)
    position = tl.load(POSITION + token)
    known = (position >= 0) & (position < places)
    turn = TABLE + tl.where(known, position, 0) * (2 * HALF) + column
    inside = (column < HALF) & known
    cos = tl.load(turn, mask=inside, other=float("nan")).to(tl.float32)[None, :]
    sin = tl.load(turn + HALF, mask=inside, other=float("nan")).to(tl.float32)[None, :]
    if tile < q_tiles:
        head = tile * HEADS + tl.arange(0, HEADS)
        at = Q + (token * q_token + head * q_head)[:, None] * UNIT + column[None, :]
        _turn(at, cos, sin, (head < Q_HEADS)[:, None] & (column < HALF)[None, :], HALF)
    else:
        head = (tile - q_tiles) * HEADS + tl.arange(0, HEADS)
        at = K + (token * k_token + head * k_head)[:, None] * UNIT + column[None, :]
        _turn(at, cos, sin, (head < K_HEADS)[:, None] & (column < HALF)[None, :], HALF)


@triton.jit
def _turn(at, cos, sin, there, HALF: tl.constexpr):
    low = tl.load(at, mask=there, other=0.0)
    high = tl.load(at + HALF, mask=there, other=0.0)
    x, y = low.to(tl.float32), high.to(tl.float32)
    tl.store(at, (x * cos - y * sin).to(low.dtype), mask=there)
    tl.store(at + HALF, (y * cos + x * sin).to(low.dtype), mask=there)


@triton.jit
def _element(row, at, limit):
    return tl.load(row + at, mask=at < limit, other=float("-inf")).to(tl.float32)


@triton.jit
def _weight(x, top):
    return tl.where(x == float("-inf"), 0.0, _exp(x - top))


@triton.jit
def _weights(row, limit, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A row's maximum and the sum of exponentials over it, over elements below ``limit``.

    Lane ``i`` takes elements ``i``, ``i + BLOCK`` and so on in ascending order, four at a time; the lanes are added up
    at the end.
    """
    lane = tl.arange(0, BLOCK)
    m = tl.full([BLOCK], float("-inf"), tl.float32)
    z = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK * 4):
        at = start + lane
        a = _element(row, at, limit)
        b = _element(row, at + BLOCK, limit)
        c = _element(row, at + BLOCK * 2, limit)
        d = _element(row, at + BLOCK * 3, limit)
        top = tl.maximum(m, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)))
        z = tl.where(m == top, z, z * _exp(m - top))
        z = z + _weight(a, top) + _weight(b, top) + _weight(c, top) + _weight(d, top)
        m = top
    peak = tl.max(m, 0)
    return peak, tl.sum(tl.where(m == float("-inf"), 0.0, z * _exp(m - peak)), 0)


@triton.jit(do_not_specialize=["x_step"])
def part_kernel(X, PEAK, TOTAL, x_step, SIZE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
                EARLY: tl.constexpr):
    """One program a part of 4 * BLOCK elements of a row: the part's maximum, and the sum of exponentials over it.

    Four tiles and not one, so that a thread's elements, and with them the sum's order, are the same in 16 bits and 32.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row = X + (tl.program_id(0) // PARTS).to(tl.int64) * x_step * UNIT
    at = tl.program_id(0) % PARTS * (BLOCK * 4) + tl.arange(0, BLOCK)
    a = _element(row, at, SIZE)
    b = _element(row, at + BLOCK, SIZE)
    c = _element(row, at + BLOCK * 2, SIZE)
    d = _element(row, at + BLOCK * 3, SIZE)
    peak = tl.max(tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), 0)
    tl.store(PEAK + tl.program_id(0), peak)
    tl.store(TOTAL + tl.program_id(0),
             tl.sum(_weight(a, peak) + _weight(b, peak) + _weight(c, peak) + _weight(d, peak), 0))


@triton.jit(do_not_specialize=["x_step", "o_step"])
def softmax_kernel(X, PEAK, TOTAL, OUT, x_step, o_step, SIZE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
                   COUNT: tl.constexpr, LOG: tl.constexpr, EARLY: tl.constexpr):
    """One program a part of a row, as ``part_kernel`` cut it; it adds up all the row's parts for itself.

    The last parts come first: of what the pass before read, caches still hold the end. What that pass only read may be
    read before it has ended (``EARLY``).
    """
    unit = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (unit // PARTS).to(tl.int64)
    source, target = X + row * x_step * UNIT, OUT + row * o_step * UNIT
    at = unit % PARTS * (BLOCK * 4) + tl.arange(0, BLOCK)
    a = _element(source, at, SIZE)
    b = _element(source, at + BLOCK, SIZE)
    c = _element(source, at + BLOCK * 2, SIZE)
    d = _element(source, at + BLOCK * 3, SIZE)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    part = tl.arange(0, COUNT)
    peaks = tl.load(PEAK + row * PARTS + part, mask=part < PARTS, other=float("-inf"))
    totals = tl.load(TOTAL + row * PARTS + part, mask=part < PARTS, other=0.0)
    peak = tl.max(peaks, 0)
    total = tl.sum(tl.where(peaks == float("-inf"), 0.0, totals * _exp(peaks - peak)), 0)
    _store_shares(target, at, a, peak, total, SIZE, LOG)
    _store_shares(target, at + BLOCK, b, peak, total, SIZE, LOG)
    _store_shares(target, at + BLOCK * 2, c, peak, total, SIZE, LOG)
    _store_shares(target, at + BLOCK * 3, d, peak, total, SIZE, LOG)


@triton.jit
def _store_shares(target, at, x, peak, total, SIZE: tl.constexpr, LOG: tl.constexpr):
    if LOG:
        y = x - peak - tl.log(total)
    else:
        y = tl.div_rn(_exp(x - peak), total)
    tl.store(target + at, y, mask=at < SIZE)


@triton.jit
def _mixed(state):
    """SplitMix64's finaliser."""
    state = (state ^ (state >> 30)) * FIRST
    state = (state ^ (state >> 27)) * SECOND
    return state ^ (state >> 31)


@triton.jit
def uniform(seed, position, token):
    """A float64 in (0, 1) that belongs to a seed, a position and a token id, all uint64; the host's bits. 52 bits and a
    half are 53, all of which it holds: neither end is reached."""
    key = _mixed(_mixed(seed + GOLDEN) + position + GOLDEN)
    state = _mixed((token + 1) * GOLDEN + key)
    return ((state >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit(do_not_specialize=["x_step"])
def draw_kernel(
    X, TEMPERATURE, SEED, POSITION, BEST, AT, x_step, SIZE: tl.constexpr, BLOCK: tl.constexpr, PIECES: tl.constexpr,
    NOISE: tl.constexpr, DIVIDE: tl.constexpr,
):
    """One program a piece of BLOCK tokens of a row: its largest value, noise added, and where it first stands."""
    row = (tl.program_id(0) // PIECES).to(tl.int64)
    token = tl.program_id(0) % PIECES * BLOCK + tl.arange(0, BLOCK)
    there = token < SIZE
    x = tl.load(X + row * x_step * UNIT + token, mask=there, other=float("-inf")).to(tl.float32)
    value = x.to(BEST.dtype.element_ty)
    if NOISE:
        temperature = tl.load(TEMPERATURE + row)
        if temperature > 0.0:
            seed = tl.load(SEED + row).to(tl.uint64)
            position = tl.load(POSITION + row).to(tl.uint64)
            u = uniform(seed, position, token.to(tl.uint64))
            if DIVIDE:
                x = tl.div_rn(x, tl.broadcast_to(temperature, [BLOCK]))
            value = x.to(tl.float64) - tl.log(-tl.log(u))
    value = tl.where(value != value, float("inf"), value)  # no number counts as the largest
    best = tl.max(value, 0)
    tl.store(BEST + tl.program_id(0), best)
    tl.store(AT + tl.program_id(0), tl.min(tl.where((value == best) & there, token, SIZE), 0))


@triton.jit
def first_kernel(BEST, AT, OUT, PIECES: tl.constexpr, COUNT: tl.constexpr):
    """One program a row: of its pieces' largest values the largest, and where it first stands."""
    row = tl.program_id(0)
    piece = tl.arange(0, COUNT)
    value = tl.load(BEST + row * PIECES + piece, mask=piece < PIECES, other=float("-inf"))
    token = tl.load(AT + row * PIECES + piece, mask=piece < PIECES, other=2147483647)
    tl.store(OUT + row, tl.min(tl.where(value == tl.max(value, 0), token, 2147483647), 0).to(tl.int64))


@triton.jit(do_not_specialize=["x_step", "o_step"])
def temper_kernel(X, TEMPERATURE, OUT, x_step, o_step, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program BLOCK columns of a row: over its temperature, where that is not 0."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    temperature = tl.load(TEMPERATURE + row)
    x = tl.load(X + row * x_step * UNIT + at, mask=at < SIZE, other=0.0).to(tl.float32)
    y = tl.div_rn(x, tl.broadcast_to(tl.where(temperature > 0.0, temperature, 1.0), [BLOCK]))
    tl.store(OUT + row * o_step * UNIT + at, y, mask=at < SIZE)


@triton.jit(do_not_specialize=["r_step", "i_step", "x_step"])
def cut_kernel(RANKED, TOKEN, X, TOP_K, TOP_P, r_step, i_step, x_step, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a row, sorted: tokens behind ``top_k`` others, or behind a share of ``top_p``, become -inf in X."""
    row = tl.program_id(0).to(tl.int64)
    ranked, token = RANKED + row * r_step * UNIT, TOKEN + row * i_step * UNIT
    top_k, top_p = tl.load(TOP_K + row), tl.load(TOP_P + row)
    limit = tl.where((top_k > 0) & (top_k < SIZE), top_k, SIZE)
    peak, total = _weights(ranked, limit, SIZE, BLOCK)
    share_kept = tl.where(top_p < 1.0, top_p, float("inf")).to(tl.float64)
    before = tl.zeros([1], tl.float64)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(ranked + at, mask=at < limit, other=float("-inf")).to(tl.float32)
        share = tl.div_rn(tl.where(x == float("-inf"), 0.0, _exp(x - peak)), total).to(tl.float64)
        passed = before + tl.cumsum(share, 0) - share
        cut = (at >= limit) | (passed >= share_kept)
        place = tl.load(token + at, mask=at < SIZE, other=0)
        tl.store(X + row * x_step * UNIT + place, float("-inf"), mask=cut & (at < SIZE))
        before += tl.sum(share, 0)

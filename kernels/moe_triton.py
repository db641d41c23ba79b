# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton half of :mod:`detent.kernels.moe`; import it through there, it needs triton.

A pair is a token and one of its experts: pair ``token * k + j`` is the token's ``j``-th. A pair's place is its rank in
the stable order by expert. The layer is seven launches:

* ``count_kernel`` and ``place_kernel`` sort pairs by expert and cut each expert's into blocks of ``BM`` places, the
  last of them partial;
* ``gemm_kernel`` multiplies the blocks' rows by their expert's gate and up, ``activation_kernel`` folds the two halves,
  ``gemm_kernel`` multiplies by down and by the pair's weight;
* ``combine_kernel`` adds a token's pairs in the order of its own list.

A row of a tile passes through the tensor cores on its own: its K blocks ascend, and what the other rows hold or whether
they exist enters nothing. No argument that hangs on the number of tokens is specialised, so that one compiled kernel
serves all of them. Launches turn off the contraction of multiply and add.

``EARLY``: the kernel was launched as a programmatic dependent and waits for the one before it to end, before it reads
or writes anything; that one has waited for its own, so every earlier launch of the layer is complete as well.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit(do_not_specialize=["pairs"], do_not_specialize_on_alignment=["IDS"])
def count_kernel(
    IDS, COUNTS, pairs, experts, EP: tl.constexpr, CHUNK: tl.constexpr, SUB: tl.constexpr, EARLY: tl.constexpr,
):
    """``COUNTS[chunk, expert]``: pairs of a chunk that chose an expert. ``EP``: experts, up to a power of two."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    chunk = tl.program_id(0)
    first = chunk * CHUNK
    expert = tl.arange(0, EP)
    total = tl.zeros([EP], tl.int32)
    for base in range(first, tl.minimum(first + CHUNK, pairs), SUB):
        pair = base + tl.arange(0, SUB)
        own = tl.load(IDS + pair, mask=pair < pairs, other=-1)
        total += tl.sum((own[:, None] == expert[None, :]).to(tl.int32), 0)
    tl.store(COUNTS + chunk * EP + expert, tl.where(expert < experts, total, 0))


@triton.jit(do_not_specialize=["pairs", "chunks", "capacity", "span"], do_not_specialize_on_alignment=["IDS"])
def place_kernel(
    IDS, COUNTS, ORDER, BLOCKS, pairs, chunks, capacity, span, experts, BM: tl.constexpr, EP: tl.constexpr,
    CHUNK: tl.constexpr, SUB: tl.constexpr, EARLY: tl.constexpr,
):
    """``ORDER[place]``: the pair there. ``BLOCKS``: the number of blocks, that of places, two zeros, then each block's
    expert, its first place, and the end of its places, ``capacity`` of each; what lies behind the last is not written.

    One program a chunk of pairs; it also writes ``span`` blocks.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    chunk = tl.program_id(0)
    expert = tl.arange(0, EP)
    total = tl.zeros([EP], tl.int32)
    before = tl.zeros([EP], tl.int32)
    for base in range(0, chunks, SUB):
        other = base + tl.arange(0, SUB)
        at = COUNTS + other[:, None] * EP + expert[None, :]
        counts = tl.load(at, mask=tl.broadcast_to((other < chunks)[:, None], (SUB, EP)), other=0)
        total += tl.sum(counts, 0)
        before += tl.sum(tl.where((other < chunk)[:, None], counts, 0), 0)
    ends = tl.cumsum(total, 0)
    starts = ends - total
    height = (total + BM - 1) // BM
    block_ends = tl.cumsum(height, 0)
    block_starts = block_ends - height

    # Pairs, SUB at a time: a place is the expert's start, those of earlier chunks and tiles, and those of this tile.
    place = starts + before
    first = chunk * CHUNK
    lane = tl.arange(0, SUB)
    for base in range(first, tl.minimum(first + CHUNK, pairs), SUB):
        pair = base + lane
        own = tl.load(IDS + pair, mask=pair < pairs, other=-1)
        same = (own[:, None] == expert[None, :]) & (expert < experts)[None, :]
        earlier = (own[:, None] == own[None, :]) & (lane[None, :] < lane[:, None])
        rank = tl.sum(tl.where(same, place[None, :], 0), 1) + tl.sum(earlier.to(tl.int32), 1)
        tl.store(ORDER + rank, pair, mask=(own >= 0) & (own < experts))
        place += tl.sum(same.to(tl.int32), 0)

    if chunk == 0:
        tl.store(BLOCKS, tl.sum(height, 0))
        tl.store(BLOCKS + 1, tl.sum(total, 0))
    table = BLOCKS + 4
    for base in range(chunk * span, tl.minimum((chunk + 1) * span, capacity), SUB):
        block = base + lane
        own = tl.sum((block_ends[None, :] <= block[:, None]).to(tl.int32), 1)
        same = own[:, None] == expert[None, :]
        start = tl.sum(tl.where(same, (starts - block_starts * BM)[None, :], 0), 1) + block * BM
        end = tl.sum(tl.where(same, ends[None, :], 0), 1)
        there = (own < experts) & (block < (chunk + 1) * span) & (block < capacity)
        tl.store(table + block, own, mask=there)
        tl.store(table + capacity + block, start, mask=there)
        tl.store(table + 2 * capacity + block, tl.minimum(end, start + BM), mask=there)


@triton.jit(do_not_specialize=["capacity"], do_not_specialize_on_alignment=["SHARES"])
def gemm_kernel(
    A, B, C, SHARES, ORDER, BLOCKS, capacity, N, K, a_row, b_expert, b_row, c_row, TOP_K: tl.constexpr,
    SECOND: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, EARLY: tl.constexpr,
):
    """Blocks of rows times their expert's ``B[expert, N, K]``.

    The first GEMM reads the pairs' tokens and writes their places. The second reads places and writes pairs, each row
    times its pair's share. Programs go down ``GROUP`` blocks before they go one tile of columns on.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    blocks = tl.load(BLOCKS)
    columns = (N + BN - 1) // BN
    program = tl.program_id(0)
    if program >= blocks * columns:
        return
    area = GROUP * columns
    top = program // area * GROUP
    rows = tl.minimum(blocks - top, GROUP)
    block = top + program % area % rows
    tile = program % area // rows
    table = BLOCKS + 4
    expert = tl.load(table + block).to(tl.int64)
    place = tl.load(table + capacity + block) + tl.arange(0, BM)
    live = place < tl.load(table + 2 * capacity + block)
    pair = tl.load(ORDER + place, mask=live, other=0)
    column = tile * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    if SECOND:
        source = place.to(tl.int64)
        target = pair.to(tl.int64)
    else:
        source = (pair // TOP_K).to(tl.int64)
        target = place.to(tl.int64)
    a_at = A + source[:, None] * a_row + k[None, :]
    b_at = B + expert * b_expert + column.to(tl.int64)[None, :] * b_row + k[:, None]
    acc = tl.zeros([BM, BN], tl.float32)
    for base in range(0, K, BK):
        if EVEN_K:
            a = tl.load(a_at, mask=live[:, None], other=0.0)
            if EVEN_N:
                b = tl.load(b_at)
            else:
                b = tl.load(b_at, mask=(column < N)[None, :], other=0.0)
        else:  # zeros behind the last column add nothing
            inside = k < K - base
            a = tl.load(a_at, mask=live[:, None] & inside[None, :], other=0.0)
            b = tl.load(b_at, mask=inside[:, None] & (column < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BK
        b_at += BK
    if SECOND:
        share = tl.load(SHARES + pair, mask=live, other=0.0)
        acc = acc * share[:, None]
    c_at = C + target[:, None] * c_row + column[None, :]
    tl.store(c_at, acc.to(C.dtype.element_ty), mask=live[:, None] & (column < N)[None, :])


@triton.jit
def activation_kernel(GATE_UP, OUT, BLOCKS, WIDTH: tl.constexpr, SPAN: tl.constexpr, EARLY: tl.constexpr):
    """``OUT[place, WIDTH]``: silu of the row's first half times its second, in fp32, rounded once."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    places = tl.load(BLOCKS + 1)
    first = tl.program_id(0) * SPAN
    if first >= places * WIDTH:
        return
    element = first + tl.arange(0, SPAN)
    there = element < places * WIDTH
    at = GATE_UP + (element // WIDTH).to(tl.int64) * (2 * WIDTH) + element % WIDTH
    gate = tl.load(at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=there, other=0.0).to(tl.float32)
    made = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(OUT + element, made.to(OUT.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize_on_alignment=["IDS"])
def combine_kernel(
    PARTS, IDS, OUT, o_row, experts, H: tl.constexpr, TOP_K: tl.constexpr, SPAN: tl.constexpr, EARLY: tl.constexpr,
):
    """``OUT[token]``: ``PARTS`` of the token's pairs, added in ascending order in fp32, rounded once. A pair whose
    expert is not here adds zero."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    total = tl.zeros([SPAN], tl.float32)
    for j in tl.static_range(TOP_K):
        pair = token * TOP_K + j
        own = tl.load(IDS + pair)
        there = (own >= 0) & (own < experts) & (column < H)
        total += tl.load(PARTS + pair * H + column, mask=there, other=0.0).to(tl.float32)
    tl.store(OUT + token * o_row + column, total.to(OUT.dtype.element_ty), mask=column < H)


@triton.jit(do_not_specialize=["l_row"], do_not_specialize_on_alignment=["LOGITS"])
def topk_softmax_kernel(
    LOGITS, IDS, SHARES, l_row, E: tl.constexpr, EP: tl.constexpr, TOP_K: tl.constexpr, KP: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    """One program a token: its ``TOP_K`` largest logits, of equal ones the first, and their softmax.

    Where rows lie is not specialised either: it would choose how a row is spread over lanes, and so the sum's order.
    """
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EP)
    logits = tl.load(LOGITS + token * l_row + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    broken = tl.sum((logits != logits).to(tl.int32), 0) > 0
    logits = tl.where(logits == logits, logits, float("-inf"))  # NaN is chosen last, so that every id is an expert's
    top = tl.max(logits, 0)
    parts = tl.exp(logits - tl.where(top == float("-inf"), 0.0, top))
    whole = tl.sum(parts, 0)
    left = expert < E
    slot = tl.arange(0, KP)
    ids = tl.zeros([KP], tl.int32)
    shares = tl.zeros([KP], tl.float32)
    chosen = 0.0
    for j in tl.static_range(TOP_K):
        best = tl.max(tl.where(left, logits, float("-inf")), 0)
        own = tl.min(tl.where(left & (logits == best), expert, EP), 0)
        part = tl.sum(tl.where(expert == own, parts, 0.0), 0)
        chosen += part
        ids = tl.where(slot == j, own, ids)
        shares = tl.where(slot == j, part, shares)
        left = left & (expert != own)
    if RENORMALIZE:
        whole = chosen
    shares = tl.where(broken, float("nan"), shares / whole)
    tl.store(IDS + token * TOP_K + slot, ids, mask=slot < TOP_K)
    tl.store(SHARES + token * TOP_K + slot, shares, mask=slot < TOP_K)

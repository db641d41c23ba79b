# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton half of :mod:`detent.kernels.attention_split`; import it through there, it needs triton.

One arithmetic, three schedules of it. A request's KV tokens fall into splits of ``stride`` tokens counted from token
0, and a split into blocks of ``BN`` tokens. ``_block`` folds one block into a split's state ``(m, z, acc)`` and
``_merge`` folds a finished split into the row's. Every path calls these two in ascending order, with the same operand
shapes in each warpgroup, so a row's bits cannot tell which path made them:

* ``split_kernel`` gives each split to another program, which stores its state;
* ``combine_kernel`` merges the stored states;
* ``sequential_kernel`` keeps both states in registers and walks a row's splits one after another.

What a path may leave out, it leaves out exactly: a mask where it hides nothing, a split behind the row's last key.
Launches turn off the contraction of multiply and add; the one fused multiply-add is written down.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]


@triton.jit
def _block(
    q, m, z, acc, k_head, v_head, pages, start, limit, position, scale, k_page, k_token, v_page, v_token,
    PAGE: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr,
):
    """Fold KV tokens ``[start, start + BN)`` into a split's state. Scores and ``m`` are in powers of two."""
    token = start + tl.arange(0, BN)
    column = tl.arange(0, DP)
    if MASKED:
        page = tl.load(pages + token // PAGE, mask=token < limit, other=0).to(tl.int64)
    else:
        page = tl.load(pages + token // PAGE).to(tl.int64)
    k_at = k_head + (page * k_page + (token % PAGE) * k_token)[:, None] + column[None, :]
    v_at = v_head + (page * v_page + (token % PAGE) * v_token)[:, None] + column[None, :]
    if MASKED:
        there = (token < limit)[:, None] & (column < D)[None, :]
        k = tl.load(k_at, mask=there, other=0.0)
        v = tl.load(v_at, mask=there, other=0.0)
    elif D != DP:
        there = tl.broadcast_to((column < D)[None, :], (BN, DP))
        k = tl.load(k_at, mask=there, other=0.0)
        v = tl.load(v_at, mask=there, other=0.0)
    else:
        k = tl.load(k_at)
        v = tl.load(v_at)
    scores = tl.dot(q, tl.trans(k))
    if MASKED:
        scores = tl.where(token[None, :] <= position[:, None], scores, float("-inf"))
    top = tl.maximum(m, tl.max(scores, 1) * scale)
    origin = tl.where(top == float("-inf"), 0.0, top)  # a row that sees no key yet: exp2(-inf - 0) is 0, not NaN
    weights = tl.exp2(tl.fma(scores, tl.full([1, 1], 1.0, tl.float32) * scale, -origin[:, None]))
    shrink = tl.exp2(m - origin)
    z = z * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
    return top, z, acc


@triton.jit
def _merge(m, z, acc, m_split, z_split, acc_split, seen):
    """Fold a finished split into the row's state, for the rows that ``seen`` says have a key in it."""
    top = tl.maximum(m, m_split)
    origin = tl.where(top == float("-inf"), 0.0, top)
    old = tl.exp2(m - origin)
    new = tl.exp2(m_split - origin)
    return (
        tl.where(seen, top, m),
        tl.where(seen, z * old + z_split * new, z),
        tl.where(seen[:, None], acc * old[:, None] + acc_split * new[:, None], acc),
    )


@triton.jit
def _finish(z, acc):
    """The normalised row; zeros for a row that saw no key."""
    return tl.where((z > 0.0)[:, None], acc / tl.where(z > 0.0, z, 1.0)[:, None], 0.0)


@triton.jit
def split_kernel(
    Q, K, V, OUT, PART_M, PART_L, PART_ACC, TABLE, CU, USED, batch, splits, stride, scale, max_context, short_q,
    q_token, q_head, o_token, o_head, k_page, k_token, k_head, v_page, v_token, v_head, table_row,
    HKV: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BATCH: tl.constexpr, DIRECT: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
):
    """One program a split and KV head, as many as the lengths on the device give; each takes every n-th of them.

    Rows are (query token, head of the group). ``DIRECT``: no request has a second split, so the row is finished here.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # the combine starts up meanwhile, and waits there
    entry = tl.arange(0, BATCH)
    first = tl.load(CU + entry, mask=entry < batch, other=0)
    queries = tl.load(CU + entry + 1, mask=entry < batch, other=0) - first
    used = tl.minimum(tl.load(USED + entry, mask=entry < batch, other=0), max_context)
    short = (queries >= 1) & (queries <= short_q)
    if DIRECT:
        full = tl.where(short, 1, 0)
        rest = tl.zeros([BATCH], tl.int32)
    else:
        full = tl.where(short, tl.minimum(used // stride, splits), 0)
        rest = tl.where(short & (used > full * stride) & (full < splits), 1, 0)
    # All full splits come before the requests' shorter last ones, so that a program's share of work is even.
    full_ends = tl.cumsum(full, 0)
    rest_ends = tl.cumsum(rest, 0)
    full_total = tl.sum(full, 0)
    total = full_total + tl.sum(rest, 0)
    column = tl.arange(0, DP)
    row = tl.arange(0, BM)
    for work in range(tl.program_id(0), total * HKV, tl.num_programs(0)):
        item = work // HKV
        head = work % HKV
        is_full = item < full_total
        key = tl.where(is_full, item, item - full_total)
        b = tl.sum((tl.where(is_full, full_ends, rest_ends) <= key).to(tl.int32), 0)
        q_first = tl.load(CU + b)
        q_count = tl.load(CU + b + 1) - q_first
        length = tl.minimum(tl.load(USED + b), max_context)
        before = tl.max(tl.where(full_ends <= item, full_ends, 0), 0)
        split = tl.where(is_full, item - before, length // stride)
        low = split * stride
        high = tl.minimum(low + stride, length)
        position = length - q_count + row // G
        mine = row < q_count * G
        heads = head * G + row % G
        tokens = (q_first + row // G).to(tl.int64)
        real = mine[:, None] & (column < D)[None, :]
        q = tl.load(Q + (tokens * q_token + heads * q_head)[:, None] + column[None, :], mask=real, other=0.0)
        m = tl.full([BM], float("-inf"), tl.float32)
        z = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        pages = TABLE + b.to(tl.int64) * table_row
        for start in tl.range(low, high, BN, num_stages=STAGES):
            m, z, acc = _block(
                q, m, z, acc, K + head * k_head, V + head * v_head, pages, start, length, position, scale,
                k_page, k_token, v_page, v_token, PAGE, BN, D, DP, True,
            )
        if DIRECT:
            none = tl.full([BM], float("-inf"), tl.float32)
            m, z, acc = _merge(none, tl.zeros([BM], tl.float32), tl.zeros([BM, DP], tl.float32), m, z, acc,
                               position >= low)
            at = OUT + (tokens * o_token + heads * o_head)[:, None] + column[None, :]
            tl.store(at, _finish(z, acc).to(OUT.dtype.element_ty), mask=real)
        else:
            place = ((b * HKV + head).to(tl.int64) * splits + split) * (short_q * G) + row
            tl.store(PART_M + place, m, mask=mine)
            tl.store(PART_L + place, z, mask=mine)
            tl.store(PART_ACC + place[:, None] * D + column[None, :], acc, mask=real)


@triton.jit
def combine_kernel(
    PART_M, PART_L, PART_ACC, OUT, CU, USED, splits, stride, max_context, short_q, o_token, o_head,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program a short request's query token and head: its splits in ascending order, AHEAD loads in flight.

    ``EARLY``: it was launched as the split kernel's dependent and waits here for what that stores.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    b = tl.program_id(0) // short_q
    query = tl.program_id(0) % short_q
    head = tl.program_id(1)
    q_first = tl.load(CU + b)
    q_count = tl.load(CU + b + 1) - q_first
    if (q_count <= short_q) & (query < q_count):
        position = tl.minimum(tl.load(USED + b), max_context) - q_count + query
        column = tl.arange(0, DP)
        count = tl.minimum((position + stride) // stride, splits)
        m = tl.full([1], float("-inf"), tl.float32)
        z = tl.zeros([1], tl.float32)
        acc = tl.zeros([1, DP], tl.float32)
        one = tl.zeros([1], tl.int64)
        place = (b * HKV + head // G).to(tl.int64) * splits * (short_q * G) + query * G + head % G + one
        for base in range(0, count, AHEAD):
            for i in tl.static_range(AHEAD):
                seen = one + base + i < count
                at = place + (base + i) * (short_q * G)
                m_split = tl.load(PART_M + at, mask=seen, other=float("-inf"))
                z_split = tl.load(PART_L + at, mask=seen, other=0.0)
                real = seen[:, None] & (column < D)[None, :]
                acc_split = tl.load(PART_ACC + at[:, None] * D + column[None, :], mask=real, other=0.0)
                m, z, acc = _merge(m, z, acc, m_split, z_split, acc_split, seen)
        at = OUT + (q_first + query).to(tl.int64) * o_token + head * o_head + one[:, None] + column[None, :]
        tl.store(at, _finish(z, acc).to(OUT.dtype.element_ty), mask=(column < D)[None, :])


@triton.jit
def sequential_kernel(
    Q, K, V, OUT, TABLE, CU, USED, stride, scale, max_context, short_q,
    q_token, q_head, o_token, o_head, k_page, k_token, k_head, v_page, v_token, v_head, table_row,
    HKV: tl.constexpr, G: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, STAGES: tl.constexpr,
):
    """One program a tile of BM rows of a request longer than ``short_q``, tiles with most keys first."""
    b = tl.program_id(1)
    q_first = tl.load(CU + b)
    q_count = tl.load(CU + b + 1) - q_first
    head = tl.program_id(0) % HKV
    tile = (q_count * G + BM - 1) // BM - 1 - tl.program_id(0) // HKV
    if (q_count > short_q) & (tile >= 0):
        length = tl.minimum(tl.load(USED + b), max_context)
        column = tl.arange(0, DP)
        row = tile * BM + tl.arange(0, BM)
        mine = row < q_count * G
        heads = head * G + row % G
        tokens = (q_first + row // G).to(tl.int64)
        real = mine[:, None] & (column < D)[None, :]
        q = tl.load(Q + (tokens * q_token + heads * q_head)[:, None] + column[None, :], mask=real, other=0.0)
        position = length - q_count + row // G
        lowest = length - q_count + tile * BM // G
        end = length - q_count + tl.minimum(((tile + 1) * BM - 1) // G + 1, q_count)
        whole = tl.maximum(lowest + 1, 0) // BN * BN  # blocks below it hide nothing from any row of the tile
        pages = TABLE + b.to(tl.int64) * table_row
        m = tl.full([BM], float("-inf"), tl.float32)
        z = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        for low in tl.range(0, end, stride, num_stages=1):
            high = tl.minimum(low + stride, end)
            masked = tl.minimum(tl.maximum(whole, low), high)
            m2 = tl.full([BM], float("-inf"), tl.float32)
            z2 = tl.zeros([BM], tl.float32)
            acc2 = tl.zeros([BM, DP], tl.float32)
            for start in tl.range(low, masked, BN, num_stages=STAGES):
                m2, z2, acc2 = _block(
                    q, m2, z2, acc2, K + head * k_head, V + head * v_head, pages, start, length, position, scale,
                    k_page, k_token, v_page, v_token, PAGE, BN, D, DP, False,
                )
            for start in tl.range(masked, high, BN, num_stages=STAGES):
                m2, z2, acc2 = _block(
                    q, m2, z2, acc2, K + head * k_head, V + head * v_head, pages, start, length, position, scale,
                    k_page, k_token, v_page, v_token, PAGE, BN, D, DP, True,
                )
            m, z, acc = _merge(m, z, acc, m2, z2, acc2, position >= low)
        at = OUT + (tokens * o_token + heads * o_head)[:, None] + column[None, :]
        tl.store(at, _finish(z, acc).to(OUT.dtype.element_ty), mask=real)

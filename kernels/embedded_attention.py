"""Causal attention of the embedded engine over a paged KV cache, in tiles of queries and splits of keys.

A tile is ``query_rows`` queries of one request beginning at an absolute multiple of that, a split is ``stride`` keys
beginning at an absolute multiple of that; what a request computes of them is the same decoded, prefilled whole or in
any chunks. A tile meets each of its splits in a product of one shape, and the partial results are added in ascending
order of splits. So a row's bits depend on its own position, keys and values, and on the two sizes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from detent.kernels import embedded_norm

ROWS = 8
"""Rows of a product are filled up to a multiple of this: then each thread's scratch memory begins at a cache line. BLAS
adds in another order where it does not."""
LEAST_UNITS = 2
"""Tiles in one call. A single one with a single KV head would be left to all threads, which add in another order."""
BATCH = 16
"""Units in one call on a GPU: which kernel multiplies a batch of matrices there hangs on how many there are."""


@dataclass(frozen=True)
class Group:
    """Tiles that are computed together, those that see most splits first: those of requests with one tile, or all of
    one request (``shared``).

    ``tiles[n]``: which. ``whole``: how many of them, from the first on, see all of split 0, all of split 1, and so on;
    ``seen`` the same for at least a part. ``pages``: of the tiles that see all of a split, in order of splits, and then
    of every tile's last split, ``[U, stride / page]``; if ``shared``, of the splits ``[splits, stride / page]``.
    ``mask[n, 1, rows, stride]`` is added to the scores of last splits.
    """

    tiles: Tensor
    whole: tuple[int, ...]
    seen: tuple[int, ...]
    pages: Tensor
    mask: Tensor
    shared: bool


@dataclass(frozen=True)
class Plan:
    """Where a step's rows and splits are; all layers have the same.

    ``tile`` and ``place``, ``[T]``: the tile of each query row, and its place in it. ``count``: number of tiles.
    """

    tile: Tensor
    place: Tensor
    count: int
    groups: tuple[Group, ...]


def plan(starts: Sequence[int], lengths: Sequence[int], tables: Tensor, page: int, query_rows: int, stride: int,
         group: int, dtype: torch.dtype) -> Plan:
    """The plan of a step.

    ``starts[B + 1]``: first query row of each request; ``lengths[B]``: its KV tokens after this step; ``tables[B,
    width]``: its pages of ``page`` tokens; ``group``: query heads of a KV head; ``dtype``: of the queries.
    """
    owner: list[int] = []
    first: list[int] = []  # position of a tile's first row
    tile: list[int] = []
    place: list[int] = []
    for request, length in enumerate(lengths):
        begin = length - (starts[request + 1] - starts[request])
        base = len(first) - begin // query_rows
        tile += [base + position // query_rows for position in range(begin, length)]
        place += [position % query_rows for position in range(begin, length)]
        new = range(begin // query_rows, -(-length // query_rows)) if length > begin else range(0)
        first += [number * query_rows for number in new]
        owner += [request] * len(new)
    depth = [position // stride + 1 for position in first]  # splits that a tile sees, the last of them in part
    width, device = stride // page, tables.device
    pages = _widened(tables, max(depth, default=1) * width).view(len(lengths), -1, width)
    sizes = Counter(owner)
    members: dict[int, list[int]] = {}
    for t, request in enumerate(owner):
        members.setdefault(request if sizes[request] > 1 else -1, []).append(t)
    groups: list[Group] = []
    for request, tiles in members.items():
        tiles.sort(key=lambda t: -depth[t])
        splits = range(depth[tiles[0]])
        seen = tuple(sum(depth[t] > split for t in tiles) for split in splits)
        if request < 0:
            units = [(t, split) for split in splits for t in tiles[:sum(seen[split + 1:split + 2])]]
            units += [(t, depth[t] - 1) for t in tiles]
            where = pages[[owner[t] for t, _ in units], [split for _, split in units]]
        else:
            where = pages[request, :len(seen)]
        mask = _mask([first[t] % stride for t in tiles], query_rows, stride, group, dtype, device)
        groups.append(Group(torch.tensor(tiles, device=device), (*seen[1:], 0), seen, where, mask, request >= 0))
    return Plan(torch.tensor(tile, device=device), torch.tensor(place, device=device), len(first), tuple(groups))


def attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan, query_rows: int) -> Tensor:
    """``q[T, heads, hd]`` over ``k_pages`` and ``v_pages[P, page, kv_heads, hd]``: ``[T, heads, hd]``."""
    _, heads, dim = q.shape
    kv_heads = k_pages.shape[2]
    group_rows, sizes = heads // kv_heads * query_rows, (heads // kv_heads, query_rows)
    tiles = q.new_zeros(plan.count, kv_heads, _filled(group_rows), dim)
    tiles[:, :, :group_rows].unflatten(2, sizes)[plan.tile, :, :, plan.place] = q.view(-1, kv_heads, sizes[0], dim)
    mixed = torch.empty_like(tiles)
    for group in plan.groups:
        mixed[group.tiles] = _mixed(tiles[group.tiles], k_pages, v_pages, group).to(q.dtype)
    rows: Tensor = mixed[:, :, :group_rows].unflatten(2, sizes)[plan.tile, :, :, plan.place]
    return rows.reshape(-1, heads, dim)


def _mixed(q: Tensor, k_pages: Tensor, v_pages: Tensor, group: Group) -> Tensor:
    """Attention of a group's tiles ``[n, kv_heads, rows, hd]`` to all of their splits, in fp32.

    A split's share is its weight over the largest of the tile's; shares are added in ascending order of splits. What a
    query does not see has share 0 and changes no bit.
    """
    parts: list[tuple[int, int, Tensor, Tensor]] = []  # tiles from, to; result and weight; in order of splits
    if group.shared:
        for split, (whole, seen) in enumerate(zip(group.whole, group.seen, strict=True)):
            where = group.pages[split:split + 1]
            if whole:
                parts.append((0, whole, *_partial(q[:whole], k_pages, v_pages, where, None)))
            if whole < seen:
                parts.append((whole, seen, *_partial(q[whole:seen], k_pages, v_pages, where, group.mask[whole:seen])))
    else:
        inner = sum(group.whole)
        last, last_weight = _partial(q, k_pages, v_pages, group.pages[inner:], group.mask)
        if not inner:
            return last + 0.0  # what follows begins sums at 0, so that -0 does not last
        out, weight = _partial(torch.cat([q[:whole] for whole in group.whole]), k_pages, v_pages, group.pages[:inner],
                               None)
        for whole, seen, own, own_weight in zip(group.whole, group.seen, out.split(group.whole),
                                                weight.split(group.whole), strict=True):
            parts += [(0, whole, own, own_weight), (whole, seen, last[whole:seen], last_weight[whole:seen])]
    top = torch.full(q.shape[:3], -math.inf, device=q.device)
    for start, stop, _, weight in parts:
        torch.maximum(top[start:stop], weight, out=top[start:stop])
    shares = embedded_norm.exp(torch.cat([weight - top[start:stop] for start, stop, _, weight in parts]))
    total, mass = torch.zeros(q.shape, device=q.device), torch.zeros_like(top)
    offset = 0
    for start, stop, own, _ in parts:
        share = shares[offset:offset + stop - start]
        mass[start:stop] += share
        total[start:stop] += share.unsqueeze(-1) * own
        offset += stop - start
    return total / mass.unsqueeze(-1)


def _partial(q: Tensor, k_pages: Tensor, v_pages: Tensor, where: Tensor,
             mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention of tiles ``q[U, kv_heads, rows, hd]`` to one split each, or to the one that ``where`` has, and the
    logarithm of its weight ``[U, kv_heads, rows]``: both in fp32. Every query sees something."""
    units, splits = q.shape[0], where.shape[0]
    keys, values = (pages.index_select(0, where.flatten()).view(splits, -1, *pages.shape[2:]).transpose(1, 2)
                    for pages in (k_pages, v_pages))
    if units < LEAST_UNITS:
        q, mask = torch.cat((q, q)), mask if mask is None else torch.cat((mask, mask))
    if splits < len(q):
        keys, values = (x.expand(len(q), -1, -1, -1) for x in (keys, values))
    if q.device.type == "cpu":
        out, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values, 0.0, False,
                                                                                 attn_mask=mask)
    else:
        parts = [_products(*part) for part in zip(*(_batches(x) for x in (q, keys, values)),
                                                  [None] * len(q) if mask is None else _batches(mask), strict=False)]
        out, weight = (torch.cat(each) for each in zip(*parts, strict=True))
    return out[:units].float(), weight[:units].float()


def _batches(x: Tensor) -> list[Tensor]:
    """``x[U, ...]`` in batches of :data:`BATCH`, the last one filled up with what is there.

    All of one layout, that of a batch by itself: the kernel hangs on that too.
    """
    rest = -len(x) % BATCH
    filled = torch.cat((x, x[:1].expand(rest, *x.shape[1:]))) if rest else x
    return list(filled.contiguous().split(BATCH))


def _products(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """:func:`_partial` of one batch on a GPU."""
    scores = torch.matmul(q, keys.mT).float() * q.shape[-1] ** -0.5
    scores = scores if mask is None else scores + mask
    return torch.matmul(torch.softmax(scores, -1).to(q.dtype), values), torch.logsumexp(scores, -1)


def _mask(offsets: list[int], query_rows: int, stride: int, group: int, dtype: torch.dtype,
          device: torch.device) -> Tensor:
    """For tiles that begin ``offsets`` keys behind their split's first: 0 where a query sees a key, else -inf."""
    own = torch.tensor(offsets, device=device).view(-1, 1, 1, 1) + torch.arange(query_rows, device=device).view(-1, 1)
    seen = own >= torch.arange(stride, device=device)
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -math.inf)
    rows = group * query_rows
    return pad(mask.repeat(1, 1, group, 1), (0, 0, 0, _filled(rows) - rows))


def _filled(rows: int) -> int:
    return rows + -rows % ROWS


def _widened(tables: Tensor, width: int) -> Tensor:
    """The tables cut to ``width`` pages, or filled up with each request's last one; what is filled in is masked."""
    if tables.shape[1] >= width:
        return tables[:, :width]
    return torch.cat((tables, tables[:, -1:].expand(-1, width - tables.shape[1])), 1)

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

LEAST_UNITS = 2
"""Tiles in one call. A single one with a single KV head would be left to all threads, which add in another order."""
LANES, BLOCK = 64, 16384
"""Elements that whole vectors have, and that one thread keeps to itself (torch's grain is 32,768)."""


@dataclass(frozen=True)
class Call:
    """Pairs of a tile and a split that are computed at once.

    ``tiles[U]``: the tiles. ``pages[U, stride / page]``, or ``[1, ...]`` where all tiles meet the same split.
    ``mask[U, 1, group * query_rows, stride]`` is added to the scores; None where every query sees every key.
    """

    tiles: Tensor
    pages: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Plan:
    """Where a step's rows and splits are; all layers have the same.

    ``tile`` and ``place``, ``[T]``: the tile of each query row, and its place in it. ``count``: number of tiles.
    ``calls``: for every tile in ascending order of its splits. ``single``: each tile sees one split only, and there is
    one call for all of them in order.
    """

    tile: Tensor
    place: Tensor
    count: int
    calls: tuple[Call, ...]
    single: bool


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
    last = [position // stride for position in first]  # the split that a tile sees in part
    width, device = stride // page, tables.device
    pages = _widened(tables, (max(last, default=0) + 1) * width).view(len(lengths), -1, width)
    sizes = Counter(owner)

    def call(pairs: list[tuple[int, int]], masked: bool, together: bool) -> Call:
        tiles = [t for t, _ in pairs]
        mask = _mask([first[t] - s * stride for t, s in pairs], query_rows, stride, group, dtype, device)
        chosen = pairs[:1] if together else pairs
        where = pages[[owner[t] for t, _ in chosen], [s for _, s in chosen]]
        return Call(torch.tensor(tiles, device=device), where, mask if masked else None)

    calls: list[Call] = []
    lone = [t for t in range(len(first)) if sizes[owner[t]] == 1]
    whole = [(t, s) for t in lone for s in range(last[t])]
    for split in sorted({s for _, s in whole}):
        calls.append(call([pair for pair in whole if pair[1] == split], False, False))
    if lone:
        calls.append(call([(t, last[t]) for t in lone], True, False))
    for request in (r for r, size in sizes.items() if size > 1):
        own = [t for t in range(len(first)) if owner[t] == request]
        for split in range(last[own[-1]] + 1):
            seen, cut = ([(t, split) for t in own if (last[t] > split, last[t] == split) == kind]
                         for kind in ((True, False), (False, True)))
            calls += [call(pairs, masked, True) for pairs, masked in ((seen, False), (cut, True)) if pairs]
    return Plan(torch.tensor(tile, device=device), torch.tensor(place, device=device), len(first), tuple(calls),
                len(calls) == 1 and len(lone) == len(first))


def attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan, query_rows: int) -> Tensor:
    """``q[T, heads, hd]`` over ``k_pages`` and ``v_pages[P, page, kv_heads, hd]``: ``[T, heads, hd]``."""
    _, heads, dim = q.shape
    kv_heads = k_pages.shape[2]
    group = heads // kv_heads
    tiles = q.new_zeros(plan.count, query_rows, heads, dim)
    tiles[plan.tile, plan.place] = q
    grouped = tiles.view(-1, query_rows, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(
        plan.count, kv_heads, group * query_rows, dim)
    if plan.single:
        mixed = _partial(grouped, k_pages, v_pages, plan.calls[0])[0].float() + 0.0  # as below, where -0 is lost
    else:
        mixed = _sum(grouped, k_pages, v_pages, plan)
    mixed = mixed.to(q.dtype).view(-1, kv_heads, group, query_rows, dim).permute(0, 3, 1, 2, 4)
    return mixed[plan.tile, plan.place].reshape(-1, heads, dim)


def _sum(grouped: Tensor, k_pages: Tensor, v_pages: Tensor, plan: Plan) -> Tensor:
    """Partial results added by their weights in ascending order: ``[tiles, kv_heads, group * query_rows, hd]``."""
    total = torch.zeros(grouped.shape, device=grouped.device)
    mass = torch.zeros(grouped.shape[:3], device=grouped.device)
    top = torch.full(grouped.shape[:3], -math.inf, device=grouped.device)
    for call in plan.calls:
        out, weight = _partial(grouped[call.tiles], k_pages, v_pages, call)
        old = top[call.tiles]
        new = torch.maximum(old, weight)
        kept, share = _exp(torch.stack((old - new, weight - new)))
        top[call.tiles] = new
        mass[call.tiles] = mass[call.tiles] * kept + share
        total[call.tiles] = total[call.tiles] * kept.unsqueeze(-1) + share.unsqueeze(-1) * out
    return total / mass.unsqueeze(-1)


def _partial(q: Tensor, k_pages: Tensor, v_pages: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """Attention of tiles ``q[U, kv_heads, rows, hd]`` to one split each, and the logarithm of its weight
    ``[U, kv_heads, rows]``, both in fp32 or q's type."""
    units, (splits, width) = q.shape[0], call.pages.shape
    keys, values = (pages.index_select(0, call.pages.flatten()).view(splits, -1, *pages.shape[2:]).transpose(1, 2)
                    for pages in (k_pages, v_pages))
    mask = call.mask
    if units < LEAST_UNITS:
        q = torch.cat((q, q))
        mask = None if mask is None else torch.cat((mask, mask))
        keys, values = (x.expand(LEAST_UNITS, -1, -1, -1) for x in (keys, values))
    elif splits < units:
        keys, values = (x.expand(units, -1, -1, -1) for x in (keys, values))
    if q.device.type == "cpu":
        out, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values, 0.0, False,
                                                                                 attn_mask=mask)
    else:
        scores = torch.matmul(q, keys.mT).float() * q.shape[-1] ** -0.5
        scores = scores if mask is None else scores + mask
        weight = torch.logsumexp(scores, -1)
        out = torch.matmul(torch.softmax(scores, -1).to(q.dtype), values)
    return out[:units].float(), weight[:units].float()


def _mask(offsets: list[int], query_rows: int, stride: int, group: int, dtype: torch.dtype,
          device: torch.device) -> Tensor:
    """For tiles that begin ``offsets`` keys behind their split's first: 0 where a query sees a key, else -inf."""
    own = torch.tensor(offsets, device=device).view(-1, 1, 1, 1) + torch.arange(query_rows, device=device).view(-1, 1)
    seen = own >= torch.arange(stride, device=device)
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -math.inf)
    return mask.repeat(1, 1, group, 1)


def _widened(tables: Tensor, width: int) -> Tensor:
    """The tables cut or filled up to ``width`` pages; what is filled in is masked."""
    if tables.shape[1] >= width:
        return tables[:, :width]
    return torch.nn.functional.pad(tables, (0, width - tables.shape[1]))


def _exp(x: Tensor) -> Tensor:
    """The exponential, with bits that do not depend on where an element stands.

    torch computes the last elements of a thread's share one by one and the others in vectors; so all are in vectors.
    """
    if x.is_cuda:
        return torch.exp(x)
    count = x.numel()
    padded = torch.nn.functional.pad(x.reshape(-1), (0, -count % LANES))
    result = torch.empty_like(padded)
    for source, target in zip(padded.split(BLOCK), result.split(BLOCK), strict=True):
        torch.exp(source, out=target)
    return result[:count].view(x.shape)

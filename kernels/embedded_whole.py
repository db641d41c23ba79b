"""Causal attention of the embedded engine by torch, over all of a request's keys at once.

Keys that lie one after the other in the cache are read where they are, others are gathered first. What torch adds in
which order hangs on the keys and queries of all that it computes in one call.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

FILLED = 0.25
"""By how much more keys than it has a request is filled up, so that it is computed with longer ones."""
SMALL = 1024
"""Keys in all from which memory for gathered ones is kept."""
TOGETHER = 2048
"""Keys that are gathered together, if they are several requests': what a core's cache has room for."""
WORTH_A_CALL = 4
"""Requests, of more that could be gathered together, that are worth a call of their own without gathering."""
NEAREST = 3
"""Requests behind one whose distance from it is tried for a group."""
_spaces = threading.local()


@dataclass(frozen=True)
class Part:
    """Requests that torch computes in one call: several with one query each, or one with several queries.

    ``rows``: their query rows (None: all rows of the step). ``where``: their pages, one request's after the other's,
    for ``count`` requests of up to ``length`` keys; None where each request's keys lie one after the other, those of
    the first one from token ``begin`` of the cache on and the next one's ``apart`` tokens behind. ``mask``: True where
    a query sees a key (None: it sees all, or if ``causal`` those up to its own).
    """

    rows: Tensor | None
    where: Tensor | None
    count: int
    length: int
    mask: Tensor | None
    causal: bool
    begin: int = 0
    apart: int = 0


def plan(starts: Sequence[int], lengths: Sequence[int], tables: Tensor, page: int) -> list[Part]:
    """What :func:`attention` computes in a step; all layers have the same.

    ``starts[B + 1]``: first query row of each request; ``lengths[B]``: its KV tokens after this step; ``tables[B,
    width]``: its pages of ``page`` tokens.
    """
    device = tables.device
    counts = [end - start for start, end in zip(starts, starts[1:], strict=False)]
    firsts = _consecutive(lengths, tables, page) if device.type == "cpu" else {}
    parts = []
    for batch, apart in _batches([r for r, count in enumerate(counts) if count == 1], lengths, firsts, page):
        own, rows = [lengths[r] for r in batch], [starts[r] for r in batch]
        longest, mask = max(own), None
        if min(own) < longest:
            seen = torch.arange(longest, device=device) < torch.tensor(own, device=device).view(-1, 1)
            mask = seen.view(-1, 1, 1, longest)
        at = (firsts[batch[0]] * page, apart * page) if apart is not None else (0, 0)
        parts.append(Part(None if rows == list(range(starts[-1])) else torch.tensor(rows, device=device),
                          tables[batch, :-(-longest // page)].flatten() if apart is None else None, len(batch),
                          longest, mask, False, *at))
    for request, count in enumerate(counts):
        if count > 1:
            length, mask = lengths[request], None
            if count < length:
                mask = torch.arange(length - count, length, device=device).view(-1, 1) >= torch.arange(
                    length, device=device)
            own_rows = torch.arange(starts[request], starts[request + 1], device=device)
            parts.append(Part(own_rows if count < starts[-1] else None,
                              None if request in firsts else tables[request, :-(-length // page)], 1, length, mask,
                              mask is None, firsts.get(request, 0) * page))
    return parts


def attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, parts: Sequence[Part]) -> Tensor:
    """``q[T, heads, hd]`` over ``k_pages`` and ``v_pages[P, page, kv_heads, hd]``, contiguous: ``[T, heads, hd]``."""
    out = None if parts[0].rows is None else torch.empty_like(q)
    for part in parts:
        own = q if part.rows is None else q[part.rows]
        own = own.unsqueeze(2) if part.count == len(own) else own.transpose(0, 1).unsqueeze(0)
        if part.where is None:
            keys, values = _view(k_pages, part), _view(v_pages, part)
        else:
            keys, values = (pages.view(part.count, -1, *k_pages.shape[2:])[:, :part.length].transpose(1, 2)
                            for pages in _gathered(k_pages, v_pages, part.where, part.count * part.length))
        mixed = scaled_dot_product_attention(own, keys, values, part.mask, is_causal=part.causal, enable_gqa=True)
        rows = mixed.squeeze(2) if mixed.shape[2] == 1 else mixed[0].transpose(0, 1)
        if out is None:
            return rows
        out[part.rows] = rows
    assert out is not None
    return out


def _view(pages: Tensor, part: Part) -> Tensor:
    """Keys or values of a part's requests where they are, ``[count, kv_heads, length, hd]``."""
    kv_heads, dim = pages.shape[2:]
    token = kv_heads * dim
    return pages.as_strided((part.count, kv_heads, part.length, dim), (part.apart * token, dim, token, 1),
                            pages.storage_offset() + part.begin * token)


def _gathered(k_pages: Tensor, v_pages: Tensor, where: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """The pages ``where``. Where they are many, in memory that is the same each time in a thread: new memory costs more
    than what is copied there."""
    if tokens < SMALL:
        return k_pages.index_select(0, where), v_pages.index_select(0, where)
    kind = (k_pages.dtype, k_pages.device, k_pages.shape[1:])
    known = _spaces.__dict__.setdefault("of", {})
    if kind not in known or known[kind].shape[1] < len(where):
        with torch.inference_mode(False):
            known[kind] = k_pages.new_empty(2, len(where), *k_pages.shape[1:])
    keys, values = (space[:len(where)] for space in known[kind])
    return torch.index_select(k_pages, 0, where, out=keys), torch.index_select(v_pages, 0, where, out=values)


def _consecutive(lengths: Sequence[int], tables: Tensor, page: int) -> dict[int, int]:
    """By request whose pages follow one another: the first of them."""
    firsts = {}
    for request, (length, table) in enumerate(zip(lengths, tables.tolist(), strict=True)):
        used = -(-length // page)
        if table[:used] == list(range(table[0], table[0] + used)):
            firsts[request] = table[0]
    return firsts


def _batches(requests: Sequence[int], lengths: Sequence[int], firsts: Mapping[int, int],
             page: int) -> Iterator[tuple[list[int], int | None]]:
    """Requests with one query, in batches of nearly one length; each with the pages from one request's first to the
    next one's if that is the same for all of them, with None if their keys have to be gathered."""
    for batch in _alike(requests, lengths):
        used = -(-max(lengths[r] for r in batch) // page)
        # A shorter request may be filled up with the rest of its last page: what lies behind that is another's.
        in_place = [r for r in batch if r in firsts and -(-lengths[r] // page) == used]
        gathered = [r for r in batch if r not in in_place]
        for group, apart in _equally_far(in_place, firsts):
            if len(group) == len(batch) or len(group) >= WORTH_A_CALL:
                yield group, apart
            else:
                gathered += group
        gathered.sort()
        together = max(1, TOGETHER // (used * page))
        for start in range(0, len(gathered), together):
            yield gathered[start:start + together], None


def _alike(requests: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """The requests in batches of nearly one length, see :data:`FILLED`."""
    batches: list[list[int]] = []
    for request in sorted(requests, key=lambda r: lengths[r]):
        if not batches or lengths[request] > lengths[batches[-1][0]] * (1 + FILLED):
            batches.append([])
        batches[-1].append(request)
    return batches


def _equally_far(requests: Sequence[int], firsts: Mapping[int, int]) -> list[tuple[list[int], int]]:
    """Requests in ascending order of their first pages, in groups in which these are equally far from each other; and
    how far."""
    waiting = {firsts[r]: r for r in sorted(requests, key=lambda r: firsts[r])}
    groups: list[tuple[list[int], int]] = []
    while waiting:
        first, *nearest = itertools.islice(waiting, 1 + NEAREST)
        chains = [[place for place in itertools.takewhile(waiting.__contains__, itertools.count(first, near - first))]
                  for near in nearest]
        chain = max(chains, key=len, default=[first])
        groups.append(([waiting.pop(place) for place in chain], chain[1] - first if len(chain) > 1 else 0))
    return groups

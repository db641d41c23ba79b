"""What invariance rests on, checked at start-up: a row's bits depend neither on its place nor on the number of rows.

Every weight shape is tried with the kernel and the tile in force, attention once decoded and once prefilled, with no
more rows than the engine's limits let a step have. In stock nothing is promised, so nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from detent.engines.embedded.batch import Batch
from detent.kernels.embedded_linear import ALIGNMENT
from detent.runtime.errors import DetentError

if TYPE_CHECKING:
    from detent.engines.embedded.ops import Ops
    from detent.engines.embedded.weights import Weights

COUNTS = (1, 2, 3, 8, 33, 150)
"""Numbers of rows that are tried where there is no tile to fill up, as far as a step has so many; the largest that it
has, up to the last of these, is tried too."""
PROBES = 8
"""Rows that are watched: sums in two orders often have the same bits."""
WORK = 4e9
"""Multiplications and additions spent on one shape; larger counts are left out."""
KEYS = 40
"""Tokens of the request that is decoded and prefilled, beyond one split."""


class NotInvariant(DetentError):
    """A kernel whose bits depend on a row's place or on the number of rows, on this machine."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: a row's bits depend on the other rows on this machine",
                         "commit to full tiles: detent tuple new --set gemm.fill=true --set gemm.rows=1 "
                         "(for experts --set moe.fill=true --set moe.packed=false)")
        self.args = (what,)


def check(ops: Ops, weights: Weights) -> None:
    """Raises NotInvariant for a kernel in force under ``ops``' tuple, DetentError for a weight in unaligned memory."""
    if ops.selectors.commitment is None:
        return
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        for weight in _distinct(weights):
            _linear(ops, weight, generator)
        if weights.layers[0].router is not None:
            _experts(ops, weights, generator)
        _rows(ops, weights, generator)
        _attention(ops, weights.norm, generator)


def _distinct(weights: Weights) -> list[Tensor]:
    """One weight of every shape."""
    found: dict[tuple[int, ...], Tensor] = {}
    for weight in [weights.logits, *(w for layer in weights.layers for w in (
            layer.qkv, layer.output, layer.gate_up, layer.down, layer.router) if w is not None)]:
        if weight.ndim == 2:
            found.setdefault(tuple(weight.shape), weight)
    return list(found.values())


def _linear(ops: Ops, weight: Tensor, generator: torch.Generator) -> None:
    size, width = weight.shape
    router = "moe" in ops.selectors.select and tuple(weight.shape) == ops.selectors.router
    points = ops.selectors.select["moe" if router else "gemm"](1)
    if ops.kernel(weight, points) == "plain" and weight.data_ptr() % ALIGNMENT:
        raise DetentError(f"a weight of {size} x {width} does not begin at a multiple of {ALIGNMENT} bytes",
                          "copy it: the bits of a plain product hang on where it was loaded to")
    counts = (min(points["rows"], _most_rows(ops)),) if points["fill"] else tuple(
        count for count in _counts(ops) if count <= 2 or count * size * width * 2 <= WORK)
    _same_rows(lambda x: ops.linear(x, weight), f"linear layer {size} x {width}", width, counts, weight, generator)


def _most_rows(ops: Ops) -> int:
    return int(ops.selectors.deployment.facts["limits"]["max_num_batched_tokens"])


def _counts(ops: Ops) -> tuple[int, ...]:
    """Of :data:`COUNTS` those that a step may have, and the most that it may have."""
    most = min(_most_rows(ops), COUNTS[-1])
    return tuple(sorted({most, *(count for count in COUNTS if count <= most)}))


def _same_rows(function: Callable[[Tensor], Tensor], what: str, width: int, counts: tuple[int, ...], like: Tensor,
               generator: torch.Generator) -> None:
    """:data:`PROBES` rows alone, and at every place among ``counts`` rows: they have half of the places in turn, other
    rows the rest."""
    probes = torch.randn(PROBES, width, generator=generator).to(like)
    alone = torch.cat([function(row) for row in probes.split(1)])
    for count in counts:
        places = torch.arange(count, device=like.device)
        for turn in range(2):
            chosen, probe = places % 2 == turn, places // 2 % PROBES
            rows = torch.randn(count, width, generator=generator).to(like)
            rows[chosen] = probes[probe[chosen]]
            if not _equal(function(rows)[chosen], alone[probe[chosen]]):
                raise NotInvariant(f"{what}, {count} rows")


def _experts(ops: Ops, weights: Weights, generator: torch.Generator) -> None:
    layer = weights.layers[0]
    experts, _, width = layer.gate_up.shape
    counts = _counts(ops)
    ids = torch.stack((torch.zeros(counts[-1], dtype=torch.int64),
                       torch.arange(counts[-1]) % max(1, experts - 1) + 1), 1)
    ids[::2, 1] = 1  # a row's copies have its experts
    ids = ids[:, :min(2, experts)].to(layer.down.device)
    shares = torch.full(ids.shape, 0.5, device=layer.down.device)

    def run(x: Tensor) -> Tensor:
        return ops.experts(x, layer.gate_up, layer.down, ids[:len(x)], shares[:len(x)])

    row = torch.randn(1, width, generator=generator).to(layer.down)
    alone = run(row)
    for count in counts:
        rows = torch.randn(count, width, generator=generator).to(layer.down)
        rows[::2] = row
        if not _equal(run(rows)[::2], alone):
            raise NotInvariant(f"expert layer, {count} tokens")


def _rows(ops: Ops, weights: Weights, generator: torch.Generator) -> None:
    counts = _counts(ops)
    hidden, vocabulary = len(weights.norm), weights.logits.shape[0]
    for what, function, width in (("norm", lambda x: ops.norm(x, weights.norm, 1e-5), hidden),
                                  ("softmax", ops.softmax, vocabulary), ("log_softmax", ops.log_softmax, vocabulary)):
        _same_rows(function, what, width, counts, weights.norm, generator)


def _attention(ops: Ops, like: Tensor, generator: torch.Generator) -> None:
    """The last rows of a request, prefilled at once and beside others, against each one decoded alone."""
    facts = ops.selectors.deployment.facts
    model, limits, page = facts["model"], facts["limits"], facts["embedded"]["page_size"]
    stride = ops.selectors.select["attention"](1, 1, 1)["split_stride"]
    length = min(stride + KEYS, limits["max_context"])
    pages = -(-length // page)
    heads, kv_heads, dim = model["num_attention_heads"], model["num_key_value_heads"], model["head_dim"]
    keys, values = (torch.randn(pages + 1, page, kv_heads, dim, generator=generator).to(like) for _ in range(2))
    table = torch.arange(1, pages + 1, device=like.device).view(1, -1)
    budget = limits["max_num_batched_tokens"]
    # As many others as a step has room for, and none: where the budget is small, the two leave room for other rows.
    for others in sorted({min(2, limits["max_num_seqs"] - 1, budget - 1), 0}):
        rows = min(KEYS, length, budget - others)
        q = torch.randn(rows + others, heads, dim, generator=generator).to(like)
        starts = [0, rows, *range(rows + 1, rows + 1 + others)]
        together = ops.attention(q, keys, values, Batch(
            starts, [length, *[1 + page % length] * others], table.repeat(1 + others, 1), page))
        for row in {0, rows // 2, rows - 1}:
            alone = ops.attention(q[row:row + 1], keys, values, Batch([0, 1], [length - rows + row + 1], table, page))
            if not _equal(together[row:row + 1], alone):
                raise NotInvariant(f"attention, query {row} of {rows}")


def _equal(rows: Tensor, row: Tensor) -> bool:
    """Whether all rows have the bits of the one row, or of theirs."""
    kind = torch.int32 if rows.element_size() == 4 else torch.int16
    return bool((rows.contiguous().view(kind) == row.contiguous().view(kind)).all())

"""``attention-cpu``: what the embedded engine runs for attention.

Two kernels. *whole* is torch's scaled_dot_product_attention over all of a request's keys at once; what it adds in which
order hangs on how many keys and queries the request and those computed with it have in this step. *split* takes tiles
of queries and splits of keys that begin at absolute multiples of their sizes, of all requests at once. As shipped, the
number of requests a core and the KV tokens a request decide, as they were measured; under ``always_split`` there are
tiles and splits where they are slower too.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, knob, record, require, selection
from detent.programs.fa3 import cdiv
from detent.programs.facts import Embedded, Limits, Machine, Model
from detent.programs.measured import row_for

TILES = (1, 2, 4, 8, 16, 32)  # queries of one request in one product
STRIDES = (64, 128, 256, 512)  # keys of one split
ROWS = 8  # of a product, to which the kernel fills up a tile's queries times the query heads of a KV head


@record
class Call:
    """One attention call."""

    b: Unpinnable[int]  # requests: sizes buffers
    max_seqlen_q: Unpinnable[int]  # query tokens of the request that has most
    total_k: Unpinnable[int]  # KV tokens of all requests


def full_tile(model: Model) -> int:
    """The most queries that leave a product at its least number of rows."""
    group = model.num_attention_heads // model.num_key_value_heads
    return max(tile for tile in TILES if tile == 1 or tile * group <= ROWS)


@selection(family="attention")
def attention_cpu(model: Model, machine: Machine, embedded: Embedded, limits: Limits, call: Call) -> dict[str, object]:
    """The kernel, queries of a tile and keys of a split."""
    assume(1 <= call.b <= limits.max_num_seqs)
    assume(1 <= call.max_seqlen_q <= limits.max_num_batched_tokens)
    assume(1 <= call.total_k <= limits.max_num_seqs * limits.max_context)
    assume(call.b <= call.total_k)
    assume(call.max_seqlen_q <= call.total_k)

    query_rows = knob("query_rows", TILES, default=full_tile(model))
    split_stride = knob("split_stride", STRIDES, default=256)
    measured = embedded.attention[row_for(embedded.attention, cdiv(call.total_k, call.b))]
    always = knob("always_split", (False, True), default=True)
    split = always or call.max_seqlen_q == 1 and call.b >= machine.cores * measured["requests"]

    require(split, "what torch adds up at once hangs on the step's keys and queries")
    require(split_stride % embedded.page_size == 0, "splits are whole pages")
    require(split_stride % query_rows == 0, "a tile's queries see the same splits")
    return {"kernel": "split" if split else "whole", "query_rows": query_rows, "split_stride": split_stride}

"""``attention-cpu``: what the embedded engine runs for attention.

Two kernels. *whole* is torch's scaled_dot_product_attention, one request after the other, over all its keys at once;
what it adds in which order hangs on how many keys and queries a request has in this step. *split* takes tiles of
queries and splits of keys that begin at absolute multiples of their sizes, of all requests at once. As shipped, the KV
tokens that each core has to read decide on the size of splits, and the numbers of requests and queries on the kernel.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, record, require, selection
from detent.programs.fa3 import cdiv
from detent.programs.facts import Embedded, Limits, Machine
from detent.programs.measured import row_for

TILE = 8  # queries of one request in one product, where not every request has just one


@record
class Call:
    """One attention call."""

    b: Unpinnable[int]  # requests: sizes buffers
    max_seqlen_q: Unpinnable[int]  # query tokens of the request that has most
    total_q: Unpinnable[int]  # query tokens of all requests: sizes buffers
    total_k: Unpinnable[int]  # KV tokens of all requests


@selection(family="attention")
def attention_cpu(machine: Machine, embedded: Embedded, limits: Limits, call: Call) -> dict[str, object]:
    """The kernel, queries of a tile and keys of a split."""
    assume(1 <= call.b <= limits.max_num_seqs)
    assume(1 <= call.max_seqlen_q <= limits.max_num_batched_tokens)
    assume(1 <= call.total_q <= limits.max_num_batched_tokens)
    assume(1 <= call.total_k <= limits.max_num_seqs * limits.max_context)
    assume(call.b <= call.total_q)
    assume(call.max_seqlen_q <= call.total_q)
    assume(call.total_q <= call.total_k)

    measured = embedded.attention[row_for(embedded.attention, cdiv(call.total_k, machine.cores))]
    split = call.b >= measured["requests"] and call.total_q <= call.b * measured["queries"]
    query_rows = 1 if call.max_seqlen_q == 1 else TILE
    split_stride = measured["split_stride"]

    require(split, "what torch adds up at once hangs on the step's keys and queries")
    require(split_stride % embedded.page_size == 0, "splits are whole pages")
    require(split_stride % query_rows == 0, "a tile's queries see the same splits")
    return {"kernel": "split" if split else "whole", "query_rows": query_rows, "split_stride": split_stride}

"""A program of one rule: how many splits fill 256 blocks, of at least 64 KV tokens each."""

from __future__ import annotations

from detent.lang import Unpinnable, assume, ceil, record, require, selection


@record
class Limits:
    max_num_seqs: int
    max_context: int


@record
class Call:
    b: Unpinnable[int]  # sequences
    kv_len: Unpinnable[int]  # KV tokens of the longest


def split_count(b: int, kv_len: int) -> int:
    """Splits of each of ``b`` sequences."""
    return max(1, min(256 // b, ceil(kv_len / 64)))


@selection(family="attention")
def splits(limits: Limits, call: Call) -> dict[str, object]:
    """How many splits, and whether any."""
    assume(1 <= call.b <= limits.max_num_seqs)
    assume(1 <= call.kv_len <= limits.max_context)
    num_splits = split_count(call.b, call.kv_len)
    require(num_splits == 1 or num_splits * 64 >= 1024, "few splits are long")
    return {"num_splits": num_splits, "combine": num_splits > 1}

"""What the stock programs of FlashAttention-3 share: how the device splits, and what a stock kernel lets be pinned.

What the host calls ``num_splits`` is only an upper bound: a prepare kernel adds up the blocks of the whole batch and
gives each request its number of splits. The totals enter as inputs, one a tile height, since the tile is the host's
choice; ``batch_blocks_of`` below is the summation. A pinned count must therefore be what the device would count
whatever the batch, which leaves one split.

A stock kernel can be pinned from outside only by declaring longer maxima than the batch has, never shorter ones.
"""

from __future__ import annotations

from detent.lang import assume, ceil, f32, require
from detent.programs.fa3 import (
    cdiv,
    element_bytes,
    gathers,
    model_tile,
    model_window,
    one_prepare_block,
    rank_group,
    seqlen_k,
)
from detent.programs.fa3_conditions import assume_batch, require_model
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

STOCK_SPLITS = 128  # the heuristic asks for no more
INT_MAX = 2147483647
SMALLEST_BLOCK = 64  # no tile of the table is lower or narrower
DEVICE_MARGIN = 1.1  # by which the device overestimates the work; a float in C


def batch_blocks_of(lengths: Iterable[tuple[int, int]], group: int, block_m: int, block_n: int) -> int:
    """What the device adds up, from each sequence's (query tokens, KV tokens). No part of a program."""
    return sum(cdiv(q * group, block_m) * cdiv(k, block_n) for q, k in lengths)


def own_blocks(library: str, model: Model, parallel: Parallel, engine: Engine, max_seqlen_q: int, keys: int,
               own_q_len: int, own_kv_len: int, one_wg: bool) -> int:
    """What one request adds to the batch's total."""
    left, right, is_causal, is_local = model_window(model, max_seqlen_q, keys)
    gathered = gathers(library, model, parallel, engine, is_causal, is_local, one_wg, max_seqlen_q)
    block_m, block_n, from_registers, overlap = model_tile(
        library, model, engine, is_causal, is_local, gathered, one_wg)
    # With varying lengths the heads of a group are always packed into a tile; where they are not, a group is one head.
    return cdiv(own_q_len * rank_group(model, parallel), block_m) * cdiv(own_kv_len, block_n)


def most_blocks(model: Model, parallel: Parallel, limits: Limits) -> int:
    """No batch within the limits has more blocks."""
    rows = limits.max_num_batched_tokens * rank_group(model, parallel)
    return (limits.max_num_seqs + cdiv(rows, SMALLEST_BLOCK)) * cdiv(limits.max_context, SMALLEST_BLOCK)


def device_splits(batch_blocks: int, heads: int, num_sm: int, n_blocks: int, num_splits: int) -> int:
    """Splits that the prepare kernel gives a sequence of ``n_blocks`` KV blocks (single precision, as there)."""
    per_split = ceil(f32(batch_blocks) * f32(DEVICE_MARGIN) * f32(heads) / f32(num_sm))
    return max(min(cdiv(n_blocks, per_split), num_splits), 1)


def request_splits(b: int, batch_blocks: int, heads: int, num_sm: int, n_blocks: int, num_splits: int) -> int:
    """:func:`device_splits` where one prepare block covers the batch; more of them split nothing (SGLang and the
    authors; in vLLM the host does not ask for splits then)."""
    if not one_prepare_block(b):
        return 1
    return device_splits(batch_blocks, heads, num_sm, n_blocks, num_splits)


def assume_lengths(limits: Limits, b: int, max_seqlen_q: int, max_seqlen_k: int, total_q: int, own_q_len: int,
                   own_kv_len: int) -> None:
    """What holds of every batch within the limits and of a request in it."""
    assume_batch(limits, b, max_seqlen_q, max_seqlen_k, total_q)
    assume(1 <= own_q_len <= limits.max_num_batched_tokens)
    assume(1 <= own_kv_len <= limits.max_context)
    assume(own_q_len <= max_seqlen_q)
    assume(own_kv_len <= max_seqlen_k)
    assume(own_q_len <= own_kv_len)


def assume_blocks(library: str, model: Model, parallel: Parallel, engine: Engine, limits: Limits, in_graph: bool,
                  max_seqlen_q: int, max_seqlen_k: int, table_width: int, own_q_len: int, own_kv_len: int,
                  batch_blocks: int, one_wg: bool) -> None:
    """What holds of the blocks of a batch that has the request in it."""
    assume(1 <= batch_blocks <= most_blocks(model, parallel, limits))
    assume(batch_blocks >= own_blocks(
        library, model, parallel, engine, max_seqlen_q,
        seqlen_k(engine, limits, in_graph, max_seqlen_k, table_width), own_q_len, own_kv_len, one_wg))


def require_kernels(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits) -> None:
    """What a deployment must have for the rules to be those of its kernels."""
    require_model(model, parallel, gpu, engine)
    require(limits.max_context * (model.head_dim + model.head_dim_v) * element_bytes(engine) <= INT_MAX,
            "the heuristic's KV bytes fit a C int")


def kernel_points(model: Model, gpu: Gpu, engine: Engine, is_causal: bool, is_local: bool, one_wg: bool,
                  gathered: bool, pack: bool, block_m: int, block_n: int, from_registers: bool, overlap: bool,
                  num_splits: int, splits: int, pdl: bool, sort: bool) -> dict[str, object]:
    """The kernel's template parameters, its tile, the launch values and the request's own number of splits."""
    return {
        "arch": gpu.arch,
        "head_dim": model.head_dim,
        "head_dim_v": model.head_dim_v,
        "element": "e4m3" if element_bytes(engine) == 1 else "bf16",
        "is_causal": is_causal,
        "is_local": is_local,
        "has_softcap": model.softcap > 0.0,
        "varlen": True,
        "paged_kv_non_tma": gathered,
        "pack_gqa": pack,
        "split": num_splits > 1,
        "v_colmajor": False,
        "use_one_mma_wg": one_wg,
        "block_m": block_m,
        "block_n": block_n,
        "mma_pv_is_rs": from_registers,
        "intra_wg_overlap": overlap,
        "num_splits": num_splits,
        "use_dynamic_split": num_splits > 1,
        "splits": splits,
        "prepare_varlen_pdl": pdl,
        "varlen_sort_batches": sort,
        "head_swizzle": is_causal or is_local,
        "num_sm": gpu.num_sm,
    }

"""``fa3-vllm-stock``: FlashAttention-3 as vLLM 0.26.0 ships it, the device's own split counts included.

What the host calls ``num_splits`` is only an upper bound: a prepare kernel adds up the blocks of the whole batch and
gives each request its number of splits. The totals enter as inputs, one a tile height, since the tile is the host's
choice; ``batch_blocks_of`` below is the summation. A pinned count must therefore be what the device would count
whatever the batch, which leaves one split.

A stock kernel can be pinned from outside only by declaring longer maxima than the batch has, never shorter ones.
"""

from __future__ import annotations

from functools import partial

from detent.lang import Request, Runtime, Unpinnable, assume, ceil, f32, record, require, selection
from detent.programs.fa3 import (
    cdiv,
    decide,
    element_bytes,
    gathers,
    head_dims_exist,
    model_tile,
    model_window,
    needs_causal,
    needs_local,
    one_prepare_block,
    packs,
    rank_group,
    rank_heads,
    rank_kv_heads,
    selects_one_wg,
)
from detent.programs.fa3_conform import HOST_COLUMNS, HOST_OUTPUTS, TILE_COLUMNS, TILE_OUTPUTS, host_row, tile_row
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

STOCK_SPLITS = 128  # vLLM's heuristic asks for no more
KERNEL_SPLITS = 256  # splits that the split kernel and its combine take
INT_MAX = 2147483647
SMALLEST_BLOCK = 64  # no tile of the table is lower or narrower
DEVICE_MARGIN = 1.1  # by which the device overestimates the work; a float in C

CONFORM = (
    (HOST_COLUMNS, HOST_OUTPUTS, partial(host_row, "vllm")),
    (TILE_COLUMNS, TILE_OUTPUTS, partial(tile_row, "vllm")),
)


@record
class Call:
    """One attention call, and the request whose bits are asked about."""

    b: Unpinnable[int]  # sequences
    max_seqlen_q: Unpinnable[int]  # query tokens of the longest
    max_seqlen_k: Unpinnable[int]  # KV tokens of the longest
    total_q: Unpinnable[int]  # query tokens
    in_graph: Runtime[bool]  # captured or replayed in a whole CUDA graph
    batch_blocks: Unpinnable[int]  # row blocks times KV blocks summed over the batch, with the ordinary tile
    batch_blocks_one_wg: Unpinnable[int]  # the same with the one-warpgroup tile
    own_q_len: Request[int]  # query tokens of the request
    own_kv_len: Request[int]  # its KV tokens


def batch_blocks_of(lengths: Iterable[tuple[int, int]], group: int, block_m: int, block_n: int) -> int:
    """What the device adds up, from each sequence's (query tokens, KV tokens). No part of the program."""
    return sum(cdiv(q * group, block_m) * cdiv(k, block_n) for q, k in lengths)


def own_blocks(model: Model, parallel: Parallel, engine: Engine, max_seqlen_q: int, keys: int, own_q_len: int,
               own_kv_len: int, one_wg: bool) -> int:
    """What one request adds to the batch's total."""
    left, right, is_causal, is_local = model_window(model, max_seqlen_q, keys)
    gathered = gathers(model, parallel, engine, is_causal, is_local, one_wg, max_seqlen_q)
    block_m, block_n, from_registers, overlap = model_tile(model, engine, is_causal, is_local, gathered, one_wg)
    packed_rows = own_q_len * rank_group(model, parallel) if model.head_dim == model.head_dim_v else own_q_len
    return cdiv(packed_rows, block_m) * cdiv(own_kv_len, block_n)


def most_blocks(model: Model, parallel: Parallel, limits: Limits) -> int:
    """No batch within the limits has more blocks."""
    rows = limits.max_num_batched_tokens * rank_group(model, parallel)
    return (limits.max_num_seqs + cdiv(rows, SMALLEST_BLOCK)) * cdiv(limits.max_context, SMALLEST_BLOCK)


def device_splits(batch_blocks: int, heads: int, num_sm: int, n_blocks: int, num_splits: int) -> int:
    """Splits that the prepare kernel gives a sequence of ``n_blocks`` KV blocks (single precision, as there)."""
    per_split = ceil(f32(batch_blocks) * f32(DEVICE_MARGIN) * f32(heads) / f32(num_sm))
    return max(min(cdiv(n_blocks, per_split), num_splits), 1)


@selection(family="attention")
def fa3_vllm_stock(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                   call: Call) -> dict[str, object]:
    """The kernel's template parameters, its tile, the launch values and the request's own number of splits."""
    assume(1 <= call.b <= limits.max_num_seqs)
    assume(1 <= call.max_seqlen_q <= limits.max_num_batched_tokens)
    assume(1 <= call.max_seqlen_k <= limits.max_context)
    assume(1 <= call.total_q <= limits.max_num_batched_tokens)
    assume(1 <= call.batch_blocks <= most_blocks(model, parallel, limits))
    assume(1 <= call.batch_blocks_one_wg <= most_blocks(model, parallel, limits))
    assume(1 <= call.own_q_len <= limits.max_num_batched_tokens)
    assume(1 <= call.own_kv_len <= limits.max_context)
    assume(call.max_seqlen_q <= call.max_seqlen_k)
    assume(call.max_seqlen_q <= call.total_q)
    assume(call.b <= call.total_q)
    assume(call.own_q_len <= call.max_seqlen_q)
    assume(call.own_kv_len <= call.max_seqlen_k)
    assume(call.own_q_len <= call.own_kv_len)
    assume(call.batch_blocks >= own_blocks(
        model, parallel, engine, call.max_seqlen_q, limits.max_context if call.in_graph else call.max_seqlen_k,
        call.own_q_len, call.own_kv_len, False))
    assume(call.batch_blocks_one_wg >= own_blocks(
        model, parallel, engine, call.max_seqlen_q, limits.max_context if call.in_graph else call.max_seqlen_k,
        call.own_q_len, call.own_kv_len, True))
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(engine.name == "vllm", "the rules are vLLM's")
    require(model.num_attention_heads % parallel.tensor_parallel == 0, "ranks have equal numbers of query heads")
    require(rank_heads(model, parallel) % rank_kv_heads(model, parallel) == 0, "KV heads serve equal groups")
    require(head_dims_exist(model, engine), "kernels for these head dims exist")
    require(limits.max_context * (model.head_dim + model.head_dim_v) * element_bytes(engine) <= INT_MAX,
            "the heuristic's KV bytes fit a C int")

    keys = limits.max_context if call.in_graph else call.max_seqlen_k
    is_causal, is_local, one_wg, gathered, asked = decide(
        model, parallel, gpu, engine, call.b, call.total_q, call.max_seqlen_q, keys, STOCK_SPLITS, gpu.num_sm)
    block_m, block_n, from_registers, overlap = model_tile(model, engine, is_causal, is_local, gathered, one_wg)
    pack = packs(model, parallel, engine, is_local, gathered, asked, call.max_seqlen_q, block_m)
    num_splits = asked if one_prepare_block(call.b) else 1
    heads = rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel)
    splits = device_splits(call.batch_blocks_one_wg if one_wg else call.batch_blocks, heads, gpu.num_sm,
                           cdiv(call.own_kv_len, block_n), num_splits)
    pdl = one_prepare_block(call.b)

    require(1 <= num_splits <= KERNEL_SPLITS, "the kernel takes at most 256 splits")
    require(num_splits == 1 or one_prepare_block(call.b), "above 992 sequences nothing is split")
    require(splits == device_splits(
        call.batch_blocks_one_wg if one_wg else call.batch_blocks,
        rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel), gpu.num_sm,
        cdiv(call.own_kv_len, block_n), num_splits), "the device counts the splits itself")
    require(not one_wg or selects_one_wg(
        engine.name, model.head_dim, rank_group(model, parallel),
        needs_local(model, call.max_seqlen_q, limits.max_context if call.in_graph else call.max_seqlen_k),
        call.max_seqlen_q), "query lengths may be declared longer, not shorter")
    require(not gathered or gathers(model, parallel, engine, is_causal, is_local, one_wg, call.max_seqlen_q),
            "query lengths may be declared longer, not shorter")
    require(not one_wg or model.head_dim_v == model.head_dim, "one-warpgroup kernels have one head dim")
    require(not pdl or one_prepare_block(call.b), "the dependent launch waits for one prepare block")
    require(pack or not (num_splits > 1 or gathered), "split and gathering kernels exist packed only")
    require(gathered or engine.page_size % block_n == 0, "TMA reads whole KV blocks of a page")
    require(not (is_causal and is_local), "a kernel has one mask")
    require(is_causal or is_local or not needs_causal(
        model, call.max_seqlen_q, limits.max_context if call.in_graph else call.max_seqlen_k),
        "no query sees later keys")
    require(is_local or not needs_local(
        model, call.max_seqlen_q, limits.max_context if call.in_graph else call.max_seqlen_k),
        "no query sees past its window")
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
        "varlen_sort_batches": False,
        "head_swizzle": is_causal or is_local,
        "num_sm": gpu.num_sm,
    }

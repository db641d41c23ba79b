"""``fa3-vllm-stock``: FlashAttention-3 as vLLM 0.26.0 ships it, the device's own split counts included.

vLLM's builder decides three things before the library does: whether requests that share a prefix are attended in two
calls (cascade attention, off unless asked for), the number of splits where a captured graph may replay, and the lengths
that a graph is captured with.
"""

from __future__ import annotations

from functools import partial

from detent.lang import Request, Runtime, Unpinnable, assume, record, require, selection
from detent.programs.fa3 import (
    cdiv,
    decide,
    gathers,
    model_tile,
    needs_local,
    one_prepare_block,
    packs,
    rank_group,
    rank_heads,
    rank_kv_heads,
    selects_one_wg,
    uses_cascade,
)
from detent.programs.fa3_conditions import require_launch, require_masks
from detent.programs.fa3_conform import HOST_COLUMNS, HOST_OUTPUTS, TILE_COLUMNS, TILE_OUTPUTS, host_row, tile_row
from detent.programs.fa3_stock import (
    STOCK_SPLITS,
    assume_blocks,
    assume_lengths,
    device_splits,
    kernel_points,
    require_kernels,
)
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

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
    common_prefix: Unpinnable[int]  # KV tokens that all sequences share
    batch_blocks: Unpinnable[int]  # row blocks times KV blocks summed over the batch, with the ordinary tile
    batch_blocks_one_wg: Unpinnable[int]  # the same with the one-warpgroup tile
    own_q_len: Request[int]  # query tokens of the request
    own_kv_len: Request[int]  # its KV tokens


@selection(family="attention")
def fa3_vllm_stock(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                   call: Call) -> dict[str, object]:
    """The kernel's template parameters, its tile, the launch values, the request's own splits, cascade attention."""
    assume_lengths(limits, call.b, call.max_seqlen_q, call.max_seqlen_k, call.total_q, call.own_q_len, call.own_kv_len)
    assume(0 <= call.common_prefix <= limits.max_context)
    assume(call.common_prefix <= call.own_kv_len)
    assume_blocks("vllm", model, parallel, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k,
                  0, call.own_q_len, call.own_kv_len, call.batch_blocks, False)
    assume_blocks("vllm", model, parallel, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k,
                  0, call.own_q_len, call.own_kv_len, call.batch_blocks_one_wg, True)
    require(engine.name == "vllm", "the rules are vLLM's")
    require_kernels(model, parallel, gpu, engine, limits)

    keys = limits.max_context if call.in_graph else call.max_seqlen_k
    is_causal, is_local, one_wg, gathered, asked = decide(
        "vllm", model, parallel, gpu, engine, call.b, call.total_q, call.max_seqlen_q, keys, STOCK_SPLITS, gpu.num_sm)
    block_m, block_n, from_registers, overlap = model_tile(
        "vllm", model, engine, is_causal, is_local, gathered, one_wg)
    pack = packs("vllm", model, parallel, is_local, gathered, asked, call.max_seqlen_q, block_m)
    num_splits = asked if one_prepare_block(call.b) else 1
    heads = rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel)
    splits = device_splits(call.batch_blocks_one_wg if one_wg else call.batch_blocks, heads, gpu.num_sm,
                           cdiv(call.own_kv_len, block_n), num_splits)
    pdl = one_prepare_block(call.b)
    cascade = uses_cascade(model, parallel, gpu, engine, call.common_prefix, call.b, call.max_seqlen_q)

    require_launch(engine, call.b, num_splits, block_n, gathered, pack, pdl)
    require_masks(model, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k, 0, is_causal, is_local)
    require(num_splits == 1 or one_prepare_block(call.b), "above 992 sequences nothing is split")
    require(splits == device_splits(
        call.batch_blocks_one_wg if one_wg else call.batch_blocks,
        rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel), gpu.num_sm,
        cdiv(call.own_kv_len, block_n), num_splits), "the device counts the splits itself")
    require(not one_wg or selects_one_wg(
        "vllm", model.head_dim, rank_group(model, parallel),
        needs_local(model, call.max_seqlen_q, limits.max_context if call.in_graph else call.max_seqlen_k),
        call.max_seqlen_q), "query lengths may be declared longer, not shorter")
    require(not gathered or gathers("vllm", model, parallel, engine, is_causal, is_local, one_wg, call.max_seqlen_q),
            "query lengths may be declared longer, not shorter")
    require(not one_wg or model.head_dim_v == model.head_dim, "one-warpgroup kernels have one head dim")
    require(not cascade or call.common_prefix > 0, "cascade attention needs a prefix that all requests share")
    return kernel_points(model, gpu, engine, is_causal, is_local, one_wg, gathered, pack, block_m, block_n,
                         from_registers, overlap, num_splits, splits, pdl, False) | {"cascade": cascade}

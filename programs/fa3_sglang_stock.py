"""``fa3-sglang-stock``: FlashAttention-3 as SGLang 0.5.17 ships it, the device's own split counts included.

SGLang tells the library no KV length but the width of its page table, and its heuristic reads the batch's query tokens
too. For a decode step it lets the device count the splits before the layers run, from the live lengths; a graph that
was captured for the longest context then replays with those counts. Layers with a window count their own.
"""

from __future__ import annotations

from functools import partial

from detent.lang import Request, Runtime, Unpinnable, record, require, selection
from detent.programs.fa3 import (
    cdiv,
    decide,
    gathers,
    model_tile,
    one_prepare_block,
    packs,
    rank_group,
    rank_heads,
    rank_kv_heads,
    selects_one_wg,
    seqlen_k,
)
from detent.programs.fa3_conditions import assume_table, require_launch, require_masks
from detent.programs.fa3_conform import HOST_COLUMNS, HOST_OUTPUTS, TILE_COLUMNS, TILE_OUTPUTS, host_row, tile_row
from detent.programs.fa3_stock import (
    STOCK_SPLITS,
    assume_blocks,
    assume_lengths,
    kernel_points,
    request_splits,
    require_kernels,
)
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

CONFORM = (
    (HOST_COLUMNS, HOST_OUTPUTS, partial(host_row, "sglang")),
    (TILE_COLUMNS, TILE_OUTPUTS, partial(tile_row, "sglang")),
)


@record
class Call:
    """One attention call, and the request whose bits are asked about."""

    b: Unpinnable[int]  # sequences
    max_seqlen_q: Unpinnable[int]  # query tokens of the longest
    max_seqlen_k: Unpinnable[int]  # KV tokens of the longest
    total_q: Unpinnable[int]  # query tokens
    table_width: Unpinnable[int]  # pages a row of the page table has
    in_graph: Runtime[bool]  # captured or replayed in a whole CUDA graph
    batch_blocks: Unpinnable[int]  # row blocks times KV blocks summed over the batch, with the ordinary tile
    batch_blocks_one_wg: Unpinnable[int]  # the same with the one-warpgroup tile
    own_q_len: Request[int]  # query tokens of the request
    own_kv_len: Request[int]  # its KV tokens


def counted_ahead(model: Model, max_seqlen_q: int) -> bool:
    """Whether the device has counted the splits before the layer runs."""
    return max_seqlen_q == 1 and model.window_left < 0 and model.window_right < 0


@selection(family="attention")
def fa3_sglang_stock(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                     call: Call) -> dict[str, object]:
    """The kernel's template parameters, its tile, the launch values and the request's own number of splits."""
    assume_lengths(limits, call.b, call.max_seqlen_q, call.max_seqlen_k, call.total_q, call.own_q_len, call.own_kv_len)
    assume_table(limits, engine, call.max_seqlen_k, call.table_width)
    assume_blocks("sglang", model, parallel, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k,
                  call.table_width, call.own_q_len, call.own_kv_len, call.batch_blocks, False)
    assume_blocks("sglang", model, parallel, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k,
                  call.table_width, call.own_q_len, call.own_kv_len, call.batch_blocks_one_wg, True)
    require(engine.name == "sglang", "the rules are SGLang's")
    require_kernels(model, parallel, gpu, engine, limits)

    keys = seqlen_k(engine, limits, call.in_graph, call.max_seqlen_k, call.table_width)
    is_causal, is_local, one_wg, gathered, num_splits = decide(
        "sglang", model, parallel, gpu, engine, call.b, call.total_q, call.max_seqlen_q, keys, STOCK_SPLITS,
        gpu.num_sm)
    block_m, block_n, from_registers, overlap = model_tile(
        "sglang", model, engine, is_causal, is_local, gathered, one_wg)
    pack = packs("sglang", model, parallel, is_local, gathered, num_splits, call.max_seqlen_q, block_m)
    ahead = decide("sglang", model, parallel, gpu, engine, call.b, call.total_q, call.max_seqlen_q, call.max_seqlen_k,
                   STOCK_SPLITS, gpu.num_sm)
    bound = ahead[4] if counted_ahead(model, call.max_seqlen_q) else num_splits
    heads = rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel)
    splits = request_splits(call.b, call.batch_blocks_one_wg if one_wg else call.batch_blocks, heads, gpu.num_sm,
                            cdiv(call.own_kv_len, block_n), bound)
    pdl = one_prepare_block(call.b)

    require_launch(engine, call.b, num_splits, block_n, gathered, pack, pdl)
    require_masks(model, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k, call.table_width,
                  is_causal, is_local)
    require(bound <= num_splits, "the kernel has room for the splits counted ahead")
    require(bound == num_splits or counted_ahead(model, call.max_seqlen_q),
            "where nothing is counted ahead, the kernel counts to its own bound")
    require(splits == request_splits(
        call.b, call.batch_blocks_one_wg if one_wg else call.batch_blocks,
        rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel), gpu.num_sm,
        cdiv(call.own_kv_len, block_n), bound), "the device counts the splits itself")
    require(not one_wg or selects_one_wg("sglang", model.head_dim, rank_group(model, parallel), is_local,
                                         call.max_seqlen_q), "query lengths may be declared longer, not shorter")
    require(not gathered or gathers("sglang", model, parallel, engine, is_causal, is_local, one_wg,
                                    call.max_seqlen_q), "query lengths may be declared longer, not shorter")
    require(not one_wg or model.head_dim_v == model.head_dim, "one-warpgroup kernels have one head dim")
    return kernel_points(model, gpu, engine, is_causal, is_local, one_wg, gathered, pack, block_m, block_n,
                         from_registers, overlap, num_splits, splits, pdl, not is_local)

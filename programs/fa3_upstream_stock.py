"""``fa3-upstream-stock``: FlashAttention-3 as its authors have it (Dao-AILab/flash-attention 0251105a).

Neither engine runs it by default; both engines' own derive from it, and a stock build is what either would run in place
of them. The engine is a fact as elsewhere and says which KV length the library is told. Unlike the engines' it has no
kernels with one warpgroup, and unlike vLLM's it keeps a bound above one for batches that the device leaves unsplit.
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
    rank_heads,
    rank_kv_heads,
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
    (HOST_COLUMNS, HOST_OUTPUTS, partial(host_row, "upstream")),
    (TILE_COLUMNS, TILE_OUTPUTS, partial(tile_row, "upstream")),
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
    batch_blocks: Unpinnable[int]  # row blocks times KV blocks summed over the batch
    own_q_len: Request[int]  # query tokens of the request
    own_kv_len: Request[int]  # its KV tokens


@selection(family="attention")
def fa3_upstream_stock(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                       call: Call) -> dict[str, object]:
    """The kernel's template parameters, its tile, the launch values and the request's own number of splits."""
    assume_lengths(limits, call.b, call.max_seqlen_q, call.max_seqlen_k, call.total_q, call.own_q_len, call.own_kv_len)
    assume_table(limits, engine, call.max_seqlen_k, call.table_width)
    assume_blocks("upstream", model, parallel, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k,
                  call.table_width, call.own_q_len, call.own_kv_len, call.batch_blocks, False)
    require(engine.name in ("vllm", "sglang"), "the KV length is told as in vLLM and SGLang")
    require_kernels(model, parallel, gpu, engine, limits)

    keys = seqlen_k(engine, limits, call.in_graph, call.max_seqlen_k, call.table_width)
    is_causal, is_local, one_wg, gathered, num_splits = decide(
        "upstream", model, parallel, gpu, engine, call.b, call.total_q, call.max_seqlen_q, keys, STOCK_SPLITS,
        gpu.num_sm)
    block_m, block_n, from_registers, overlap = model_tile(
        "upstream", model, engine, is_causal, is_local, gathered, one_wg)
    pack = packs("upstream", model, parallel, is_local, gathered, num_splits, call.max_seqlen_q, block_m)
    heads = rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel)
    splits = request_splits(call.b, call.batch_blocks, heads, gpu.num_sm, cdiv(call.own_kv_len, block_n), num_splits)
    pdl = one_prepare_block(call.b)

    require_launch(engine, call.b, num_splits, block_n, gathered, pack, pdl)
    require_masks(model, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k, call.table_width,
                  is_causal, is_local)
    require(splits == request_splits(
        call.b, call.batch_blocks, rank_kv_heads(model, parallel) if pack else rank_heads(model, parallel),
        gpu.num_sm, cdiv(call.own_kv_len, block_n), num_splits), "the device counts the splits itself")
    require(not gathered or gathers("upstream", model, parallel, engine, is_causal, is_local, one_wg,
                                    call.max_seqlen_q), "query lengths may be declared longer, not shorter")
    return kernel_points(model, gpu, engine, is_causal, is_local, one_wg, gathered, pack, block_m, block_n,
                         from_registers, overlap, num_splits, splits, pdl, not is_local)

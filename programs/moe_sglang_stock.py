"""``moe-sglang-stock``: the fused MoE as SGLang 0.5.17 ships it.

The second GEMM may have a table of its own, with rows at other token counts; only its block height must be the first
GEMM's, since both read one sorted index. Without such a table it takes the first GEMM's configuration.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, record, require, selection
from detent.programs.facts import Engine, Gpu, Limits, Model, Moe, Parallel
from detent.programs.fused_moe import (
    align_path,
    combine_path,
    constant_points,
    engine_config,
    fits_short,
    launch_points,
    operand_bytes,
    rank_width,
    second_config,
    swaps_ab,
)
from detent.programs.moe_conform import CONFORM_SGLANG as CONFORM

__all__ = ["CONFORM", "moe_sglang_stock"]

INT_MAX = 2147483647
BLOCK_SIZES = (16, 32, 64, 128, 256)


@record
class Call:
    """One call of the expert layer."""

    num_tokens: Unpinnable[int]  # padded where a graph replays: sizes buffers and grids


@selection(family="moe")
def moe_sglang_stock(model: Model, moe: Moe, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                     call: Call) -> dict[str, object]:
    """Both GEMMs' configurations and compile-time arguments, the align path and the combine kernel."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(engine.name == "sglang", "the rules are SGLang's")
    require(moe.num_experts % parallel.tensor_parallel == 0 or not parallel.expert_parallel,
            "ranks have equal numbers of experts")
    require(moe.moe_intermediate_size % parallel.tensor_parallel == 0 or parallel.expert_parallel,
            "ranks have equal slices of an expert")
    require(not engine.fused_moe_sum_all_reduce, "the fused sum and all-reduce adds with atomics, in no fixed order")

    block_m, block_n, block_k, group_m, num_warps, num_stages = engine_config(engine, moe, parallel, call.num_tokens)
    down_n, down_k, down_group, down_warps, down_stages, tma = second_config(
        engine, moe, block_m, block_n, block_k, group_m, num_warps, num_stages, call.num_tokens)
    align = align_path("sglang", moe, parallel, call.num_tokens)
    combine = combine_path(engine, moe.num_experts_per_tok, call.num_tokens)

    require(block_m % 16 == 0, "BLOCK_SIZE_M is a multiple of 16")
    require(block_n in BLOCK_SIZES and block_k in BLOCK_SIZES, "BLOCK_SIZE_N and BLOCK_SIZE_K are powers of two")
    require(down_n in BLOCK_SIZES and down_k in BLOCK_SIZES, "BLOCK_SIZE_N and BLOCK_SIZE_K are powers of two")
    require(num_warps in (4, 8) and down_warps in (4, 8), "4 or 8 warps")
    require((block_m + block_n) * block_k * operand_bytes(moe) * num_stages <= gpu.shared_memory,
            "the pipeline's stages fit in shared memory")
    require((block_m + down_n) * down_k * operand_bytes(moe) * down_stages <= gpu.shared_memory,
            "the pipeline's stages fit in shared memory")
    require(call.num_tokens * moe.num_experts_per_tok * block_m <= INT_MAX, "rows are counted in a C int")
    require(align != "short" or fits_short(moe, parallel, call.num_tokens), "the short index has a block a pair")
    return (
        launch_points("up", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("up", moe.num_experts_per_tok, moe.apply_router_weight_on_input, model.dtype,
                          moe.quantization)
        | launch_points("down", block_m, down_n, down_k, down_group, down_warps, down_stages)
        | constant_points("down", 1, not moe.apply_router_weight_on_input, model.dtype, moe.quantization)
        | {
            "up.even_Ks": model.hidden_size % block_k == 0,
            "down.even_Ks": rank_width(moe, parallel) % down_k == 0,
            "up.swap_ab": swaps_ab(engine, moe.quantization, block_m, block_n),
            "down.swap_ab": swaps_ab(engine, moe.quantization, block_m, down_n),
            "down.use_tma": tma,
            "align": align,
            "combine": combine,
            "activation": moe.hidden_act,
            "apply_router_weight_on_input": moe.apply_router_weight_on_input,
            "filter_expert": parallel.expert_parallel,
        }
    )

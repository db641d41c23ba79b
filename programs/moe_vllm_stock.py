"""``moe-vllm-stock``: the fused MoE as vLLM 0.26.0 ships it.

Its kernels can be pinned from outside: an overriding configuration is vLLM's own way to fix the row, and sorting
serves any number of tokens.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, record, require, selection
from detent.programs.facts import Engine, Gpu, Limits, Model, Moe, Parallel
from detent.programs.fused_moe import (
    align_path,
    combine_path,
    constant_points,
    engine_config,
    fits_naive,
    has_default,
    launch_points,
    operand_bytes,
    swaps_ab,
)
from detent.programs.moe_conform import CONFORM_VLLM as CONFORM

__all__ = ["CONFORM", "moe_vllm_stock"]

INT_MAX = 2147483647
BLOCK_SIZES = (16, 32, 64, 128, 256)


@record
class Call:
    """One call of the expert layer."""

    num_tokens: Unpinnable[int]  # padded where a graph replays: sizes buffers and grids


@selection(family="moe")
def moe_vllm_stock(model: Model, moe: Moe, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                   call: Call) -> dict[str, object]:
    """Both GEMMs' configurations and compile-time arguments, the align path and the combine kernel."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(engine.name == "vllm", "the rules are vLLM's")
    require(moe.num_experts % parallel.tensor_parallel == 0 or not parallel.expert_parallel,
            "ranks have equal numbers of experts")
    require(moe.moe_intermediate_size % parallel.tensor_parallel == 0 or parallel.expert_parallel,
            "ranks have equal slices of an expert")
    require(moe.table is not None or has_default("vllm", moe.quantization, moe.block_k),
            "a rule without a table exists")

    block_m, block_n, table_k, group_m, num_warps, num_stages = engine_config(engine, moe, parallel, call.num_tokens)
    block_k = table_k if moe.block_n is None or moe.block_k is None else min(table_k, moe.block_n, moe.block_k)
    align = align_path("vllm", moe, parallel, call.num_tokens)

    require(block_m % 16 == 0, "BLOCK_SIZE_M is a multiple of 16")
    require(block_n in BLOCK_SIZES and block_k in BLOCK_SIZES, "BLOCK_SIZE_N and BLOCK_SIZE_K are powers of two")
    require(num_warps in (4, 8), "4 or 8 warps")
    require((block_m + block_n) * block_k * operand_bytes(moe) * num_stages <= gpu.shared_memory,
            "the pipeline's stages fit in shared memory")
    require(call.num_tokens * moe.num_experts_per_tok * block_m <= INT_MAX, "rows are counted in a C int")
    require(align != "naive" or fits_naive(moe, parallel, call.num_tokens), "a block a pair suits few pairs only")
    return (
        launch_points("up", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("up", moe.num_experts_per_tok, moe.apply_router_weight_on_input, model.dtype,
                          moe.quantization)
        | launch_points("down", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("down", 1, not moe.apply_router_weight_on_input, model.dtype, moe.quantization)
        | {
            "up.SPLIT_K": 1,
            "down.SPLIT_K": 1,
            "up.SWAP_AB": swaps_ab(engine, moe.quantization, block_m, block_n),
            "down.SWAP_AB": swaps_ab(engine, moe.quantization, block_m, block_n),
            "align": align,
            "combine": combine_path(engine, moe.num_experts_per_tok, call.num_tokens),
            "activation": moe.hidden_act,
            "apply_router_weight_on_input": moe.apply_router_weight_on_input,
        }
    )

"""``moe``: what Detent runs in both engines.

One configuration serves both GEMMs, as in either engine where it ships no table of its own for the second.
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
    fits_short,
    has_default,
    launch_points,
    operand_bytes,
    rank_width,
)

INT_MAX = 2147483647
BLOCK_SIZES = (16, 32, 64, 128, 256)


@record
class Call:
    """One call of the expert layer."""

    num_tokens: Unpinnable[int]  # padded where a graph replays: sizes buffers and grids


@selection(family="moe")
def moe(model: Model, moe: Moe, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
        call: Call) -> dict[str, object]:
    """Both GEMMs' configurations and compile-time arguments, the align path and the combine kernel."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(engine.name in ("vllm", "sglang"), "the rules are vLLM's and SGLang's")
    require(moe.num_experts % parallel.tensor_parallel == 0 or not parallel.expert_parallel,
            "ranks have equal numbers of experts")
    require(moe.moe_intermediate_size % parallel.tensor_parallel == 0 or parallel.expert_parallel,
            "ranks have equal slices of an expert")
    require(moe.table is not None or has_default(engine.name, moe.quantization, moe.block_k),
            "a rule without a table exists")
    require(not engine.fused_moe_sum_all_reduce, "the fused sum and all-reduce adds with atomics, in no fixed order")

    block_m, block_n, block_k, group_m, num_warps, num_stages = engine_config(engine, moe, parallel, call.num_tokens)
    align = align_path(engine.name, moe, parallel, call.num_tokens)
    combine = combine_path(engine, moe.num_experts_per_tok, call.num_tokens)

    require(block_m % 16 == 0, "BLOCK_SIZE_M is a multiple of 16")
    require(block_n in BLOCK_SIZES and block_k in BLOCK_SIZES, "BLOCK_SIZE_N and BLOCK_SIZE_K are powers of two")
    require(num_warps in (4, 8), "4 or 8 warps")
    require((block_m + block_n) * block_k * operand_bytes(moe) * num_stages <= gpu.shared_memory,
            "the pipeline's stages fit in shared memory")
    require(call.num_tokens * moe.num_experts_per_tok * block_m <= INT_MAX, "rows are counted in a C int")
    require(align != "naive" or fits_naive(moe, parallel, call.num_tokens), "a block a pair suits few pairs only")
    require(align != "short" or fits_short(moe, parallel, call.num_tokens), "the short index has a block a pair")
    return (
        launch_points("up", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("up", moe.num_experts_per_tok, moe.apply_router_weight_on_input, model.dtype,
                          moe.quantization)
        | launch_points("down", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("down", 1, not moe.apply_router_weight_on_input, model.dtype, moe.quantization)
        | {
            "up.even_Ks": model.hidden_size % block_k == 0,
            "down.even_Ks": rank_width(moe, parallel) % block_k == 0,
            "align": align,
            "combine": combine,
            "activation": moe.hidden_act,
            "apply_router_weight_on_input": moe.apply_router_weight_on_input,
            "inplace": engine.name == "sglang",
            "no_combine": False,
            "fused_sum_all_reduce": engine.fused_moe_sum_all_reduce,
            "routed_scaling_factor": 1.0,
            "filter_expert": parallel.expert_parallel,
        }
    )

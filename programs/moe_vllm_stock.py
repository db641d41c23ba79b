"""``moe-vllm-stock``: the fused MoE as vLLM 0.26.0 ships it.

Its kernels can be pinned from outside: an overriding configuration is vLLM's own way to fix the row, and sorting
serves any number of tokens.
"""

from __future__ import annotations

from detent.lang import require, selection
from detent.programs.facts import Engine, Gpu, Limits, Model, Moe, Parallel
from detent.programs.fused_moe import (
    Call,
    align_path,
    assume_tokens,
    combine_path,
    constant_points,
    engine_config,
    fits_naive,
    launch_points,
    require_default,
    require_experts,
    require_rows,
    require_tile,
    swaps_ab,
)
from detent.programs.moe_conform import CONFORM_VLLM as CONFORM

__all__ = ["CONFORM", "moe_vllm_stock"]

@selection(family="moe")
def moe_vllm_stock(model: Model, moe: Moe, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                   call: Call) -> dict[str, object]:
    """Both GEMMs' configurations and compile-time arguments, the align path and the combine kernel."""
    assume_tokens(limits, call.num_tokens)
    require_experts(moe, parallel, gpu)
    require(engine.name == "vllm", "the rules are vLLM's")
    require_default("vllm", moe)

    block_m, block_n, table_k, group_m, num_warps, num_stages = engine_config(engine, moe, parallel, call.num_tokens)
    block_k = table_k if moe.block_n is None or moe.block_k is None else min(table_k, moe.block_n, moe.block_k)
    align = align_path("vllm", moe, parallel, call.num_tokens)

    require_tile(moe, gpu, block_m, block_n, block_k, num_stages)
    require(num_warps in (4, 8), "4 or 8 warps")
    require_rows(moe, call.num_tokens, block_m)
    require(align != "naive" or fits_naive(moe, parallel, call.num_tokens), "a block a pair suits few pairs only")
    return (
        launch_points("up", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("up", model, moe)
        | launch_points("down", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("down", model, moe)
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

"""``moe-sglang-stock``: the fused MoE as SGLang 0.5.17 ships it.

The second GEMM may have a table of its own, with rows at other token counts; only its block height must be the first
GEMM's, since both read one sorted index. Without such a table it takes the first GEMM's configuration.
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
    fits_short,
    launch_points,
    rank_width,
    require_experts,
    require_rows,
    require_tile,
    second_config,
    swaps_ab,
)
from detent.programs.moe_conform import CONFORM_SGLANG as CONFORM

__all__ = ["CONFORM", "moe_sglang_stock"]

@selection(family="moe")
def moe_sglang_stock(model: Model, moe: Moe, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
                     call: Call) -> dict[str, object]:
    """Both GEMMs' configurations and compile-time arguments, the align path and the combine kernel."""
    assume_tokens(limits, call.num_tokens)
    require_experts(moe, parallel, gpu)
    require(engine.name == "sglang", "the rules are SGLang's")
    require(not engine.fused_moe_sum_all_reduce, "the fused sum and all-reduce adds with atomics, in no fixed order")

    block_m, block_n, block_k, group_m, num_warps, num_stages = engine_config(engine, moe, parallel, call.num_tokens)
    down_n, down_k, down_group, down_warps, down_stages, tma = second_config(
        engine, moe, block_m, block_n, block_k, group_m, num_warps, num_stages, call.num_tokens)
    align = align_path("sglang", moe, parallel, call.num_tokens)
    combine = combine_path(engine, moe.num_experts_per_tok, call.num_tokens)

    require_tile(moe, gpu, block_m, block_n, block_k, num_stages)
    require_tile(moe, gpu, block_m, down_n, down_k, down_stages)
    require(num_warps in (4, 8) and down_warps in (4, 8), "4 or 8 warps")
    require_rows(moe, call.num_tokens, block_m)
    require(align != "short" or fits_short(moe, parallel, call.num_tokens), "the short index has a block a pair")
    return (
        launch_points("up", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("up", model, moe)
        | launch_points("down", block_m, down_n, down_k, down_group, down_warps, down_stages)
        | constant_points("down", model, moe)
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

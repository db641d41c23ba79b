"""``moe``: what Detent runs in both engines.

One configuration serves both GEMMs, as in either engine where it ships no table of its own for the second.
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
    fits_short,
    launch_points,
    rank_width,
    require_default,
    require_experts,
    require_rows,
    require_tile,
)


@selection(family="moe")
def moe(model: Model, moe: Moe, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
        call: Call) -> dict[str, object]:
    """Both GEMMs' configurations and compile-time arguments, the align path and the combine kernel."""
    assume_tokens(limits, call.num_tokens)
    require_experts(moe, parallel, gpu)
    require(engine.name in ("vllm", "sglang"), "the rules are vLLM's and SGLang's")
    require_default(engine.name, moe)
    require(not engine.fused_moe_sum_all_reduce, "the fused sum and all-reduce adds with atomics, in no fixed order")

    block_m, block_n, block_k, group_m, num_warps, num_stages = engine_config(engine, moe, parallel, call.num_tokens)
    align = align_path(engine.name, moe, parallel, call.num_tokens)
    combine = combine_path(engine, moe.num_experts_per_tok, call.num_tokens)

    require_tile(moe, gpu, block_m, block_n, block_k, num_stages)
    require(num_warps in (4, 8), "4 or 8 warps")
    require_rows(moe, call.num_tokens, block_m)
    require(align != "naive" or fits_naive(moe, parallel, call.num_tokens), "a block a pair suits few pairs only")
    require(align != "short" or fits_short(moe, parallel, call.num_tokens), "the short index has a block a pair")
    return (
        launch_points("up", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("up", model, moe)
        | launch_points("down", block_m, block_n, block_k, group_m, num_warps, num_stages)
        | constant_points("down", model, moe)
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

"""Expert layers: Detent's grouped kernels under the tuple's row, one sorted index for every number of tokens.

vLLM looks the row up by the number of tokens, and leaves the sorting out for a few. Its experts' ``apply`` runs
:func:`detent.kernels.moe.moe` instead, in which one launch starts while the one before ends. The router is a linear
layer; its softmax and choice of experts stay vLLM's, one group of threads a token. Any other way to an expert layer,
which would look a row up, stops.
"""

from __future__ import annotations

from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.runtime.errors import DetentError

FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
SERVED = {"align": "sort", "combine": "moe_sum", "activation": "silu", "apply_router_weight_on_input": False,
          "no_combine": False, "fused_sum_all_reduce": False, "filter_expert": False, "routed_scaling_factor": 1.0}
"""The points that the kernels are."""


def install(active: Active) -> None:
    """Route the expert layers, if the model has some. Raises DetentError for points that the kernels are not."""
    points = active.points.get("moe")
    if points is None:
        return
    for name, value in SERVED.items():
        if points[name] != value:
            raise DetentError(f"the tuple's expert layers have {name} = {points[name]!r}, which is not served",
                              f"served is {value!r}")
    from detent.kernels.moe import moe

    up, down = ({field: points[f"{layer}.{field}"] for field in FIELDS} for layer in ("up", "down"))

    def experts(original: Any) -> Any:
        def apply(self: Any, output: Any, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any,
                  activation: Any, global_num_experts: int, expert_map: Any, a1q_scale: Any, a2_scale: Any,
                  workspace13: Any, workspace2: Any, expert_tokens_meta: Any,
                  apply_router_weight_on_input: bool) -> None:
            for bad, what in ((self.quant_dtype is not None or a1q_scale is not None, "quantised experts"),
                              (self._lora_context is not None, "LoRA on experts"),
                              (self.w1_bias is not None or self.w2_bias is not None, "experts with a bias"),
                              (expert_map is not None, "experts spread over ranks"),
                              (activation.value != "silu", f"activation {activation.value}"),
                              (apply_router_weight_on_input, "weights applied to the experts' input")):
                if bad:
                    raise DetentError(f"Detent does not serve {what}", "serve a model without them")
            moe(hidden_states, w1, w2, topk_ids.int(), topk_weights.float(), row=up, down_row=down, out=output)
        return apply

    def unrouted(original: Any) -> Any:
        def look_up(*arguments: Any, **named: Any) -> Any:
            raise DetentError("an expert layer looks its row up by the number of tokens, beside Detent's",
                              "leave --moe-backend at its default")
        return look_up

    hooks.rebind(hooks.TRITON_MOE, "TritonExperts.apply", experts)
    for module in (hooks.FUSED_MOE, hooks.TRITON_MOE):
        hooks.rebind(module, "try_get_optimal_moe_config", unrouted)

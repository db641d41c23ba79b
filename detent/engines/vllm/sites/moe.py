"""Expert layers: Detent's grouped kernels under the tuple's row, one sorted index for every number of tokens.

vLLM looks the row up by the number of tokens, and leaves the sorting out for a few. Its experts' ``apply`` runs
:func:`detent.kernels.moe.moe` instead, in which one launch starts while the one before ends. Where a stored run on this
GPU, with these versions, showed that all rows of the table give the same bits as the tuple's, the table's rows take
turns as in vLLM, which changes the time alone; the report says so. The router is a linear layer; its softmax and
choice of experts stay vLLM's, one group of threads a token. Any other way to an expert layer, which would look a row
up, stops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.runtime.errors import DetentError

if TYPE_CHECKING:
    from detent.kernels.moe import Row

FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
SERVED = {"align": "sort", "combine": "moe_sum", "activation": "silu", "apply_router_weight_on_input": False,
          "no_combine": False, "fused_sum_all_reduce": False, "filter_expert": False, "routed_scaling_factor": 1.0}
"""The points that the kernels are."""
ROW = tuple(f"{layer}.{field}" for layer in ("up", "down") for field in (*FIELDS, "even_Ks"))
"""Points that change no bit where the table's rows take turns."""


def rows_of(active: Active) -> Callable[[int], tuple[Row, Row]]:
    """Of a number of tokens, the rows of both products. Needs a GPU."""
    from detent.kernels.moe import row_of

    if not take_turns(active):
        points = active.points["moe"]
        up, down = ({field: points[f"{layer}.{field}"] for field in FIELDS} for layer in ("up", "down"))
        first = row_of(up)
        pinned = first, row_of(down, "down_row", first.block_m)
        return lambda tokens: pinned
    from detent.kernels.moe_agreement import ByTokens

    by_tokens = ByTokens(active.deployment.facts["moe"]["table"])
    return lambda tokens: (by_tokens(tokens),) * 2


def take_turns(active: Active) -> bool:
    """Whether a stored run showed that the table's rows give the same bits here."""
    import torch

    if not torch.cuda.is_available():
        return False
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from detent.kernels.moe_agreement import may_take_turns

    points, facts = active.points["moe"], active.deployment.facts
    table = facts["moe"].get("table")
    versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    width = facts["moe"]["moe_intermediate_size"] // facts["parallel"]["tensor_parallel"]
    return table is not None and all(
        may_take_turns(table, {field: points[f"{layer}.{field}"] for field in FIELDS}, facts["model"]["hidden_size"],
                       width, versions) for layer in ("up", "down"))


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

    rows = functools.cache(lambda: rows_of(active))  # once there is a GPU

    def experts(original: Any) -> Any:
        def apply(self: Any, output: Any, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any,
                  activation: Any, global_num_experts: int, expert_map: Any, a1q_scale: Any, a2_scale: Any,
                  workspace13: Any, workspace2: Any, expert_tokens_meta: Any,
                  apply_router_weight_on_input: bool) -> None:
            quantised = self.quant_dtype is not None or self.quant_config.weight_quant_dtype is not None
            for bad, what in ((quantised or a1q_scale is not None, "quantised experts"),
                              (self._lora_context is not None, "LoRA on experts"),
                              (self.w1_bias is not None or self.w2_bias is not None, "experts with a bias"),
                              (self.gemm1_clamp_limit is not None, "experts with a clamped activation"),
                              (expert_map is not None, "experts spread over ranks"),
                              (activation.value != "silu", f"activation {activation.value}"),
                              (apply_router_weight_on_input, "weights applied to the experts' input")):
                if bad:
                    raise DetentError(f"Detent does not serve {what}", "serve a model without them")
            up, down = rows()(len(hidden_states))
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

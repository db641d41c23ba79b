"""Expert layers: vLLM's own Triton kernel under the tuple's row, one align path for every number of tokens.

vLLM looks the row up by the number of tokens and leaves the alignment out for a few. Router and shared products are
linear layers; the softmax over a token's experts and the sum over its chosen ones are kernels of one row each.
"""

from __future__ import annotations

from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.runtime.errors import DetentError

FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def install(active: Active) -> None:
    """Route the expert layers, if the model has some. Raises DetentError for points that vLLM's kernel has not."""
    points = active.points.get("moe")
    if points is None:
        return
    from vllm.model_executor.layers.fused_moe.fused_moe import (  # type: ignore[import-not-found, unused-ignore]
        moe_align_block_size,
    )

    up, down = ({field: points[f"{layer}.{field}"] for field in FIELDS} for layer in ("up", "down"))
    if up != down:
        raise DetentError("the tuple has two rows for an expert layer, vLLM's kernel takes one",
                          "write a tuple with one row: detent tuple new")
    if points["align"] != "sort":
        raise DetentError(f"the tuple's align path {points['align']!r} suits few tokens only", "take 'sort'")
    row = {**up, "SPLIT_K": 1}

    def config(original: Any) -> Any:
        def pinned(*arguments: Any, **named: Any) -> dict[str, Any]:
            return dict(row)
        return pinned

    def assignment(original: Any) -> Any:
        def aligned(topk_ids: Any, config: Any, num_tokens: int, top_k_num: int, global_num_experts: int,
                    expert_map: Any, *, ignore_invalid_experts: bool = False, **named: Any) -> Any:
            return moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], global_num_experts, expert_map,
                                        ignore_invalid_experts=ignore_invalid_experts)
        return aligned

    for module in (hooks.FUSED_MOE, hooks.TRITON_MOE):
        hooks.rebind(module, "try_get_optimal_moe_config", config)
        hooks.rebind(module, "_prepare_expert_assignment", assignment)

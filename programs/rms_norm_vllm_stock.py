"""``rms-norm-vllm-stock``: RMSNorm as vLLM 0.26.0 ships it in CUDA.

That is what runs where norms are not compiled: without Inductor, or where the operator's priorities say so. Also the
deterministic mode launches these blocks by the token count.
"""

from __future__ import annotations

from detent.lang import assume, require, selection
from detent.programs.facts import Engine, Gpu, Limits, Model
from detent.programs.rms_norms import (
    Call,
    vllm_block_limit,
    vllm_fused_block,
    vllm_fused_width,
    vllm_plain_block,
    vllm_takes_cuda,
    widest_vector,
)


@selection(family="norm")
def rms_norm_vllm_stock(model: Model, gpu: Gpu, engine: Engine, limits: Limits, call: Call) -> dict[str, object]:
    """Block and vector width of the norm that adds a residual, then of the one that does not."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(engine.name == "vllm", "the rules are vLLM's")
    require(vllm_takes_cuda(model), "the CUDA kernels take weights of the activations' type, and Gemma's are float32")

    block_limit = vllm_block_limit(call.num_tokens)
    return {
        "block": vllm_fused_block(model, block_limit),
        "vector_width": vllm_fused_width(model, engine),
        "plain.block": vllm_plain_block(model, block_limit),
        "plain.vector_width": widest_vector(model),
    }

"""``norm``: what Detent runs in both engines for RMSNorm of the hidden states.

One block serves every row, whatever the token count: any whole number of warps is right, and each has its own bits.
"""

from __future__ import annotations

from detent.lang import assume, require, selection
from detent.programs.facts import Engine, Gpu, Limits, Model
from detent.programs.rms_norms import (
    Call,
    sglang_block,
    vllm_block_limit,
    vllm_fused_block,
    vllm_takes_cuda,
    widest_vector,
)

LARGEST_BLOCK = 1024


@selection(family="norm")
def norm(model: Model, gpu: Gpu, engine: Engine, limits: Limits, call: Call) -> dict[str, object]:
    """Threads a row, and elements each of them takes at once."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(engine.name in ("vllm", "sglang"), "the rules are vLLM's and SGLang's")

    # What vLLM leaves to PyTorch has no block there, and PyTorch's reduction is chosen by the number of rows.
    limit = vllm_block_limit(call.num_tokens) if vllm_takes_cuda(model) else LARGEST_BLOCK
    block = sglang_block(model) if engine.name == "sglang" else vllm_fused_block(model, limit)
    require(block <= LARGEST_BLOCK and block % 32 == 0, "a block is 1 to 32 whole warps")
    return {"block": block, "vector_width": widest_vector(model)}

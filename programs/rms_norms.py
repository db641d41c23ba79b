"""Launch shapes of the RMSNorm kernels that vLLM 0.26.0 and SGLang 0.5.17 call on CUDA.

vLLM: ``csrc/libtorch_stable/layernorm_kernels.cu``; SGLang: FlashInfer's ``norm.cuh``. ``plain`` is the norm without a
residual, ``fused`` the one that adds it first. The block decides in which tree a row's squares are added.
"""

from __future__ import annotations

from detent.lang import Unpinnable, record
from detent.programs.collectives import dtype_bytes
from detent.programs.facts import Engine, Model

LOAD = 16  # bytes a thread loads at once
FUSED_WIDTH = 8  # elements of vLLM's vectorised fused kernel, which serves 16-bit types only
FEW_TOKENS = 256  # from which on vLLM makes its blocks smaller, to have more of them on an SM


@record
class Call:
    """One norm of the hidden states."""

    num_tokens: Unpinnable[int]  # padded where a graph replays: sizes the grid


def widest_vector(model: Model) -> int:
    """Elements a thread loads at once: the most that divide both a load and a row."""
    elements = LOAD // dtype_bytes(model)
    return next(width for width in (8, 4, 2, 1) if elements % width == 0 and model.hidden_size % width == 0)


def vllm_takes_cuda(model: Model) -> bool:
    """Whether vLLM's CUDA kernels take the norm, which they do where weights and activations have one type: Gemma's
    norm hands over ``weight.float() + 1.0`` and is left to PyTorch (``layernorm.py``, ``kernels/vllm_c.py``)."""
    return not model.norm_plus_one or model.dtype == "fp32"


def vllm_block_limit(num_tokens: int) -> int:
    """The largest block that vLLM launches, its deterministic mode included."""
    return 1024 if num_tokens < FEW_TOKENS else 256


def vllm_plain_block(model: Model, limit: int) -> int:
    """Threads that normalise a row without a residual."""
    return min(model.hidden_size // widest_vector(model), limit)


def vllm_fused_block(model: Model, limit: int) -> int:
    """Threads that add the residual to a row and normalise it."""
    return min(model.hidden_size, limit)


def vllm_fused_width(model: Model, engine: Engine) -> int:
    """Elements a thread of the fused kernel takes at once. The deterministic mode takes the scalar one."""
    vectors = dtype_bytes(model) == 2 and model.hidden_size % FUSED_WIDTH == 0
    return FUSED_WIDTH if vectors and not engine.deterministic else 1


def sglang_block(model: Model) -> int:
    """Threads of either of SGLang's kernels, whole warps of 32."""
    threads = min(1024, model.hidden_size // widest_vector(model))
    return -(-threads // 32) * 32

"""``gemm``: what Detent runs in both engines for linear layers and the output head.

Both engines leave them to cuBLAS, whose choice by shape is closed and may split the sum over K. DeepGEMM adds in
ascending K in steps of one size, whatever its tile, and so does the persistent Triton kernel that serves what DeepGEMM
does not: the token count decides neither. Padding it only lets fewer kernels be compiled.
"""

from __future__ import annotations

from detent.lang import Unpinnable, assume, knob, record, require, selection
from detent.programs.collectives import dtype_bytes
from detent.programs.fa3 import cdiv, rank_heads, rank_kv_heads
from detent.programs.facts import Gpu, Limits, Model, Parallel

PADDINGS = (1, 64, 128, 256, 512)  # the token count is padded to a multiple
ALIGNMENT = 16  # bytes of a TMA stride
NARROWEST = 16  # columns of the narrowest tile


@record
class Call:
    """One matrix product."""

    num_tokens: Unpinnable[int]  # rows of the activations: sizes buffers and grids


def aligned(model: Model, n: int, k: int) -> bool:
    """Whether DeepGEMM takes weights of ``n`` rows and ``k`` columns."""
    elements = ALIGNMENT // dtype_bytes(model)
    return n >= NARROWEST and n % elements == 0 and k % elements == 0


def takes_deep_gemm(model: Model, parallel: Parallel, gpu: Gpu) -> bool:
    """Whether DeepGEMM takes every linear layer of a rank: attention's two, the MLP's two and the output head.

    A router has as many columns as there are experts, in every published model a multiple of what is checked here.
    """
    world = parallel.tensor_parallel
    query, attended = rank_heads(model, parallel) * model.head_dim, rank_heads(model, parallel) * model.head_dim_v
    key_value = rank_kv_heads(model, parallel) * (model.head_dim + model.head_dim_v)
    shapes = ((query + key_value, model.hidden_size), (model.hidden_size, attended),
              (2 * model.intermediate_size // world, model.hidden_size),
              (model.hidden_size, model.intermediate_size // world), (model.vocab_size // world, model.hidden_size))
    return model.dtype == "bf16" and gpu.num_sm % 2 == 0 and all(aligned(model, n, k) for n, k in shapes)


@selection(family="gemm")
def gemm(model: Model, parallel: Parallel, gpu: Gpu, limits: Limits, call: Call) -> dict[str, object]:
    """The kernel, and what the token count is padded to."""
    assume(1 <= call.num_tokens <= limits.max_num_batched_tokens)
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(model.intermediate_size % parallel.tensor_parallel == 0, "ranks have equal slices of the MLP")
    require(model.vocab_size % parallel.tensor_parallel == 0, "ranks have equal slices of the output head")

    padding = knob("padding", PADDINGS, default=1)
    require(cdiv(call.num_tokens, padding) * padding <= limits.max_num_batched_tokens,
            "buffers hold the longest batch and its padding")
    return {
        "kernel": "deep_gemm" if takes_deep_gemm(model, parallel, gpu) else "triton_persistent",
        "padding": padding,
    }

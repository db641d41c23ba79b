"""``allreduce-vllm-stock``: all-reduce as vLLM 0.26.0 ships it.

Legal is a kernel that takes every message and adds the ranks of every element in one order. The one-stage kernel does
the latter, and with two ranks so do all but NCCL; beyond that the two-stage kernel begins with the rank that owns the
share, the switch has an order of its own, and NCCL picks its algorithm by size. They are barred, whatever is pinned.
"""

from __future__ import annotations

from detent.lang import require, selection
from detent.programs.collectives import (
    BARRED,
    CUSTOM_THREADS,
    Call,
    assume_message,
    custom_blocks,
    require_kernels,
    row_bytes,
    takes_custom,
    takes_flashinfer,
    takes_nccl_symm_mem,
    takes_symm_mem,
    vllm_backend,
    vllm_kernel,
)
from detent.programs.facts import AllReduce, Engine, Gpu, Limits, Model, Parallel


@selection(family="allreduce")
def allreduce_vllm_stock(model: Model, parallel: Parallel, all_reduce: AllReduce, gpu: Gpu, engine: Engine,
                         limits: Limits, call: Call) -> dict[str, object]:
    """The backend, its kernel, whether that reads the tensor where it is, and the launch of vLLM's own kernels."""
    assume_message(model, limits, call.nbytes)
    require_kernels(all_reduce, gpu)
    require(engine.name == "vllm", "the rules are vLLM's")
    require(parallel.tensor_parallel >= 2, "one GPU reduces nothing")

    world = parallel.tensor_parallel
    kernel = vllm_kernel(all_reduce, engine, model, world, call.nbytes)
    backend = vllm_backend(kernel)
    reads_input = backend == "custom" and call.in_graph
    blocks = custom_blocks(call.nbytes) if backend == "custom" else 0

    require(backend != "custom" or takes_custom(all_reduce, engine, world, call.nbytes),
            "vLLM's own kernels take the message")
    require(backend != "symm_mem" or takes_symm_mem(all_reduce, engine, model, world, call.nbytes),
            "symmetric memory takes the message")
    require(backend != "flashinfer" or takes_flashinfer(all_reduce, world, row_bytes(model), call.nbytes),
            "FlashInfer takes the message")
    require(backend != "nccl_symm_mem" or takes_nccl_symm_mem(all_reduce, engine, world, call.nbytes),
            "NCCL's symmetric memory takes the message")
    require(not reads_input or (backend == "custom" and call.in_graph), "peers see a tensor that a graph registered")
    require((blocks > 0) == (backend == "custom"), "vLLM launches its own kernels only")
    require(kernel == "one_stage" or (world == 2 and backend != "pynccl"), BARRED)
    return {
        "backend": backend,
        "kernel": kernel,
        "reads_input": reads_input,
        "blocks": blocks,
        "threads": CUSTOM_THREADS if backend == "custom" else 0,
        "world_size": world,
        "dtype": model.dtype,
    }

"""``allreduce``: what Detent runs in both engines.

It decides by size as the engine does and hands the result to three kernels that add the ranks in order, in float32,
and round once: each rank pushes its message to all and adds what arrives, or pulls the others' and adds them, or pulls
a share and hands it round. A message longer than the workspace is reduced in pieces, which changes no element. NCCL
and the switch add in orders of their own, so no assignment that uses them is legal.
"""

from __future__ import annotations

from detent.lang import knob, require, selection
from detent.programs.collectives import (
    PULL_BLOCKS,
    VECTOR,
    Call,
    assume_message,
    require_kernels,
    sglang_algorithm,
    vllm_kernel,
    wave_threads,
)
from detent.programs.facts import AllReduce, Engine, Gpu, Limits, Model, Parallel

# Bytes of a rank's part of the workspace: 1 KiB to 64 MiB, the sizes that both engines' thresholds were tuned over.
PARTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304, 8388608,
         16777216, 33554432, 67108864)


def engine_algorithm(engine: Engine, all_reduce: AllReduce, model: Model, world: int, nbytes: int,
                     in_graph: bool) -> str:
    """The engine's choice, told apart by how the ranks are added."""
    if engine.name == "sglang":
        algorithm, source = sglang_algorithm(all_reduce, engine, world, nbytes, in_graph)
        if source == "multicast":
            return "multicast"
        return ("one_shot" if algorithm in ("one_shot_push", "one_shot_pull")
                else "two_shot" if algorithm == "two_shot_pull" else "nccl")
    kernel = vllm_kernel(all_reduce, engine, model, world, nbytes)
    if kernel in ("one_stage", "two_stage", "two_shot"):
        return "one_shot" if kernel == "one_stage" else "two_shot"
    return "multicast" if kernel == "multimem" else "flashinfer" if kernel == "flashinfer" else "nccl"


@selection(family="allreduce")
def allreduce(model: Model, parallel: Parallel, all_reduce: AllReduce, gpu: Gpu, engine: Engine, limits: Limits,
              call: Call) -> dict[str, object]:
    """The algorithm, what the kernel reads, and its launch."""
    assume_message(model, limits, call.nbytes)
    require_kernels(all_reduce, gpu)
    require(engine.name in ("vllm", "sglang"), "the rules are vLLM's and SGLang's")
    require(2 <= parallel.tensor_parallel <= 8, "the kernels serve 2 to 8 ranks")
    require(all_reduce.nvlink, "the kernels need NVLink between every two GPUs")
    require(all_reduce.workspace_bytes in PARTS, "the workspace is a power of two from 1 KiB to 64 MiB")

    world = parallel.tensor_parallel
    workspace = knob("workspace", ("push", "pull"), default="push")
    algorithm = engine_algorithm(engine, all_reduce, model, world, call.nbytes, call.in_graph)
    kernel_adds = algorithm in ("one_shot", "two_shot")
    source = ("input" if algorithm == "nccl" or (kernel_adds and workspace == "pull" and call.in_graph)
              else "workspace")
    piece = min(call.nbytes, all_reduce.workspace_bytes)
    part = next((part for part in PARTS if piece <= part), all_reduce.workspace_bytes)
    vectors = part // VECTOR

    require(kernel_adds, "the ranks are added in order, which neither NCCL nor the switch does")
    require(algorithm != "two_shot" or workspace == "pull", "the two-shot kernel pulls")
    require(source != "input" or not kernel_adds or (workspace == "pull" and call.in_graph),
            "peers see a tensor that a graph registered")
    require(min(call.nbytes, all_reduce.workspace_bytes) <= part, "a rank's part of the workspace holds a piece")
    require(call.nbytes % VECTOR == 0, "the kernels move 16 bytes at a time")
    return {
        "algorithm": algorithm,
        "workspace": workspace,
        "source": source,
        "part": part,
        "blocks": gpu.num_sm if workspace == "push" else PULL_BLOCKS,
        "threads": wave_threads(-(-vectors // world) if algorithm == "two_shot" else vectors, gpu.num_sm),
        "in_place": algorithm == "two_shot" and source == "input",
        "fallback": not kernel_adds,
        "world_size": world,
        "dtype": model.dtype,
    }

"""How vLLM 0.26.0 and SGLang 0.5.17 choose an all-reduce on sm_90 by the bytes of the message.

vLLM: ``distributed/device_communicators/``, and ``csrc/custom_all_reduce.cuh`` for its own kernels. SGLang:
``custom_all_reduce_v2.py`` with its ``configs/`` there, and ``custom_all_reduce.cuh``. Sizes are bytes, ``nbytes``
those of one rank's tensor; ``world`` is the number of ranks.
"""

from __future__ import annotations

from detent.lang import Runtime, Unpinnable, assume, record, require
from detent.programs.facts import AllReduce, Engine, Gpu, Limits, Model

KIB = 1024
MIB = 1024 * 1024
VECTOR = 16  # bytes a thread moves at once
BARRED = "the kernel adds the ranks of every element in one order"

# ---- vLLM ------------------------------------------------------------------------------------------------------

CUSTOM_WORLDS = (2, 4, 6, 8)
CUSTOM_BESIDE_SYMM_MEM = {2: 64 * MIB, 4: 32 * MIB, 6: 512 * KIB, 8: 256 * KIB}  # where symmetric memory takes the rest
SYMM_MEM_MAX = {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB}
MULTIMEM_WORLDS = (4, 6, 8)  # symmetric memory then adds in the switch
FLASHINFER_MAX = {2: 64 * MIB, 4: 2 * MIB, 8: 512 * KIB}
NCCL_SYMM_MEM_BELOW = {4: 16 * KIB, 8: 16 * KIB}  # its range of sizes has a gap, both ends of which belong to it
NCCL_SYMM_MEM_ABOVE = {4: 512 * KIB, 8: 128 * KIB}
CUSTOM_BLOCKS = 36
CUSTOM_THREADS = 512



@record
class Call:
    """One all-reduce."""

    nbytes: Unpinnable[int]  # of the message: sizes buffers
    in_graph: Runtime[bool]  # captured or replayed in a CUDA graph


def dtype_bytes(model: Model) -> int:
    """Bytes of an activation."""
    return 4 if model.dtype == "fp32" else 2


def row_bytes(model: Model) -> int:
    """Bytes of one token's activations, of which a message has whole numbers."""
    return model.hidden_size * dtype_bytes(model)


def assume_message(model: Model, limits: Limits, nbytes: int) -> None:
    """What holds of every message within the limits."""
    assume(row_bytes(model) <= nbytes <= limits.max_num_batched_tokens * row_bytes(model))
    assume(nbytes % row_bytes(model) == 0)


def require_kernels(reduce: AllReduce, gpu: Gpu) -> None:
    """What a deployment must have for the rules to be those of its kernels."""
    require(not reduce.fused_rms_norm, "fused with RMSNorm, the all-reduce is chosen by the token count elsewhere")
    require(gpu.arch == 90, "the rules are those of sm_90")


def symm_mem_runs(reduce: AllReduce, engine: Engine, world: int) -> bool:
    """Whether vLLM has set up PyTorch's symmetric memory, which it does only where multicast works."""
    return reduce.symm_mem and reduce.multicast and not engine.deterministic and world in SYMM_MEM_MAX


def custom_limit(reduce: AllReduce, engine: Engine, world: int) -> int:
    """The first size that is too large for vLLM's own kernels, 0 where they do not run."""
    if not reduce.custom or engine.deterministic or world not in CUSTOM_WORLDS or (world > 2 and not reduce.nvlink):
        return 0
    if symm_mem_runs(reduce, engine, world):
        return min(reduce.max_bytes, CUSTOM_BESIDE_SYMM_MEM[world])
    return reduce.max_bytes


def takes_nccl_symm_mem(reduce: AllReduce, engine: Engine, world: int, nbytes: int) -> bool:
    """Whether NCCL on symmetric buffers takes the message; it leaves worlds below 4, of 5 to 7, and a range."""
    if not reduce.nccl_symm_mem or engine.deterministic or world not in NCCL_SYMM_MEM_BELOW:
        return False
    return nbytes <= NCCL_SYMM_MEM_BELOW[world] or nbytes >= NCCL_SYMM_MEM_ABOVE[world]


def takes_flashinfer(reduce: AllReduce, world: int, row: int, nbytes: int) -> bool:
    """Whether FlashInfer takes the message; its limit is one of whole rows of ``row`` bytes."""
    if not reduce.flashinfer or world not in FLASHINFER_MAX:
        return False
    return nbytes <= FLASHINFER_MAX[world] // row * row


def takes_custom(reduce: AllReduce, engine: Engine, world: int, nbytes: int) -> bool:
    """Whether vLLM's own kernels take the message."""
    return nbytes % VECTOR == 0 and nbytes < custom_limit(reduce, engine, world)


def takes_symm_mem(reduce: AllReduce, engine: Engine, model: Model, world: int, nbytes: int) -> bool:
    """Whether PyTorch's symmetric memory takes the message."""
    if not symm_mem_runs(reduce, engine, world) or model.dtype != "bf16":
        return False
    return nbytes % 4 == 0 and nbytes <= SYMM_MEM_MAX[world]


def vllm_kernel(reduce: AllReduce, engine: Engine, model: Model, world: int, nbytes: int) -> str:
    """The kernel of the first of vLLM's backends that takes the message (``CudaCommunicator.all_reduce``).

    Its own kernels: in one stage every rank adds the whole message; in two it adds a share and hands that round.
    Symmetric memory: in the switch, or in two stages where that does not pay.
    """
    if takes_nccl_symm_mem(reduce, engine, world, nbytes):
        return "nccl_symm_mem"
    if takes_flashinfer(reduce, world, row_bytes(model), nbytes):
        return "flashinfer"
    if takes_custom(reduce, engine, world, nbytes):
        if world == 2:
            return "one_stage"
        return "one_stage" if nbytes < (512 * KIB if world <= 4 else 256 * KIB) else "two_stage"
    if takes_symm_mem(reduce, engine, model, world, nbytes):
        return "multimem" if world in MULTIMEM_WORLDS else "two_shot"
    return "nccl"


def vllm_backend(kernel: str) -> str:
    """The backend that a kernel belongs to."""
    if kernel in ("one_stage", "two_stage"):
        return "custom"
    return "symm_mem" if kernel in ("multimem", "two_shot") else "pynccl" if kernel == "nccl" else kernel


def custom_blocks(nbytes: int) -> int:
    """Thread blocks of vLLM's own kernels."""
    return min(CUSTOM_BLOCKS, -(-(nbytes // VECTOR) // CUSTOM_THREADS))


# ---- SGLang ----------------------------------------------------------------------------------------------------

# By ranks: the largest message of the one-shot push, of the one-shot pull and of the two-shot pull, then the range of
# the two-shot pull through multicast. Tuned on H200.
GRAPH_SIZES = {
    2: (16 * MIB, 128 * MIB, 128 * MIB, 0, 0),
    3: (1280 * KIB, 1280 * KIB, 128 * MIB, 0, 0),
    4: (384 * KIB, 384 * KIB, 128 * MIB, 0, 0),
    5: (192 * KIB, 192 * KIB, 32 * MIB, 0, 0),
    6: (128 * KIB, 128 * KIB, 32 * MIB, 8 * MIB, 32 * MIB),
    7: (128 * KIB, 128 * KIB, 32 * MIB, 1 * MIB, 32 * MIB),
    8: (128 * KIB, 128 * KIB, 32 * MIB, 512 * KIB, 128 * MIB),
}
EAGER_SIZES = {
    2: (32 * MIB, 128 * MIB, 128 * MIB, 0, 0),
    3: (3 * MIB, 3 * MIB, 16 * MIB, 0, 0),
    4: (896 * KIB, 896 * KIB, 32 * MIB, 0, 32 * MIB),
    5: (384 * KIB, 384 * KIB, 32 * MIB, 0, 32 * MIB),
    6: (192 * KIB, 192 * KIB, 32 * MIB, 0, 32 * MIB),
    7: (128 * KIB, 128 * KIB, 32 * MIB, 0, 32 * MIB),
    8: (128 * KIB, 128 * KIB, 128 * MIB, 0, 128 * MIB),
}
PULL_BLOCKS = 64
MULTICAST_THREADS = 512
COPY_MAX = 8 * MIB  # up to which a kernel copies and not the driver


def has_multicast(reduce: AllReduce, world: int) -> bool:
    """Whether SGLang's kernels use multicast."""
    return reduce.multicast and world >= 4


def sglang_pick(reduce: AllReduce, world: int, sizes: tuple[int, int, int, int, int], nbytes: int) -> tuple[str, str]:
    """``(algorithm, source)`` by one row of a table, as ``_pick_algo`` reads it; the workspaces limit every size.

    The source is ``peer`` where the kernel reads the peers' tensors or copies of them, whichever it can reach.
    """
    push, pull, two_shot, low, high = [min(size, reduce.max_bytes) for size in sizes]
    if nbytes <= push:
        return "one_shot_push", "eager"
    if nbytes <= pull:
        return "one_shot_pull", "peer"
    if has_multicast(reduce, world) and low <= nbytes <= high:
        return "two_shot_pull", "multicast"
    if nbytes <= two_shot:
        return "two_shot_pull", "peer"
    return "nccl", "none"


def sglang_algorithm(reduce: AllReduce, engine: Engine, world: int, nbytes: int, in_graph: bool) -> tuple[str, str]:
    """``(algorithm, source)`` of SGLang. In a graph peers see the tensors themselves, and the table is another one."""
    if not reduce.custom or engine.deterministic or not reduce.nvlink:
        return "nccl", "none"
    if nbytes % VECTOR != 0:
        return "nccl", "none"
    graph_algorithm, graph_source = sglang_pick(reduce, world, GRAPH_SIZES[world], nbytes)
    eager_algorithm, eager_source = sglang_pick(reduce, world, EAGER_SIZES[world], nbytes)
    algorithm = graph_algorithm if in_graph else eager_algorithm
    source = graph_source if in_graph else eager_source
    return algorithm, (("graph" if in_graph else "eager") if source == "peer" else source)


def push_limit(reduce: AllReduce, world: int) -> int:
    """Bytes of SGLang's push workspace for one rank's message."""
    return min(reduce.max_bytes, max(GRAPH_SIZES[world][0], EAGER_SIZES[world][0]))


def pull_limit(reduce: AllReduce, world: int) -> int:
    """Bytes of SGLang's pull workspace."""
    return min(reduce.max_bytes, max(max(GRAPH_SIZES[world]), max(EAGER_SIZES[world])))


def wave_threads(vectors: int, num_sm: int) -> int:
    """The smallest block whose grid is one wave, at one vector a thread."""
    return next((threads for threads in (128, 256, 512) if -(-vectors // threads) <= num_sm), 1024)

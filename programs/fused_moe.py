"""How vLLM 0.26.0 and SGLang 0.5.17 configure their Triton fused-MoE kernels.

vLLM: ``model_executor/layers/fused_moe/fused_moe.py``; SGLang: ``layers/moe/moe_runner/triton_utils/``. ``m`` is the
number of tokens in the layer call, padded where a graph replays; a configuration is ``(BLOCK_SIZE_M, BLOCK_SIZE_N,
BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages)``.
"""

from __future__ import annotations

from detent.lang import Table, Unpinnable, assume, record, require
from detent.programs.facts import Engine, Gpu, Limits, Model, Moe, Parallel

INT_MAX = 2147483647
BLOCK_SIZES = (16, 32, 64, 128, 256)
NAIVE_SPARSITY = 4  # vLLM sorts unless this many token-expert pairs fit each expert's share
TRITON_WARPS = 4  # what Triton takes where a configuration names no number
TRITON_STAGES = 3
COMPILED_SUM = 32  # tokens up to which SGLang adds experts up in a torch.compile'd sum


@record
class Call:
    """One call of the expert layer."""

    num_tokens: Unpinnable[int]  # padded where a graph replays: sizes buffers and grids


def nearest_row(table: Table, m: int) -> int:
    """The row whose token count is nearest; of two as near, the one that comes first in the file."""
    return min(table, key=lambda row: abs(row - m))


def table_config(table: Table, row: int) -> tuple[int, int, int, int, int, int]:
    """The configuration in a row. Some shipped rows name neither warps nor stages."""
    config = table[row]
    return (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"], config["BLOCK_SIZE_K"], config["GROUP_SIZE_M"],
            config.get("num_warps", TRITON_WARPS), config.get("num_stages", TRITON_STAGES))


def has_default(engine: str, quantization: str, block_k: int | None) -> bool:
    """Whether the rule without a table names a whole configuration: vLLM's for integer weights whose scales belong to
    groups leaves two block sizes to other kernels."""
    return engine == "sglang" or block_k is None or quantization not in ("int8_w8a16", "int4_w4a16")


def default_config(engine: str, m: int, experts: int, quantization: str = "none", block_n: int | None = None,
                   block_k: int | None = None) -> tuple[int, int, int, int, int, int]:
    """The rule where no table is shipped for the shape and GPU. ``block_n`` and ``block_k``: the weights that share a
    scale, None where that is a whole tensor or column."""
    if quantization == "fp8_w8a8" and block_n is not None and block_k is not None:
        if engine == "sglang":
            return 64, block_n, block_k, 32, 4, 3
        narrow = m <= 8 and block_n % 64 == 0
        return ((16 if m <= 64 else 64), (64 if narrow else block_n), block_k, (1 if m <= 16 else 32), 4,
                (4 if narrow and m <= 4 else 3))
    if engine == "sglang":
        many = m > experts
        if quantization == "fp8_w8a8":
            return (128 if many else 64), (256 if many else 128), 128, (32 if many else 1), (8 if many else 4), 4
        return ((64 if many else 16), (64 if many else 32), (32 if many else 64), (8 if many else 1), TRITON_WARPS,
                TRITON_STAGES)
    block_m = 16 if m <= 32 else 32 if m <= 96 else 64 if m <= 512 else 128
    return (block_m, (64 if m <= 64 else 128), (128 if quantization == "fp8_w8a8" or m <= 64 else 64),
            (16 if m // experts > 128 else 1), (4 if m <= 128 else 8), (4 if m <= 32 else 3))


def engine_config(engine: Engine, moe: Moe, parallel: Parallel, m: int) -> tuple[int, int, int, int, int, int]:
    """The first GEMM's configuration, and the second's where it has no table: tables are not looked up in the
    deterministic mode."""
    if engine.deterministic:
        return 64, 64, 32, 8, TRITON_WARPS, TRITON_STAGES
    if moe.table is None:
        return default_config(engine.name, m, rank_experts(moe, parallel), moe.quantization, moe.block_n, moe.block_k)
    row = nearest_row(moe.table, m)
    return table_config(moe.table, row)


def second_config(engine: Engine, moe: Moe, block_m: int, block_n: int, block_k: int, group_m: int, num_warps: int,
                  num_stages: int, m: int) -> tuple[int, int, int, int, int, bool]:
    """What SGLang's second GEMM runs with, all but its block height, which is the first GEMM's as both read one sorted
    index: the other five values of a configuration, and whether operands are read by TMA.

    It takes the first GEMM's configuration where it has no table of its own.
    """
    if moe.down_table is None or engine.deterministic:
        return block_n, block_k, group_m, num_warps, num_stages, False
    row = nearest_row(moe.down_table, m)
    own_m, own_n, own_k, own_group, own_warps, own_stages = table_config(moe.down_table, row)
    return own_n, own_k, own_group, own_warps, own_stages, bool(moe.down_table[row].get("USE_TMA", False))


def swaps_ab(engine: Engine, quantization: str, block_m: int, block_n: int) -> bool:
    """Whether fp8 operands change places on sm_90, so that a low tile becomes a narrow one."""
    if engine.name == "sglang" and engine.deterministic:
        return False
    return quantization == "fp8_w8a8" and block_m < 64 and block_n >= 64


def rank_experts(moe: Moe, parallel: Parallel) -> int:
    """Experts on one rank."""
    return moe.num_experts // parallel.tensor_parallel if parallel.expert_parallel else moe.num_experts


def rank_width(moe: Moe, parallel: Parallel) -> int:
    """Columns of an expert's intermediate layer on one rank."""
    width = moe.moe_intermediate_size
    return width if parallel.expert_parallel else width // parallel.tensor_parallel


def operand_bytes(moe: Moe) -> int:
    """Bytes of the wider operand's element in shared memory."""
    return 1 if moe.quantization in ("fp8_w8a8", "int8_w8a8") else 2


def fits_naive(moe: Moe, parallel: Parallel, m: int) -> bool:
    """Whether vLLM gives every token-expert pair a block of its own instead of sorting pairs by expert."""
    grouped = moe.quantization in ("int8_w8a16", "int4_w4a16") and moe.block_k is not None
    if parallel.expert_parallel or grouped:
        return False
    return m * moe.num_experts_per_tok * NAIVE_SPARSITY <= moe.num_experts


def fits_short(moe: Moe, parallel: Parallel, m: int) -> bool:
    """Whether SGLang's sorted index has a block a pair instead of room for every expert's last, partial block."""
    return m * moe.num_experts_per_tok < rank_experts(moe, parallel) + 1


def align_path(engine: str, moe: Moe, parallel: Parallel, m: int) -> str:
    """How pairs are put in blocks of one expert: ``sort`` or ``naive`` in vLLM, ``full`` or ``short`` in SGLang."""
    if engine == "sglang":
        return "short" if fits_short(moe, parallel, m) else "full"
    return "naive" if fits_naive(moe, parallel, m) else "sort"


def combine_path(engine: Engine, top_k: int, m: int) -> str:
    """What adds up a token's experts. vLLM's kernel does not read the token count. SGLang adds two in PyTorch, and the
    variants inside its ``moe_sum_reduce`` all add in ascending order in float32 and are that kernel's own business."""
    if engine.name != "sglang":
        return "moe_sum"
    if top_k <= 2:
        return "none" if top_k == 1 else "add"
    return "compiled" if m <= COMPILED_SUM and not engine.deterministic else "reduce"


def assume_tokens(limits: Limits, num_tokens: int) -> None:
    """What holds of every call within the limits."""
    assume(1 <= num_tokens <= limits.max_num_batched_tokens)


def require_experts(moe: Moe, parallel: Parallel, gpu: Gpu) -> None:
    """What a deployment must have for the rules to be those of its kernels."""
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(moe.num_experts % parallel.tensor_parallel == 0 or not parallel.expert_parallel,
            "ranks have equal numbers of experts")
    require(moe.moe_intermediate_size % parallel.tensor_parallel == 0 or parallel.expert_parallel,
            "ranks have equal slices of an expert")


def require_default(engine: str, moe: Moe) -> None:
    """A configuration from somewhere."""
    require(moe.table is not None or has_default(engine, moe.quantization, moe.block_k),
            "a rule without a table exists")


def require_tile(moe: Moe, gpu: Gpu, block_m: int, block_n: int, block_k: int, num_stages: int) -> None:
    """What the kernel of one GEMM takes."""
    require(block_n in BLOCK_SIZES and block_k in BLOCK_SIZES, "BLOCK_SIZE_N and BLOCK_SIZE_K are powers of two")
    require((block_m + block_n) * block_k * operand_bytes(moe) * num_stages <= gpu.shared_memory,
            "the pipeline's stages fit in shared memory")


def require_rows(moe: Moe, num_tokens: int, block_m: int) -> None:
    """What both GEMMs take of the blocks that a sorted index has."""
    require(block_m % 16 == 0, "BLOCK_SIZE_M is a multiple of 16")
    require(num_tokens * moe.num_experts_per_tok * block_m <= INT_MAX, "rows are counted in a C int")


def launch_points(gemm: str, block_m: int, block_n: int, block_k: int, group_m: int, num_warps: int,
                  num_stages: int) -> dict[str, object]:
    """The six values of a configuration, of GEMM ``up`` or ``down``."""
    return {
        f"{gemm}.BLOCK_SIZE_M": block_m,
        f"{gemm}.BLOCK_SIZE_N": block_n,
        f"{gemm}.BLOCK_SIZE_K": block_k,
        f"{gemm}.GROUP_SIZE_M": group_m,
        f"{gemm}.num_warps": num_warps,
        f"{gemm}.num_stages": num_stages,
    }


def constant_points(gemm: str, model: Model, moe: Moe) -> dict[str, object]:
    """The kernel's other compile-time arguments. Each pair is a row of its own for the second GEMM."""
    up = gemm == "up"
    return {
        f"{gemm}.top_k": moe.num_experts_per_tok if up else 1,
        f"{gemm}.mul_routed_weight": moe.apply_router_weight_on_input if up else not moe.apply_router_weight_on_input,
        f"{gemm}.compute_type": model.dtype,
        f"{gemm}.use_fp8_w8a8": moe.quantization == "fp8_w8a8",
        f"{gemm}.use_int8_w8a8": moe.quantization == "int8_w8a8",
        f"{gemm}.use_int8_w8a16": moe.quantization == "int8_w8a16",
        f"{gemm}.use_int4_w4a16": moe.quantization == "int4_w4a16",
        f"{gemm}.per_channel_quant": False,
    }

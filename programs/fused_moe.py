"""How vLLM 0.26.0 and SGLang 0.5.17 configure their Triton fused-MoE kernels.

vLLM: ``model_executor/layers/fused_moe/fused_moe.py``; SGLang: ``layers/moe/moe_runner/triton_utils/``. ``m`` is the
number of tokens in the layer call, padded where a graph replays; a configuration is ``(BLOCK_SIZE_M, BLOCK_SIZE_N,
BLOCK_SIZE_K, GROUP_SIZE_M, num_warps, num_stages)``.
"""

from __future__ import annotations

from detent.lang import Table
from detent.programs.facts import Moe, Parallel

NAIVE_SPARSITY = 4  # vLLM sorts unless this many token-expert pairs fit each expert's share


def nearest_row(table: Table, m: int) -> int:
    """The row whose token count is nearest; of two as near, the one that comes first in the file."""
    return min(table, key=lambda row: abs(row - m))


def table_config(table: Table, row: int) -> tuple[int, int, int, int, int, int]:
    """The configuration in a row."""
    config = table[row]
    return (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"], config["BLOCK_SIZE_K"], config["GROUP_SIZE_M"],
            config["num_warps"], config["num_stages"])


def default_config(engine: str, m: int, experts: int) -> tuple[int, int, int, int, int, int]:
    """The rule for unquantised experts where no table is shipped for the shape and GPU."""
    if engine == "sglang":
        many = m > experts
        # The rule names neither warps nor stages: 4 and 3 are Triton's own defaults.
        return (64 if many else 16), (64 if many else 32), (32 if many else 64), (8 if many else 1), 4, 3
    block_m = 16 if m <= 32 else 32 if m <= 96 else 64 if m <= 512 else 128
    return (block_m, (64 if m <= 64 else 128), (128 if m <= 64 else 64), (16 if m // experts > 128 else 1),
            (4 if m <= 128 else 8), (4 if m <= 32 else 3))


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
    if parallel.expert_parallel or moe.quantization in ("int8_w8a16", "int4_w4a16"):
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


def combine_path(engine: str, m: int) -> str:
    """What adds up a token's experts. vLLM's kernel does not read the token count; the variants inside SGLang's
    ``moe_sum_reduce`` all add in ascending order in float32 and are that kernel's own business."""
    if engine == "sglang":
        return "compiled" if m <= 32 else "reduce"
    return "moe_sum"


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


def constant_points(gemm: str, top_k: int, mul_routed_weight: bool, dtype: str,
                    quantization: str) -> dict[str, object]:
    """The kernel's other compile-time arguments."""
    return {
        f"{gemm}.top_k": top_k,
        f"{gemm}.mul_routed_weight": mul_routed_weight,
        f"{gemm}.compute_type": dtype,
        f"{gemm}.use_fp8_w8a8": quantization == "fp8_w8a8",
        f"{gemm}.use_int8_w8a8": quantization == "int8_w8a8",
        f"{gemm}.use_int8_w8a16": quantization == "int8_w8a16",
        f"{gemm}.use_int4_w4a16": quantization == "int4_w4a16",
        f"{gemm}.per_channel_quant": False,
    }

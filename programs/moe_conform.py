"""How the engines' own answers about the fused MoE, recorded row by row, are compared with the helpers.

Plain Python beside the programs and no part of them. In a row a flag is 0 or 1, a quantisation is its place in
``QUANTIZATIONS``, a missing block size is 0, and a table is its token counts in the order of its file, filled up with
zeros. ``->row`` is the row chosen in that table; the configuration is what the rule without a table says, zeros where
it names no whole one.
"""

from __future__ import annotations

from detent.programs.facts import Engine, Moe, Parallel
from detent.programs.fused_moe import (
    combine_path,
    default_config,
    fits_naive,
    fits_short,
    has_default,
    nearest_row,
    swaps_ab,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

QUANTIZATIONS = ("none", "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16")
COMBINES = ("none", "add", "compiled", "reduce")
CONFIG = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
KEYS = tuple(f"key_{i}" for i in range(20))
COLUMNS = ("num_tokens", "top_k", "num_experts", "quantization", "block_n", "block_k", "expert_parallel", *KEYS)
VLLM_OUTPUTS = ("row", *CONFIG, "SWAP_AB", "naive")
SGLANG_OUTPUTS = ("row", *CONFIG, "swap_ab", "short", "combine")


def moe_facts(quantization: str, num_experts: int, top_k: int, block_n: int | None, block_k: int | None) -> Moe:
    """A model's experts as the gates read them."""
    return Moe(num_experts=num_experts, num_experts_per_tok=top_k, moe_intermediate_size=0, hidden_act="silu",
               quantization=quantization, apply_router_weight_on_input=False, block_n=block_n, block_k=block_k,
               table=None, down_table=None)


def engine_facts(name: str, deterministic: bool = False) -> Engine:
    """An engine as the helpers of the fused MoE read it."""
    return Engine(name=name, version="", deterministic=deterministic, page_size=1, kv_cache_dtype="bf16",
                  full_graphs=False, max_capture_size=0, graph_splits=0, cascade_attention=None,
                  fused_moe_sum_all_reduce=False)


def _common(engine: str, row: Mapping[str, int]) -> tuple[Moe, Parallel, tuple[int, ...]]:
    quantization = QUANTIZATIONS[row["quantization"]]
    block_n, block_k = row["block_n"] or None, row["block_k"] or None
    # On one rank, so that the number of experts is the rank's with and without whole experts a rank.
    parallel = Parallel(tensor_parallel=1, expert_parallel=bool(row["expert_parallel"]))
    keys = [row[key] for key in KEYS if row[key]]
    chosen = nearest_row({key: {} for key in keys}, row["num_tokens"])
    config = (0,) * len(CONFIG)
    if has_default(engine, quantization, block_k):
        config = default_config(engine, row["num_tokens"], row["num_experts"], quantization, block_n, block_k)
    swap = swaps_ab(engine_facts(engine), quantization, config[0], config[1])
    return moe_facts(quantization, row["num_experts"], row["top_k"], block_n, block_k), parallel, (
        chosen, *config, int(swap))


def vllm_row(row: Mapping[str, int]) -> tuple[int, ...]:
    """``VLLM_OUTPUTS`` of one call."""
    moe, parallel, values = _common("vllm", row)
    return *values, int(fits_naive(moe, parallel, row["num_tokens"]))


def sglang_row(row: Mapping[str, int]) -> tuple[int, ...]:
    """``SGLANG_OUTPUTS`` of one call."""
    moe, parallel, values = _common("sglang", row)
    combine = combine_path(engine_facts("sglang"), row["top_k"], row["num_tokens"])
    return *values, int(fits_short(moe, parallel, row["num_tokens"])), COMBINES.index(combine)


CONFORM_VLLM = ((COLUMNS, VLLM_OUTPUTS, vllm_row),)
CONFORM_SGLANG = ((COLUMNS, SGLANG_OUTPUTS, sglang_row),)

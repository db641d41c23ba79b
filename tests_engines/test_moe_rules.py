"""The rules of the fused MoE that need no table: configurations, gates, and how a token's experts are added up."""

from __future__ import annotations

from typing import Any

import moe_engines as engines
import pytest
from compare import GOLDEN, Draw, compare, sampled

from detent.programs.facts import Moe, Parallel
from detent.programs.fused_moe import (
    combine_path,
    default_config,
    engine_config,
    fits_naive,
    fits_short,
    has_default,
    rank_experts,
    swaps_ab,
)
from detent.programs.moe_conform import (
    COLUMNS,
    COMBINES,
    CONFIG,
    KEYS,
    QUANTIZATIONS,
    SGLANG_OUTPUTS,
    VLLM_OUTPUTS,
    engine_facts,
    moe_facts,
    sglang_row,
    vllm_row,
)

MAX_TOKENS = 1 << 17
BLOCKS = ((128, 128), (64, 128), (64, 64), (32, 64), (96, 64), (100, 32), (128, 64), (1, 128), (63, 128), (65, 128))
ENGINES = {(name, mode): engine_facts(name, mode) for name in ("vllm", "sglang") for mode in (False, True)}
PARALLEL = {mode: Parallel(tensor_parallel=1, expert_parallel=mode) for mode in (False, True)}


def deterministic(mode: bool) -> None:
    """Switch both engines' deterministic mode."""
    engines.vllm_envs.VLLM_BATCH_INVARIANT = mode
    engines.deterministic = mode


Blocks = tuple[int, int | None] | None


def weights(draw: Draw) -> tuple[str, Blocks]:
    """A quantisation and its blocks; integer weights have groups of input columns, written as blocks of 0 columns.
    Half a block is none."""
    quantization = draw.one_of(*QUANTIZATIONS)
    if quantization == "none" or draw.flag():
        return quantization, None
    if quantization.startswith("int") and quantization.endswith("a16"):
        return quantization, (0, draw.one_of(32, 64, 128))
    return quantization, draw.one_of(*BLOCKS, (64, None))


def shape_of(block: Blocks) -> list[int] | None:
    """As the engines are told."""
    return None if block is None or block[1] is None else [block[0], block[1]]


def moe_of(quantization: str, experts: int, top_k: int, block: Blocks) -> Moe:
    return moe_facts(quantization, experts, top_k, block[0] if block else None, block[1] if block else None)


def six(config: dict[str, int]) -> tuple[int, ...]:
    """Zeros where the rule names no whole configuration; Triton takes 4 warps and 3 stages where it names none."""
    if "BLOCK_SIZE_N" not in config:
        return (0,) * 6
    return *(config[field] for field in CONFIG[:4]), config.get("num_warps", 4), config.get("num_stages", 3)


def rule_case(draw: Draw) -> Any:
    experts = draw.number(1, 1024)
    quantization, block = weights(draw)
    gate = draw.one_of(129 * experts, experts)
    return draw.near(gate, 0, MAX_TOKENS), experts, quantization, block, draw.flag(0.05)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_rule_without_a_table(name: str) -> None:
    def run(case: Any) -> tuple[Any, Any]:
        m, experts, quantization, block, mode = case
        deterministic(mode)
        dtype, shape = (None if quantization == "none" else quantization), shape_of(block)
        if name == "vllm":
            theirs = engines.vllm.get_default_config(m, experts, 768, 2048, 8, dtype, shape)
        else:
            theirs = engines.sglang.get_default_config(m, experts, 768, 2048, 8, dtype, False, shape)
        deterministic(False)
        moe = moe_of(quantization, experts, 8, block)
        whole = mode or has_default(name, quantization, moe.block_k)
        return six(theirs), engine_config(ENGINES[name, mode], moe, PARALLEL[False], m) if whole else (0,) * 6

    helpers = [engine_config, default_config, has_default]
    module = "fused_moe" if name == "vllm" else "fused_moe_triton_config"
    sampled(Draw(f"{name} default rule", helpers), name, f"{module}.get_default_config",
            "engine_config, default_config", helpers, rule_case, run)


def test_vllm_leaves_few_pairs_unsorted() -> None:
    def case(draw: Draw) -> Any:
        experts, top_k = draw.number(1, 1024), draw.number(1, 32)
        quantization, block = weights(draw)
        return draw.near(experts // (4 * top_k), 0, MAX_TOKENS), top_k, experts, draw.flag(0.2), quantization, block

    def run(case: Any) -> tuple[Any, Any]:
        m, top_k, experts, mapped, quantization, block = case
        theirs = engines.vllm_naive(m, top_k, experts, mapped, quantization, shape_of(block))
        return theirs, fits_naive(moe_of(quantization, experts, top_k, block), PARALLEL[mapped], m)

    sampled(Draw("vllm naive", [fits_naive]), "vllm", "fused_moe._prepare_expert_assignment", "fits_naive",
            [fits_naive], case, run)


def test_sglang_makes_a_short_index_for_few_pairs() -> None:
    def case(draw: Draw) -> Any:
        parallel = draw.one_of(1, 2, 4, 8)
        experts, top_k = draw.number(1, 128) * parallel, draw.number(1, 32)
        whole = draw.flag()
        local = experts // parallel if whole else experts
        m = draw.near((local + 1) // top_k, 0, MAX_TOKENS)
        return m, top_k, experts, parallel, whole, draw.one_of(16, 32, 64, 128)

    def run(case: Any) -> tuple[Any, Any]:
        m, top_k, experts, ranks, whole, block_m = case
        moe, parallel = moe_of("none", experts, top_k, None), Parallel(tensor_parallel=ranks, expert_parallel=whole)
        local = experts // ranks if whole else experts
        if m * top_k * block_m == m * top_k + (local + 1) * (block_m - 1):
            m += 1
        return engines.sglang_short(m, top_k, local, block_m), fits_short(moe, parallel, m)

    helpers = [fits_short, rank_experts]
    sampled(Draw("sglang short", helpers), "sglang", "moe_align_block_size.moe_align_block_size", "fits_short", helpers,
            case, run)


def test_sglang_adds_up_experts() -> None:
    theirs = engines.Combine()

    def case(draw: Draw) -> Any:
        return draw.number(1, MAX_TOKENS), draw.number(1, 32), draw.flag(0.2)

    def run(case: Any) -> tuple[Any, Any]:
        m, top_k, mode = case
        deterministic(mode)
        found = theirs(m, top_k)
        deterministic(False)
        return found, combine_path(ENGINES["sglang", mode], top_k, m)

    assert combine_path(ENGINES["vllm", False], 8, 1) == "moe_sum"
    sampled(Draw("sglang combine", [combine_path]), "sglang", "fused_moe._fused_moe_kernel_sequence", "combine_path",
            [combine_path], case, run)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_fp8_operands_change_places(name: str) -> None:
    def case(draw: Draw) -> Any:
        return draw.number(1, 512), draw.number(1, 512), draw.one_of(*QUANTIZATIONS), draw.flag(0.2)

    def run(case: Any) -> tuple[Any, Any]:
        block_m, block_n, quantization, mode = case
        deterministic(mode)
        theirs = quantization == "fp8_w8a8" and (engines.vllm_swap if name == "vllm" else engines.sglang_swap)(
            block_m, block_n)
        deterministic(False)
        return theirs, swaps_ab(ENGINES[name, mode], quantization, block_m, block_n)

    place = "utils.enable_swap_ab" if name == "vllm" else "fused_moe_triton_kernels.should_enable_swap_ab"
    sampled(Draw(f"{name} swap", [swaps_ab]), name, place, "swaps_ab", [swaps_ab], case, run)


# ---- golden rows -----------------------------------------------------------------------------------------------

ORDERS = [
    (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096),
    (3328, 1024, 3072, 256, 768, 1792, 2560, 2816, 3584, 1536, 2048, 512, 3840, 1280, 2304, 4096),
    (3840, 1792, 3584, 512, 3072, 2048, 2816, 1280, 768, 4096, 3328, 2560, 1024, 2304, 1536, 256),
    (2048, 1792, 512, 3328, 3072, 2560, 768, 2816, 256, 4096, 1024, 2304, 1280, 3840, 1536, 3584),
    (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192),
    (8, 32, 64, 128, 256, 512, 1024),
    (96, 128, 256, 512, 1024),
    (128, 256, 512, 1024),
    (16, 64, 256),
    (512,),
]
"""Token counts of shipped tables in the order of their files, the awkward ones among them."""


def golden_case(draw: Draw) -> Any:
    order = draw.one_of(*ORDERS)
    i = draw.rng.randrange(len(order))
    tie = (order[i] + order[i - 1]) // 2
    experts, top_k = draw.number(1, 512), draw.number(1, 16)
    quantization, block = weights(draw)
    gate = draw.one_of(tie, tie, order[i], experts // (4 * top_k), (experts + 1) // top_k, experts, 129 * experts)
    return draw.near(gate, 1, MAX_TOKENS), top_k, experts, quantization, block, draw.flag(0.2), order


@pytest.mark.parametrize(("name", "file"), [("vllm", "moe_vllm-0.26.0.csv"), ("sglang", "moe_sglang-0.5.17.csv")])
def test_rows_for_the_ordinary_suite(monkeypatch: pytest.MonkeyPatch, name: str, file: str) -> None:
    """The whole answer of an engine for a call, with a table that has these token counts."""
    module = engines.vllm if name == "vllm" else engines.sglang
    outputs, ours = (VLLM_OUTPUTS, vllm_row) if name == "vllm" else (SGLANG_OUTPUTS, sglang_row)
    combine, rows = engines.Combine(), []
    helpers = [engine_config, default_config, fits_naive, fits_short, combine_path, swaps_ab]

    def run(case: Any) -> tuple[Any, Any]:
        m, top_k, experts, quantization, block, mapped, order = case
        dtype, shape = (None if quantization == "none" else quantization), shape_of(block)
        monkeypatch.setattr(module, "get_moe_configs", lambda *args, **kwargs: {key: {"key": key, "BLOCK_SIZE_M": 0}
                                                                                for key in order})
        if name == "vllm":
            row = engines.vllm_config(m, experts, 768, dtype, shape)["key"]
            config = six(module.get_default_config(m, experts, 768, 2048, top_k, dtype, shape))
            swap = quantization == "fp8_w8a8" and engines.vllm_swap(config[0], config[1])
            rest: tuple[int, ...] = (int(engines.vllm_naive(m, top_k, experts, mapped, quantization, shape)),)
        else:
            row = engines.sglang_config(m, experts, 768, dtype, shape)[0]["key"]
            config = six(module.get_default_config(m, experts, 768, 2048, top_k, dtype, False, shape))
            swap = quantization == "fp8_w8a8" and engines.sglang_swap(config[0], config[1])
            rest = int(m * top_k < experts + 1 if _same_size(m, top_k, experts, config[0])
                       else engines.sglang_short(m, top_k, experts, config[0])), COMBINES.index(combine(m, top_k))
        theirs = row, *config, int(swap), *rest
        keys = [*order, *(0,) * (len(KEYS) - len(order))]
        values = [m, top_k, experts, QUANTIZATIONS.index(quantization), *(side or 0 for side in block or (0, 0)),
                  int(mapped), *keys]
        rows.append([*values, *theirs])
        return theirs, ours(dict(zip(COLUMNS, values, strict=True)))

    draw = Draw(f"{name} golden rows", helpers)
    compare(name, "all of the above, for tests/golden", ours.__name__, helpers, draw.cases(golden_case, 2500), run)
    GOLDEN[file] = [*COLUMNS, *(f"->{output}" for output in outputs)], rows


def _same_size(m: int, top_k: int, experts: int, block_m: int) -> bool:
    """Whether both of SGLang's sizes are the same, so that its answer cannot be told from the size."""
    return m * top_k * block_m == m * top_k + (experts + 1) * (block_m - 1)

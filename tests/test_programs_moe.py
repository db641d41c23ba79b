"""The fused-MoE programs as plain Python on every deployment that has experts: rows, rules, points, conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from programs_support import changed, fact_records, run, varying

from detent.programs.fused_moe import default_config, nearest_row
from detent.programs.moe import moe
from detent.programs.moe_sglang_stock import moe_sglang_stock
from detent.programs.moe_vllm_stock import moe_vllm_stock
from detent.runtime.deployment import load

QWEN = ["qwen3-30b-a3b-tp4-h100", "qwen3-30b-a3b-tp4-h200"]
SGLANG = "qwen3-30b-a3b-tp4-h100-sglang"

NEAREST = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 6: 4, 7: 8, 12: 8, 13: 16, 20: 16, 28: 24, 40: 32, 56: 48, 80: 64, 112: 96,
           113: 128, 192: 128, 193: 256, 384: 256, 768: 512, 769: 1024, 1280: 1024, 1792: 1536, 2560: 2048, 3584: 3072,
           3585: 4096, 4097: 4096, 5000: 4096, 8192: 4096}


@pytest.mark.parametrize("deployment", [*QWEN, SGLANG])
def test_the_nearest_row_and_of_two_the_first(deployment: str) -> None:
    table = load(deployment).facts["moe"]["table"]
    assert list(table) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096]
    assert {m: nearest_row(table, m) for m in NEAREST} == NEAREST


def test_a_tie_follows_the_order_of_the_file() -> None:
    row = {"BLOCK_SIZE_M": 16}
    assert nearest_row({2: row, 4: row}, 3) == 2
    assert nearest_row({4: row, 2: row}, 3) == 4
    shipped = dict.fromkeys((3328, 1024, 3072, 256, 768, 1792, 2560, 2816, 3584, 1536, 2048, 512, 3840, 1280, 2304,
                             4096), row)  # E=16, N=3200, H100, fp8, in both engines
    assert {m: nearest_row(shipped, m) for m in (896, 640, 1)} == {896: 1024, 640: 768, 1: 256}
    assert nearest_row({16: row, 64: row, 256: row}, 1) == 16


FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def configuration(points: Mapping[str, Any], gemm: str) -> tuple[Any, ...]:
    return tuple(points[f"{gemm}.{name}"] for name in FIELDS)


@pytest.mark.parametrize(("m", "expected"), [
    (1, (16, 64, 64, 1, 4, 5)),
    (3, (16, 128, 64, 32, 4, 5)),
    (25, (16, 128, 64, 1, 8, 3)),
    (512, (64, 128, 64, 16, 4, 3)),
    (2048, (64, 128, 64, 32, 4, 2)),
    (8192, (128, 128, 64, 1, 8, 3)),
])
def test_rows_of_the_h200_table(m: int, expected: tuple[int, ...]) -> None:
    for program in (moe, moe_vllm_stock):
        points, violations = run(program, fact_records(program, QWEN[1]), num_tokens=m)
        assert not violations
        assert configuration(points, "up") == configuration(points, "down") == expected


@pytest.mark.parametrize(("program", "deployment", "points", "moved"), [
    (moe, QWEN[0], 39, 14),
    (moe, QWEN[1], 39, 11),
    (moe, SGLANG, 39, 15),
    (moe_vllm_stock, QWEN[0], 36, 13),
    (moe_vllm_stock, QWEN[1], 36, 11),
    (moe_sglang_stock, SGLANG, 38, 15),
])
def test_moe_at_every_kind_of_token_count(program: Any, deployment: str, points: int, moved: int) -> None:
    """No condition fails unpinned, and the points the token count moves are the solver's batch-dependent ones."""
    records = fact_records(program, deployment)
    samples = []
    for m in (*range(1, 300), *range(300, 8193, 37), 8192):
        sample, violations = run(program, records, num_tokens=m)
        assert not violations, m
        samples.append(sample)
    assert len(samples[0]) == points
    names = varying(samples)
    assert len(names) == moved
    assert "align" in names and ("combine" in names) == (deployment == SGLANG)
    assert "down.BLOCK_SIZE_K" in names or deployment == QWEN[1]


@pytest.mark.parametrize(("deployment", "m", "align", "combine"), [
    (QWEN[0], 4, "naive", "moe_sum"),
    (QWEN[0], 5, "sort", "moe_sum"),
    (SGLANG, 16, "short", "compiled"),
    (SGLANG, 17, "full", "compiled"),
    (SGLANG, 32, "full", "compiled"),
    (SGLANG, 33, "full", "reduce"),
])
def test_align_and_combine(deployment: str, m: int, align: str, combine: str) -> None:
    points, _ = run(moe, fact_records(moe, deployment), num_tokens=m)
    assert (points["align"], points["combine"]) == (align, combine)


def test_a_partial_last_block_of_k() -> None:
    """192 columns of the down projection are no multiple of 128: a row of the H100 table has such a block."""
    records = fact_records(moe, SGLANG)
    seen = {(p["down.BLOCK_SIZE_K"], p["down.even_Ks"], p["up.even_Ks"])
            for p in (run(moe, records, num_tokens=m)[0] for m in load(SGLANG).facts["moe"]["table"])}
    assert seen == {(64, True, True), (128, False, True)}


@pytest.mark.parametrize(("engine", "m", "expected"), [
    ("vllm", 32, (16, 64, 128, 1, 4, 4)),
    ("vllm", 33, (32, 64, 128, 1, 4, 3)),
    ("vllm", 64, (32, 64, 128, 1, 4, 3)),
    ("vllm", 65, (32, 128, 64, 1, 4, 3)),
    ("vllm", 97, (64, 128, 64, 1, 4, 3)),
    ("vllm", 129, (64, 128, 64, 1, 8, 3)),
    ("vllm", 513, (128, 128, 64, 1, 8, 3)),
    ("vllm", 128 * 129, (128, 128, 64, 16, 8, 3)),
    ("sglang", 128, (16, 32, 64, 1, 4, 3)),
    ("sglang", 129, (64, 64, 32, 8, 4, 3)),
])
def test_the_rule_without_a_table(engine: str, m: int, expected: tuple[int, ...]) -> None:
    assert default_config(engine, m, 128) == expected
    if m <= 8192:
        facts = changed(SGLANG if engine == "sglang" else QWEN[0])
        del facts["moe"]["table"]
        points, violations = run(moe, fact_records(moe, facts), num_tokens=m)
        assert configuration(points, "up") == configuration(points, "down") == expected and not violations


def test_expert_parallel_ranks_hold_whole_experts() -> None:
    """32 of 128 experts a rank, at full width; vLLM then always sorts, SGLang's short index ends at 32 pairs."""
    for deployment, m, align in ((QWEN[0], 1, "sort"), (SGLANG, 4, "short"), (SGLANG, 5, "full")):
        facts = changed(deployment, parallel={"expert_parallel": True})
        points, violations = run(moe, fact_records(moe, facts), num_tokens=m)
        assert (points["align"], points["filter_expert"], violations) == (align, True, [])
    assert points["down.even_Ks"] is True


@pytest.mark.parametrize(("change", "message"), [
    ({"gpu": {"arch": 100}}, "sm_90"),
    ({"gpu": {"shared_memory": 64 * 1024}}, "the pipeline's stages fit in shared memory"),
    ({"engine": {"name": "other"}}, "the rules are"),
    ({"moe": {"table": {1: dict.fromkeys(FIELDS, 8)}}}, "BLOCK_SIZE_M is a multiple of 16"),
    ({"moe": {"table": {1: dict.fromkeys(FIELDS, 48)}}}, "powers of two"),
    ({"moe": {"table": {1: dict.fromkeys(FIELDS, 16)}}}, "4 or 8 warps"),
    ({"moe": {"moe_intermediate_size": 766}}, "ranks have equal slices of an expert"),
    ({"moe": {"num_experts": 126}, "parallel": {"expert_parallel": True}}, "ranks have equal numbers of experts"),
    ({"limits": {"max_num_batched_tokens": 2**29}}, "rows are counted in a C int"),
])
@pytest.mark.parametrize("program", [moe, moe_vllm_stock])
def test_moe_facts_that_no_kernel_serves(program: Any, change: Mapping[str, Mapping[str, Any]], message: str) -> None:
    facts = changed(QWEN[0], **change)
    _, violations = run(program, fact_records(program, facts), num_tokens=facts["limits"]["max_num_batched_tokens"])
    assert any(message in v.message for v in violations)


def test_integer_weights_in_groups_need_a_table() -> None:
    """vLLM's rule for them leaves two block sizes to other kernels; fp8 has a whole rule."""
    facts = changed(QWEN[0], moe={"quantization": "fp8_w8a8"})
    points, violations = run(moe, fact_records(moe, facts), num_tokens=7)
    assert points["up.use_fp8_w8a8"] is points["down.use_fp8_w8a8"] is True and not violations
    del facts["moe"]["table"]
    assert run(moe, fact_records(moe, facts), num_tokens=7)[1] == []
    facts["moe"] |= {"quantization": "int4_w4a16", "block_n": 0, "block_k": 64}
    _, violations = run(moe, fact_records(moe, facts), num_tokens=7)
    assert [v.message for v in violations] == ["a rule without a table exists"]


def test_blocks_of_weights_bound_a_block_of_k() -> None:
    """fp8 with a scale for 128 by 128 weights: vLLM cuts a table's BLOCK_SIZE_K to what shares a scale, has a rule of
    its own without a table, and swaps operands for low tiles."""
    facts = changed(QWEN[0], moe={"quantization": "fp8_w8a8", "block_n": 128, "block_k": 64})
    points, _ = run(moe_vllm_stock, fact_records(moe_vllm_stock, facts), num_tokens=32)
    assert load(QWEN[0]).facts["moe"]["table"][32]["BLOCK_SIZE_K"] == 128 and points["up.BLOCK_SIZE_K"] == 64
    assert points["up.SWAP_AB"] is points["down.SWAP_AB"] is True
    del facts["moe"]["table"]
    found = [run(moe_vllm_stock, fact_records(moe_vllm_stock, facts), num_tokens=m)[0] for m in (4, 8, 9, 16, 17, 65)]
    assert [configuration(points, "up") for points in found] == [
        (16, 64, 64, 1, 4, 4), (16, 64, 64, 1, 4, 3), (16, 128, 64, 1, 4, 3), (16, 128, 64, 1, 4, 3),
        (16, 128, 64, 32, 4, 3), (64, 128, 64, 32, 4, 3)]


def test_the_deterministic_modes_take_one_configuration() -> None:
    for program, deployment in ((moe_vllm_stock, QWEN[0]), (moe_sglang_stock, SGLANG)):
        records = fact_records(program, changed(deployment, engine={"deterministic": True}))
        for m in (1, 33, 4096):
            points, violations = run(program, records, num_tokens=m)
            assert configuration(points, "up") == configuration(points, "down") == (64, 64, 32, 8, 4, 3)
            assert points["combine"] == ("reduce" if program is moe_sglang_stock else "moe_sum") and not violations


def test_the_second_gemm_has_a_table_of_its_own() -> None:
    """Rows at other token counts; the block height stays the first GEMM's, the last value is whether TMA reads."""
    down = {1: dict.fromkeys(FIELDS, 16) | {"BLOCK_SIZE_M": 128, "num_warps": 4, "num_stages": 2},
            200: {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "USE_TMA": True}}
    records = fact_records(moe_sglang_stock, changed(SGLANG, moe={"down_table": down}))
    for m, expected, tma in ((100, (16, 16, 16, 16, 4, 2), False), (101, (16, 64, 32, 8, 4, 3), True)):
        points, violations = run(moe_sglang_stock, records, num_tokens=m)
        assert configuration(points, "down") == expected and points["down.use_tma"] is tma and not violations
        assert configuration(points, "up") == configuration(run(moe, fact_records(moe, SGLANG), num_tokens=m)[0], "up")


@pytest.mark.parametrize(("top_k", "m", "combine"), [
    (1, 1, "none"), (2, 1, "add"), (3, 32, "compiled"), (3, 33, "reduce")])
def test_sglang_adds_one_or_two_experts_without_a_kernel(top_k: int, m: int, combine: str) -> None:
    records = fact_records(moe_sglang_stock, changed(SGLANG, moe={"num_experts_per_tok": top_k}))
    assert run(moe_sglang_stock, records, num_tokens=m)[0]["combine"] == combine


def test_the_fused_sum_is_refused() -> None:
    facts = changed(SGLANG, engine={"fused_moe_sum_all_reduce": True})
    _, violations = run(moe, fact_records(moe, facts), num_tokens=7)
    assert [v.message for v in violations] == ["the fused sum and all-reduce adds with atomics, in no fixed order"]

"""The attention programs as plain Python on every deployment: points, conditions, values worked out elsewhere."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from programs_support import attention_batch, changed, fact_records, on_gpus, run, varying

from detent.lang import knobs
from detent.programs import fa3
from detent.programs.attention import attention
from detent.programs.fa3_stock import batch_blocks_of, device_splits
from detent.programs.fa3_vllm_stock import fa3_vllm_stock
from detent.programs.moe import moe
from detent.programs.registry import PROGRAMS
from detent.runtime.deployment import load

LLAMA = ["llama-3.1-70b-tp4-h100", "llama-3.1-70b-tp4-h200"]
QWEN = ["qwen3-30b-a3b-tp4-h100", "qwen3-30b-a3b-tp4-h200"]
SGLANG = "qwen3-30b-a3b-tp4-h100-sglang"
COVER = "the splits cover the longest request"


def test_the_registry_names_selections_and_imports_nothing(root: Path) -> None:
    assert list(PROGRAMS) == sorted(PROGRAMS)
    families: dict[str, set[str]] = {}
    for name, place in PROGRAMS.items():
        module, function = place.split(":")
        families.setdefault(getattr(importlib.import_module(module), function).__detent_selection__, set()).add(name)
    assert {family: {name for name in names if not name.endswith("-stock")} for family, names in families.items()} == {
        family: {family} | ({f"{family}-cpu"} & set(PROGRAMS))
        for family in ("attention", "moe", "allreduce", "gemm", "norm", "sampler")}
    assert sum(name.endswith("-cpu") for name in PROGRAMS) == 4
    code = "import json, sys, detent.programs.registry; print(json.dumps([m for m in sys.modules if 'detent' in m]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    ours = {name for name in json.loads(done.stdout) if not name.startswith("__editable__")}  # pip's own finder
    assert ours == {"detent", "detent.programs", "detent.programs.registry"}


@pytest.mark.parametrize("deployment", on_gpus())
def test_a_deployment_is_called_by_what_it_holds(deployment: str) -> None:
    """Model, tensor-parallel degree, GPU, and the engine unless it is vLLM; what one GPU or a dense model lacks is
    not there."""
    facts = load(deployment).facts
    world, gpu = facts["parallel"]["tensor_parallel"], facts["gpu"]["name"].split("_")[1].lower()
    engine = "" if facts["engine"]["name"] == "vllm" else f"-{facts['engine']['name']}"
    assert deployment == f"{facts['model']['name'].lower()}-tp{world}-{gpu}{engine}"
    assert ("all_reduce" in facts, "moe" in facts) == (world > 1, facts["model"]["name"] == "Qwen3-30B-A3B")
    assert facts["engine"]["version"] == ("0.5.17" if engine else "0.26.0")


def test_a_dense_model_has_no_experts() -> None:
    with pytest.raises(KeyError, match="moe"):
        fact_records(moe, LLAMA[0])


# ---- attention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deployment", [*LLAMA, *QWEN, SGLANG])
def test_attention_on_random_batches(deployment: str) -> None:
    """26 points, 4 of them moved by the batch; unpinned, only the covering condition can fail."""
    records = fact_records(attention, deployment)
    rng = random.Random(deployment)
    samples, failed = [], set()
    for _ in range(150):
        _, inputs = attention_batch(rng, records["limits"], records["engine"])
        points, violations = run(attention, records, **inputs)
        samples.append(points)
        failed |= {(v.kind, v.message) for v in violations}
        with knobs(split_stride=16384):
            wide, _ = run(attention, records, **inputs)
        assert wide == points | {"split_stride": 16384}
    assert len(samples[0]) == 26
    assert varying(samples) == {"use_one_mma_wg", "num_splits", "split", "prepare_varlen_pdl"}
    assert failed == {("require", COVER)}
    assert all(s["split"] == (s["num_splits"] > 1) and 1 <= s["num_splits"] <= 256 for s in samples)


def decode(b: int, k: int, **others: Any) -> dict[str, Any]:
    """The inputs of a decode batch whose longest request has ``k`` KV tokens (page table of one-token pages)."""
    return {"b": b, "max_seqlen_q": 1, "max_seqlen_k": k, "total_q": b, "table_width": k, "in_graph": False} | others


def test_points_of_a_known_call() -> None:
    points, _ = run(attention, fact_records(attention, changed(QWEN[0], engine={"full_graphs": False})),
                    **decode(8, 8192, table_width=512))
    assert points == {
        "arch": 90, "head_dim": 128, "head_dim_v": 128, "cluster_m": 1, "element": "bf16", "element_out": "bf16",
        "is_causal": True, "is_local": False, "has_softcap": False, "varlen": True, "paged_kv_non_tma": True,
        "append_kv": False, "has_qv": False, "only_qv": False, "pack_gqa": True, "split": True, "v_colmajor": False,
        "use_one_mma_wg": True, "sparse": False, "num_splits": 55, "split_stride": 256, "use_dynamic_split": False,
        "prepare_varlen_pdl": True, "varlen_sort_batches": False, "head_swizzle": True, "num_sm": 132,
    }


def test_limits_are_the_kernels_256() -> None:
    """One decode row over 320 KV blocks on 132 SMs: s splits fill s / 132 of the wave, and 85 % of the best will do.
    Stock's best is its limit of 128, ours the whole wave; with more SMs than that ours passes 128."""
    ours, stock = (fact_records(program, changed(QWEN[0], engine={"full_graphs": False}))
                   for program in (attention, fa3_vllm_stock))
    call = decode(1, 40960, table_width=2560)
    assert run(attention, ours, **call)[0]["num_splits"] == 113
    blocks = {"batch_blocks": 320, "batch_blocks_one_wg": 320, "own_q_len": 1, "own_kv_len": 40960,
              "common_prefix": 0}
    del call["table_width"]
    assert run(fa3_vllm_stock, stock, **call, **blocks)[0]["num_splits"] == 109
    many = fact_records(attention, changed(QWEN[0], gpu={"num_sm": 300}, engine={"full_graphs": False}))
    assert run(attention, many, **decode(1, 40960, table_width=2560))[0]["num_splits"] == 218


@pytest.mark.parametrize(("q", "one_wg"), [(8, True), (9, False)])
def test_one_warpgroup_flips_between_8_and_9_query_tokens(q: int, one_wg: bool) -> None:
    points, _ = run(attention, fact_records(attention, QWEN[0]), b=1, max_seqlen_q=q, max_seqlen_k=64, total_q=q,
                    table_width=4, in_graph=False)
    assert points["use_one_mma_wg"] is one_wg


@pytest.mark.parametrize(("q", "gathered"), [(8, True), (16, True), (17, False)])
def test_pages_of_whole_blocks_are_read_by_tma_when_rows_outgrow_a_tile(q: int, gathered: bool) -> None:
    for page_size, expected in ((128, gathered), (96, True)):
        facts = fact_records(attention, changed(QWEN[0], engine={"page_size": page_size}))
        points, violations = run(attention, facts, b=1, max_seqlen_q=q, max_seqlen_k=64, total_q=q, table_width=1,
                                 in_graph=False)
        assert points["paged_kv_non_tma"] is expected and points["pack_gqa"] is True
        assert {v.message for v in violations} <= {COVER}


@pytest.mark.parametrize("program", [attention, fa3_vllm_stock])
@pytest.mark.parametrize(("b", "pdl"), [(992, True), (993, False)])
def test_one_prepare_block_covers_992_sequences(program: Any, b: int, pdl: bool) -> None:
    facts = fact_records(program, QWEN[0])
    if program is attention:
        points, _ = run(program, facts, **decode(b, 8192))
    else:
        inputs = decode(b, 8192) | {"batch_blocks": 64 * b, "batch_blocks_one_wg": 64 * b, "own_q_len": 1,
                                    "own_kv_len": 8192, "common_prefix": 0}
        del inputs["table_width"]
        points, violations = run(program, facts, **inputs)
        assert not violations and (points["num_splits"] == 1) == (not pdl)
    assert points["prepare_varlen_pdl"] is pdl


@pytest.mark.parametrize(("total_q", "expected"), [(512, 32), (513, 57)])
def test_vllm_asks_for_32_splits_where_a_graph_may_replay(total_q: int, expected: int) -> None:
    points, _ = run(attention, fact_records(attention, LLAMA[0]), b=512, max_seqlen_q=2, max_seqlen_k=32768,
                    total_q=total_q, table_width=2048, in_graph=False)
    assert points["num_splits"] == expected


def test_sglang_counts_the_batch_and_reads_the_page_table() -> None:
    """In eager decode SGLang's heuristic sees the table's width; in a graph it sees the longest context."""
    records = fact_records(attention, SGLANG)
    narrow, wide, graph = (run(attention, records, **decode(16, 256, **change))[0]["num_splits"]
                           for change in ({}, {"table_width": 8192}, {"in_graph": True}))
    assert (narrow, wide, graph) == (1, 55, 57)
    assert run(attention, records, **decode(512, 256, in_graph=True))[0]["num_splits"] == 2
    assert fa3.seqlen_k(records["engine"], records["limits"], True, 256, 256) == 40960


def test_only_masks_that_hide_enough_are_needed() -> None:
    """Head dim 64 drops the causal mask in pure decode, a window counts only where a sequence outgrows it."""
    small = changed(QWEN[0], model={"head_dim": 64, "head_dim_v": 64})
    window = changed(QWEN[0], model={"window_left": 1023, "window_right": 0})
    masks = {}
    for name, facts in (("full", QWEN[0]), ("small", small), ("window", window)):
        records = fact_records(attention, facts)
        for q, k in ((1, 1024), (1, 1025), (2, 1025)):
            points, violations = run(attention, records, b=1, max_seqlen_q=q, max_seqlen_k=k, total_q=q,
                                     table_width=65, in_graph=False)
            masks[name, q, k] = (points["is_causal"], points["is_local"])
            assert {v.message for v in violations} <= {COVER, "splits begin at a KV block"}
    causal, local, none = (True, False), (False, True), (False, False)
    assert masks == {
        ("full", 1, 1024): causal, ("full", 1, 1025): causal, ("full", 2, 1025): causal,
        ("small", 1, 1024): none, ("small", 1, 1025): none, ("small", 2, 1025): causal,
        ("window", 1, 1024): causal, ("window", 1, 1025): local, ("window", 2, 1025): local,
    }


def test_the_l2_rule_splits_long_unmasked_caches() -> None:
    """No recorded call reaches it: 264 row blocks and more, no mask, KV beyond 50 MiB."""
    mib = 1024 * 1024
    for size, m_blocks, masked, expected in ((120 * mib, 264, False, 3), (120 * mib, 264, True, 1),
                                             (120 * mib, 263, False, 1), (50 * mib, 264, False, 1),
                                             (50 * mib + 1, 264, False, 2), (9000 * mib, 264, False, 128)):
        assert fa3.split_heuristic(300, 132, 1000, m_blocks, size, masked, 128, 132) == expected


@pytest.mark.parametrize(("change", "message"), [
    ({"gpu": {"arch": 100}}, "the rules are those of sm_90"),
    ({"model": {"dtype": "fp32"}}, "the kernels are those of bf16 queries"),
    ({"model": {"dtype": "fp16"}}, "the kernels are those of bf16 queries"),  # the point element would say bf16
    ({"engine": {"name": "other"}}, "the rules are"),
    ({"model": {"num_attention_heads": 30}}, "ranks have equal numbers of query heads"),
    ({"model": {"num_key_value_heads": 12}}, "KV heads serve equal groups"),
    ({"model": {"head_dim": 100, "head_dim_v": 100}}, "kernels for these head dims exist"),
    ({"model": {"head_dim": 264, "head_dim_v": 264}}, "kernels for these head dims exist"),
    ({"model": {"head_dim_v": 256}}, "kernels for these head dims exist"),
    ({"model": {"head_dim": 72, "head_dim_v": 72}, "engine": {"kv_cache_dtype": "e4m3"}},
     "kernels for these head dims exist"),
])
@pytest.mark.parametrize("program", [attention, fa3_vllm_stock])
def test_facts_that_no_kernel_serves(program: Any, change: Mapping[str, Mapping[str, Any]], message: str) -> None:
    inputs: dict[str, Any] = {"b": 1, "max_seqlen_q": 1, "max_seqlen_k": 64, "total_q": 1, "in_graph": False}
    if program is attention:
        inputs["table_width"] = 4
    else:
        inputs |= {"batch_blocks": 9, "batch_blocks_one_wg": 9, "own_q_len": 1, "own_kv_len": 64, "common_prefix": 0}
    _, violations = run(program, fact_records(program, changed(QWEN[0], **change)), **inputs)
    assert any(message in v.message for v in violations)


# ---- the device's own split counts -----------------------------------------------------------------------------


def stock_call(records: Mapping[str, Any], own: tuple[int, int], others: list[tuple[int, int]]) -> dict[str, Any]:
    """Points of ``fa3-vllm-stock`` for a request among others, each (query tokens, KV tokens); head dim 128."""
    lengths = [own, *others]
    group = fa3.rank_group(records["model"], records["parallel"])
    points, violations = run(
        fa3_vllm_stock, records, b=len(lengths), max_seqlen_q=max(q for q, _ in lengths),
        max_seqlen_k=max(k for _, k in lengths), total_q=sum(q for q, _ in lengths), in_graph=False, common_prefix=0,
        batch_blocks=batch_blocks_of(lengths, group, 128, 128),
        batch_blocks_one_wg=batch_blocks_of(lengths, group, 64, 128), own_q_len=own[0], own_kv_len=own[1])
    assert not violations
    return points


@pytest.mark.parametrize(("others", "eager", "in_graphs"), [
    ([], (7, 7), 8),
    ([32768], (57, 2), 2),
    ([1024] * 7, (7, 4), 4),
    ([8192] * 15, (55, 1), 1),
    ([128] * 63, (7, 4), 4),
])
def test_neighbours_change_the_splits_of_a_stock_request(others: list[int], eager: tuple[int, int],
                                                         in_graphs: int) -> None:
    """Llama-3.1-70B at degree 4, our request decoding at 1,024 KV tokens beside others."""
    for full_graphs in (False, True):
        records = fact_records(fa3_vllm_stock, changed(LLAMA[0], engine={"full_graphs": full_graphs}))
        points = stock_call(records, (1, 1024), [(1, k) for k in others])
        expected = (32, in_graphs) if full_graphs else eager
        assert (points["num_splits"], points["splits"]) == expected


@pytest.mark.parametrize(("b", "splits"), [(1, 8), (2, 8), (4, 8), (8, 4), (16, 3), (32, 2), (64, 1), (512, 1)])
def test_batch_size_changes_the_splits_of_a_stock_request(b: int, splits: int) -> None:
    points = stock_call(fact_records(fa3_vllm_stock, LLAMA[0]), (1, 1024), [(1, 1024)] * (b - 1))
    assert (points["num_splits"], points["splits"]) == (32, splits)


@pytest.mark.parametrize("deployment", [*LLAMA, *QWEN])
def test_stock_attention_on_random_batches(deployment: str) -> None:
    """As shipped, unpinned, no condition fails; both totals bound what one request adds to them."""
    records = fact_records(fa3_vllm_stock, deployment)
    rng = random.Random(deployment)
    samples = []
    for _ in range(150):
        lengths, _ = attention_batch(rng, records["limits"], records["engine"])
        own = lengths.pop(rng.randrange(len(lengths)))
        points = stock_call(records, own, lengths)
        samples.append(points)
        assert 1 <= points["splits"] <= points["num_splits"] <= 128
    assert varying(samples) == {"use_one_mma_wg", "block_m", "num_splits", "split", "use_dynamic_split", "splits",
                                "prepare_varlen_pdl"}
    assert {s["block_n"] for s in samples} == {128}


def test_no_fixed_count_above_one_is_what_the_device_counts() -> None:
    """For every count there is a batch in which a request gets fewer, so only one split can be promised."""
    for num_splits in range(2, 129):
        assert device_splits(1, 1, 132, 1, num_splits) == 1
        assert device_splits(320, 1, 132, 320, num_splits) > 1


def test_totals_smaller_than_the_request_are_refused() -> None:
    records = fact_records(fa3_vllm_stock, QWEN[0])
    inputs = decode(1, 1024) | {"batch_blocks": 7, "batch_blocks_one_wg": 8, "own_q_len": 1, "own_kv_len": 1024,
                                 "common_prefix": 0}
    del inputs["table_width"]
    assert [v.kind for v in run(fa3_vllm_stock, records, **inputs)[1]] == ["assume"]

"""The stock attention programs of SGLang and of FlashAttention-3's authors, and vLLM's cascades, as plain Python."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
from programs_support import attention_batch, changed, fact_records, run, varying

from detent.programs.fa3 import cascade_pays, rank_group
from detent.programs.fa3_sglang_stock import fa3_sglang_stock
from detent.programs.fa3_stock import batch_blocks_of
from detent.programs.fa3_upstream_stock import fa3_upstream_stock
from detent.programs.fa3_vllm_stock import fa3_vllm_stock

LLAMA = "llama-3.1-70b-tp4-h100"
SGLANG = "qwen3-30b-a3b-tp4-h100-sglang"


def on_sglang(**sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Llama-3.1-70B at degree 4 on SGLang: pages of one token."""
    engine = {"name": "sglang", "page_size": 1, "graph_splits": 0} | dict(sections.pop("engine", {}))
    return changed(LLAMA, engine=engine, **sections)


def stock_call(program: Any, records: Mapping[str, Any], own: tuple[int, int], others: list[tuple[int, int]],
               in_graph: bool = False) -> dict[str, Any]:
    """Points for a request among others, each (query tokens, KV tokens); head dim 128."""
    lengths = [own, *others]
    group, longest = rank_group(records["model"], records["parallel"]), max(k for _, k in lengths)
    inputs: dict[str, Any] = {
        "b": len(lengths), "max_seqlen_q": max(q for q, _ in lengths), "max_seqlen_k": longest,
        "total_q": sum(q for q, _ in lengths), "table_width": -(-longest // records["engine"].page_size),
        "in_graph": in_graph, "batch_blocks": batch_blocks_of(lengths, group, 128, 128), "own_q_len": own[0],
        "own_kv_len": own[1]}
    if program is fa3_sglang_stock:
        inputs["batch_blocks_one_wg"] = batch_blocks_of(lengths, group, 64, 128)
    points, violations = run(program, records, **inputs)
    assert not violations
    return points


@pytest.mark.parametrize(("others", "asked", "own"), [
    ([], 7, 7),
    ([32768], 57, 2),
    ([1024] * 7, 7, 4),
    ([8192] * 15, 29, 1),
    ([128] * 63, 7, 4),
])
def test_sglang_counts_the_batchs_query_tokens(others: list[int], asked: int, own: int) -> None:
    """Our request decodes at 1,024 KV tokens beside others; vLLM asks for 55 splits beside 15 of 8,192 tokens."""
    points = stock_call(fa3_sglang_stock, fact_records(fa3_sglang_stock, on_sglang()), (1, 1024),
                        [(1, k) for k in others])
    assert (points["num_splits"], points["splits"]) == (asked, own)


def test_a_graph_of_sglang_replays_with_the_counts_of_live_lengths() -> None:
    """The captured kernel was told the longest context, the count ahead of it the batch's: 8 blocks ask for 7 splits
    and not for the 57 that the kernel has room for. A layer with a window counts by itself, up to those."""
    records = fact_records(fa3_sglang_stock, on_sglang())
    graph = stock_call(fa3_sglang_stock, records, (1, 1024), [], in_graph=True)
    eager = stock_call(fa3_sglang_stock, records, (1, 1024), [])
    assert (graph["num_splits"], eager["num_splits"]) == (57, 7) and graph["splits"] == eager["splits"] == 7
    windowed = fact_records(fa3_sglang_stock, on_sglang(model={"window_left": 131072}))
    assert stock_call(fa3_sglang_stock, windowed, (1, 1024), [], in_graph=True)["splits"] == 8


@pytest.mark.parametrize("program", [fa3_sglang_stock, fa3_upstream_stock])
def test_nothing_is_split_above_992_sequences(program: Any) -> None:
    """The bound may stay above one; the device then gives every sequence one split."""
    records = fact_records(program, changed(SGLANG, engine={"page_size": 16}))
    for b, pdl in ((992, True), (993, False)):
        points = stock_call(program, records, (1, 8192), [(1, 1)] * (b - 1))
        assert points["prepare_varlen_pdl"] is pdl
        assert (points["splits"] == 1) == (not pdl or program is fa3_sglang_stock)
        assert (points["num_splits"] > 1) == (program is fa3_upstream_stock)


@pytest.mark.parametrize(("program", "moved"), [
    (fa3_sglang_stock, {"use_one_mma_wg", "block_m", "num_splits", "split", "use_dynamic_split", "splits",
                        "prepare_varlen_pdl"}),
    (fa3_upstream_stock, {"num_splits", "split", "use_dynamic_split", "splits", "prepare_varlen_pdl"}),
])
def test_random_batches(program: Any, moved: set[str]) -> None:
    """As shipped, unpinned, no condition fails."""
    records = fact_records(program, SGLANG)
    rng = random.Random(program.__name__)
    samples = []
    for _ in range(150):
        lengths, inputs = attention_batch(rng, records["limits"], records["engine"])
        own = lengths.pop(rng.randrange(len(lengths)))
        points = stock_call(program, records, own, lengths, inputs["in_graph"])
        samples.append(points)
        assert 1 <= points["splits"] <= 128 and 1 <= points["num_splits"] <= 128
    assert varying(samples) == moved
    assert len(samples[0]) == 24 and samples[0]["varlen_sort_batches"] is True


@pytest.mark.parametrize("program", [fa3_sglang_stock, fa3_upstream_stock])
def test_the_deterministic_mode_asks_for_one_split(program: Any) -> None:
    records = fact_records(program, changed(SGLANG, engine={"deterministic": True}))
    points = stock_call(program, records, (1, 40960), [])
    assert (points["num_splits"], points["splits"]) == (1, 1)


def test_upstream_runs_in_either_engine_and_has_no_small_tile() -> None:
    for facts in (changed(LLAMA), on_sglang()):
        points = stock_call(fa3_upstream_stock, fact_records(fa3_upstream_stock, facts), (1, 8192), [])
        assert (points["use_one_mma_wg"], points["block_m"]) == (False, 128)
    _, violations = run(fa3_sglang_stock, fact_records(fa3_sglang_stock, LLAMA), b=1, max_seqlen_q=1, max_seqlen_k=1,
                        total_q=1, table_width=1, in_graph=False, batch_blocks=1, batch_blocks_one_wg=1, own_q_len=1,
                        own_kv_len=1)
    assert [v.message for v in violations] == ["the rules are SGLang's"]


# ---- vLLM's cascades -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefix", "sequences", "decoding", "pays"), [
    (255, 64, False, False),
    (256, 64, False, True),
    (256, 7, False, False),
    (256, 8, False, True),
    (32768, 8, True, False),
    (256, 8, True, False),
    (4096, 128, True, True),
])
def test_when_a_cascade_pays(prefix: int, sequences: int, decoding: bool, pays: bool) -> None:
    """Two KV heads of eight query heads on 132 SMs; decoding compares waves."""
    assert cascade_pays(2, 8, prefix, sequences, decoding, 132) is pays
    assert cascade_pays(2, 1, prefix, sequences, True, 132) is (prefix >= 256 and sequences >= 8)


@pytest.mark.parametrize(("engine", "model", "cascade"), [
    ({}, {}, False),
    ({"cascade_attention": True}, {}, True),
    ({"cascade_attention": True, "deterministic": True}, {}, False),
    ({"cascade_attention": True}, {"window_left": 4096}, False),
])
def test_cascades_are_off_unless_asked_for(engine: dict[str, Any], model: dict[str, Any], cascade: bool) -> None:
    records = fact_records(fa3_vllm_stock, changed(LLAMA, engine=engine, model=model))
    blocks = batch_blocks_of([(1, 8192)] * 128, 8, 128, 128)
    points, violations = run(
        fa3_vllm_stock, records, b=128, max_seqlen_q=1, max_seqlen_k=8192, total_q=128, in_graph=False,
        common_prefix=4096, batch_blocks=blocks, batch_blocks_one_wg=blocks, own_q_len=1, own_kv_len=8192)
    assert points["cascade"] is cascade and not violations

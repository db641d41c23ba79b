"""The all-reduce programs as plain Python: who takes a message of which size, and with what launch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from programs_support import changed, fact_records, run, varying

from detent.lang import knobs
from detent.programs import collectives
from detent.programs.allreduce import PARTS, allreduce
from detent.programs.allreduce_sglang_stock import allreduce_sglang_stock
from detent.programs.allreduce_vllm_stock import allreduce_vllm_stock

KIB, MIB = 1024, 1024 * 1024
VLLM, SGLANG = "qwen3-30b-a3b-tp4-h100", "qwen3-30b-a3b-tp4-h100-sglang"


def records(program: Any, deployment: str, world: int, hidden: int = 4096, **all_reduce: Any) -> dict[str, Any]:
    """Facts of a group of ``world`` ranks whose rows have ``hidden`` bf16 elements, at any number of tokens."""
    return fact_records(program, changed(
        deployment, model={"hidden_size": hidden}, parallel={"tensor_parallel": world},
        limits={"max_num_batched_tokens": 16 * MIB}, all_reduce=all_reduce))


def vllm(facts: Mapping[str, Any], nbytes: int, in_graph: bool = False) -> dict[str, Any]:
    points, violations = run(allreduce_vllm_stock, facts, nbytes=nbytes, in_graph=in_graph)
    assert_taken(violations, barred=not (points["kernel"] == "one_stage" or (
        points["world_size"] == 2 and points["kernel"] != "nccl")))
    return points


def sglang(facts: Mapping[str, Any], nbytes: int, capturing: bool = False, piecewise: bool = False) -> dict[str, Any]:
    points, violations = run(allreduce_sglang_stock, facts, nbytes=nbytes, capturing=capturing, piecewise=piecewise)
    assert_taken(violations, barred=points["algorithm"] == "nccl" or points["source"] == "multicast")
    return points


def assert_taken(violations: list[Any], barred: bool) -> None:
    """A kernel takes the message; whether it may be pinned is another matter."""
    assert [violation.message for violation in violations] == [collectives.BARRED] * barred


# ---- vLLM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "hidden", "tokens", "plain", "beside"), [
    (2, 4096, 1023, ("custom", "one_stage"), ("custom", "one_stage")),
    (2, 4096, 1024, ("pynccl", "nccl"), ("symm_mem", "two_shot")),
    (4, 4096, 1023, ("custom", "two_stage"), ("custom", "two_stage")),
    (4, 4096, 1024, ("pynccl", "nccl"), ("symm_mem", "multimem")),
    (2, 100, 1, ("pynccl", "nccl"), ("symm_mem", "two_shot")),
    (2, 100, 2, ("custom", "one_stage"), ("custom", "one_stage")),
    (4, 100, 1, ("pynccl", "nccl"), ("symm_mem", "multimem")),
    (4, 100, 2, ("custom", "one_stage"), ("custom", "one_stage")),
    (2, 4096, 8192, ("pynccl", "nccl"), ("symm_mem", "two_shot")),
    (2, 4096, 8193, ("pynccl", "nccl"), ("pynccl", "nccl")),
    (4, 4096, 4096, ("pynccl", "nccl"), ("symm_mem", "multimem")),
    (4, 4096, 4097, ("pynccl", "nccl"), ("pynccl", "nccl")),
    (2, 1, 1, ("pynccl", "nccl"), ("pynccl", "nccl")),  # 2 bytes are no multiple of 4 either
    (3, 4096, 8, ("pynccl", "nccl"), ("pynccl", "nccl")),
])
def test_who_takes_a_message(world: int, hidden: int, tokens: int, plain: tuple[str, str],
                             beside: tuple[str, str]) -> None:
    """vLLM's own kernels end below 8 MiB and at whole 16 bytes; then comes symmetric memory if it is on, then NCCL."""
    for on, expected in ((False, plain), (True, beside)):
        facts = records(allreduce_vllm_stock, VLLM, world, hidden, symm_mem=on, multicast=on)
        points = vllm(facts, 2 * hidden * tokens)
        assert (points["backend"], points["kernel"]) == expected


@pytest.mark.parametrize(("world", "limit"), [(2, 8 * MIB), (4, 8 * MIB), (6, 512 * KIB), (8, 256 * KIB)])
def test_symmetric_memory_lowers_the_limit_of_larger_groups(world: int, limit: int) -> None:
    facts = records(allreduce_vllm_stock, VLLM, world, hidden=8)
    assert [vllm(facts, size)["backend"] for size in (limit - 16, limit)] == ["custom", "symm_mem"]
    for change in ({"symm_mem": False}, {"multicast": False}):
        facts = records(allreduce_vllm_stock, VLLM, world, hidden=8, **change)
        assert [vllm(facts, size)["backend"] for size in (8 * MIB - 16, 8 * MIB)] == ["custom", "pynccl"]


@pytest.mark.parametrize(("world", "limit"), [(4, 512 * KIB), (6, 256 * KIB), (8, 256 * KIB)])
def test_two_stages_from_a_size_on(world: int, limit: int) -> None:
    facts = records(allreduce_vllm_stock, VLLM, world, hidden=8, symm_mem=False)
    assert [vllm(facts, size)["kernel"] for size in (limit - 16, limit)] == ["one_stage", "two_stage"]


@pytest.mark.parametrize(("world", "sizes"), [
    (2, {8: "custom", 64 * MIB: "symm_mem"}),
    (4, {16 * KIB: "nccl_symm_mem", 16 * KIB + 16: "custom", 512 * KIB - 16: "custom", 512 * KIB: "nccl_symm_mem",
         64 * MIB: "nccl_symm_mem"}),
    (6, {16 * KIB: "custom", 64 * MIB: "symm_mem"}),
    (8, {16 * KIB: "nccl_symm_mem", 16 * KIB + 16: "custom", 128 * KIB - 16: "custom", 128 * KIB: "nccl_symm_mem"}),
])
def test_nccl_on_symmetric_buffers_leaves_a_gap(world: int, sizes: dict[int, str]) -> None:
    facts = records(allreduce_vllm_stock, VLLM, world, hidden=8, nccl_symm_mem=True)
    found = {size: vllm(facts, max(16, size))["backend"] for size in sizes}
    assert found == sizes


@pytest.mark.parametrize(("world", "limit"), [(2, 64 * MIB), (4, 2 * MIB), (8, 512 * KIB)])
def test_flashinfer_takes_whole_rows(world: int, limit: int) -> None:
    row = 2 * 3000  # no power of two
    facts = records(allreduce_vllm_stock, VLLM, world, hidden=3000, flashinfer=True)
    last = limit // row * row
    assert (vllm(facts, last)["backend"], vllm(facts, last + row)["backend"] == "flashinfer") == ("flashinfer", False)
    other = records(allreduce_vllm_stock, VLLM, 6, hidden=3000, flashinfer=True)
    assert vllm(other, row)["backend"] == "custom"


def test_what_switches_vllms_kernels_off() -> None:
    for change in ({"custom": False}, {"nvlink": False}):
        facts = records(allreduce_vllm_stock, VLLM, 4, **change, symm_mem=False)
        assert vllm(facts, 8192)["backend"] == "pynccl"
    assert vllm(records(allreduce_vllm_stock, VLLM, 2, nvlink=False), 8192)["backend"] == "custom"
    facts = fact_records(allreduce_vllm_stock, changed(VLLM, engine={"deterministic": True}))
    assert {vllm(facts, size)["backend"] for size in (4096, MIB, 32 * MIB)} == {"pynccl"}
    facts = fact_records(allreduce_vllm_stock, changed(VLLM, model={"dtype": "fp16"}))
    assert vllm(facts, 16 * MIB)["backend"] == "pynccl"


def test_launch_of_vllms_kernels() -> None:
    facts = records(allreduce_vllm_stock, VLLM, 4, hidden=8)
    found = [(vllm(facts, size)["blocks"], vllm(facts, size)["threads"])
             for size in (16, 512 * 16, 513 * 16, 36 * 512 * 16, MIB, 16 * MIB)]
    assert found == [(1, 512), (1, 512), (2, 512), (36, 512), (36, 512), (0, 0)]
    assert [vllm(facts, size, in_graph)["reads_input"] for size, in_graph in ((16, True), (16, False), (16 * MIB, True))
            ] == [True, False, False]


# ---- SGLang ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world", "capturing", "changes"), [
    (2, True, {0: ("one_shot_push", "eager"), 16 * MIB: ("nccl", "none")}),
    (2, False, {0: ("one_shot_push", "eager"), 16 * MIB: ("nccl", "none")}),
    (3, True, {0: ("one_shot_push", "eager"), 1280 * KIB: ("two_shot_pull", "graph"), 16 * MIB: ("nccl", "none")}),
    (4, True, {0: ("one_shot_push", "eager"), 384 * KIB: ("two_shot_pull", "graph"), 16 * MIB: ("nccl", "none")}),
    (4, False, {0: ("one_shot_push", "eager"), 896 * KIB: ("two_shot_pull", "multicast"), 16 * MIB: ("nccl", "none")}),
    (6, True, {0: ("one_shot_push", "eager"), 128 * KIB: ("two_shot_pull", "graph"),
               8 * MIB - 16: ("two_shot_pull", "multicast"), 16 * MIB: ("nccl", "none")}),
    (8, True, {0: ("one_shot_push", "eager"), 128 * KIB: ("two_shot_pull", "graph"),
               512 * KIB - 16: ("two_shot_pull", "multicast"), 16 * MIB: ("nccl", "none")}),
])
def test_sglangs_sizes(world: int, capturing: bool, changes: dict[int, tuple[str, str]]) -> None:
    """Each choice begins right above the size given, and ends where the next begins."""
    facts = records(allreduce_sglang_stock, SGLANG, world, hidden=8)
    bounds = [*list(changes)[1:], 32 * MIB]
    for (after, expected), last in zip(changes.items(), bounds, strict=True):
        for size in (after + 16, last):
            points = sglang(facts, size, capturing)
            assert (points["algorithm"], points["source"]) == expected, size


def test_a_larger_workspace_reaches_every_kernel() -> None:
    """With 128 MiB nothing of the tables is cut off; two ranks then pull."""
    facts = records(allreduce_sglang_stock, SGLANG, 2, hidden=8, max_bytes=128 * MIB)
    sizes = (16 * MIB, 16 * MIB + 16, 32 * MIB + 16, 128 * MIB, 128 * MIB + 16)
    assert [sglang(facts, size, True)["algorithm"] for size in sizes] == [
        "one_shot_push", "one_shot_pull", "one_shot_pull", "one_shot_pull", "nccl"]
    assert [sglang(facts, size)["source"] for size in sizes] == ["eager", "eager", "eager", "eager", "none"]
    points = sglang(records(allreduce_sglang_stock, SGLANG, 4, hidden=8, max_bytes=128 * MIB), 33 * MIB)
    assert points["algorithm"] == "nccl"


def test_launch_of_sglangs_kernels() -> None:
    facts = records(allreduce_sglang_stock, SGLANG, 4, hidden=8)

    def launch(nbytes: int, **call: bool) -> tuple[Any, ...]:
        return tuple(sglang(facts, nbytes, **call)[name] for name in ("blocks", "threads", "copy", "in_place"))

    wave = 132 * 16  # bytes of one vector on each SM
    assert [launch(threads * wave)[1] for threads in (1, 128, 129, 256, 257)] == [128, 128, 256, 256, 512]
    assert launch(16, capturing=True) == (132, 128, "none", False)
    assert launch(MIB) == (32, 512, "kernel", False)  # multicast
    assert launch(MIB, capturing=True) == (64, 128, "none", True)
    assert launch(16 * MIB, capturing=True) == (64, 1024, "none", True)
    assert launch(8 * MIB + 16)[2] == "driver"
    assert launch(32 * MIB) == (0, 0, "none", False)
    assert [sglang(facts, 32 * MIB, True, piecewise)["method"] for piecewise in (False, True)] == ["in_place", "pynccl"]
    assert sglang(facts, MIB, True, True)["source"] == "multicast"  # not registered in a piecewise graph: as eager


def test_what_switches_sglangs_kernels_off() -> None:
    for change in ({"custom": False}, {"nvlink": False}):
        assert sglang(records(allreduce_sglang_stock, SGLANG, 4, **change), 8192)["algorithm"] == "nccl"
    facts = fact_records(allreduce_sglang_stock, changed(SGLANG, engine={"deterministic": True}))
    assert sglang(facts, 4096)["algorithm"] == "nccl"
    assert sglang(records(allreduce_sglang_stock, SGLANG, 4, hidden=100), 200)["algorithm"] == "nccl"
    assert sglang(records(allreduce_sglang_stock, SGLANG, 4, multicast=False), MIB)["source"] == "eager"


@pytest.mark.parametrize("world", range(2, 9))
def test_whatever_is_chosen_takes_the_message(world: int) -> None:
    """Unpinned, no condition of a stock program fails: at and around every size of every table, in every mode."""
    tables = [*collectives.GRAPH_SIZES[world], *collectives.EAGER_SIZES[world], 8 * MIB, 64 * MIB, 16 * KIB]
    sizes = sorted({size + step for size in tables for step in (-16, 0, 16) if 16 <= size + step <= 256 * MIB})
    samples = []
    for custom, multicast, limit in ((True, True, 16 * MIB), (True, False, 128 * MIB), (False, True, 16 * MIB)):
        facts = records(allreduce_sglang_stock, SGLANG, world, hidden=8, custom=custom, multicast=multicast,
                        max_bytes=limit)
        for size, capturing, piecewise in itertools.product(sizes, (False, True), (False, True)):
            samples.append(sglang(facts, size, capturing, piecewise))
        others = {"flashinfer": multicast, "nccl_symm_mem": not custom}
        vllm_facts = records(allreduce_vllm_stock, VLLM, world, hidden=8, custom=custom, multicast=multicast, **others)
        for size, in_graph in itertools.product(sizes, (False, True)):
            vllm(vllm_facts, size, in_graph)
    assert varying(samples) == {"method", "algorithm", "source", "blocks", "threads", "copy"} | (
        {"in_place"} if world > 2 else set())


# ---- what Detent runs ------------------------------------------------------------------------------------------

RULED_OUT = {"the ranks are added in order, which neither NCCL nor the switch does", "the two-shot kernel pulls"}


@pytest.mark.parametrize("deployment", [VLLM, SGLANG])
def test_the_adapted_program_follows_the_engine(deployment: str) -> None:
    """By size it is the engine's kernel, told apart by order of addition; only the kernel set is ever broken."""
    facts = fact_records(allreduce, deployment)
    samples = []
    for tokens, in_graph, workspace in itertools.product((1, 2, 31, 96, 97, 127, 128, 224, 225, 2047, 2048, 4096, 4097,
                                                          8192), (False, True), ("push", "pull")):
        with knobs(workspace=workspace):
            points, violations = run(allreduce, facts, nbytes=4096 * tokens, in_graph=in_graph)
        samples.append(points)
        assert {violation.message for violation in violations} <= RULED_OUT
        assert (not violations) == (points["algorithm"] == "one_shot" or (
            points["algorithm"] == "two_shot" and workspace == "pull"))
    assert varying(samples) == {"algorithm", "workspace", "source", "part", "blocks", "threads", "in_place",
                                "fallback"}
    assert {s["algorithm"] for s in samples} == {"one_shot", "two_shot", "multicast"} | (
        {"nccl"} if deployment == SGLANG else set())


@pytest.mark.parametrize(("deployment", "tokens", "in_graph", "algorithm"), [
    (VLLM, 127, False, "one_shot"),
    (VLLM, 128, False, "two_shot"),
    (VLLM, 2048, False, "multicast"),
    (SGLANG, 96, True, "one_shot"),
    (SGLANG, 97, True, "two_shot"),
    (SGLANG, 224, False, "one_shot"),
    (SGLANG, 225, False, "multicast"),
    (SGLANG, 4096, True, "two_shot"),
    (SGLANG, 4097, True, "nccl"),
])
def test_algorithm_by_size(deployment: str, tokens: int, in_graph: bool, algorithm: str) -> None:
    points, _ = run(allreduce, fact_records(allreduce, deployment), nbytes=4096 * tokens, in_graph=in_graph)
    assert (points["algorithm"], points["fallback"]) == (algorithm, algorithm in ("multicast", "nccl"))


def test_parts_hold_pieces() -> None:
    """The part is the power of two that holds the message, and for messages beyond the workspace the workspace."""
    facts = fact_records(allreduce, VLLM)
    parts = {tokens: run(allreduce, facts, nbytes=4096 * tokens, in_graph=False)[0]["part"]
             for tokens in (1, 2, 3, 4096, 4097, 8192)}
    assert parts == {1: 4096, 2: 8192, 3: 16384, 4096: 16 * MIB, 4097: 16 * MIB, 8192: 16 * MIB}
    assert PARTS == tuple(KIB << step for step in range(17))


@pytest.mark.parametrize(("change", "message"), [
    ({"gpu": {"arch": 100}}, "sm_90"),
    ({"parallel": {"tensor_parallel": 16}}, "2 to 8 ranks"),
    ({"parallel": {"tensor_parallel": 1}}, "2 to 8 ranks"),
    ({"all_reduce": {"nvlink": False}}, "NVLink"),
    ({"all_reduce": {"fused_rms_norm": True}}, "fused with RMSNorm"),
    ({"all_reduce": {"workspace_bytes": 3 * MIB}}, "a power of two"),
    ({"model": {"hidden_size": 100}}, "16 bytes at a time"),
])
def test_facts_that_no_kernel_serves(change: Mapping[str, Mapping[str, Any]], message: str) -> None:
    facts = changed(VLLM, **change)
    if change.get("parallel", {}).get("tensor_parallel") == 16:
        facts["all_reduce"]["custom"] = facts["all_reduce"]["symm_mem"] = False
    records_ = fact_records(allreduce, facts)
    _, violations = run(allreduce, records_, nbytes=2 * facts["model"]["hidden_size"], in_graph=False)
    assert any(message in violation.message for violation in violations)

"""The programs that come with Detent: plain Python agrees with the emitted selector, and the numbers of each solve."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest
from end_support import Emitted, Plain, compiled, controls, named, tried
from programs_support import changed

from detent.dialects.selir.source import SourceError
from detent.lang import Violation
from detent.lang.load import load_program
from detent.passes.candidates import UnboundedPin
from detent.passes.legality_condition import UnpinnedValue
from detent.passes.partial_eval import DoesNotApply
from detent.programs.registry import PROGRAMS
from detent.runtime.deployment import load
from detent.solver.ablation import compare
from detent.solver.compiled import ABLATIONS, Compiled

LLAMA = ["llama-3.1-70b-tp4-h100", "llama-3.1-70b-tp4-h200"]
QWEN = ["qwen3-30b-a3b-tp4-h100", "qwen3-30b-a3b-tp4-h200"]
SGLANG = "qwen3-30b-a3b-tp4-h100-sglang"
DEPLOYMENTS = [*LLAMA, *QWEN, SGLANG]
EMBEDDED = ["smollm2-135m-cpu", "tiny-moe-cpu"]
APPLY = {"attention": DEPLOYMENTS, "fa3-vllm-stock": [*LLAMA, *QWEN], "fa3-sglang-stock": [SGLANG],
         "fa3-upstream-stock": [LLAMA[0], SGLANG], "moe": [*QWEN, SGLANG], "moe-vllm-stock": QWEN,
         "moe-sglang-stock": [SGLANG]}
RANDOM = 100
"""Inputs of each kind drawn for a program on one deployment."""


@functools.cache
def solved(program: str, deployment: str, ablation: str = "") -> Compiled:
    """A program as it is solved, in memory."""
    return facts_solved(program, load(deployment).facts, ablation)


def facts_solved(program: str, facts: Mapping[str, Any], ablation: str = "") -> Compiled:
    switches = ABLATIONS[ablation][1:] if ablation else ()
    return compiled(load_program(program), facts, *switches)


def numbers(found: Compiled) -> tuple[list[str], int, int]:
    """Names of the pins, candidates and legal assignments; every verdict is a proof."""
    graph, legality = found.graph, found.legality
    assert (legality.proved, legality.sampled) == (legality.candidates, 0)
    return [graph.data[node] for node in graph.of_kind("pin")], legality.candidates, legality.legal


# ---- agreement with plain Python -------------------------------------------------------------------------------


def check_agreement(program: str, deployment: str) -> tuple[int, int]:
    """Numbers of inputs that the assumes allow and refuse, after comparing points and broken requires at each."""
    found = solved(program, deployment)
    plain, emitted = Plain(load_program(program), load(deployment).facts), Emitted(found)
    knobs = [found.graph.data[node] for node in found.graph.of_kind("knob")]
    allowed = refused = 0
    for index, point in enumerate(named(found.graph, point) for point in tried(found, RANDOM)):
        setting = {knob.name: knob.values[index % len(knob.values)] for knob in knobs}
        try:
            outcome = plain(point, setting)
        except Violation:
            refused += 1
            with pytest.raises(Violation) as violation:
                emitted(point, setting)
            assert violation.value.kind == "assume"
        else:
            allowed += 1
            assert emitted(point, setting) == outcome, point
    return allowed, refused


@pytest.mark.parametrize(("program", "deployment"), [(p, d) for p, ds in APPLY.items() for d in ds])
def test_plain_python_agrees_with_the_selector(program: str, deployment: str) -> None:
    allowed, refused = check_agreement(program, deployment)
    assert allowed >= RANDOM and (refused > 0 or program.startswith("moe"))


@pytest.mark.parametrize("program", sorted(PROGRAMS.keys() - APPLY.keys()))
def test_plain_python_agrees_with_every_other_programs_selector(program: str) -> None:
    for deployment in (*DEPLOYMENTS, *EMBEDDED):
        try:
            solved(program, deployment)
        except DoesNotApply:
            continue
        except SourceError as error:
            assert "does not hold for the deployment's facts" in str(error)
            continue
        assert check_agreement(program, deployment)[0] >= RANDOM
        return
    pytest.fail("the program applies to no deployment")


@pytest.mark.parametrize("deployment", APPLY["moe"])
@pytest.mark.parametrize("program", ["moe", "moe-vllm-stock"])
def test_moe_at_every_token_count(program: str, deployment: str) -> None:
    if deployment in APPLY[program]:
        plain, emitted = Plain(load_program(program), load(deployment).facts), Emitted(solved(program, deployment))
        for count in range(1, 8193, 1 if deployment == SGLANG else 7):
            assert emitted({"num_tokens": count}) == plain({"num_tokens": count})


# ---- numbers ---------------------------------------------------------------------------------------------------

PINS = ["one_wg", "num_splits", "pdl"]


@pytest.mark.parametrize(("deployment", "legal"), [*((d, 2090) for d in LLAMA), *((d, 2976) for d in (*QWEN, SGLANG))])
def test_attention(deployment: str, legal: int) -> None:
    found = solved("attention", deployment)
    assert numbers(found) == (PINS, 7168, legal)
    assert len(found.graph.points) == 26
    assert moving(found) == {"use_one_mma_wg", "num_splits", "split", "prepare_varlen_pdl"}


def moving(found: Compiled) -> set[str]:
    return {name for name, node in found.graph.points if found.pinned.moves_point(node)}


def heads(dim: int) -> dict[str, Any]:
    return {"model": {"head_dim": dim, "head_dim_v": dim}}


@pytest.mark.parametrize(("deployment", "change", "expected"), [
    (QWEN[0], {"limits": {"max_num_seqs": 992}}, (["one_wg", "num_splits"], 3584, 2976)),
    (QWEN[0], {"limits": {"max_num_seqs": 993}}, (PINS, 7168, 2976)),
    (LLAMA[0], {"limits": {"max_context": 32768}}, (PINS, 7168, 3104)),
    (QWEN[0], heads(96), (["num_splits", "pdl"], 3584, 1488)),
    (QWEN[0], heads(64), (["is_causal", *PINS], 14336, 1495)),
    (QWEN[0], heads(256), (["is_causal", "num_splits", "pdl"], 7168, 7)),
])
def test_attention_with_other_facts(deployment: str, change: dict[str, Any], expected: Any) -> None:
    assert numbers(facts_solved("attention", changed(deployment, **change))) == expected


@pytest.mark.parametrize("deployment", APPLY["fa3-vllm-stock"])
def test_the_stock_kernel_may_only_not_split(deployment: str) -> None:
    found = solved("fa3-vllm-stock", deployment)
    assert numbers(found) == (["one_wg", "pdl", "num_splits", "splits"], 65536, 1)
    whole = found.legality.smallest({})
    assert whole is not None
    assert controls(found.graph, whole) == {"one_wg": False, "pdl": False, "num_splits": 1, "splits": 1}


@pytest.mark.parametrize(("program", "deployment", "pins", "candidates"), [
    ("fa3-sglang-stock", SGLANG, ["one_wg", "num_splits", "bound", "pdl", "splits"], 2 * 128**3 * 2),
    ("fa3-upstream-stock", SGLANG, ["num_splits", "pdl", "splits"], 128**2 * 2),
    ("fa3-upstream-stock", LLAMA[0], ["num_splits", "pdl", "splits"], 128**2 * 2),
])
def test_nor_may_the_other_stock_kernels(program: str, deployment: str, pins: list[str], candidates: int) -> None:
    """SGLang's bound is one more pin: the count ahead of a graph's replay is told other lengths than the graph."""
    found = solved(program, deployment)
    assert numbers(found) == (pins, candidates, 1)
    whole = found.legality.smallest({})
    assert whole is not None
    values = controls(found.graph, whole)
    assert {values[name] for name in pins if name in ("num_splits", "bound", "splits")} == {1}
    assert {values[name] for name in pins if name in ("one_wg", "pdl")} == {False}


@pytest.mark.parametrize(("program", "deployment", "expected", "points"), [
    ("moe", QWEN[0], (["row", "align"], 36, 18), 39),
    ("moe", QWEN[1], (["row", "align"], 36, 18), 39),
    ("moe", SGLANG, (["row", "align", "combine"], 72, 36), 39),
    ("moe-vllm-stock", QWEN[0], (["row", "align"], 36, 18), 36),
    ("moe-vllm-stock", QWEN[1], (["row", "align"], 36, 18), 36),
    ("moe-sglang-stock", SGLANG, (["row", "align", "combine"], 72, 36), 38),
])
def test_moe(program: str, deployment: str, expected: Any, points: int) -> None:
    found = solved(program, deployment)
    assert numbers(found) == expected
    assert len(found.graph.points) == points


@pytest.mark.parametrize(("deployment", "pins", "candidates", "legal"), [(QWEN[0], 5, 64, 32), (SGLANG, 3, 8, 4)])
def test_moe_without_a_table(deployment: str, pins: int, candidates: int, legal: int) -> None:
    facts = changed(deployment)
    del facts["moe"]["table"]
    names, *found = numbers(facts_solved("moe", facts))
    assert (len(names), *found) == (pins, candidates, legal)
    assert {"align", "combine"} & set(names) == ({"align", "combine"} if deployment == SGLANG else {"align"})


def test_of_two_rows_as_near_the_files_first_is_taken() -> None:
    table = load(QWEN[1]).facts["moe"]["table"]
    for order in ((2, 4), (4, 2)):
        facts = changed(QWEN[1], moe={"table": {row: table[row] for row in order}})
        found = facts_solved("moe", facts)
        emitted, plain = Emitted(found), Plain(load_program("moe"), facts)
        for count in (1, 2, 3, 4, 5):
            points, _ = outcome = emitted({"num_tokens": count})
            assert outcome == plain({"num_tokens": count})
            nearest = min(order, key=lambda row: abs(row - count))
            assert points["up.BLOCK_SIZE_N"] == ("int", table[nearest]["BLOCK_SIZE_N"])
    assert table[2]["BLOCK_SIZE_N"] != table[4]["BLOCK_SIZE_N"]


# ---- ablations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "deployment", "ablation", "pins", "candidates", "legal"), [
    ("attention", QWEN[0], "simplification", 3, 7168, 2976),
    ("attention", QWEN[0], "cut", 4, 14336, 5952),
    ("moe", SGLANG, "cut", 9, 6144, 2592),
    ("moe", QWEN[1], "cut", 6, 768, 376),
    ("moe", SGLANG, "lookup", 3, 72, 36),
])
def test_what_an_analysis_is_worth(program: str, deployment: str, ablation: str, pins: int, candidates: int,
                                   legal: int) -> None:
    names, *found = numbers(solved(program, deployment, ablation))
    assert (len(names), *found) == (pins, candidates, legal)


@pytest.mark.parametrize(("program", "deployment"), [("moe", SGLANG), ("fa3-vllm-stock", QWEN[0])])
def test_constant_folding_alone_leaves_pins_that_nobody_can_enumerate(program: str, deployment: str) -> None:
    with pytest.raises(UnboundedPin):
        solved(program, deployment, "simplification")


@pytest.mark.parametrize(("program", "deployment", "pins"), [("attention", QWEN[0], 2), ("moe", SGLANG, 0)])
def test_without_control_dependence_a_point_moves(program: str, deployment: str, pins: int) -> None:
    with pytest.raises(UnpinnedValue):
        solved(program, deployment, "control-dependence")
    found = compare(program, deployment, "control-dependence")
    assert len(found.document["pins"]) == pins
    assert found.moved is not None and found.moved.values[0] != found.moved.values[1]
    check_moved(program, deployment, found.moved)


def check_moved(program: str, deployment: str, moved: Any) -> None:
    """Both inputs satisfy every assume."""
    plain = Plain(load_program(program), load(deployment).facts)
    for inputs in moved.inputs:
        plain(inputs)

"""The GEMM, norm and sampler programs as plain Python, and a program of one rule through the solver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from programs_split_count import split_count, splits
from programs_support import changed, fact_records, on_gpus, run, varying

from detent.lang import knobs
from detent.programs import rms_norms
from detent.programs.gemm import PADDINGS, gemm
from detent.programs.norm import norm
from detent.programs.rms_norm_vllm_stock import rms_norm_vllm_stock
from detent.programs.sampler import sampler
from detent.programs.sampler_sglang_stock import sampler_sglang_stock
from detent.programs.sampler_vllm_stock import sampler_vllm_stock
from detent.runtime.deployment import Deployment, load
from detent.solver.solve import solve

VLLM, SGLANG = "llama-3.1-8b-tp1-h100", "llama-3.1-8b-tp1-h100-sglang"

# ---- GEMM ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deployment", on_gpus())
def test_deep_gemm_takes_every_built_in_model(deployment: str) -> None:
    records = fact_records(gemm, deployment)
    for padding, tokens in itertools.product(PADDINGS, (1, 65, 8192)):
        with knobs(padding=padding):
            points, violations = run(gemm, records, num_tokens=tokens)
        assert points == {"kernel": "deep_gemm", "padding": padding} and not violations


@pytest.mark.parametrize("change", [
    {"model": {"dtype": "fp16"}},
    {"gpu": {"num_sm": 131}},
    {"model": {"hidden_size": 4100}},
    {"model": {"intermediate_size": 14340}},
    {"model": {"vocab_size": 128260}},
    {"model": {"head_dim": 130}, "parallel": {"tensor_parallel": 8}},
    {"model": {"vocab_size": 8}},
])
def test_what_deep_gemm_does_not_take(change: Mapping[str, Mapping[str, Any]]) -> None:
    """Every layer has rows and columns of whole 16 bytes, 16 rows at least, and there are pairs of SMs."""
    points, violations = run(gemm, fact_records(gemm, changed(VLLM, **change)), num_tokens=1)
    assert points["kernel"] == "triton_persistent" and not violations


def test_padding_stays_within_the_buffers() -> None:
    records = fact_records(gemm, changed(VLLM, limits={"max_num_batched_tokens": 8192 + 64}))
    broken = {}
    for padding in PADDINGS:
        with knobs(padding=padding):
            broken[padding] = bool(run(gemm, records, num_tokens=8193)[1])
    assert broken == {1: False, 64: False, 128: True, 256: True, 512: True}


@pytest.mark.parametrize(("change", "message"), [
    ({"gpu": {"arch": 100}}, "sm_90"),
    ({"parallel": {"tensor_parallel": 3}}, "slices of the MLP"),
    ({"model": {"vocab_size": 128257}, "parallel": {"tensor_parallel": 2}}, "slices of the output head"),
])
def test_gemm_facts_that_no_kernel_serves(change: Mapping[str, Mapping[str, Any]], message: str) -> None:
    _, violations = run(gemm, fact_records(gemm, changed(VLLM, **change)), num_tokens=1)
    assert any(message in violation.message for violation in violations)


# ---- norm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hidden", "few", "many"), [
    (4096, (1024, 8, 512, 8), (256, 8, 256, 8)),
    (8192, (1024, 8, 1024, 8), (256, 8, 256, 8)),
    (2048, (1024, 8, 256, 8), (256, 8, 256, 8)),
    (576, (576, 8, 72, 8), (256, 8, 72, 8)),
    (4098, (1024, 1, 1024, 2), (256, 1, 256, 2)),
    (4097, (1024, 1, 1024, 1), (256, 1, 256, 1)),
    (200, (200, 8, 25, 8), (200, 8, 25, 8)),
])
def test_vllms_blocks_shrink_at_256_tokens(hidden: int, few: tuple[int, ...], many: tuple[int, ...]) -> None:
    """Block and vector width, with a residual and without; also in the deterministic mode, less the vectors."""
    for deterministic, tokens in itertools.product((False, True), (1, 255, 256, 8192)):
        facts = changed(VLLM, model={"hidden_size": hidden}, engine={"deterministic": deterministic})
        points, violations = run(rms_norm_vllm_stock, fact_records(rms_norm_vllm_stock, facts), num_tokens=tokens)
        block, width, *plain = few if tokens < 256 else many
        assert list(points.values()) == [block, 1 if deterministic else width, *plain] and not violations


def test_float32_rows_are_loaded_by_fours() -> None:
    records = fact_records(rms_norm_vllm_stock, changed(VLLM, model={"dtype": "fp32"}))
    assert list(run(rms_norm_vllm_stock, records, num_tokens=1)[0].values()) == [1024, 1, 1024, 4]


GEMMA = "gemma-7b-it-tp1-h100"


def test_gemmas_norms_are_none_of_vllms_cuda_kernels() -> None:
    """It multiplies by 1 + weight in float32, which the kernels that shrink their blocks do not take."""
    for tokens in (1, 255, 256, 8192):
        points, violations = run(norm, fact_records(norm, GEMMA), num_tokens=tokens)
        assert points == {"block": 1024, "vector_width": 8} and not violations
    _, (violation,) = run(rms_norm_vllm_stock, fact_records(rms_norm_vllm_stock, GEMMA), num_tokens=1)
    assert "Gemma's are float32" in violation.message
    with pytest.raises(SyntaxError, match=r"does not hold for the deployment's facts.*Gemma"):
        solve("rms-norm-vllm-stock", GEMMA)
    sglang = fact_records(norm, changed(SGLANG, model={"norm_plus_one": True}))
    assert run(norm, sglang, num_tokens=1)[0] == run(norm, fact_records(norm, SGLANG), num_tokens=256)[0]


def test_detents_norm_follows_the_engine() -> None:
    for tokens, block in ((255, 1024), (256, 256)):
        points, violations = run(norm, fact_records(norm, VLLM), num_tokens=tokens)
        assert points == {"block": block, "vector_width": 8} and not violations
        points, violations = run(norm, fact_records(norm, SGLANG), num_tokens=tokens)
        assert points == {"block": 512, "vector_width": 8} and not violations
    model = fact_records(norm, changed(SGLANG, model={"hidden_size": 576}))["model"]
    assert rms_norms.sglang_block(model) == 96  # 72 threads, in whole warps


@pytest.mark.parametrize(("program", "change", "message"), [
    (norm, {"gpu": {"arch": 100}}, "sm_90"),
    (norm, {"engine": {"name": "other"}}, "vLLM's and SGLang's"),
    (norm, {"model": {"hidden_size": 200}}, "whole warps"),
    (rms_norm_vllm_stock, {"engine": {"name": "sglang"}}, "the rules are vLLM's"),
])
def test_norm_facts_that_no_kernel_serves(program: Any, change: Mapping[str, Mapping[str, Any]], message: str) -> None:
    _, violations = run(program, fact_records(program, changed(VLLM, **change)), num_tokens=1)
    assert any(message in violation.message for violation in violations)


# ---- sampler ---------------------------------------------------------------------------------------------------


def vllm_calls() -> Iterator[dict[str, Any]]:
    names = ("any_greedy", "any_random", "any_top_k", "any_top_p", "any_seeded", "greedy", "seeded")
    for b in (1, 2, 7, 8, 1024):
        for values in itertools.product((False, True), repeat=len(names)):
            yield {"b": b} | dict(zip(names, values, strict=True))


def test_vllms_batches_that_cannot_be() -> None:
    """A batch is somebody, of whom this request is one; greedy ones neither filter nor, in runner V1, seed."""
    for deployment in (VLLM, "qwen3-30b-a3b-tp4-h100"):
        records = fact_records(sampler_vllm_stock, deployment)
        hashed = records["sampling"].hashed_noise
        for call in vllm_calls():
            greedy, random = call["any_greedy"], call["any_random"]
            filters = call["any_top_k"] or call["any_top_p"]
            has_generator = call["seeded"] and (hashed or not call["greedy"])
            possible = all((
                greedy if call["greedy"] else random,
                call["b"] > 1 or greedy != random,
                random or not filters,
                random or hashed or not call["any_seeded"],
                call["any_seeded"] or not has_generator,
            ))
            _, violations = run(sampler_vllm_stock, records, **call)
            assert {violation.kind for violation in violations} == (set() if possible else {"assume"})


def vllm_sampler(records: Mapping[str, Any], **call: Any) -> tuple[Any, ...]:
    base = {"b": 8, "any_greedy": False, "any_random": True, "any_top_k": False, "any_top_p": False,
            "any_seeded": False, "greedy": False, "seeded": False}
    points, violations = run(sampler_vllm_stock, records, **(base | call))
    assert not violations and points["logprobs"] == "log_softmax(logits)"
    return points["sampler"], points["mask"], points["noise"]


def test_runner_v1() -> None:
    """Model runner V1, as Qwen3's experts run in: a generator of one's own survives the neighbours."""
    v1 = fact_records(sampler_vllm_stock, "qwen3-30b-a3b-tp4-h100")
    seeded = {"any_seeded": True, "seeded": True}
    assert vllm_sampler(v1) == ("exponential", "none", "batch")
    assert vllm_sampler(v1, **seeded) == ("exponential", "none", "request")
    assert vllm_sampler(v1, any_top_k=True) == ("flashinfer", "none", "batch")
    assert vllm_sampler(v1, any_top_p=True, any_greedy=True) == ("flashinfer", "none", "batch")
    assert vllm_sampler(v1, any_top_p=True, any_seeded=True) == ("exponential", "triton", "batch")
    assert vllm_sampler(v1, any_top_k=True, **seeded, b=7) == ("exponential", "sort", "request")
    assert vllm_sampler(v1, any_greedy=True, greedy=True, any_top_k=True) == ("argmax", "none", "none")


def test_runner_v2() -> None:
    """Model runner V2, as dense models run in: noise without a state, unless FlashInfer draws."""
    v2 = fact_records(sampler_vllm_stock, VLLM)
    key = "seed, position, token"
    assert vllm_sampler(v2) == vllm_sampler(v2, any_seeded=True, seeded=True) == ("gumbel", "none", key)
    assert vllm_sampler(v2, any_top_k=True) == ("flashinfer", "none", "batch")
    assert vllm_sampler(v2, any_top_k=True, any_greedy=True) == ("gumbel", "triton", key)
    assert vllm_sampler(v2, any_top_k=True, any_seeded=True, b=7) == ("gumbel", "sort", key)
    assert vllm_sampler(v2, any_greedy=True, greedy=True, any_random=False) == ("argmax", "none", "none")
    without = fact_records(sampler_vllm_stock, changed(VLLM, sampling={"backend": "pytorch"}))
    assert vllm_sampler(without, any_top_k=True) == ("gumbel", "triton", key)


SGLANG_FLAGS = ("all_greedy", "any_top_k", "any_top_p", "any_min_p", "greedy")


@pytest.mark.parametrize(("engine", "backend", "call", "expected"), [
    (False, "flashinfer", (), ("multinomial", "batch", "log(softmax(logits / temperature))")),
    (False, "flashinfer", ("all_greedy", "any_top_k", "greedy"), ("argmax", "none", "log_softmax(logits)")),
    (False, "flashinfer", ("any_top_k", "greedy"), ("top_k_top_p", "batch", "log(softmax(logits / temperature))")),
    (False, "flashinfer", ("any_top_p",), ("top_k_top_p", "batch", "log(softmax(logits / temperature))")),
    (False, "flashinfer", ("any_min_p",), ("min_p", "batch", "log(softmax(logits / temperature))")),
    (False, "pytorch", ("any_min_p",), ("sorted", "batch", "log(softmax(logits / temperature))")),
    (True, "pytorch", (), ("multinomial", "seed, position, token", "log_softmax(logits / temperature)")),
    (True, "pytorch", ("any_top_k",), ("sorted", "seed, position, rank", "log_softmax(logits / temperature)")),
])
def test_sglangs_sampler(engine: bool, backend: str, call: tuple[str, ...], expected: tuple[str, ...]) -> None:
    """One greedy neighbour is top-k 1 and moves everybody to the path that filters."""
    records = fact_records(sampler_sglang_stock,
                           changed(SGLANG, engine={"deterministic": engine}, sampling={"backend": backend}))
    points, violations = run(sampler_sglang_stock, records, **{name: name in call for name in SGLANG_FLAGS})
    assert tuple(points.values()) == expected and not violations


@pytest.mark.parametrize(("change", "call", "kind", "message"), [
    ({}, ("greedy",), "assume", ""),
    ({}, ("all_greedy",), "assume", ""),
    ({"engine": {"deterministic": True}, "sampling": {"backend": "pytorch"}}, ("any_min_p",), "assume", ""),
    ({"engine": {"deterministic": True}}, (), "require", "FlashInfer has no seeds"),
    ({"sampling": {"backend": "ascend"}}, (), "require", "FlashInfer's and PyTorch's"),
    ({"engine": {"name": "vllm"}}, (), "require", "the rules are SGLang's"),
])
def test_what_sglangs_sampler_refuses(change: Mapping[str, Mapping[str, Any]], call: tuple[str, ...], kind: str,
                                      message: str) -> None:
    records = fact_records(sampler_sglang_stock, changed(SGLANG, **change))
    _, violations = run(sampler_sglang_stock, records, **{name: name in call for name in SGLANG_FLAGS})
    assert any(violation.kind == kind and message in violation.message for violation in violations)


def test_detents_sampler() -> None:
    for deployment, logprobs in ((VLLM, "log_softmax(logits)"), (SGLANG, "log_softmax(logits / temperature)")):
        records = fact_records(sampler, deployment)
        samples = []
        for b, any_random, any_filter in itertools.product((7, 8), (False, True), (False, True)):
            points, violations = run(sampler, records, b=b, any_random=any_random, any_filter=any_filter)
            if any_filter and not any_random:
                assert [violation.kind for violation in violations] == ["assume"]
                continue
            assert not violations
            samples.append(points)
            assert points["sampler"] == ("filtered" if any_filter else "direct" if any_random else "argmax")
            assert points["mask"] == "sort" and points["logprobs"] == logprobs
        assert varying(samples) == {"sampler"}


# ---- one rule --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "expected"), [(4, 64), (5, 51), (16, 16), (257, 1), (1, 64), (256, 1)])
def test_split_count(b: int, expected: int) -> None:
    assert split_count(b, 4096) == expected


def test_the_cut_is_one_pin_at_the_split_count() -> None:
    facts = {"limits": {"max_num_seqs": 1024, "max_context": 4096}}
    solution = solve(splits, Deployment("small", facts))
    (pin,) = solution.pins
    assert (pin["name"], pin["candidates"]) == ("num_splits", list(range(1, 65)))
    assert pin["source"]["file"].endswith("programs_split_count.py")
    assert (solution.candidates, solution.legal) == (64, 50)  # 1, and 16 to 64
    assert [p["pins"] for p in solution.points] == [["num_splits"], ["num_splits"]]


def test_no_built_in_program_serves_another_architecture() -> None:
    """A B200 is refused by name of the rule, not guessed."""
    deployment = load(VLLM)
    facts = deployment.facts | {"gpu": {"name": "NVIDIA_B200", "arch": 100, "num_sm": 148, "shared_memory": 232448}}
    b200 = Deployment("llama-3.1-8b-tp1-b200", facts)
    for program in ("attention", "fa3-vllm-stock", "gemm", "norm", "rms-norm-vllm-stock"):
        with pytest.raises(SyntaxError, match="the rules are those of sm_90"):
            solve(program, b200)

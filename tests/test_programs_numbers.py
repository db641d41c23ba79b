"""What the solver finds for each family on each deployment that comes with Detent.

Pins, candidates and legal assignments; None where the family does not apply. Attention takes most of a second a model,
so of deployments that differ in nothing its numbers hang on one is solved.
"""

from __future__ import annotations

from typing import Any

import pytest
from programs_support import on_gpus

from detent.runtime.deployment import load
from detent.solver.solve import solve

Numbers = tuple[list[str], int, int]

HALVES = ["one_wg", "num_splits", "pdl"]
MASKED = ["is_causal", *HALVES]
ATTENTION: dict[str, Numbers] = {
    "llama-3.1-70b-tp4-h100": (HALVES, 7168, 2090),
    "llama-3.1-8b-tp1-h100-sglang": (HALVES, 7168, 2090),
    "qwen3-30b-a3b-tp4-h100": (HALVES, 7168, 2976),
    "llama-3.2-1b-tp1-h100": (MASKED, 14336, 1052),
    "phi-3.5-mini-tp1-h100": (["num_splits", "pdl"], 3584, 1045),
    "gemma-7b-it-tp1-h100": (["is_causal", "num_splits", "pdl"], 2884, 7),
    "smollm2-135m-tp1-h200": (MASKED, 3584, 403),
}

ADDS = ["algorithm", "source", "part"]
PLACED = ["row", "align"]
FAMILIES = ("allreduce", "moe")
NUMBERS: dict[str, tuple[Numbers | None, Numbers | None]] = {
    "gemma-7b-it-tp1-h100": (None, None),
    "llama-3.1-70b-tp2-h200": ((ADDS, 132, 3), None),
    "llama-3.1-70b-tp4-h100": ((ADDS, 176, 3), None),
    "llama-3.1-70b-tp4-h200": ((ADDS, 176, 3), None),
    "llama-3.1-70b-tp8-h100": ((ADDS, 176, 3), None),
    "llama-3.1-8b-tp1-h100": (None, None),
    "llama-3.1-8b-tp1-h100-sglang": (None, None),
    "llama-3.1-8b-tp1-h200": (None, None),
    "llama-3.2-1b-tp1-h100": (None, None),
    "llama-3.2-1b-tp1-h200": (None, None),
    "phi-3.5-mini-tp1-h100": (None, None),
    "qwen3-14b-tp4-h100": ((ADDS, 176, 3), None),
    "qwen3-30b-a3b-tp1-h200": (None, (PLACED, 36, 18)),
    "qwen3-30b-a3b-tp2-h200": ((ADDS, 156, 3), (PLACED, 36, 18)),
    "qwen3-30b-a3b-tp4-h100": ((ADDS, 208, 3), (PLACED, 36, 18)),
    "qwen3-30b-a3b-tp4-h100-sglang": ((ADDS, 208, 3), ([*PLACED, "combine"], 72, 36)),
    "qwen3-30b-a3b-tp4-h200": ((ADDS, 208, 3), (PLACED, 36, 18)),
    "qwen3-8b-tp2-h100": ((ADDS, 144, 3), None),
    "smollm2-135m-tp1-h200": (None, None),
}


def numbers(program: str, deployment: str) -> Numbers:
    solution = solve(program, deployment)
    assert solution.legality["sampled"] == 0
    return [pin["name"] for pin in solution.pins], solution.candidates, solution.legal


def test_every_deployment_has_a_row() -> None:
    assert list(NUMBERS) == on_gpus()


@pytest.mark.parametrize("deployment", ATTENTION)
def test_attention(deployment: str) -> None:
    assert numbers("attention", deployment) == ATTENTION[deployment]


@pytest.mark.parametrize("deployment", NUMBERS)
def test_families_beside_attention(deployment: str) -> None:
    for family, expected in zip(FAMILIES, NUMBERS[deployment], strict=True):
        if expected is None:
            with pytest.raises(SyntaxError, match="does not apply to this deployment"):
                solve(family, deployment)
        else:
            assert numbers(family, deployment) == expected, family


@pytest.mark.parametrize("deployment", NUMBERS)
def test_families_that_every_deployment_has(deployment: str) -> None:
    vllm = load(deployment).facts["engine"]["name"] == "vllm"
    assert numbers("gemm", deployment) == ([], 5, 5)
    assert numbers("sampler", deployment) == (["draw"], 3, 1)
    own = vllm and not load(deployment).facts["model"].get("norm_plus_one")  # whether vLLM has a rule to follow
    assert numbers("norm", deployment) == ((["block"], 2, 2) if own else ([], 1, 1))
    if own:
        solution = solve("rms-norm-vllm-stock", deployment)
        small = load(deployment).facts["model"]["hidden_size"] < 1024
        assert [pin["candidates"] for pin in solution.pins] == [[256, 576 if small else 1024]]
        assert (solution.candidates, solution.legal) == (2, 2)


STOCK: dict[tuple[str, str], Numbers] = {
    ("allreduce-vllm-stock", "qwen3-30b-a3b-tp4-h100"): (["kernel", "reads_input", "blocks"], 296, 0),
    ("allreduce-vllm-stock", "llama-3.1-70b-tp8-h100"): (["kernel", "reads_input", "blocks"], 296, 0),
    ("allreduce-vllm-stock", "qwen3-8b-tp2-h100"): (["kernel", "reads_input", "blocks"], 222, 1),
    ("allreduce-sglang-stock", "qwen3-30b-a3b-tp4-h100-sglang"): (
        ["algorithm", "source", "threads", "method", "copy"], 540, 0),
    ("sampler-vllm-stock", "qwen3-30b-a3b-tp4-h100"): (["flashinfer", "mask"], 6, 2),
    ("sampler-vllm-stock", "llama-3.1-8b-tp1-h100"): (["flashinfer", "mask"], 6, 2),
    ("sampler-sglang-stock", "llama-3.1-8b-tp1-h100-sglang"): (["sampler"], 4, 1),
}


@pytest.mark.parametrize(("program", "deployment"), STOCK)
def test_stock_programs(program: str, deployment: str) -> None:
    """NCCL alone takes a message of any size, and so does the switch where the largest is 32 MiB: both are barred. With
    two ranks symmetric memory takes up to 64 MiB, and two numbers have one sum."""
    assert numbers(program, deployment) == STOCK[program, deployment]


def test_the_pinned_all_reduce() -> None:
    """Legal: the one-shot kernel with either workspace and the two-shot kernel that pulls, all from the workspace."""
    solution = solve("allreduce", "qwen3-30b-a3b-tp4-h100")
    legal: list[dict[str, Any]] = [{}]
    for component in solution.document["components"]:
        legal = [before | dict(zip(component["names"], values, strict=True))
                 for before in legal for values in component["legal"]]
    found = {(values["algorithm"], values["workspace"], values["source"], values["part"]) for values in legal}
    part = 16 * 1024 * 1024
    assert found == {("one_shot", "push", "workspace", part), ("one_shot", "pull", "workspace", part),
                     ("two_shot", "pull", "workspace", part)}

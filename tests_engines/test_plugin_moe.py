"""Expert layers of the real vLLM under the plug-in: Detent's kernels under the tuple's rows, for any number of tokens;
what is refused, and that no other way to an expert layer is left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plugin_support import Conditions, putting_back
from vllm.model_executor.layers.fused_moe import fused_moe
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    FusedMoEQuantConfig,
    biased_moe_quant_config,
    fp8_w8a8_moe_quant_config,
    int8_w8a16_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.experts import triton_moe
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

from detent.engines.vllm.sites import moe as site
from detent.kernels import moe
from detent.runtime.errors import DetentError

EXPERTS, HIDDEN, WIDTH, K = 6, 64, 48, 3
DTYPE = torch.float16  # the interpreter cuts bf16 off and does not round
UP = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
DOWN = {**UP, "BLOCK_SIZE_K": 32, "num_stages": 2}


def conditions(**changed: Any) -> Any:
    rows = {f"{layer}.{field}": row[field] for layer, row in (("up", UP), ("down", DOWN)) for field in site.FIELDS}
    return Conditions({"moe": {**rows, **site.SERVED, **changed}})


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield from putting_back("sites.moe")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each call of the kernels was given beside tensors; they run."""
    made: list[dict[str, Any]] = []
    kernel = moe.moe

    def noting(x: Any, *tensors: Any, **named: Any) -> Any:
        made.append({"tokens": len(x), **named})
        return kernel(x, *tensors, **named)
    monkeypatch.setattr(moe, "moe", noting)
    site.install(conditions())
    return made


def experts(config: FusedMoEQuantConfig = FUSED_MOE_UNQUANTIZED_CONFIG) -> Any:
    """vLLM's object of a layer."""
    return TritonExperts(SimpleNamespace(moe_parallel_config=None), config)


class Layer:
    """Weights, and tokens with their experts and shares."""

    def __init__(self, tokens: int) -> None:
        at = torch.Generator().manual_seed(tokens)
        self.w1 = (torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=torch.Generator().manual_seed(1)) / 8).to(DTYPE)
        self.w2 = (torch.randn(EXPERTS, HIDDEN, WIDTH, generator=torch.Generator().manual_seed(2)) / 8).to(DTYPE)
        self.x = torch.randn(tokens, HIDDEN, generator=at).to(DTYPE)
        self.shares, self.ids = torch.rand(tokens, EXPERTS, generator=at).topk(K)

    def apply(self, layer: Any, rows: slice = slice(None), **changed: Any) -> torch.Tensor:
        """As vLLM's modular kernel asks for it."""
        out = torch.full_like(self.x[rows], 7.0)
        layer.apply(**{
            "output": out, "hidden_states": self.x[rows].clone(), "w1": self.w1, "w2": self.w2,
            "topk_weights": self.shares[rows].clone(), "topk_ids": self.ids[rows].clone(),
            "activation": MoEActivation.SILU, "global_num_experts": EXPERTS, "expert_map": None, "a1q_scale": None,
            "a2_scale": None, "workspace13": torch.empty(0), "workspace2": torch.empty(0), "expert_tokens_meta": None,
            "apply_router_weight_on_input": False, **changed})
        return out

    def dense(self) -> torch.Tensor:
        """Every token through its experts, in float64."""
        total = torch.zeros(len(self.x), HIDDEN, dtype=torch.float64)
        for token, (ids, shares) in enumerate(zip(self.ids, self.shares, strict=True)):
            for expert, share in zip(ids.tolist(), shares.double(), strict=True):
                gate, up = (self.w1[expert].double() @ self.x[token].double()).chunk(2)
                total[token] += share * (self.w2[expert].double() @ (torch.nn.functional.silu(gate) * up))
        return total


@pytest.mark.parametrize("ids", (torch.int32, torch.int64, torch.uint32))
@pytest.mark.parametrize("tokens", (1, 9))
def test_a_layer(calls: list[dict[str, Any]], tokens: int, ids: torch.dtype) -> None:
    """The dense result, whatever type the router's ids have; the tuple's rows, also for a token alone, which has the
    same bits."""
    layer = Layer(tokens)
    got = layer.apply(experts(), topk_ids=layer.ids.to(ids))
    torch.testing.assert_close(got.double(), layer.dense(), rtol=4e-3, atol=4e-3)
    assert torch.equal(layer.apply(experts(), slice(0, 1)), got[:1])
    assert [each["tokens"] for each in calls] == [tokens, 1]
    for each in calls:
        given = [row if isinstance(row, moe.Row) else moe.row_of(row) for row in (each["row"], each["down_row"])]
        assert given == [moe.row_of(UP), moe.row_of(DOWN)]


def test_shares_of_the_models_type(calls: list[dict[str, Any]]) -> None:
    layer = Layer(4)
    half = layer.shares.to(DTYPE)
    layer.shares = half.float()
    assert torch.equal(layer.apply(experts(), topk_weights=half), layer.apply(experts()))


ONES = torch.ones(EXPERTS)


@pytest.mark.parametrize("config, changed, what", [
    (fp8_w8a8_moe_quant_config(ONES, ONES), {}, "quantised experts"),
    (int8_w8a16_moe_quant_config(ONES, ONES, None, None), {}, "quantised experts"),
    (FUSED_MOE_UNQUANTIZED_CONFIG, {"a1q_scale": ONES}, "quantised experts"),
    (biased_moe_quant_config(ONES, None), {}, "experts with a bias"),
    (biased_moe_quant_config(None, ONES), {}, "experts with a bias"),
    (FusedMoEQuantConfig.make(gemm1_clamp_limit=7.0), {}, "experts with a clamped activation"),
    (FUSED_MOE_UNQUANTIZED_CONFIG, {"expert_map": torch.zeros(EXPERTS)}, "experts spread over ranks"),
    *((FUSED_MOE_UNQUANTIZED_CONFIG, {"activation": each}, f"activation {each.value}")
      for each in MoEActivation if each is not MoEActivation.SILU),
    (FUSED_MOE_UNQUANTIZED_CONFIG, {"apply_router_weight_on_input": True}, "weights applied to the experts' input"),
])
def test_layers_that_are_refused(calls: list[dict[str, Any]], config: Any, changed: dict[str, Any], what: str) -> None:
    with pytest.raises(DetentError, match=f"Detent does not serve {what};"):
        Layer(2).apply(experts(config), **changed)
    assert not calls


def test_lora_is_refused(calls: list[dict[str, Any]]) -> None:
    layer = experts()
    layer.set_lora_context(SimpleNamespace())
    with pytest.raises(DetentError, match="LoRA on experts"):
        Layer(2).apply(layer)


# ---- other ways -----------------------------------------------------------------------------------------------------


def test_nothing_looks_a_row_up(calls: list[dict[str, Any]]) -> None:
    """vLLM's other functions and classes of expert layers ask for a row by the number of tokens."""
    layer = Layer(2)
    arguments = (layer.w1.shape, layer.w2.shape, K, None, 2)
    for module in (fused_moe, triton_moe):
        with pytest.raises(DetentError, match="looks its row up by the number of tokens"):
            module.try_get_optimal_moe_config(*arguments)
    with pytest.raises(DetentError, match="looks its row up"):
        fused_moe.fused_experts_impl(layer.x, layer.w1, layer.w2, layer.shares, layer.ids.int())
    assert not calls


def test_who_keeps_a_look_up_of_vllms(calls: list[dict[str, Any]]) -> None:
    """Modules that took the function's name before it was replaced: of LoRA, of experts spread over ranks, and of
    quantised experts, none of which is served. A trace stops for a layer that runs them."""
    keeping = {name for name, module in sys.modules.items() if name.startswith("vllm.") and getattr(
        vars(module).get("try_get_optimal_moe_config"), "__module__", "").startswith("vllm.")}
    experts_of = "vllm.model_executor.layers.fused_moe.experts"
    assert keeping <= {"vllm.lora.layers.utils", f"{experts_of}.fused_batched_moe", f"{experts_of}.nvfp4_emulation_moe"}


def test_a_model_without_experts() -> None:
    original = TritonExperts.apply
    site.install(Conditions({}))
    assert TritonExperts.apply is original


@pytest.mark.parametrize("name, value", [
    ("align", "naive"), ("combine", "torch.sum"), ("activation", "gelu"), ("apply_router_weight_on_input", True),
    ("no_combine", True), ("fused_sum_all_reduce", True), ("filter_expert", True), ("routed_scaling_factor", 2.5)])
def test_points_that_the_kernels_are_not(name: str, value: Any) -> None:
    original = TritonExperts.apply
    with pytest.raises(DetentError, match=f"expert layers have {name} = {value!r}, which is not served"):
        site.install(conditions(**{name: value}))
    assert TritonExperts.apply is original

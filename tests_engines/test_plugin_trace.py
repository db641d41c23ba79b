"""The trace of a forward pass: a model whose operations are Detent's passes, and each way to leave one call site to
vLLM or to torch is caught, with the operation and where it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import plugin_support
import pytest
import torch
from plugin_support import Conditions, putting_back
from vllm import ir
from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.config.compilation import CompilationMode
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

from detent.engines.routing import Unrouted
from detent.engines.vllm import hooks, trace
from detent.engines.vllm.sites import attention, linear, moe, norm

HIDDEN, VOCABULARY = 64, 48
DTYPE = torch.float16  # the interpreter cuts bf16 off and does not round
ROW = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}
POINTS = {
    "attention": {"head_dim": 64, "head_dim_v": 64, "num_splits": 1, "split_stride": 256},
    "gemm": {"kernel": "triton_persistent", "padding": 1}, "norm": {"block": 256, "vector_width": 8},
    "moe": {**{f"{layer}.{name}": value for layer in ("up", "down") for name, value in ROW.items()}, **moe.SERVED}}
SITES = {"sites.attention": attention, "sites.linear": linear, "sites.moe": moe, "sites.norm": norm}

_operators = torch.library.Library("vllm", "FRAGMENT")
_layers: dict[str, Any] = {}


def _stand_in(name: str, key: str) -> None:
    """vLLM's operator ``name``, also for the CPU, of the layer that stands in ``_layers``."""
    if not hasattr(torch.ops.vllm, name):
        _operators.define(f"{name}(Tensor x) -> Tensor")
    _operators.impl(name, lambda x, *others: _layers[key](x), "CPU", allow_override=True)


class Model(torch.nn.Module):
    """As a model of vLLM's: norms, products, attention and experts by vLLM's own classes."""

    def __init__(self) -> None:
        super().__init__()
        at = torch.Generator().manual_seed(0)
        self.weights = [SimpleNamespace(weight=(torch.randn(n, HIDDEN, generator=at) / 8).to(DTYPE))
                        for n in (HIDDEN, VOCABULARY)]
        with set_current_vllm_config(CONFIG):
            self.norm = RMSNorm(HIDDEN, 1e-5, dtype=DTYPE)
        self.method = UnquantizedLinearMethod()
        self.extra: Any = lambda x: x

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, intermediate_tensors: Any,
                inputs_embeds: Any) -> torch.Tensor:
        assert input_ids.shape == positions.shape == (trace.TOKENS,)
        x = torch.zeros(len(input_ids), HIDDEN, dtype=DTYPE) + positions[:, None].to(DTYPE)
        assert int(positions.sum()) == 120 and int(positions.max()) == 15 and int(input_ids.cumsum(0)[-1]) == 0
        residual = x
        x = self.norm(x)
        x = self.method.apply(self.weights[0], x)
        x = _attend(x)
        x, residual = self.norm(x, residual)
        x = _mix(x)
        return self.extra(torch.nn.functional.silu(x) * 2 + residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.method.apply(self.weights[1], hidden)


def _attend(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.vllm.test_attention(x)


def _mix(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.vllm.test_experts(x)


CONFIG = VllmConfig(compilation_config=CompilationConfig(mode=CompilationMode.NONE),
                    device_config=DeviceConfig(device="cpu"))


def experts(x: torch.Tensor) -> torch.Tensor:
    layer = TritonExperts(SimpleNamespace(moe_parallel_config=None), FUSED_MOE_UNQUANTIZED_CONFIG)
    out = torch.empty_like(x)
    ids = torch.arange(len(x), dtype=torch.int32)[:, None] % 2
    layer.apply(out, x, torch.ones(2, 64, HIDDEN, dtype=DTYPE) / 64, torch.ones(2, HIDDEN, 32, dtype=DTYPE) / 64,
                torch.ones(len(x), 1), ids, MoEActivation.SILU, 2, None, None, None, None, None, None, False)
    return out


def attended(x: torch.Tensor) -> torch.Tensor:
    layer = FlashAttentionImpl(1, 64, 0.125, 1, None, None, "auto")
    return layer.forward(None, x[:, None], None, None, None, None, torch.empty_like(x))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A worker with a model, under a tuple; layers as vLLM's operators run them."""
    monkeypatch.setattr(linear, "define", plugin_support.define)
    monkeypatch.setattr(norm, "define", plugin_support.define)
    for name in norm.OPERATORS:
        monkeypatch.delitem(getattr(ir.ops, name).impls, norm.PROVIDER, raising=False)
    for name, key in (("test_attention", "attention"), ("test_experts", "experts")):
        _stand_in(name, key)
    monkeypatch.setattr(trace, "REPLACED_INSIDE", {
        "test_attention": trace.REPLACED_INSIDE["unified_attention_with_output"],
        "test_experts": trace.REPLACED_INSIDE["moe_forward"]})
    _layers.update(attention=attended, experts=experts)
    putting = [putting_back(name) for name in SITES]
    for each in putting:
        next(each)
    active = Conditions(POINTS, HIDDEN)
    active.deployment.facts["limits"] = {"max_context": 1024}
    active.select = dict(POINTS)  # type: ignore[attr-defined]
    for site in SITES.values():
        site.install(active)  # type: ignore[arg-type]
    with ExitStack() as stack:
        for name in norm.OPERATORS:
            stack.enter_context(getattr(ir.ops, name).set_priority(["detent", "native"]))
        yield SimpleNamespace(model_runner=SimpleNamespace(model=Model(), device=torch.device("cpu"),
                                                           vllm_config=CONFIG))
    for each in putting:
        next(each, None)


def test_a_model_that_is_routed(worker: Any) -> None:
    """Twice, and nothing stays counted or replaced. Sums of integers are no matter."""
    before = FlashAttentionImpl.forward, TritonExperts.apply
    for _ in range(2):
        assert trace.check(worker) == ["fused_add_rms_norm", "linear", "rms_norm", "test_attention", "test_experts"]
    assert (FlashAttentionImpl.forward, TritonExperts.apply) == before


def caught(worker: Any, operation: str, file: str) -> None:
    before = FlashAttentionImpl.forward, TritonExperts.apply
    with pytest.raises(Unrouted) as stopped:
        trace.check(worker)
    assert stopped.value.operation == operation
    where, _, line = stopped.value.caller.rpartition(":")
    assert where.endswith(file) and int(line) > 0
    assert operation in str(stopped.value) and where in str(stopped.value)
    assert (FlashAttentionImpl.forward, TritonExperts.apply) == before


def test_products_are_left_to_vllm(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = hooks._replaced[hooks.UTILS, "default_unquantized_gemm"]
    monkeypatch.setattr(utils, "default_unquantized_gemm", original)
    caught(worker, "aten::linear", "vllm/model_executor/layers/utils.py")


@pytest.mark.parametrize("name", norm.OPERATORS)
@pytest.mark.parametrize("wrapped", (True, False))
def test_norms_are_left_to_vllm(worker: Any, name: str, wrapped: bool) -> None:
    """As vLLM's own operators, and as what these are made of."""
    with ir.op.enable_torch_wrap(wrapped):
        assert name in trace.check(worker)
        with getattr(ir.ops, name).set_priority(["native"]):
            if wrapped:
                caught(worker, f"vllm_ir::{name}", "vllm/ir/op.py")
            else:
                caught(worker, "aten::mean", "vllm/ir/ops/layernorm.py")


@pytest.mark.parametrize("key", ("attention", "experts"))
def test_a_layer_of_another_backend(worker: Any, key: str) -> None:
    """It never comes to what the plug-in put into vLLM's class."""
    _layers[key] = torch.clone
    caught(worker, f"vllm::test_{key}", "tests_engines/test_plugin_trace.py")


@pytest.mark.parametrize("module, name, key", [(hooks.FLASH_ATTN, "FlashAttentionImpl.forward", "attention"),
                                               (hooks.TRITON_MOE, "TritonExperts.apply", "experts")])
def test_a_class_that_was_not_replaced(worker: Any, module: str, name: str, key: str,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple(each for each in hooks.replaced() if each != (module, name))
    monkeypatch.setattr(hooks, "replaced", lambda: kept)
    caught(worker, f"vllm::test_{key}", "tests_engines/test_plugin_trace.py")


def test_the_operators_are_vllms() -> None:
    from vllm.model_executor.layers.attention import attention as layers  # noqa: F401
    from vllm.model_executor.layers.fused_moe.runner import moe_runner  # noqa: F401

    assert [name for name in trace.REPLACED_INSIDE if not hasattr(torch.ops.vllm, name)] in (
        [], ["unified_attention"])


@pytest.mark.parametrize("extra, operation", [
    (lambda x: torch.mm(x, x.T) @ x, "aten::m"),
    (lambda x: x @ torch.ones(HIDDEN, dtype=DTYPE), "aten::matmul"),
    (lambda x: torch.einsum("ij,kj->ik", x, x), "aten::einsum"),
    (lambda x: torch.addmm(x, x, torch.ones(HIDDEN, HIDDEN, dtype=DTYPE)), "aten::addmm"),
    (lambda x: x.softmax(-1), "aten::softmax"),
    (lambda x: x.log_softmax(-1), "aten::log_softmax"),
    (lambda x: x * x.mean(-1, keepdim=True), "aten::mean"),
    (lambda x: x.sum(-1, keepdim=True) + x, "aten::sum"),
    (lambda x: torch.nn.functional.layer_norm(x, (HIDDEN,)), "aten::layer_norm"),
    (lambda x: torch.nn.functional.rms_norm(x, (HIDDEN,)), "aten::"),
    (lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0], "aten::"),
    (lambda x: x.topk(3).values.repeat(1, 30)[:, :HIDDEN], "aten::topk"),
    (lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True) + x, "aten::linalg_vector_norm"),
    (lambda x: x + torch.arange(4).sum(dtype=torch.float32).to(DTYPE), "aten::sum"),
])
def test_an_operation_of_the_models_own(worker: Any, extra: Any, operation: str) -> None:
    worker.model_runner.model.extra = extra
    with pytest.raises(Unrouted) as stopped:
        trace.check(worker)
    assert stopped.value.operation.startswith(operation)
    assert stopped.value.caller == f"{__file__}:{extra.__code__.co_firstlineno}"

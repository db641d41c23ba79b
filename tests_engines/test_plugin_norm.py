"""Norms of the real vLLM under the plug-in: who has priority, what is run, and what torch.compile and vLLM's own
lowering make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import plugin_support
import pytest
import torch
from plugin_support import Conditions, putting_back
from vllm import ir
from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.config.compilation import CompilationMode
from vllm.config.kernel import KernelConfig
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

from detent.engines.vllm.sites import norm
from detent.kernels import rows
from detent.runtime.errors import DetentError

EPS = 1e-5
HIDDEN = 64
DTYPE = torch.float16  # the interpreter cuts bf16 off and does not round


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(norm, "define", plugin_support.define)
    for name in norm.OPERATORS:
        monkeypatch.delitem(getattr(ir.ops, name).impls, norm.PROVIDER, raising=False)
    putting = putting_back("sites.norm")
    next(putting)
    norm.install(Conditions({"norm": {"block": 256, "vector_width": 8}}, HIDDEN))
    yield
    next(putting, None)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which of the kernels ran, and with how many warps."""
    ran: list[tuple[str, int]] = []

    def noting(name: str) -> Any:
        kernel = getattr(rows, name)

        def run(*arguments: Any, **named: Any) -> Any:
            ran.append((name, named.get("warps")))
            return kernel(*arguments, **named)
        return run
    for name in ("rms_norm", "head_norm"):
        monkeypatch.setattr(rows, name, noting(name))
    return ran


def configured(**options: Any) -> VllmConfig:
    return VllmConfig(compilation_config=CompilationConfig(**options), device_config=DeviceConfig(device="cpu"))


@pytest.mark.parametrize("mode", (CompilationMode.NONE, CompilationMode.VLLM_COMPILE))
def test_ours_is_first_and_alone(mode: CompilationMode) -> None:
    """Eager and compiled, also beside a provider that somebody asked for; a second call changes nothing."""
    config = configured(mode=mode)
    config.kernel_config.set_platform_defaults(config)
    for name in norm.OPERATORS:
        priority = getattr(config.kernel_config.ir_op_priority, name)
        assert priority[0] == norm.PROVIDER and priority.count(norm.PROVIDER) == 1
        operator = getattr(ir.ops, name)
        with operator.set_priority(priority):  # as a worker does
            assert operator.get_priority() == [norm.PROVIDER]
    asked = KernelConfig(ir_op_priority={"rms_norm": "vllm_c"})
    asked.set_platform_defaults(config)
    assert asked.ir_op_priority.rms_norm[:2] == [norm.PROVIDER, "vllm_c"]
    assert config.kernel_config.compute_hash()  # reads the providers' source


def layers() -> tuple[Any, Any, Any]:
    """A norm of hidden states, one of heads, and Gemma's, as vLLM makes them."""
    with set_current_vllm_config(configured(mode=CompilationMode.NONE)):
        made = RMSNorm(HIDDEN, EPS, dtype=DTYPE), RMSNorm(16, EPS, dtype=DTYPE), GemmaRMSNorm(HIDDEN)
    torch.manual_seed(0)
    for layer in made:
        layer.weight.data.copy_(torch.rand(layer.weight.shape) + 0.5)
    return made


def want(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.fixture
def first() -> Iterator[None]:
    """The priorities of a worker."""
    with ir.ops.rms_norm.set_priority(["detent", "native"]), \
            ir.ops.fused_add_rms_norm.set_priority(["detent", "native"]):
        yield


def close(got: torch.Tensor, right: torch.Tensor) -> None:
    assert got.dtype == DTYPE
    torch.testing.assert_close(got.double(), right, rtol=2 ** -10, atol=1e-5)


def alone(x: torch.Tensor) -> torch.Tensor:
    return x[3:4].clone()


@pytest.mark.parametrize("wrapped", (False, True))
def test_layers(first: None, seen: list[tuple[str, int]], wrapped: bool) -> None:
    """Every form that a model calls goes to Detent's kernels in the tuple's warps; a row alone has the same bits."""
    hidden, heads, gemma = layers()
    x, residual = (torch.randn(5, HIDDEN).to(DTYPE) for _ in range(2))
    with ir.op.enable_torch_wrap(wrapped), torch.inference_mode():
        got = hidden(x)
        close(got, want(x, hidden.weight))
        assert torch.equal(hidden(alone(x)), got[3:4])
        assert seen == [("rms_norm", 8)] * 2

        seen.clear()
        before = residual.clone()
        got, total = hidden(x.clone(), residual.clone())
        assert torch.equal(total, x + before)
        assert torch.equal(got, hidden(x + before))
        got_alone, total_alone = hidden(alone(x), alone(before))
        assert torch.equal(got_alone, got[3:4]) and torch.equal(total_alone, total[3:4])
        assert seen == [("rms_norm", 8)] * 3

        seen.clear()
        wide = torch.randn(5, 8 * 16).to(DTYPE)
        queries = wide.split([48, 80], dim=-1)[1].view(5, 5, 16)
        got = heads(queries)
        close(got, want(queries, heads.weight))
        assert got.is_contiguous() and torch.equal(heads(queries[3:4]), got[3:4])
        assert seen == [("head_norm", 8)] * 2

        seen.clear()
        got, total = gemma(x, residual)
        close(got, want(x + residual, 1.0 + gemma.weight))
        assert torch.equal(residual, before) and torch.equal(total, x + before)
        close(gemma(x), want(x, 1.0 + gemma.weight))
        assert seen == [("rms_norm", 8)] * 2


def test_rows_that_begin_elsewhere(first: None) -> None:
    """Slices at odd places are copied and not refused; the bits are those of the same rows."""
    hidden, heads, _ = layers()
    wide = torch.randn(5, HIDDEN + 11).to(DTYPE)
    x = wide[:, 3:HIDDEN + 3]
    assert torch.equal(hidden(x), hidden(x.clone()))
    q = torch.randn(5, 3, 19).to(DTYPE)[:, :, 1:17]
    assert torch.equal(heads(q), heads(q.clone()))
    assert hidden(x[:0]).shape == (0, HIDDEN)


def test_what_has_no_kernel_is_refused(first: None) -> None:
    x = torch.randn(2, HIDDEN).to(DTYPE)
    for weight, size in ((None, None), (torch.ones(HIDDEN), 32)):
        with pytest.raises(DetentError, match="norm"):
            ir.ops.rms_norm(x, weight, EPS, size)
        with pytest.raises(DetentError, match="norm"):
            ir.ops.fused_add_rms_norm(x, x.clone(), weight, EPS, size)


@pytest.mark.parametrize("block", (576, 96, 2048, 0, 16))
def test_blocks_that_triton_has_not(block: int) -> None:
    with pytest.raises(DetentError, match=f"block of {block}"):
        norm.warps({"block": block})


def test_hidden_sizes_off_16_bytes() -> None:
    with pytest.raises(DetentError, match="norms of 68"):
        norm.install(Conditions({"norm": {"block": 256}}, 68))


def nodes(module: Any) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_torch_compile(first: None, backend: str) -> None:
    """One node of ours for each norm, and no other; the bits of eager, for several numbers of tokens."""
    hidden, heads, _ = layers()
    graphs: list[list[str]] = []

    def model(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, total = hidden.forward_native(x, residual)
        return hidden.forward_native(y), heads.forward_native(y.view(-1, 4, 16)), total

    def looking(module: Any, example: Any) -> Any:
        graphs.append(nodes(module))
        if backend == "eager":
            return module.forward
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(module, example)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=looking, fullgraph=True, dynamic=True)
    with ir.op.enable_torch_wrap(False), torch.inference_mode():
        for tokens in (5, 9):
            x, residual = (torch.randn(tokens, HIDDEN).to(DTYPE) for _ in range(2))
            for got, right in zip(compiled(x, residual), model(x, residual), strict=True):
                assert torch.equal(got, right)
    for graph in graphs:
        ours = [name for name in graph if "detent" in name]
        assert sorted(ours) == ["detent.fused_add_rms_norm", "detent.rms_norm", "detent.rms_norm"]
        assert not [name for name in graph if "mean" in name or "rsqrt" in name or "pow" in name]
    assert graphs


def test_vllms_lowering(first: None) -> None:
    """vLLM's graphs hold its own operators; its passes put ours in their place and leave no other norm."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from vllm.compilation.passes.inductor_pass import pass_context
    from vllm.compilation.passes.ir.clone_elimination import UnsafeCloneEliminationPass
    from vllm.compilation.passes.ir.lowering_pass import VllmIRLoweringPass
    from vllm.config.utils import Range

    hidden, heads, _ = layers()

    def model(x: torch.Tensor, residual: torch.Tensor, wide: torch.Tensor, small: torch.Tensor) -> Any:
        y, total = ir.ops.fused_add_rms_norm(x, residual, wide, EPS)
        return ir.ops.rms_norm(y.view(-1, 4, 16), small, EPS), total

    inputs = (*(torch.randn(5, HIDDEN).to(DTYPE) for _ in range(2)), hidden.weight.data, heads.weight.data)
    with ir.op.enable_torch_wrap(True), torch.inference_mode(False), torch.no_grad():
        traced = make_fx(model, tracing_mode="fake")(*inputs)
        assert "vllm_ir.fused_add_rms_norm.default" in nodes(traced)
        config = configured(mode=CompilationMode.VLLM_COMPILE)
        lowering = VllmIRLoweringPass(config)
        with pass_context(Range(1, 8192)):
            lowering(traced.graph)
            UnsafeCloneEliminationPass(config)(traced.graph)
        traced.recompile()
        names = nodes(traced)
        assert {provider for each in lowering.selected_impls.values() for provider in each.values()} == {"detent"}
        assert "detent.rms_norm.default" in names and "detent.fused_add_rms_norm.default" in names
        assert not [name for name in names if any(part in name for part in ("vllm_ir", "mean", "rsqrt", "clone"))]
        kept = [each.clone() for each in inputs]
        for got, right in zip(traced(*inputs), model(*inputs), strict=True):
            assert torch.equal(got, right)
        assert all(map(torch.equal, inputs, kept))
    assert norm.PROVIDER in lowering.uuid()

"""Linear layers of the real vLLM under the plug-in: which products are Detent's, for what operands, eager and compiled,
and what is compiled beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import plugin_support
import pytest
import torch
from plugin_support import Conditions, putting_back
from vllm.model_executor import parameter
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.linear import ReplicatedLinear, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from detent.engines.vllm.sites import linear
from detent.kernels import gemm, gemm_deep
from detent.runtime import deployment as deployments
from detent.runtime.errors import DetentError

N, K = 48, 64
DTYPE = torch.float16  # the interpreter cuts bf16 off and does not round


def conditions(kernel: str = "triton_persistent", padding: int = 1) -> Any:
    return Conditions({"gemm": {"kernel": kernel, "padding": padding}})


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(linear, "define", plugin_support.define)
    yield from putting_back("sites.linear")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Each product that Detent's kernel computed. Any other way to one is an error."""
    made: list[dict[str, Any]] = []
    kernel = gemm.gemm

    def noting(x: Any, weight: Any, **named: Any) -> Any:
        made.append({"x": x, "rows": x.shape[0], **named})
        return kernel(x, weight, **named)

    def never(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("torch's own product ran")
    monkeypatch.setattr(gemm, "gemm", noting)
    linear.install(conditions(padding=64))
    monkeypatch.setattr(torch.nn.functional, "linear", never)
    return made


def weight_of(n: int = N, k: int = K) -> torch.Tensor:
    return (torch.randn(n, k, generator=torch.Generator().manual_seed(n)) * k ** -0.5).to(DTYPE)


def close(got: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    want = x.double() @ weight.double().T
    assert got.dtype == DTYPE and got.shape == want.shape
    torch.testing.assert_close(got.double(), want if bias is None else want + bias.double(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("method", (UnquantizedLinearMethod, UnquantizedEmbeddingMethod))
@pytest.mark.parametrize("biased", (False, True))
def test_layers_and_the_output_head(seen: list[dict[str, Any]], method: Any, biased: bool) -> None:
    """As vLLM's layers and its output head ask for a product; a row alone has the same bits."""
    torch.manual_seed(0)
    layer = SimpleNamespace(weight=weight_of())
    bias = torch.randn(N).to(DTYPE) if biased else None
    x = torch.randn(5, K).to(DTYPE)
    got = method().apply(layer, x, bias)
    close(got, x, layer.weight, bias)
    assert torch.equal(method().apply(layer, x[3:4].clone(), bias), got[3:4])
    assert [(each["rows"], each["implementation"], each["padding"]) for each in seen] == [
        (5, "triton", 64), (1, "triton", 64)]


def test_a_layer_of_vllms(seen: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones. Of too few columns, such as a router of eight experts, there is no kernel, and nothing else runs."""
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: 1)
    wide, router = (ReplicatedLinear(K, n, bias=n > 8, params_dtype=DTYPE, disable_tp=True) for n in (128, 8))
    wide.weight.data.copy_(weight_of(128))
    wide.bias.data.fill_(2.0)
    x = torch.randn(3, K).to(DTYPE)
    with torch.inference_mode():
        got, none = wide(x)
        close(got, x, wide.weight, wide.bias)
        assert none is None and len(seen) == 1
        with pytest.raises(ValueError, match="gemm: N 8 is no multiple"):
            router(x)


@pytest.mark.parametrize("shape", ((K,), (1, K), (0, K), (2, 3, K), (2, 1, 2, K)))
def test_leading_dimensions(seen: list[dict[str, Any]], shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape).to(DTYPE), weight_of()
    close(utils.dispatch_unquantized_gemm()(None, x, weight), x, weight)


def test_rows_that_lie_apart(seen: list[dict[str, Any]]) -> None:
    """A slice of wider rows is read in place; rows that begin at odd places are copied. The bits are those of the
    same rows elsewhere."""
    torch.manual_seed(0)
    weight, x = weight_of(), torch.randn(5, K).to(DTYPE)
    want = utils.default_unquantized_gemm(None, x, weight)
    wide = torch.zeros(5, 3 * K + 4, dtype=DTYPE)
    for width, start, copied in ((3 * K, 16, False), (3 * K + 4, 16, True), (3 * K, 2 * K, False)):
        rows = wide.flatten()[:5 * width].view(5, width)[:, start:start + K]
        rows.copy_(x)
        assert torch.equal(utils.default_unquantized_gemm(None, rows, weight), want)
        assert (seen[-1]["x"].data_ptr() != rows.data_ptr()) == copied
    transposed = x.T.contiguous().T
    assert torch.equal(utils.default_unquantized_gemm(None, transposed, weight), want)
    same = x[:1].expand(5, K)  # one row, five times
    assert torch.equal(utils.default_unquantized_gemm(None, same, weight), want[:1].expand(5, N))
    odd = torch.zeros(5 * K + 3, dtype=DTYPE)[3:].view(5, K)  # apart by multiples of 16 bytes, and not at them
    odd.copy_(x)
    assert torch.equal(utils.default_unquantized_gemm(None, odd, weight), want)


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_torch_compile_keeps_one_node(seen: list[dict[str, Any]], backend: str) -> None:
    """For every number of rows the same graph; the bits of eager."""
    method, layers = UnquantizedLinearMethod(), [SimpleNamespace(weight=weight_of(K)), SimpleNamespace(
        weight=weight_of(N))]
    bias = torch.ones(N, dtype=DTYPE)
    graphs: list[list[str]] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        return method.apply(layers[1], method.apply(layers[0], x), bias)

    def looking(module: Any, example: Any) -> Any:
        if backend == "eager":
            graphs.append(targets(module))
            return module.forward
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def inner(inside: Any, given: Any) -> Any:
            graphs.append(targets(inside))
            return make_boxed_func(inside.forward)
        return aot_autograd(fw_compiler=inner)(module, example)

    def targets(module: Any) -> list[str]:
        return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=looking, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for rows in (5, 9, 2):
            x = torch.randn(rows, K).to(DTYPE)
            assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 1
    assert len([name for name in graphs[0] if "detent.linear" in name]) == 2
    assert not [name for name in graphs[0] if "mm" in name or "aten.linear" in name]


# ---- kernels --------------------------------------------------------------------------------------------------------


def test_a_kernel_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is replaced then, and nothing else runs in its place."""
    original = utils.default_unquantized_gemm
    monkeypatch.setattr(gemm_deep, "available", lambda: False)
    with pytest.raises(DetentError, match="DeepGEMM, which is not here"):
        linear.install(conditions("deep_gemm"))
    assert utils.default_unquantized_gemm is original
    monkeypatch.setattr(gemm_deep, "available", lambda: True)
    linear.install(conditions("deep_gemm", 256))
    with pytest.raises(ValueError, match="only triton runs in Triton's interpreter"):  # DeepGEMM was asked, no other
        utils.default_unquantized_gemm(None, torch.ones(2, K, dtype=DTYPE), weight_of())


@pytest.mark.parametrize("padding, counts", [
    (1, range(1, 8193)), (64, range(64, 8193, 64)), (512, range(512, 8193, 512))])
def test_what_is_compiled_beforehand(padding: int, counts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape of the model, for every number of rows that the tuple's padding makes."""
    made: list[tuple[Any, ...]] = []

    def compile_all(shapes: Any, rows: Any, **named: Any) -> int:
        made.append((shapes, tuple(rows), named))
        return 17
    monkeypatch.setattr(gemm_deep, "compile_all", compile_all)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    active = conditions("deep_gemm", padding)
    active.deployment = deployments.load("llama-3.1-8b-tp1-h200")
    assert linear.prepare(active) == 17
    (found,) = made
    assert found == ([(6144, 4096), (4096, 4096), (128256, 4096), (28672, 4096), (4096, 14336)], tuple(counts),
                     {"device": 3, "multiprocessors": 132})
    made.clear()
    active.points["gemm"]["kernel"] = "triton_persistent"
    assert linear.prepare(active) == 0 and not made


@pytest.mark.parametrize("name, shapes", [
    ("llama-3.2-1b-tp1-h200", [(3072, 2048), (2048, 2048), (128256, 2048), (16384, 2048), (2048, 8192)]),
    ("qwen3-30b-a3b-tp1-h200", [(5120, 2048), (2048, 4096), (151936, 2048), (128, 2048)]),
    ("smollm2-135m-tp1-h200", [(960, 576), (576, 576), (49152, 576), (3072, 576), (576, 1536)]),
    ("llama-3.1-70b-tp2-h200", [(5120, 8192), (8192, 4096), (64128, 8192), (28672, 8192), (8192, 14336)]),
])
def test_shapes_of_published_models(name: str, shapes: list[tuple[int, int]]) -> None:
    """Query, key and value; attention's output; the output head; the MLP's two, or the router of experts."""
    assert linear.shapes(deployments.load(name).facts) == shapes

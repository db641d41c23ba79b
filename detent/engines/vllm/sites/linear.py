"""Linear layers, the router of experts and the output head: every product of activations and a weight.

vLLM leaves them to cuBLAS, whose choice by the number of rows may split the sum. ``detent::linear`` runs
:func:`detent.kernels.gemm.gemm` in its place: eager, while graphs are captured, and as one node under torch.compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.engines.vllm.sites.operators import define
from detent.runtime.errors import DetentError

KERNELS = {"deep_gemm": "deep_gemm", "triton_persistent": "triton"}
"""What ``detent.kernels.gemm`` calls the kernels that the program names."""


def shapes(facts: Mapping[str, Mapping[str, Any]]) -> list[tuple[int, int]]:
    """``(N, K)`` of a rank's weights, of a deployment's facts."""
    model, ranks = facts["model"], facts["parallel"]["tensor_parallel"]
    hidden, head = model["hidden_size"], model["head_dim"]
    heads, kv_heads = model["num_attention_heads"] // ranks, max(1, model["num_key_value_heads"] // ranks)
    found = [((heads + 2 * kv_heads) * head, hidden), (hidden, heads * head), (model["vocab_size"] // ranks, hidden)]
    if "moe" in facts:
        return [*found, (facts["moe"]["num_experts"], hidden)]
    inner = model["intermediate_size"] // ranks
    return [*found, (2 * inner, hidden), (hidden, inner)]


def prepare(active: Active) -> int:
    """Compile what serving may come to need and the cache lacks, all cores at once; how many kernels there are.

    DeepGEMM would compile each when it is first met, seconds at a time. Needs this process's GPU.
    """
    points, facts = active.points["gemm"], active.deployment.facts
    if KERNELS[points["kernel"]] != "deep_gemm":
        return 0
    import torch

    from detent.kernels.gemm import grid
    from detent.kernels.gemm_deep import compile_all

    counts = grid(points["padding"], facts["limits"]["max_num_batched_tokens"])
    return compile_all(shapes(facts), counts, device=torch.cuda.current_device(),
                       multiprocessors=facts["gpu"]["num_sm"])


def install(active: Active) -> None:
    """Route the products. Raises DetentError for a kernel that is not here."""
    import torch

    from detent.kernels.gemm import gemm
    from detent.kernels.gemm_deep import available

    points = active.points["gemm"]
    kernel, padding = KERNELS[points["kernel"]], points["padding"]
    if kernel == "deep_gemm" and not available():
        raise DetentError("the tuple runs linear layers with DeepGEMM, which is not here",
                          "install sgl-deep-gemm, or vLLM's wheel with its vendored deep_gemm, and nvcc")

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        step, within = rows.stride()
        if within != 1 or step % 8 or step < rows.shape[1] or rows.data_ptr() % 16:  # as the kernels' loads need them
            rows = rows.clone(memory_format=torch.contiguous_format)
        out: torch.Tensor = gemm(rows, weight, padding=padding, implementation=kernel)
        return out.view(*x.shape[:-1], weight.shape[0])

    def shape(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    operator = define("linear", linear, shape)

    def routed(layer: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = operator(x, weight)
        return out if bias is None else out + bias

    hooks.rebind(hooks.UTILS, "default_unquantized_gemm", lambda original: routed)

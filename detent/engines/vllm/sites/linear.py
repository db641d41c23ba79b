"""Linear layers, the router of experts and the output head: every product of activations and a weight.

vLLM leaves them to cuBLAS, whose choice by the number of rows may split the sum. ``detent::linear`` runs
:func:`detent.kernels.gemm.gemm` in its place: eager, while graphs are captured, and as one node under torch.compile.
"""

from __future__ import annotations

from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.engines.vllm.sites.operators import define
from detent.runtime.errors import DetentError

KERNELS = {"deep_gemm": "deep_gemm", "triton_persistent": "triton"}
"""What ``detent.kernels.gemm`` calls the kernels that the program names."""


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
        if rows.stride(0) % 8 or rows.stride(1) != 1:  # as the kernels' loads need them
            rows = rows.contiguous()
        out: torch.Tensor = gemm(rows, weight, padding=padding, implementation=kernel)
        return out.view(*x.shape[:-1], weight.shape[0])

    def shape(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    operator = define("linear", linear, shape)

    def routed(layer: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = operator(x, weight)
        return out if bias is None else out + bias

    hooks.rebind(hooks.UTILS, "default_unquantized_gemm", lambda original: routed)

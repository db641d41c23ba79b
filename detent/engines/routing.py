"""Call sites that are not routed: operations that add up numbers and that no selector chose.

Matrix products, softmax, norms and reductions of floating numbers add in an order that torch chooses by shape. A
dispatch mode sees every operation of a real forward pass, and an engine's trace compares it with these names.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

import torch

from detent.runtime.errors import DetentError

PRODUCTS = ("addbmm", "addmm", "addmv", "addr", "baddbmm", "bilinear", "bmm", "convolution", "dot", "einsum", "linear",
            "matmul", "mm", "mv", "tensordot", "vdot")
REDUCTIONS = ("amax", "amin", "aminmax", "argmax", "argmin", "cumprod", "cumsum", "index_add", "index_reduce",
              "logcumsumexp", "logsumexp", "max", "mean", "median", "min", "norm", "nansum", "prod", "scatter_add",
              "scatter_reduce", "std", "std_mean", "sum", "topk", "var", "var_mean")
PARTS = ("softmax", "scaled_dot_product", "attention", "layer_norm", "rms_norm", "vector_norm", "batch_norm",
         "group_norm", "linear_pointwise", "scaled_mm", "grouped_mm", "_mm_", "addmm_", "gemm", "embedding_bag")
"""Names, and parts of names, of operations that must be selected."""
PACKAGE = os.path.dirname(torch.__file__)


class Unrouted(DetentError):
    """An operation that no selector chose. ``operation``: its name, ``caller``: ``file:line``."""

    def __init__(self, operation: str, caller: str) -> None:
        super().__init__(f"{caller} asks torch for {operation} beside the selected operations",
                         "issue it through Detent, or serve a model whose operations are")
        self.args = (operation, caller)
        self.operation, self.caller = operation, caller


def must_be_selected(name: str) -> bool:
    """Whether an operation of this name (as ``aten`` calls it) adds up more than one number."""
    bare = name.strip("_")
    return bare in PRODUCTS or bare in REDUCTIONS or any(part in name for part in PARTS)


def floating(values: Any) -> bool:
    """Whether some tensor among the arguments has floating numbers, or integers are made such; sums of integers are
    exact."""
    if isinstance(values, torch.dtype):
        return values.is_floating_point or values.is_complex
    if isinstance(values, torch.Tensor):
        return values.is_floating_point() or values.is_complex()
    if isinstance(values, dict):
        values = values.values()
    return not isinstance(values, str) and hasattr(values, "__iter__") and any(floating(value) for value in values)


def caller(*own: str) -> str:
    """``file:line`` of the innermost frame that is neither torch's, nor this file's, nor of one of ``own``."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(PACKAGE) and frame.filename not in (__file__, *own):
            return f"{frame.filename}:{frame.lineno}"
    return "torch"

"""Call sites that are not routed: what a forward pass asks torch for beside the selected operations.

A dispatch mode sees every operation of a real forward pass. Matrix products, softmax, norms and reductions of floating
numbers add in an order that torch chooses by shape, so each must come from inside of an operation of ``Ops``.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detent.runtime.errors import DetentError

if TYPE_CHECKING:
    from detent.engines.embedded.ops import Ops

PRODUCTS = ("addbmm", "addmm", "addmv", "addr", "baddbmm", "bilinear", "bmm", "convolution", "dot", "einsum", "linear",
            "matmul", "mm", "mv", "tensordot", "vdot")
REDUCTIONS = ("amax", "amin", "aminmax", "argmax", "argmin", "cumprod", "cumsum", "index_add", "index_reduce",
              "logcumsumexp", "logsumexp", "max", "mean", "median", "min", "norm", "nansum", "prod", "scatter_add",
              "scatter_reduce", "std", "std_mean", "sum", "topk", "var", "var_mean")
PARTS = ("softmax", "scaled_dot_product", "attention", "layer_norm", "rms_norm", "vector_norm", "batch_norm",
         "group_norm", "linear_pointwise", "scaled_mm", "grouped_mm", "_mm_", "embedding_bag")
"""Names, and parts of names, of operations that must be selected."""
PACKAGE = os.path.dirname(torch.__file__)


class Unrouted(DetentError):
    """An operation that no selector chose. ``operation``: its name, ``caller``: ``file:line``."""

    def __init__(self, operation: str, caller: str) -> None:
        super().__init__(f"{caller} asks torch for {operation} beside the selected operations",
                         "call the operation of Ops in its place")
        self.args = (operation, caller)
        self.operation, self.caller = operation, caller


def check(run: Callable[[], object], ops: Ops) -> None:
    """Call ``run``, a real forward pass (prefill and decode). Raises Unrouted at the first call site that is not
    routed through ``ops``."""
    with _Watch(ops):
        run()


class _Watch(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this mode is on; to skip the compiler, torch would have to import it (seconds)."""
        return False

    def __init__(self, ops: Ops) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = ops.inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if not self._inside:
            name = func.overloadpacket.__name__
            if must_be_selected(name) and _floating((args, kwargs)):
                raise Unrouted(name, _caller())
        return func(*args, **(kwargs or {}))


def must_be_selected(name: str) -> bool:
    """Whether an operation of this name (as ``aten`` calls it) adds up more than one number."""
    bare = name.strip("_")
    return bare in PRODUCTS or bare in REDUCTIONS or any(part in name for part in PARTS)


def _floating(values: Any) -> bool:
    """Whether some tensor among the arguments has floating numbers; sums of integers are exact."""
    if isinstance(values, torch.Tensor):
        return values.is_floating_point() or values.is_complex()
    if isinstance(values, dict):
        values = values.values()
    return not isinstance(values, str) and hasattr(values, "__iter__") and any(_floating(value) for value in values)


def _caller() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor this file's."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(PACKAGE) and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno}"
    return "torch"

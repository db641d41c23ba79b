"""torch operators named ``detent::…``: torch.compile keeps them whole, CUDA graphs capture them, a trace sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

NAMESPACE = "detent"
UNIT = 8
"""Elements that steps between rows are multiples of: 16 bytes of the narrowest type."""


def define(name: str, run: Callable[..., Any], shape: Callable[..., Any], mutates: tuple[str, ...] = ()) -> Any:
    """The operator ``detent::name``, of functions with annotated parameters: ``run`` computes it, ``shape`` gives an
    empty result of its shape. ``mutates``: parameters that it writes to. Defined once a process."""
    import torch

    if not hasattr(getattr(torch.ops, NAMESPACE), name):
        from vllm.utils.torch_utils import (  # type: ignore[import-not-found, unused-ignore]
            direct_register_custom_op,
        )

        direct_register_custom_op(name, _resolved(run), list(mutates), _resolved(shape), _library(), "CUDA")
    return getattr(getattr(torch.ops, NAMESPACE), name)


@cache
def _library() -> Any:
    """Operators live as long as this does."""
    import torch

    return torch.library.Library(NAMESPACE, "FRAGMENT")


def _resolved(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with annotations that are types: torch reads the schema off them."""
    import torch

    known = {"torch": torch, "Tensor": torch.Tensor}
    function.__annotations__ = {name: eval(kind, known) if isinstance(kind, str) else kind
                                for name, kind in function.__annotations__.items()}
    return function


def aligned(x: Any) -> Any:
    """``x``, or a copy of it if its rows do not begin at multiples of 16 bytes, or overlap."""
    *outer, size = x.shape
    steps = [step for step, count in zip(x.stride()[:-1], outer, strict=True) if count > 1]
    whole = x.stride(-1) == 1 or size == 1
    if whole and x.data_ptr() % 16 == 0 and all(step % UNIT == 0 and step >= size for step in steps):
        return x
    return x.new_empty((*outer, size + -size % UNIT))[..., :size].copy_(x)

"""torch operators named ``detent::…``: torch.compile keeps them whole, CUDA graphs capture them, a trace sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

NAMESPACE = "detent"


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

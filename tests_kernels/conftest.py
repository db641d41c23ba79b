"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def dot_in_order(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """The interpreter's ``tl.dot``, products added in order of k. numpy's own product, which it uses otherwise, gives a
    row other bits at other places in a tile on some processors."""
    import numpy
    from triton.runtime.interpreter import TensorHandle

    left, right = (part.data.astype(d.data.dtype) for part in (a, b))
    total = numpy.zeros_like(d.data)
    for k in range(left.shape[1]):
        total += left[:, k : k + 1] * right[k]
    return TensorHandle(total + d.data, d.dtype.scalar)


if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)  # the interpreter's arrays are small
    from triton.runtime.interpreter import InterpreterBuilder

    InterpreterBuilder.create_dot = dot_in_order


@pytest.fixture(scope="session")
def script() -> Callable[[str], Any]:
    """Imports a script of ``benchmarks/`` by its name."""
    def load(name: str) -> Any:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.pop(0)
    return load

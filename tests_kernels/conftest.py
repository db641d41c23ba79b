"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os
from typing import Any

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

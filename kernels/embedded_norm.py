"""Row-wise and elementwise operations of the embedded engine: RMSNorm, softmax, argmax, exponential and SiLU.

On a CPU torch computes every row of the first three by itself, in an order that hangs on the row's length only. On a
GPU its sums hang on the number of rows, and its softmax on where a row begins in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

LANES, BLOCK = 64, 16384
"""Elements that whole vectors have, and that one thread keeps to itself (torch's grain is 32,768)."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, own: bool) -> Tensor:
    """``x[M, H]`` over its root mean square, times ``weight[H]``, by torch's ``own`` norm or composed; in fp32, rounded
    once to x's type."""
    if own and x.dtype == weight.dtype == torch.float32:
        return torch.rms_norm(x, weight.shape, weight, eps)
    wide, scale = x.float(), weight.float()
    if own:
        return torch.rms_norm(wide, weight.shape, scale, eps).to(x.dtype)
    square = wide.square()
    mean = square.mean(-1, keepdim=True) if x.device.type == "cpu" else _sum(square) / x.shape[1]
    return (wide * torch.rsqrt(mean + eps) * scale).to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    """Softmax of every row of ``x[M, V]`` in fp32."""
    return torch.softmax(_aligned(x.float()), -1)[:, :x.shape[1]]


def log_softmax(x: Tensor) -> Tensor:
    """Logarithm of the softmax of every row of ``x[M, V]`` in fp32."""
    return torch.log_softmax(_aligned(x.float()), -1)[:, :x.shape[1]]


def _sum(x: Tensor) -> Tensor:
    """Every row's sum, ``[M, 1]``: one half is added to the other until one column is left, so by elementwise
    operations alone."""
    x = functional.pad(x, (0, (1 << (x.shape[1] - 1).bit_length()) - x.shape[1]))
    while x.shape[1] > 1:
        x = x[:, :x.shape[1] // 2] + x[:, x.shape[1] // 2:]
    return x


def _aligned(x: Tensor) -> Tensor:
    """On a GPU the rows filled up, with what has no share in a softmax, so that all begin alike in memory."""
    rest = 0 if x.device.type == "cpu" else -x.shape[1] % LANES
    return functional.pad(x, (0, rest), value=-math.inf) if rest else x


def argmax(x: Tensor) -> Tensor:
    """The lowest index of every row's largest element: ``x[M, V]`` gives ``[M]``."""
    return torch.argmax(x, -1)


def exp(x: Tensor) -> Tensor:
    """The exponential, element by element."""
    return by_vectors(torch.exp, x)


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``, element by element."""
    return by_vectors(lambda source, out: torch.ops.aten.silu.out(source, out=out), x)


def by_vectors(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """``function(source, out=target)`` of every element, with bits that do not depend on where an element stands.

    On a CPU torch computes the last elements of each thread's share one by one and the others in vectors, and the two
    exponentials differ in their last bits. So elements are filled up to whole vectors and computed in blocks that one
    thread keeps.
    """
    count = x.numel()
    result = torch.empty(count + -count % LANES, dtype=x.dtype, device=x.device)
    source = functional.pad(x.reshape(-1), (0, len(result) - count))
    if x.device.type != "cpu":
        return function(source, out=result)[:count].view(x.shape)
    for part, target in zip(source.split(BLOCK), result.split(BLOCK), strict=True):
        function(part, out=target)
    return result[:count].view(x.shape)

"""Matrix products of the embedded engine: in tiles of rows, or with weights that oneDNN has laid out anew.

Two kernels. *plain* is :func:`torch.nn.functional.linear` on tiles of ``rows`` rows; what BLAS adds in which order
hangs on a tile's number of rows, so a row's bits are the same only in full tiles of one size. *packed* is oneDNN's
product with blocked weights, which adds in ascending K whatever the number of rows is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

PACKED_ROWS = 16
"""Rows that the layout is made for. A layout for one row has another sum for a single row than for several."""
ALIGNMENT = 64
"""Bytes. BLAS may add in another order where a matrix does not begin at a cache line."""


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN takes this weight: fp32 on a CPU."""
    return bool(weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available())


def pack(weight: Tensor) -> Tensor:
    """The weight ``[N, K]`` in oneDNN's blocked layout, an opaque tensor. Only where :func:`can_pack`."""
    blocked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    return blocked


def packed(x: Tensor, weight: Tensor) -> Tensor:
    """``x[M, K]`` times what :func:`pack` made of a weight ``[N, K]``: ``[M, N]``."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out


def plain(x: Tensor, weight: Tensor) -> Tensor:
    """``x[M, K]`` times ``weight[N, K]``: ``[M, N]``."""
    return torch.nn.functional.linear(x, weight)


def tiled(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, rows: int, fill: bool) -> Tensor:
    """:func:`plain` or :func:`packed` by tiles of ``rows`` rows, the last one filled up with zeros if ``fill``."""
    count = x.shape[0]
    if count == rows or count < rows and not fill:
        return product(_tile(x, count), weight)
    if count < rows:
        return product(_tile(x, rows), weight)[:count]
    parts = [product(_tile(part, rows if fill else len(part)), weight) for part in x.split(rows)]
    return torch.cat(parts)[:count]


def _tile(x: Tensor, rows: int) -> Tensor:
    """The rows at the start of a tile of ``rows`` rows, in memory that begins at a cache line."""
    if x.shape[0] == rows and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    tile = x.new_zeros(rows, x.shape[1])
    tile[:x.shape[0]] = x
    return tile

"""Matrix products of the embedded engine: in tiles of rows, or with weights that oneDNN has laid out anew.

Two kernels. *plain* is :func:`torch.nn.functional.linear` on tiles of ``rows`` rows; what BLAS adds in which order
hangs on a tile's number of rows, so a row's bits are the same only in full tiles of one size. *packed* is oneDNN's
product with blocked weights, which adds in ascending K whatever the number of rows is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear as _plain

PACKED_ROWS = 16
"""Rows that the layout is made for. A layout for one row has another sum for a single row than for several."""
ALIGNMENT = 64
"""Bytes. BLAS may add in another order where a matrix does not begin at a cache line."""


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN takes this weight: fp32 on a CPU."""
    return bool(weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available())


def pack(weight: Tensor) -> Tensor:
    """The weight ``[N, K]`` in oneDNN's blocked layout, an opaque tensor. Only where :func:`can_pack`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
    return packed


def packed_linear(x: Tensor, packed: Tensor) -> Tensor:
    """``x[M, K]`` times a packed weight: ``[M, N]``."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, None, "none", [], "")
    return out


def linear(x: Tensor, weight: Tensor, rows: int, full: bool) -> Tensor:
    """``x[M, K]`` times ``weight[N, K]``: ``[M, N]``, in tiles of ``rows`` rows, the last one filled up if ``full``."""
    count = x.shape[0]
    if count <= rows:
        return _plain(_tile(x, rows if full else count), weight)[:count]
    out = x.new_empty(count, weight.shape[0])
    for start in range(0, count, rows):
        part = x[start:start + rows]
        out[start:start + rows] = _plain(_tile(part, rows if full else part.shape[0]), weight)[:part.shape[0]]
    return out


def _tile(x: Tensor, rows: int) -> Tensor:
    """The rows at the start of a tile of ``rows`` rows, in memory that begins at a cache line."""
    if x.shape[0] == rows and x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:
        return x
    tile = x.new_zeros(rows, x.shape[1])
    tile[:x.shape[0]] = x
    return tile

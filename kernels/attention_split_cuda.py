"""The Hopper half of :mod:`detent.kernels.attention_split`: builds the CUDA code for a head dim, once, and calls it.

``build_cuda`` says where the library lies. Building takes nvcc (``$CUDA_HOME/bin``, the PATH or
``/usr/local/cuda/bin``) and some ten seconds.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.kernels.build_cuda import FLAGS, build, folder
from detent.kernels.build_cuda import compiler as compiler

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor

SOURCES = ("attention_split_sm90.cu", *(f"attention_split_{part}.cuh" for part in (
    "sm90", "work", "fetch", "rows", "combine", "launch")))
_folder = folder  # libraries lie there
WARPGROUP_ROWS = 64  # rows of one MMA; a request with more than fit is prefilled


class Call(ctypes.Structure):
    """The launcher's arguments, as in ``attention_split_launch.cuh``; strides in elements."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out", "part", "table", "cu", "used", "stream")),
        *((name, ctypes.c_int64) for name in (
            "q_token", "q_head", "o_token", "o_head", "table_row", "k_page", "k_token", "k_head", "v_page", "v_token",
            "v_head", "pages", "part_rows")),
        *((name, ctypes.c_int) for name in (
            "device", "tokens", "batch", "kv_heads", "group", "page", "splits", "stride", "max_context",
            "max_queries", "short_q")),
        ("scale", ctypes.c_float),
    )


def available() -> bool:
    """Whether the code can be built: nvcc and the sources are there."""
    return compiler() is not None and all((Path(__file__).parent / source).exists() for source in SOURCES)


@functools.cache
def library(head_dim: int) -> ctypes.CDLL:
    """The compiled code for a head dim. ``RuntimeError`` where it cannot be compiled."""
    here = Path(__file__).parent
    built = build("attention_split", f"attention_split_{head_dim}", [here / source for source in SOURCES],
                  (*FLAGS, f"-DHEAD_DIM={head_dim}"), compiler())
    loaded = ctypes.CDLL(str(built))
    loaded.detent_attention_split.argtypes = [ctypes.POINTER(Call)]
    loaded.detent_attention_split_error.restype = ctypes.c_char_p
    return loaded


def attend(
    torch: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor, cu: Tensor, used: Tensor, out: Tensor, *,
    max_seqlen_q: int, max_context: int, splits: int, stride: int, scale: float, multiprocessors: int,
) -> None:
    """Launch for checked arguments. ``scale`` is in powers of two; ``splits`` 1 means that no request has a second."""
    (tokens, heads, head_dim), (pages, page, kv_heads, _) = q.shape, k.shape
    device, batch = q.device, used.shape[0]
    group = heads // kv_heads
    code = library(head_dim)
    all_short = max_seqlen_q <= WARPGROUP_ROWS // group
    short_q = max_seqlen_q if all_short else int(batch > 1)  # requests up to it are split among multiprocessors
    part_rows = batch * heads * splits * short_q if splits > 1 else 0
    room = part_rows * (head_dim + 2)
    if head_dim > 128 and splits > 1 and not all_short:  # states of rows between their splits
        room = max(room, multiprocessors * 2 * WARPGROUP_ROWS * head_dim)
    part = torch.empty(room, dtype=torch.float32, device=device) if room else None
    call = Call(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), None if part is None else part.data_ptr(),
        table.data_ptr(), cu.data_ptr(), used.data_ptr(), torch.cuda.current_stream(device).cuda_stream,
        *q.stride()[:2], *out.stride()[:2], table.stride(0), *k.stride()[:3], *v.stride()[:3], pages, part_rows,
        device.index, tokens, batch, kv_heads, group, page, splits, stride, max_context, max_seqlen_q, short_q,
        scale)
    error = code.detent_attention_split(ctypes.byref(call))
    if error != 0:
        raise RuntimeError(f"attention_split: {code.detent_attention_split_error(error).decode()}")

"""Attention over a paged KV cache whose splits lie at absolute multiples of a stride.

A row's bits depend on the row's own query and keys, on the stride, and on nothing else: not on the other requests, on
whether the row is decoded, prefilled whole or in chunks or reads its prefix from the cache, nor on the page size.
``attention_split_sm90.cu`` (Hopper, through ``attention_split_cuda``) and ``attention_split_triton`` (elsewhere) say
why. What a program pins is the stride; the count of splits only has to cover the longest request, and splits behind a
request's last key are never computed.
"""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from detent.kernels.device import multiprocessors

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor; torch is imported only where a kernel is launched

HEAD_DIMS = (64, 96, 128, 256)
MAX_SPLITS = 256
MAX_BATCH = 4096
MIN_STRIDE, MAX_STRIDE, STRIDE_STEP = 256, 16384, 128  # the step is a multiple of every kernel's KV block
UNSPLIT = 1 << 30  # the stride of one split: no request reaches it
SPLIT_ROWS = 64  # rows of a split program's tile: those of one warpgroup's MMA
LOG2_E = 1.4426950408889634


class Shape(NamedTuple):
    """How a head dim's kernels are built. ``block`` enters the bits, the rest only the speed."""

    block: int  # KV tokens a block
    rows: int  # rows of a sequential tile, 16 a warp
    split_stages: int
    split_programs: int  # programs of the split kernel that a multiprocessor holds
    sequential_stages: int


SHAPES = {
    64: Shape(64, 128, 5, 4, 5),
    96: Shape(64, 128, 5, 2, 5),
    128: Shape(64, 128, 5, 2, 5),
    256: Shape(64, 128, 3, 1, 3),
}


def attention_split(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    cu_seqlens_q: Tensor,
    seqused_k: Tensor,
    *,
    max_seqlen_q: int,
    max_context: int,
    num_splits: int,
    split_stride: int,
    softmax_scale: float | None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of query tokens over their requests' cached keys and values.

    Shapes: ``q`` and ``out`` (query tokens, heads, head dim), ``k_cache`` and ``v_cache`` (pages, page size, KV heads,
    head dim), ``page_table`` (requests, pages a request) int32, ``cu_seqlens_q`` (requests + 1,) int32 with the first
    query token of each request and their number at the end, ``seqused_k`` (requests,) int32 with the KV tokens of each
    request, its query tokens included. Query token ``i`` of ``n`` sees the keys up to ``seqused_k - n + i``; a row that
    sees none becomes zeros. Rows of ``out`` behind the last query token are left alone.

    ``max_seqlen_q`` and ``max_context`` bound the requests' query and KV tokens and, with the shapes, alone size the
    launches; the lengths are read on the device, never by the host, so a captured CUDA graph may be replayed with
    other contents. A request longer than ``max_context`` is cut there. ``num_splits`` 1 means unsplit, whatever the
    stride; otherwise ``num_splits * split_stride`` covers ``max_context``. ``softmax_scale`` None: 1/sqrt(head dim).

    Raises ``ValueError``, before anything is launched, for what the kernels do not take, ``ImportError`` without torch
    or triton. Allocates fp32 partial results for short requests: splits x requests x heads x (head dim + 2).
    """
    device = _device()
    heads, kv_heads, head_dim, page = _check(
        device, q, k_cache, v_cache, page_table, cu_seqlens_q, seqused_k, max_seqlen_q, max_context, num_splits,
        split_stride, softmax_scale, out)
    torch = device.torch
    shape = SHAPES[head_dim]
    out = torch.empty_like(q) if out is None else out
    batch = seqused_k.shape[0]
    if batch == 0 or q.shape[0] == 0:
        return out
    group = heads // kv_heads
    stride = UNSPLIT if num_splits == 1 else split_stride
    splits = min(num_splits, -(-max_context // stride))
    scale = (softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(head_dim)) * LOG2_E
    if device.hopper:
        device.cuda.attend(
            torch, q, k_cache, v_cache, page_table, cu_seqlens_q, seqused_k, out, max_seqlen_q=max_seqlen_q,
            max_context=max_context, splits=splits, stride=stride, scale=scale,
            multiprocessors=multiprocessors(q.device, device.interpreted))
        return out
    padded = 1 << (head_dim - 1).bit_length()
    all_short = max_seqlen_q * group <= SPLIT_ROWS
    short_q = max_seqlen_q if all_short else int(batch > 1)  # requests up to it are split among programs
    strides = (q.stride(0), q.stride(1), out.stride(0), out.stride(1), k_cache.stride(0), k_cache.stride(1),
               k_cache.stride(2), v_cache.stride(0), v_cache.stride(1), v_cache.stride(2), page_table.stride(0))
    if not all_short:
        rows = SPLIT_ROWS if device.interpreted else shape.rows  # the interpreter's dot is another at other shapes
        tiles = -(-max_seqlen_q * group // rows)
        device.kernels.sequential_kernel[(tiles * kv_heads, batch)](
            q, k_cache, v_cache, out, page_table, cu_seqlens_q, seqused_k, stride, scale, max_context, short_q,
            *strides, kv_heads, group, page, head_dim, padded, rows, shape.block, shape.sequential_stages,
            num_warps=rows // 16, **device.options)
    if short_q:
        direct = splits == 1
        early = not device.interpreted  # programmatic dependent launch
        part_m, part_l, part_acc = _partials(torch, q, batch * heads * splits * short_q, head_dim, direct)
        programs = min(batch * splits * kv_heads, shape.split_programs * multiprocessors(q.device, device.interpreted))
        device.kernels.split_kernel[(programs,)](
            q, k_cache, v_cache, out, part_m, part_l, part_acc, page_table, cu_seqlens_q, seqused_k, batch, splits,
            stride, scale, max_context, short_q, *strides, kv_heads, group, page, head_dim, padded, SPLIT_ROWS,
            shape.block, max(16, 1 << (batch - 1).bit_length()), direct, shape.split_stages, early and not direct,
            num_warps=4, **device.options)
        if not direct:
            device.kernels.combine_kernel[(batch * short_q, heads)](
                part_m, part_l, part_acc, out, cu_seqlens_q, seqused_k, splits, stride, max_context, short_q,
                out.stride(0), out.stride(1), kv_heads, group, head_dim, padded, min(8, splits), early,
                num_warps=1, **device.options, **({"launch_pdl": True} if early else {}))
    return out


class _Device(NamedTuple):
    torch: Any
    kernels: Any
    interpreted: bool
    options: dict[str, Any]
    cuda: Any
    hopper: bool  # the CUDA code is used


@functools.cache
def _device() -> _Device:
    try:
        import torch
        import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

        from detent.kernels import attention_split_cuda, attention_split_triton
    except ImportError as error:
        raise ImportError("attention_split needs PyTorch and Triton: pip install 'detent[torch,triton]'") from error
    interpreted = bool(triton.knobs.runtime.interpret)
    hopper = not interpreted and implementation() == "sm90"
    options = {} if interpreted else {"enable_fp_fusion": False}
    return _Device(torch, attention_split_triton, interpreted, options, attention_split_cuda, hopper)


@functools.cache
def implementation() -> str:
    """``"sm90"`` (CUDA, on Hopper GPUs where nvcc is found) or ``"triton"``; ``DETENT_ATTENTION_SPLIT`` overrules.

    One process uses one of them for everything. Between them a row's bits differ, so a commitment tuple names it.
    """
    import torch

    from detent.kernels import attention_split_cuda

    chosen = os.environ.get("DETENT_ATTENTION_SPLIT")
    if chosen not in (None, "", "sm90", "triton"):
        raise ValueError(f"attention_split: DETENT_ATTENTION_SPLIT={chosen} is not sm90 or triton")
    if chosen:
        return chosen
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return "sm90" if hopper and attention_split_cuda.available() else "triton"


def _partials(torch: Any, q: Tensor, rows: int, head_dim: int, direct: bool) -> tuple[Tensor, Tensor, Tensor]:
    if direct:
        nothing = torch.empty(1, dtype=torch.float32, device=q.device)
        return nothing, nothing, nothing
    buffer = torch.empty(rows * (head_dim + 2), dtype=torch.float32, device=q.device)
    return buffer[rows * head_dim : rows * (head_dim + 1)], buffer[rows * (head_dim + 1) :], buffer[: rows * head_dim]


def _check(
    device: _Device, q: Tensor, k: Tensor, v: Tensor, table: Tensor, cu: Tensor, used: Tensor, max_seqlen_q: int,
    max_context: int, num_splits: int, stride: int, scale: float | None, out: Tensor | None,
) -> tuple[int, int, int, int]:
    """Heads, KV heads, head dim and page size of a call that the kernels take; host data only. No message is made for
    nothing."""
    torch = device.torch
    if q.dim() != 3:
        raise ValueError(f"attention_split: q is (tokens, heads, head dim), not {tuple(q.shape)}")
    if k.dim() != 4 or k.shape != v.shape:
        raise ValueError("attention_split: the caches are (pages, page size, KV heads, head dim) alike, not "
                         f"{tuple(k.shape)} and {tuple(v.shape)}")
    (_, heads, head_dim), (_, page, kv_heads, cached) = q.shape, k.shape
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"attention_split: head dim {head_dim} is none of {HEAD_DIMS}")
    if cached != head_dim:
        raise ValueError(f"attention_split: q has head dim {head_dim}, the caches {cached}")
    if kv_heads == 0 or heads % kv_heads != 0 or heads // kv_heads > SPLIT_ROWS:
        raise ValueError(
            f"attention_split: {heads} heads are not up to {SPLIT_ROWS} for each of {kv_heads} KV heads")
    if page == 0 or page & (page - 1) != 0:
        raise ValueError(f"attention_split: page size {page} is no power of two")
    dtype, place = q.dtype, q.device
    allowed = (torch.float16, torch.float32) if device.interpreted else (torch.bfloat16,)
    if dtype not in allowed:
        raise ValueError(f"attention_split: {dtype} is none of {', '.join(map(str, allowed))}")
    written = q if out is None else out
    for name, tensor in (("q", q), ("k_cache", k), ("v_cache", v), ("out", written)):
        if tensor.dtype != dtype:
            raise ValueError(f"attention_split: {name} is {tensor.dtype}, q {dtype}")
        steps = tensor.stride()
        if steps[-1] != 1:
            raise ValueError(f"attention_split: {name}'s head dim is not contiguous")
        if math.gcd(8, *steps[:-1]) != 8 or tensor.data_ptr() % 16 != 0:
            raise ValueError(f"attention_split: {name}'s rows do not begin at multiples of 16 bytes")
    if out is not None and out.shape != q.shape:
        raise ValueError("attention_split: out has not q's shape")
    for name, tensor in (("page_table", table), ("cu_seqlens_q", cu), ("seqused_k", used)):
        if tensor.dtype != torch.int32 or tensor.stride(-1) != 1:
            raise ValueError(f"attention_split: {name} is not contiguous int32")
    for name, tensor in (("k_cache", k), ("v_cache", v), ("page_table", table), ("cu_seqlens_q", cu),
                         ("seqused_k", used), ("out", written)):
        if tensor.device != place:
            raise ValueError(f"attention_split: {name} is on {tensor.device}, q on {place}")
    batch = used.shape[0]
    if (table.dim() != 2 or used.dim() != 1 or cu.dim() != 1 or table.shape[0] != batch
            or cu.shape[0] != batch + 1):
        raise ValueError("attention_split: page_table, cu_seqlens_q and seqused_k are not of one batch")
    if batch > MAX_BATCH:
        raise ValueError(f"attention_split: {batch} requests are more than {MAX_BATCH}")
    if max_seqlen_q < 1 or not 1 <= max_context < UNSPLIT:
        raise ValueError("attention_split: max_seqlen_q and max_context begin at 1")
    if max_context > table.shape[1] * page:
        raise ValueError(
            f"attention_split: {table.shape[1]} pages of {page} do not hold {max_context} tokens")
    if not 1 <= num_splits <= MAX_SPLITS:
        raise ValueError(f"attention_split: {num_splits} splits are not 1 to {MAX_SPLITS}")
    if not MIN_STRIDE <= stride <= MAX_STRIDE or stride % STRIDE_STEP != 0:
        raise ValueError(
            f"attention_split: stride {stride} is no multiple of {STRIDE_STEP} from {MIN_STRIDE} to {MAX_STRIDE}")
    if num_splits > 1 and num_splits * stride < max_context:
        raise ValueError(f"attention_split: {num_splits} splits of {stride} do not cover {max_context} tokens")
    if scale is not None and not 0.0 < scale < math.inf:
        raise ValueError(f"attention_split: softmax scale {scale} is not positive")
    return heads, kv_heads, head_dim, page

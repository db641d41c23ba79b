"""An expert layer (fused mixture of experts) under one pinned configuration, and the router's top-k.

A token's bits depend on its own row, on its experts and their weights in the order of its list, and on the pinned
configuration; not on the other tokens, nor on how many there are. ``moe_triton`` says why. What a program pins is the
row of the engine's tuned table: its block sizes, warps and stages. Every number of tokens is sorted by one path and
added up by one kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor; torch is imported only where a kernel is launched

BLOCK_SIZES = (16, 32, 64, 128, 256)
COLUMNS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
DEFAULTS = {"num_warps": 4, "num_stages": 3}  # Triton's, where a table's row names none
FIXED = {"SPLIT_K": 1, "USE_TMA": False, "SWAP_AB": False}  # columns of some tables, and the only value taken
MAX_EXPERTS = 512
MAX_TOP_K = 32
SHARED_MEMORY = 232448  # bytes a program can have on sm_90, where the GPU does not say
CHUNK, SUB = 256, 32  # pairs a program sorts, and at a time
ACTIVATION_SPAN, COMBINE_SPAN = 2048, 1024  # elements a program computes
INT_MAX = 2**31 - 1


class Row(NamedTuple):
    """A row of a tuned table. Of its values only ``block_m`` is shared by both GEMMs."""

    block_m: int
    block_n: int
    block_k: int
    group: int
    warps: int
    stages: int


class Blocks(NamedTuple):
    """Pairs sorted by expert. ``header``: int32, the blocks in use, the places in use, two zeros, then ``capacity``
    values each of the blocks' experts, first places and ends; behind the blocks in use nothing is written."""

    order: Tensor  # (pairs,) int32: the pair at each place
    header: Tensor
    capacity: int


def moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    *,
    row: Mapping[str, Any] | Row,
    down_row: Mapping[str, Any] | Row | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The experts' sum for each token: ``sum_j topk_weights[t, j] * down[e] @ (silu(gate) * up)``, ``e = ids[t, j]``.

    Shapes: ``x`` and ``out`` (tokens, hidden), ``gate_up`` (experts, 2 * width, hidden) with gate above up, ``down``
    (experts, hidden, width), ``topk_ids`` (tokens, k) int32, ``topk_weights`` (tokens, k) fp32. All others are bf16.
    A pair whose id is not 0 to experts - 1, such as -1 for an expert on another rank, adds zero.

    ``row`` has the columns of the engines' tables (``BLOCK_SIZE_M``, ``BLOCK_SIZE_N``, ``BLOCK_SIZE_K``,
    ``GROUP_SIZE_M``; ``num_warps`` 4 and ``num_stages`` 3 if absent). ``down_row`` configures the second GEMM, with the
    same ``BLOCK_SIZE_M`` or none. A ``Row`` that ``row_of`` made of either costs less. Sums are fp32; rounded to bf16
    are gate and up, their product, each pair's weighted result, and the sum of those in the order of the token's list.

    Launches depend on shapes alone, never on ids, and the host waits for nothing: a captured graph may be replayed with
    other contents. Allocates tokens * k rows of ``max(2 * width, hidden) + width``. Raises ``ValueError``, before
    anything is launched, for what the kernels do not take, ``ImportError`` without torch or triton.
    """
    device = _device()
    torch = device.torch
    up, second = _rows(row, down_row)
    _check(device, x, gate_up, down, topk_ids, topk_weights, out, up, second)
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    tokens, hidden = x.shape
    if tokens == 0:
        return out
    pairs, width = topk_ids.numel(), int(down.shape[2])
    wide = _empty(torch, (pairs * max(2 * width, hidden),), x)  # of both GEMMs: the first's is read before
    halves, parts = wide[: pairs * 2 * width].view(pairs, -1), wide[: pairs * hidden].view(pairs, -1)
    folded = _empty(torch, (pairs, width), x)
    blocks = align(topk_ids, int(gate_up.shape[0]), up.block_m)
    grouped_gemm(x, gate_up, halves, topk_weights, blocks, up, second=False)
    activate(halves, folded, blocks)
    grouped_gemm(folded, down, parts, topk_weights, blocks, second, second=True)
    combine(parts, topk_ids, out, int(gate_up.shape[0]))
    return out


def align(topk_ids: Tensor, experts: int, block_m: int) -> Blocks:
    """Sort pairs by expert, in stable order, and cut each expert's into blocks of ``block_m`` places."""
    device = _device()
    torch = device.torch
    pairs = topk_ids.numel()
    chunks = -(-pairs // CHUNK)
    padded = max(16, 1 << (experts - 1).bit_length())
    own = min(experts, pairs)
    capacity = own + (pairs - own) // block_m  # as many experts as can be, all but one pair of each in full blocks
    counts = _empty(torch, (chunks * padded,), topk_ids)
    order = _empty(torch, (pairs,), topk_ids)
    header = _empty(torch, (4 + 3 * capacity,), topk_ids)
    device.kernels.count_kernel[(chunks,)](
        topk_ids, counts, pairs, experts, padded, CHUNK, SUB, device.early, num_warps=4, **device.options)
    device.kernels.place_kernel[(chunks,)](
        topk_ids, counts, order, header, pairs, chunks, capacity, -(-capacity // chunks), experts, block_m, padded,
        CHUNK, SUB, device.early, num_warps=4, **device.dependent)
    return Blocks(order, header, capacity)


def grouped_gemm(a: Tensor, b: Tensor, c: Tensor, shares: Tensor, blocks: Blocks, row: Row, *, second: bool) -> None:
    """One GEMM of the layer, for checked arguments: tokens to places, or (``second``) places to weighted pairs."""
    device = _device()
    n, k = int(b.shape[1]), int(b.shape[2])
    device.kernels.gemm_kernel[(blocks.capacity * -(-n // row.block_n),)](
        a, b, c, shares, blocks.order, blocks.header, blocks.capacity, n, k, _step(a), b.stride(0), b.stride(1),
        _step(c), int(shares.shape[1]), second, n % row.block_n == 0, k % row.block_k == 0, row.block_m, row.block_n,
        row.block_k, row.group, device.early, num_warps=row.warps, num_stages=row.stages, **device.dependent)


def activate(halves: Tensor, folded: Tensor, blocks: Blocks) -> None:
    """``folded[place]``: silu of a place's gate times its up."""
    device = _device()
    device.kernels.activation_kernel[(-(-folded.numel() // ACTIVATION_SPAN),)](
        halves, folded, blocks.header, int(folded.shape[1]), ACTIVATION_SPAN, device.early, num_warps=4,
        **device.dependent)


def combine(parts: Tensor, topk_ids: Tensor, out: Tensor, experts: int) -> None:
    """``out[token]``: the token's pairs, added in the order of its list."""
    device = _device()
    tokens, hidden = out.shape
    device.kernels.combine_kernel[(tokens, -(-hidden // COMBINE_SPAN))](
        parts, topk_ids, out, _step(out), experts, hidden, int(topk_ids.shape[1]), COMBINE_SPAN, device.early,
        num_warps=4, **device.dependent)


def topk_softmax(logits: Tensor, k: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """A router's choice: shares (tokens, k) fp32 and experts (tokens, k) int32, largest first, ties to the lowest.

    ``logits`` (tokens, experts), bf16, fp16 or fp32. Shares are the softmax over all experts, computed in fp32, or with
    ``renormalize`` over the chosen ones, summed in order. A row with a NaN, or of minus infinities, gets NaN shares,
    and experts all the same. A row's bits depend on that row alone. Raises ``ValueError`` for what the kernel does not
    take.
    """
    device = _device()
    torch = device.torch
    if logits.dim() != 2:
        raise ValueError(f"topk_softmax: logits are (tokens, experts), not {tuple(logits.shape)}")
    tokens, experts = logits.shape
    if logits.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"topk_softmax: logits are {logits.dtype}")
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"topk_softmax: {experts} experts are not 1 to {MAX_EXPERTS}")
    if not 1 <= k <= min(experts, MAX_TOP_K):
        raise ValueError(f"topk_softmax: k {k} is not 1 to {min(experts, MAX_TOP_K)}")
    if experts > 1 and logits.stride(1) != 1:
        raise ValueError("topk_softmax: a row of logits is not contiguous")
    ids = torch.empty((tokens, k), dtype=torch.int32, device=logits.device)
    shares = torch.empty((tokens, k), dtype=torch.float32, device=logits.device)
    if tokens:
        device.kernels.topk_softmax_kernel[(tokens,)](
            logits, ids, shares, _step(logits), experts, max(16, 1 << (experts - 1).bit_length()), k,
            1 << (k - 1).bit_length(), renormalize, num_warps=1, **device.options)
    return shares, ids


def row_of(row: Mapping[str, Any] | Row, name: str = "row", block_m: int | None = None) -> Row:
    """A table's row. ``ValueError`` names a column that is missing, unknown or has a value no kernel has."""
    if isinstance(row, Row):
        return _again(row, name, block_m)
    for column, value in row.items():
        if column not in COLUMNS and column not in FIXED:
            raise ValueError(f"moe: {name}: column {column} is none of {', '.join((*COLUMNS, *FIXED))}")
        if column in FIXED and value not in (FIXED[column], None):
            raise ValueError(f"moe: {name}: {column} is {value}")
    values = {"BLOCK_SIZE_M": block_m} | DEFAULTS | dict(row) if block_m else DEFAULTS | dict(row)
    for column in COLUMNS:
        if column not in values:
            raise ValueError(f"moe: {name}: {column} is missing")
        if type(values[column]) is not int or values[column] < 1:
            raise ValueError(f"moe: {name}: {column} {values[column]} is no count")
    made = Row(*(values[column] for column in COLUMNS))
    for column, size in zip(COLUMNS[:3], made, strict=False):
        if size not in BLOCK_SIZES:
            raise ValueError(f"moe: {name}: {column} {size} is none of {BLOCK_SIZES}")
    if made.warps not in (4, 8):
        raise ValueError(f"moe: {name}: num_warps {made.warps} is not 4 or 8")
    if made.stages > 8:
        raise ValueError(f"moe: {name}: num_stages {made.stages} is more than 8")
    if block_m is not None and made.block_m != block_m:
        raise ValueError(
            f"moe: {name}: BLOCK_SIZE_M {made.block_m} is not row's {block_m}: both GEMMs read one sorted index")
    return made


@functools.lru_cache(maxsize=1024)
def _again(row: Row, name: str, block_m: int | None) -> Row:
    """A row that someone made, checked once for all calls."""
    return row_of(dict(zip(COLUMNS, row, strict=True)), name, block_m)


def _rows(row: Mapping[str, Any] | Row, down_row: Mapping[str, Any] | Row | None) -> tuple[Row, Row]:
    up = row_of(row)
    return up, up if down_row is None else row_of(down_row, "down_row", up.block_m)


class _Device(NamedTuple):
    torch: Any
    kernels: Any
    interpreted: bool
    early: bool  # kernels start while the one before ends, and wait
    options: dict[str, Any]
    dependent: dict[str, Any]  # the options of every launch but the first


@functools.cache
def _device(early: bool = True) -> _Device:
    try:
        import torch
        import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

        from detent.kernels import moe_triton
    except ImportError as error:
        raise ImportError("moe needs PyTorch and Triton: pip install 'detent[torch,triton]'") from error
    interpreted = bool(triton.knobs.runtime.interpret)
    early = early and not interpreted and torch.cuda.get_device_capability() >= (9, 0)
    options = {} if interpreted else {"enable_fp_fusion": False}
    return _Device(torch, moe_triton, interpreted, early, options, options | ({"launch_pdl": True} if early else {}))


@functools.cache
def _shared_memory(device: Any) -> int:
    import torch  # type: ignore[import-not-found, unused-ignore]

    if device.type != "cuda":
        return SHARED_MEMORY
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED_MEMORY))


def _empty(torch: Any, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Workspace. Tests put poison here."""
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _step(tensor: Tensor) -> int:
    """Elements from row to row; a lone row's stride may be anything, and must not choose another kernel."""
    return int(tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[1])


def _check(
    device: _Device, x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, out: Tensor | None,
    up: Row, second: Row,
) -> None:
    """Refuse what the kernels do not take; host data only. It runs at each call: no message is made for nothing."""
    torch = device.torch
    if x.dim() != 2:
        raise ValueError(f"moe: x is (tokens, hidden), not {tuple(x.shape)}")
    tokens, hidden = x.shape
    if gate_up.dim() != 3 or down.dim() != 3:
        raise ValueError("moe: gate_up and down have an expert a matrix")
    experts, width = gate_up.shape[0], down.shape[2]
    if gate_up.shape != (experts, 2 * width, hidden) or down.shape != (experts, hidden, width):
        raise ValueError(f"moe: gate_up {tuple(gate_up.shape)} and down {tuple(down.shape)} are not (experts, "
                         f"2 * width, {hidden}) and (experts, {hidden}, width)")
    if not 1 <= experts <= MAX_EXPERTS:
        raise ValueError(f"moe: {experts} experts are not 1 to {MAX_EXPERTS}")
    if hidden % 16 != 0 or width % 16 != 0 or hidden == 0 or width == 0:
        raise ValueError(f"moe: hidden {hidden} and width {width} are no multiples of 16")
    if ids.dim() != 2 or ids.shape[0] != tokens or weights.shape != ids.shape:
        raise ValueError(
            f"moe: topk_ids {tuple(ids.shape)} and topk_weights {tuple(weights.shape)} are not ({tokens}, k)")
    k = ids.shape[1]
    if not 1 <= k <= MAX_TOP_K:
        raise ValueError(f"moe: k {k} is not 1 to {MAX_TOP_K}")
    if ids.dtype != torch.int32 or not ids.is_contiguous():
        raise ValueError("moe: topk_ids is not contiguous int32")
    if weights.dtype != torch.float32 or not weights.is_contiguous():
        raise ValueError("moe: topk_weights is not contiguous float32")
    dtype, place = x.dtype, x.device
    allowed = (torch.float16, torch.float32) if device.interpreted else (torch.bfloat16,)
    if dtype not in allowed:
        raise ValueError(f"moe: x is {dtype}, none of {', '.join(map(str, allowed))}")
    if out is not None and out.shape != x.shape:
        raise ValueError("moe: out has not x's shape")
    written = x if out is None else out
    for name, tensor in (("x", x), ("gate_up", gate_up), ("down", down), ("out", written)):
        if tensor.dtype != dtype:
            raise ValueError(f"moe: {name} is {tensor.dtype}, x {dtype}")
        *steps, last = tensor.stride()
        if last != 1:
            raise ValueError(f"moe: {name}'s last dimension is not contiguous")
        if math.gcd(16, tensor.data_ptr(), *(steps if tensor.shape[0] > 1 else steps[1:])) != 16:
            raise ValueError(f"moe: {name}'s rows do not begin at multiples of 16 elements")
    for name, tensor in (("gate_up", gate_up), ("down", down), ("topk_ids", ids), ("topk_weights", weights),
                         ("out", written)):
        if tensor.device != place:
            raise ValueError(f"moe: {name} is on {tensor.device}, x on {place}")
    if tokens * k * max(up.block_m, width) > INT_MAX:
        raise ValueError(f"moe: {tokens} tokens are counted beyond 2**31")
    size, there = x.element_size(), _shared_memory(place)
    for name, row in (("row", up), ("down_row", second)):
        needed = (row.block_m + row.block_n) * row.block_k * size * row.stages
        if needed > there:
            raise ValueError(f"moe: {name}: its stages take {needed} bytes of shared memory, there are {there}")

"""Row by row, with bits that depend on the row and on nothing beside it: norm, activation, rotary, softmax, sampling.

Every launch parameter follows from a row's length and type. None follows from the number of rows, so a row has the same
bits alone and among any others, at any place. Arithmetic is fp32, rounded once to the output's type. ``rows_triton``
holds the code. Rows begin at multiples of 16 bytes, which the host checks: another alignment would be another order.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor; torch is imported only where a kernel is launched

UNIT = 8  # elements that steps between rows are multiples of, as in rows_triton
MAX_HIDDEN = 32768
MAX_HEAD = 1024
MAX_VOCABULARY = 1 << 21
HEAD_ROWS = 8  # heads a program
COLUMNS = 1024  # of an elementwise program
PART_LANES = 1024  # of a softmax's program, which has four elements a lane
LANES = 2048  # of a program that cuts by rank; elements of one lane are added in ascending order
PIECE = 2048  # tokens of a draw's program


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None,
             total: Tensor | None = None, out: Tensor | None = None, warps: int | None = None) -> Tensor:
    """``x`` over the root of its mean square plus ``eps``, times ``weight``: (rows, hidden) gives (rows, hidden).

    With ``residual`` (rows, hidden), ``x + residual`` rounded to its type goes to ``total``, by default in place of
    ``residual``, and that rounded sum is what is normalised, as in vLLM's CUDA kernel: the same bits as adding first.
    fp32 until ``out``'s type, so the weight meets no rounded value (vLLM's rounds before the weight too). ``x``,
    ``residual`` and ``total`` of one type of bf16, fp16, fp32; ``weight`` (hidden,) of any of them; ``out`` of x's
    type, or x itself. ``warps`` that share a row, a power of two up to 32, decide the bits. Raises ``ValueError``.
    """
    name = "rms_norm"
    device = _device()
    out = device.torch.empty_like(x) if out is None else out
    if total is not None and residual is None:
        raise ValueError(f"{name}: a total needs a residual")
    total = residual if total is None else total
    rows, hidden = _rows(name, x, out) if residual is None else _rows(name, x, out, residual, total)
    _weight(name, x, weight, hidden)
    if hidden > MAX_HIDDEN:
        raise ValueError(f"{name}: {hidden} columns are more than {MAX_HIDDEN}")
    if not eps >= 0.0:
        raise ValueError(f"{name}: eps is {eps}")
    block = _power(hidden)
    warps = _warps(name, min(32, max(1, block // 512)) if warps is None else warps)
    if rows:
        other, sums = (x, x) if residual is None else (residual, total)
        device.kernels.rms_norm_kernel[(rows,)](
            x, other, sums, weight, out, eps, _step(x), _step(other), _step(sums), _step(out), hidden, block,
            residual is not None, num_warps=warps, **device.options)
    return out


def head_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None, warps: int = 4) -> Tensor:
    """RMS norm of each head, as Qwen3 has it on q and k: ``x`` (tokens, heads, head dim), ``weight`` (head dim,).

    ``x`` may be a slice of a wider projection; ``out`` is like it, or ``x`` itself. ``warps`` that share eight heads
    decide the bits. Raises ``ValueError``.
    """
    name = "head_norm"
    device = _device()
    if x.dim() != 3:
        raise ValueError(f"{name}: x is (tokens, heads, head dim), not {tuple(x.shape)}")
    out = device.torch.empty_like(x) if out is None else out
    _alike(name, x, out)
    tokens, heads, size = x.shape
    _weight(name, x, weight, size)
    if size > MAX_HEAD:
        raise ValueError(f"{name}: head dim {size} is more than {MAX_HEAD}")
    if not eps >= 0.0:
        raise ValueError(f"{name}: eps is {eps}")
    _warps(name, warps)
    if tokens * heads:
        device.kernels.head_norm_kernel[(-(-tokens * heads // HEAD_ROWS),)](
            x, weight, out, eps, tokens * heads, heads, _step(x), _step(x, 1), _step(out), _step(out, 1), size,
            _power(size), HEAD_ROWS, num_warps=warps, **device.options)
    return out


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu`` of the first half of each row times the second half: (rows, 2 n) gives (rows, n)."""
    return _gated("silu_and_mul", x, out, False)


def gelu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``gelu``, in its form with tanh, of the first half of each row times the second: (rows, 2 n) gives (rows, n)."""
    return _gated("gelu_and_mul", x, out, True)


def _gated(name: str, x: Tensor, out: Tensor | None, gelu: bool) -> Tensor:
    device = _device()
    if x.dim() != 2 or x.shape[1] % (2 * UNIT) != 0:
        raise ValueError(f"{name}: x is (rows, 2 n) with n a multiple of {UNIT}, not {tuple(x.shape)}")
    size = int(x.shape[1]) // 2
    out = x.new_empty((x.shape[0], size)) if out is None else out
    rows, _ = _rows(name, x[:, :size], out)
    if rows and size:
        device.kernels.gated_kernel[(rows, -(-size // COLUMNS))](
            x, out, _step(x), _step(out), size, COLUMNS, gelu, num_warps=4, **device.options)
    return out


def rotary(positions: Tensor, q: Tensor, k: Tensor, cos_sin: Tensor) -> None:
    """Rotary embedding of neox style, in place, of the first ``width`` columns of every head.

    ``positions`` (tokens,) int64, ``q`` (tokens, heads, head dim), ``k`` (tokens, KV heads, head dim), ``cos_sin``
    (places, width): cosines of the ``width / 2`` frequencies and then sines, bf16, fp16 or fp32. A token whose position
    the cache does not hold becomes NaN there. Raises ``ValueError``.
    """
    name = "rotary"
    device = _device()
    torch = device.torch
    for what, tensor in (("q", q), ("k", k)):
        if tensor.dim() != 3:
            raise ValueError(f"{name}: {what} is (tokens, heads, head dim), not {tuple(tensor.shape)}")
        _alike(name, tensor)
    if q.shape[0] != k.shape[0] or q.shape[2] != k.shape[2] or q.dtype != k.dtype:
        raise ValueError(
            f"{name}: q {tuple(q.shape)} and k {tuple(k.shape)} are not of the same tokens, head dim and type")
    _vector(name, "positions", positions, int(q.shape[0]), (torch.int64,), q)
    if cos_sin.dim() != 2 or not cos_sin.is_contiguous() or cos_sin.dtype not in device.types:
        raise ValueError(f"{name}: cos_sin is contiguous (places, width) of a floating type")
    if k.device != q.device or cos_sin.device != q.device:
        raise ValueError(f"{name}: k or cos_sin is on another device than q")
    places, width = cos_sin.shape
    if width % (2 * UNIT) != 0 or not 0 < width <= q.shape[2] or width > 2 * MAX_HEAD:
        raise ValueError(
            f"{name}: {width} rotated columns are no multiple of {2 * UNIT} up to the head dim {q.shape[2]}")
    if places == 0 or cos_sin.data_ptr() % 16 != 0:
        raise ValueError(f"{name}: cos_sin is empty or does not begin at 16 bytes")
    if q.shape[0]:
        q_heads, k_heads = int(q.shape[1]), int(k.shape[1])
        device.kernels.rotary_kernel[(int(q.shape[0]), -(-q_heads // HEAD_ROWS) + -(-k_heads // HEAD_ROWS))](
            positions, q, k, cos_sin, _step(q), _step(q, 1), _step(k), _step(k, 1), places, q_heads, k_heads,
            width // 2, _power(width // 2), HEAD_ROWS, num_warps=2, **device.options)


def softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Softmax of every row in fp32: (rows, vocabulary) of bf16, fp16 or fp32 gives fp32. -inf has no share."""
    return _softmax("softmax", x, out, False)


def log_softmax(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Logarithm of the softmax of every row in fp32: (rows, vocabulary) gives fp32. ``out`` may be an fp32 ``x``."""
    return _softmax("log_softmax", x, out, True)


def _softmax(name: str, x: Tensor, out: Tensor | None, log: bool) -> Tensor:
    device = _device()
    torch = device.torch
    out = _padded(torch, x) if out is None else out
    rows, size = _rows(name, x)
    if out.dtype != torch.float32 or out.shape != x.shape:
        raise ValueError(f"{name}: out is {x.shape} of fp32")
    _rows(name, out)
    if out.device != x.device:
        raise ValueError(f"{name}: out is on another device")
    if rows:
        block = min(PART_LANES, _power(-(-size // 4)))
        parts = -(-size // (4 * block))
        # Each from torch, so that both are aligned alike whatever the number of rows.
        peaks, totals = (torch.empty(rows * parts, dtype=torch.float32, device=x.device) for _ in range(2))
        warps = max(1, block // 128)  # four elements a thread
        device.kernels.part_kernel[(rows * parts,)](
            x, peaks, totals, _step(x), size, block, parts, device.early, num_warps=warps, **device.options)
        device.kernels.softmax_kernel[(rows * parts,)](
            x, peaks, totals, out, _step(x), _step(out), size, block, parts, _power(parts), log, device.early,
            num_warps=warps, **device.dependent)
    return out


def argmax(x: Tensor) -> Tensor:
    """The lowest index of every row's largest element: (rows, vocabulary) gives (rows,) int64.

    NaN counts as +inf, so of both the first is taken.
    """
    rows, size = _rows("argmax", x)
    return _first(x, rows, size, None, None, None, False)


def sample(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, *, top_k: Tensor | None = None,
    top_p: Tensor | None = None,
) -> Tensor:
    """A token of every row: (rows, vocabulary) gives (rows,) int64. Also its noise depends on that row alone.

    ``temperature`` (rows,) fp32: 0 takes the largest logit, else one draws from the softmax of ``logits /
    temperature`` by adding Gumbel noise, a function of (seed, position, token id), and taking the largest sum.
    ``seeds`` and ``positions`` (rows,) int64. ``top_k`` (rows,) int32, 0 for off, and ``top_p`` (rows,) fp32 or fp64, 1
    for off, first cut by rank; of equal logits the lower id ranks first.

    The rule is the embedded engine's (``detent/engines/embedded/sampler.py``). The uniform numbers have its bits on
    every device; their logarithms, in fp64, may differ from a CPU's in the last bit. Raises ``ValueError``.
    """
    name = "sample"
    device = _device()
    torch = device.torch
    rows, size = _rows(name, logits)
    _vector(name, "temperature", temperature, rows, (torch.float32,), logits)
    _vector(name, "seeds", seeds, rows, (torch.int64,), logits)
    _vector(name, "positions", positions, rows, (torch.int64,), logits)
    if top_k is None and top_p is None:
        return _first(logits, rows, size, temperature, seeds, positions, True)
    top_k = torch.zeros(rows, dtype=torch.int32, device=logits.device) if top_k is None else top_k
    top_p = torch.ones(rows, dtype=torch.float32, device=logits.device) if top_p is None else top_p
    _vector(name, "top_k", top_k, rows, (torch.int32,), logits)
    _vector(name, "top_p", top_p, rows, (torch.float32, torch.float64), logits)
    scaled = _padded(torch, logits)
    if rows:
        device.kernels.temper_kernel[(rows, -(-size // COLUMNS))](
            logits, temperature, scaled, _step(logits), _step(scaled), size, COLUMNS, num_warps=4, **device.options)
        # A stable order is one order, whatever sorts; no arithmetic is in it.
        order = torch.sort(scaled, dim=1, descending=True, stable=True)
        ranked = _padded(torch, logits).copy_(order.values)
        tokens = _padded(torch, logits, torch.int32).copy_(order.indices)
        device.kernels.cut_kernel[(rows,)](
            ranked, tokens, scaled, top_k, top_p, _step(ranked), _step(tokens), _step(scaled), size, LANES,
            num_warps=16, **device.options)
    return _first(scaled, rows, size, temperature, seeds, positions, False)


def _first(x: Tensor, rows: int, size: int, temperature: Tensor | None, seeds: Tensor | None,
           positions: Tensor | None, divide: bool) -> Tensor:
    device = _device()
    torch = device.torch
    noise = temperature is not None
    out = torch.empty(rows, dtype=torch.int64, device=x.device)
    if rows:
        pieces = -(-size // PIECE)
        best = torch.empty(rows * pieces, dtype=torch.float64 if noise else torch.float32, device=x.device)
        at = torch.empty(rows * pieces, dtype=torch.int32, device=x.device)
        device.kernels.draw_kernel[(rows * pieces,)](
            x, temperature if noise else x, seeds if noise else x, positions if noise else x, best, at, _step(x), size,
            PIECE, pieces, noise, divide, num_warps=8, **device.options)
        device.kernels.first_kernel[(rows,)](best, at, out, pieces, _power(pieces), num_warps=1, **device.options)
    return out


class _Device(NamedTuple):
    torch: Any
    kernels: Any
    options: dict[str, Any]
    types: tuple[Any, ...]
    early: bool  # a second kernel starts while the first ends, and waits
    dependent: dict[str, Any]  # that kernel's options


@functools.cache
def _device() -> _Device:
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
        import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

        from detent.kernels import rows_triton
    except ImportError as error:
        raise ImportError("rows needs PyTorch and Triton: pip install 'detent[torch,triton]'") from error
    interpreted = bool(triton.knobs.runtime.interpret)
    early = not interpreted and torch.cuda.get_device_capability() >= (9, 0)
    options = {} if interpreted else {"enable_fp_fusion": False}
    return _Device(torch, rows_triton, options, (torch.bfloat16, torch.float16, torch.float32), early,
                   options | ({"launch_pdl": True} if early else {}))


def _power(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _warps(name: str, warps: int) -> int:
    if warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"{name}: {warps} warps are no power of two up to 32")
    return warps


def _step(x: Tensor, dim: int = 0) -> int:
    """Elements from a row to the next, in units of UNIT; a lone row has none, whatever torch says."""
    return int(x.stride(dim)) // UNIT if x.shape[dim] > 1 else 0


def _padded(torch: Any, x: Tensor, dtype: Any = None) -> Tensor:
    """Like ``x``, fp32 unless said otherwise, its rows at multiples of 16 bytes."""
    rows, size = x.shape
    whole = torch.empty((rows, size + -size % UNIT), dtype=dtype or torch.float32, device=x.device)
    return whole[:, :size]


def _alike(name: str, x: Tensor, *others: Tensor) -> None:
    """Tensors of x's shape, type and device whose rows the kernels can read. No message is made for nothing."""
    types, dtype, shape, place = _device().types, x.dtype, x.shape, x.device
    if dtype not in types:
        raise ValueError(f"{name}: {dtype} is none of {', '.join(map(str, types))}")
    for tensor in (x, *others):
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != place:
            raise ValueError(f"{name}: {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device} is not "
                             f"{tuple(shape)} of {dtype} on {place}")
        *steps, within = tensor.stride()
        if within != 1 and shape[-1] > 1:
            raise ValueError(f"{name}: a row is not contiguous")
        apart = tensor.data_ptr() % 16 == 0
        for size, step in zip(shape, steps, strict=False):
            apart = apart and (size <= 1 or (step % UNIT == 0 and step >= shape[-1]))
        if not apart:
            raise ValueError(f"{name}: rows do not begin at multiples of 16 bytes, apart from one another")


def _rows(name: str, x: Tensor, *others: Tensor) -> tuple[int, int]:
    """The rows and columns of tensors that the kernels take."""
    if x.dim() != 2 or x.shape[1] == 0:
        raise ValueError(f"{name}: {tuple(x.shape)} is not (rows, columns)")
    rows, columns = x.shape
    if columns > MAX_VOCABULARY:
        raise ValueError(f"{name}: {columns} columns are more than {MAX_VOCABULARY}")
    _alike(name, x, *others)
    return rows, columns


def _weight(name: str, x: Tensor, weight: Tensor, size: int) -> None:
    if weight.shape != (size,) or weight.dtype not in _device().types:
        raise ValueError(
            f"{name}: weight is {tuple(weight.shape)} of {weight.dtype}, not ({size},) of a floating type")
    if (size > 1 and weight.stride(0) != 1) or weight.device != x.device or weight.data_ptr() % 16 != 0:
        raise ValueError(f"{name}: weight is not contiguous from a multiple of 16 bytes on x's device")


def _vector(name: str, what: str, tensor: Tensor, size: int, types: tuple[Any, ...], beside: Tensor) -> None:
    if tensor.shape != (size,) or tensor.dtype not in types:
        raise ValueError(f"{name}: {what} is {tuple(tensor.shape)} of {tensor.dtype}, not ({size},) of "
                         f"{' or '.join(map(str, types))}")
    if (size > 1 and tensor.stride(0) != 1) or tensor.device != beside.device:
        raise ValueError(f"{name}: {what} is not contiguous on {beside.device}")

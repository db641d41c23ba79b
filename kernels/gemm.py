"""Linear layers: ``x weight^T`` in bf16, where a row's bits hang on the row and on the weights alone.

Neither the number of rows nor a row's place among them enters a bit, because every element of the result is summed over
K by one accumulator, from 0 to the end and 16 products at a time, whatever tile it falls into. Two implementations do
so: DeepGEMM (``gemm_deep``), where it is installed, and a persistent Triton kernel (``gemm_triton``).

``padding`` is the grid that the number of rows is rounded up to, for DeepGEMM: it compiles a kernel for each of its
configurations, and on a coarser grid there are fewer. It is no pin, since bits do not depend on it.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from detent.kernels.device import multiprocessors

if TYPE_CHECKING:
    from detent.kernels.gemm_fastest import Way

    Tensor = Any  # torch.Tensor; torch is imported only where a kernel is launched

IMPLEMENTATIONS = ("deep_gemm", "triton")
FASTEST = "fastest"  # of all ways that were shown to give the same bits
GEOMETRIC = 0  # the grid whose steps grow with the number of rows
PADDINGS = (1, 8, 16, 32, 64, 128, 256, 512, GEOMETRIC)
ALIGNMENT = 8  # elements in 16 bytes: the copy engine's strides
NARROWEST = 16  # columns of the result that DeepGEMM's narrowest tile has
MOST_ROWS = 1 << 20


def padded(rows: int, padding: int) -> int:
    """The grid's smallest count that is not less. ``GEOMETRIC``: 16, 32, ... 256, then eight steps to each doubling."""
    if padding not in PADDINGS:
        raise ValueError(f"gemm: padding {padding} is none of {PADDINGS}")
    step = padding if padding != GEOMETRIC else max(16, 1 << max(0, (rows - 1).bit_length() - 4))
    return -(-rows // step) * step


def grid(padding: int, most: int) -> tuple[int, ...]:
    """Every count that 1 to ``most`` rows are padded to, ascending."""
    found, rows = [], 0
    while rows < most:
        rows = padded(rows + 1, padding)
        found.append(rows)
    return tuple(found)


def gemm(
    x: Tensor,
    weight: Tensor,
    *,
    padding: int,
    implementation: str | None = None,
    early: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """``x`` (rows, K) times ``weight`` (N, K) transposed: (rows, N). All bf16, accumulated in fp32, rounded once.

    ``padding`` is one of ``PADDINGS``. Where DeepGEMM's count is larger than ``rows``, it computes rows behind the
    last and nobody sees them: it reads what lies behind ``x`` in its storage if there is room, else a copy of ``x``,
    and writes a larger result of which the first rows are returned (with ``out`` they are copied there). Triton needs
    no padding and ignores it. ``implementation`` None: ``implementation()``. ``"fastest"``: by a measured table for the
    shapes of which a GPU showed that every way has the same bits (``gemm_fastest``), with those versions: DeepGEMM or
    Triton, launched early or not, and padded to any count of ``padding``'s grid where neither ``x`` nor ``out`` would
    have to be copied for it; for all other shapes the one that would be taken anyway, for any number of rows.
    ``early``: DeepGEMM's kernel may start while the one before it ends, and waits for it before it reads (Triton's
    always does).

    K is contiguous in both, N in ``out``; rows begin at multiples of 16 bytes, so K and N are multiples of 8, and N is
    at least 16. Raises ``ValueError``, before anything is launched, for what is not taken; ``ImportError`` without
    torch, or without the implementation. Reads nothing back from the device, so it may be captured in a CUDA graph
    once each kernel it needs has been compiled (``gemm_deep.compile_all``, or a call outside of the graph).
    """
    device = _device()
    chosen = _default() if implementation is None else implementation
    if chosen == FASTEST:
        chosen, padding, sooner = _fastest(x, weight, out, padding)
        early = early or sooner
    rows, n = _check(device, x, weight, out, padding, chosen)
    torch = device.torch
    x, out = _row(x), None if out is None else _row(out)
    if rows == 0:
        return torch.empty((0, n), dtype=x.dtype, device=x.device) if out is None else out
    if chosen == "triton":
        out = torch.empty((rows, n), dtype=x.dtype, device=x.device) if out is None else out
        processors = multiprocessors(x.device, device.interpreted)
        device.triton.launch(x, weight, out, device.triton.tile(rows, n), processors,
                             device.interpreted)
        return out
    count = padded(rows, padding)
    if count == rows:
        out = torch.empty((rows, n), dtype=x.dtype, device=x.device) if out is None else out
        device.deep.run(x, weight, out, early)
        return out
    result = torch.empty((count, n), dtype=x.dtype, device=x.device)
    device.deep.run(_lengthened(torch, x, count), weight, result, early)
    if out is None:
        return result[:rows]
    out.copy_(result[:rows])
    return out


def _row(tensor: Tensor) -> Tensor:
    """A lone row's step to the next says nothing, but the kernels would look at it."""
    return tensor.as_strided(tensor.shape, (tensor.shape[1], 1)) if tensor.shape[0] == 1 else tensor


def _lengthened(torch: Any, x: Tensor, count: int) -> Tensor:
    """``x`` with rows behind its own, of any content."""
    rows, k = x.shape
    if _room(x, count):
        return x.as_strided((count, k), (x.stride(0), 1))
    longer = torch.empty((count, k), dtype=x.dtype, device=x.device)
    longer[:rows] = x
    return longer


def _room(x: Tensor, count: int) -> bool:
    """Whether a storage goes on behind its rows for ``count`` of them."""
    last = x.storage_offset() + (count - 1) * x.stride(0) + x.shape[1]
    return bool(x.stride(0) >= x.shape[1] and last * x.element_size() <= x.untyped_storage().nbytes())


@functools.cache
def implementation() -> str:
    """``"deep_gemm"`` (on Hopper GPUs, where DeepGEMM and nvcc are found) or ``"triton"``; ``DETENT_GEMM`` overrules,
    also with ``"fastest"``.

    One process uses one of these for everything, and a commitment tuple names it.
    """
    chosen, known = os.environ.get("DETENT_GEMM"), (*IMPLEMENTATIONS, FASTEST)
    if chosen not in (None, "", *known):
        raise ValueError(f"gemm: DETENT_GEMM={chosen} is none of {known}")
    return chosen or _found()


def _found() -> str:
    import torch  # type: ignore[import-not-found, unused-ignore]

    from detent.kernels import gemm_deep

    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    return "deep_gemm" if hopper and gemm_deep.available() else "triton"


def _default() -> str:
    return implementation()


def _fastest(x: Tensor, weight: Tensor, out: Tensor | None, padding: int) -> Way:
    """The table's choice for operands that are matrices; where it has none, the one for all numbers of rows."""
    from detent.kernels import gemm_fastest

    found = None
    if x.dim() == 2 and weight.dim() == 2 and padding in PADDINGS and _compared():
        n, k = weight.shape
        found = gemm_fastest.choice(x.shape[0], n, k, padding)
    if found is None:
        return gemm_fastest.Way(_found(), padding)
    rows = x.shape[0]
    for way in found:
        if way.implementation == "triton" or way.padding == padding:
            return way
        count = padded(rows, way.padding)
        copied = count != rows and (out is not None or not _room(_row(x), count))
        if not copied and padded(count, padding) == count:
            return way
    return found.plain._replace(padding=padding)  # one that was not timed: the kernels of its counts are compiled


@functools.cache
def _compared() -> bool:
    """Whether both implementations are here, as they were when their bits were compared."""
    import torch
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from detent.kernels import gemm_deep, gemm_fastest

    if _found() != "deep_gemm" or not gemm_deep.launches_early():
        return False
    return gemm_fastest.comparable({"torch": str(torch.__version__), "triton": triton.__version__,
                                    "cuda": torch.version.cuda, "deep_gemm": gemm_deep.version()})


class _Device(NamedTuple):
    torch: Any
    triton: Any
    deep: Any
    interpreted: bool


@functools.cache
def _capability(device: Any) -> tuple[int, int]:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return major, minor


@functools.cache
def _device() -> _Device:
    try:
        import torch
        import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

        from detent.kernels import gemm_deep, gemm_triton
    except ImportError as error:
        raise ImportError("gemm needs PyTorch and Triton: pip install 'detent[torch,triton]'") from error
    return _Device(torch, gemm_triton, gemm_deep, bool(triton.knobs.runtime.interpret))


def _check(device: _Device, x: Tensor, weight: Tensor, out: Tensor | None, padding: int,
           chosen: str) -> tuple[int, int]:
    """Rows and N of a call that the kernels take; host data only. No message is made for nothing."""
    if chosen not in IMPLEMENTATIONS:
        raise ValueError(f"gemm: implementation {chosen} is none of {IMPLEMENTATIONS}")
    if padding not in PADDINGS:
        raise ValueError(f"gemm: padding {padding} is none of {PADDINGS}")
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"gemm: x is (rows, K) and weight (N, K), not {tuple(x.shape)} and {tuple(weight.shape)}")
    (rows, k), n = x.shape, weight.shape[0]
    if rows > MOST_ROWS:
        raise ValueError(f"gemm: {rows} rows are more than {MOST_ROWS}")
    if k < ALIGNMENT or k % ALIGNMENT != 0:
        raise ValueError(f"gemm: K {k} is no multiple of {ALIGNMENT}")
    if n < NARROWEST or n % ALIGNMENT != 0:
        raise ValueError(f"gemm: N {n} is no multiple of {ALIGNMENT} from {NARROWEST}")
    dtype, place = x.dtype, x.device
    if device.interpreted:
        if chosen != "triton":
            raise ValueError("gemm: only triton runs in Triton's interpreter")
        if dtype not in (device.torch.float16, device.torch.float32):
            raise ValueError(f"gemm: {dtype} is not fp16 or fp32")
    else:
        if dtype != device.torch.bfloat16:
            raise ValueError(f"gemm: x is {dtype}, not bf16")
        if place.type != "cuda":
            raise ValueError(f"gemm: x is on {place}")
        if _capability(place) != (9, 0):
            raise ValueError(
                "gemm: rows were compared on Hopper GPUs alone (compute capability 9.0), and others are not taken")
    if out is not None and out.shape != (rows, n):
        raise ValueError(f"gemm: out is not ({rows}, {n})")
    for name, tensor in (("x", x), ("weight", weight), ("out", out)):
        if tensor is None:
            continue
        if tensor.dtype != dtype:
            raise ValueError(f"gemm: {name} is {tensor.dtype}, x {dtype}")
        if tensor.device != place:
            raise ValueError(f"gemm: {name} is on {tensor.device}, x on {place}")
        (own, columns), (step, within) = tensor.shape, tensor.stride()
        if within != 1:
            raise ValueError(f"gemm: {name}'s rows are not contiguous")
        if (own > 1 and step % ALIGNMENT != 0) or tensor.data_ptr() % 16 != 0:
            raise ValueError(f"gemm: {name}'s rows do not begin at multiples of 16 bytes")
        if own > 1 and step < columns:
            raise ValueError(f"gemm: {name}'s rows overlap")
    return rows, n

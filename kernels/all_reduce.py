"""All-reduce over symmetric memory that adds ranks 0, 1, ... W-1 in that order, whatever the message's size.

Every element is added up in fp32 and rounded once, by both algorithms alike: ``push`` (one shot: every rank sends its
message to every other) and ``pull`` (two shots: every rank adds up a shard and reads the others'). So their bits agree
with each other, for every size, cut, graph and rank; ``all_reduce_sm90.cu`` says how. Workspace and channels decide the
speed alone: messages longer than the workspace go in steps.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.kernels.build_cuda import FLAGS, build, compiler

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor; torch is imported only where a kernel is launched

SOURCES = ("all_reduce_sm90.cu", *(f"all_reduce_{part}.cuh" for part in ("sm90", "ops", "launch")))
ALGORITHMS = ("push", "pull")
MAX_RANKS = 8
MAX_CHANNELS = 128
WORKSPACE = 32 << 20
CHANNELS = 64
PHASES = 2


class Call(ctypes.Structure):
    """The launcher's arguments, as in ``all_reduce_sm90.cuh``."""

    _fields_ = (
        *((name, ctypes.c_void_p * MAX_RANKS) for name in ("buffers", "signals", "inputs", "outputs", "epochs")),
        ("stream", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("bytes", "region", "timeout")),
        *((name, ctypes.c_int) for name in ("device", "ranks", "first", "here", "channels", "kind", "pull")),
    )


def available() -> bool:
    """Whether the code can be built: nvcc and the sources are there."""
    return compiler() is not None and all((Path(__file__).parent / source).exists() for source in SOURCES)


@functools.cache
def library(source: Path | None = None) -> ctypes.CDLL:
    """The compiled code, or that of another ``source`` which includes it. ``RuntimeError`` where it does not compile.

    Built once, in about half a minute; ``build_cuda`` says where it lies.
    """
    here = Path(__file__).parent
    sources = [*(() if source is None else (source,)), *(here / name for name in SOURCES)]
    loaded = ctypes.CDLL(str(build("all_reduce", "all_reduce", sources, (*FLAGS, f"-I{here}"), compiler())))
    loaded.detent_all_reduce.argtypes = [ctypes.POINTER(Call)]
    loaded.detent_all_reduce_error.restype = ctypes.c_char_p
    return loaded


class AllReduce:
    """One rank's end of an all-reduce among the 2 to 8 ranks of a process group, each with a GPU, all on one host.

    Made by all ranks together. ``workspace`` bytes of symmetric memory a rank hold what one step exchanges, twice: a
    ``push`` step takes messages up to ``workspace / 2 / ranks`` bytes, a ``pull`` step up to ``workspace / 2``;
    ``channels`` is the most blocks that a call uses. Calls must come in the same order, with the same sizes and
    algorithms, on every rank, and one after another: on one stream, or on streams that wait for one another. A captured
    call may be replayed among others. A rank that waits longer than ``timeout`` seconds stops with a CUDA error.
    """

    def __init__(self, group: Any, device: Any, *, workspace: int = WORKSPACE, channels: int = CHANNELS,
                 timeout: float = 600.0) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]
        import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
        from torch.distributed import _symmetric_memory as symmetric  # type: ignore[import-not-found, unused-ignore]

        self.device = numbered(device)
        ranks = dist.get_world_size(group)
        self._region = region_of(ranks, workspace, channels)
        data = 2 * channels * self._region
        # One allocation: flags behind the data, so that nothing else that uses symmetric memory meets them.
        self._memory = symmetric.empty(data + signal_bytes(channels), dtype=torch.uint8, device=self.device)
        self._handle = symmetric.rendezvous(self._memory, group)
        self.rank, self.ranks = int(self._handle.rank), ranks
        self._memory.zero_()
        self._epochs = torch.zeros(channels, dtype=torch.int64, device=self.device)
        torch.cuda.synchronize(self.device)
        dist.barrier(group)  # no flag of a peer may come before the zeros
        bases = [int(pointer) for pointer in self._handle.buffer_ptrs]
        offset = self._memory.data_ptr() - bases[self.rank]
        self._call = Call(ranks=ranks, first=self.rank, here=1, channels=channels, region=self._region,
                          timeout=int(timeout * 1e9), device=self.device.index)
        for rank, base in enumerate(bases):
            self._call.buffers[rank], self._call.signals[rank] = base + offset, base + offset + data
        self._call.epochs[self.rank] = self._epochs.data_ptr()
        self._library = library()

    def __call__(self, x: Tensor, algorithm: str, *, out: Tensor | None = None) -> Tensor:
        """The sum over ranks of ``x``, of any shape, bf16, fp16 or fp32, contiguous from a multiple of 16 bytes.

        ``out`` is like ``x``, or ``x`` itself. Raises ``ValueError`` before anything is launched. Never waits for the
        device.
        """
        import torch

        out = torch.empty_like(x) if out is None else out
        kind = check(algorithm, x, out, self.device)
        call = self._call
        call.inputs[self.rank], call.outputs[self.rank] = x.data_ptr(), out.data_ptr()
        launch(self._library, call, x, algorithm, kind)
        return out


class SimulatedAllReduce:
    """All ranks of an all-reduce on one GPU: buffers stand for peers, and one cooperative launch runs every rank's
    blocks with the device code of :class:`AllReduce`. For tests and checks; its times are no all-reduce's.

    Blocks wait for one another, so all must run at once; a launch with more than the GPU holds fails, and is not
    started. ``code`` is another library, from :func:`library`.
    """

    def __init__(self, ranks: int, device: Any, *, workspace: int = WORKSPACE, channels: int = 16,
                 timeout: float = 20.0, code: ctypes.CDLL | None = None) -> None:
        import torch

        self.device, self.ranks = numbered(device), ranks
        region = region_of(ranks, workspace, channels)
        self._memory = torch.empty((ranks, 2 * channels * region), dtype=torch.uint8, device=self.device).fill_(0xFF)
        self._signals = torch.zeros((ranks, signal_bytes(channels)), dtype=torch.uint8, device=self.device)
        self._epochs = torch.zeros((ranks, channels), dtype=torch.int64, device=self.device)
        self._call = Call(ranks=ranks, first=0, here=ranks, channels=channels, region=region,
                          timeout=int(timeout * 1e9), device=self.device.index)
        for rank in range(ranks):
            self._call.buffers[rank] = self._memory[rank].data_ptr()
            self._call.signals[rank] = self._signals[rank].data_ptr()
            self._call.epochs[rank] = self._epochs[rank].data_ptr()
        self._library = library() if code is None else code

    def __call__(self, inputs: Sequence[Tensor], algorithm: str, *,
                 outs: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Every rank's output, for every rank's input; as :meth:`AllReduce.__call__` takes them."""
        import torch

        made = [torch.empty_like(x) for x in inputs] if outs is None else list(outs)
        _refuse(len(inputs) != self.ranks or len(made) != self.ranks, f"{len(inputs)} inputs of {self.ranks} ranks")
        call, kind = self._call, 0
        for rank, (x, out) in enumerate(zip(inputs, made, strict=True)):
            _refuse(x.shape != inputs[0].shape or x.dtype != inputs[0].dtype, "inputs are not alike")
            kind = check(algorithm, x, out, self.device)
            call.inputs[rank], call.outputs[rank] = x.data_ptr(), out.data_ptr()
        launch(self._library, call, inputs[0], algorithm, kind)
        return made


def launch(code: ctypes.CDLL, call: Call, x: Tensor, algorithm: str, kind: int) -> None:
    """Run a call whose pointers are filled in, for messages like ``x``, on the current stream."""
    import torch

    if x.numel() == 0:
        return
    call.bytes = x.numel() * x.element_size()
    call.kind, call.pull = kind, algorithm == "pull"
    call.stream = torch.cuda.current_stream(x.device).cuda_stream
    error = code.detent_all_reduce(ctypes.byref(call))
    if error != 0:
        raise RuntimeError(f"all_reduce: {code.detent_all_reduce_error(error).decode()}")


def numbered(device: Any) -> Any:
    """A device with its number, as tensors name theirs."""
    import torch

    found = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if found.index is None else found


def region_of(ranks: int, workspace: int, channels: int) -> int:
    """Bytes of a channel in one half of a rank's workspace. ``ValueError`` for what cannot be."""
    _refuse(not 2 <= ranks <= MAX_RANKS, f"{ranks} ranks are not 2 to {MAX_RANKS}")
    _refuse(not 1 <= channels <= MAX_CHANNELS, f"{channels} channels are not 1 to {MAX_CHANNELS}")
    region = workspace // (2 * channels) // 16 * 16
    _refuse(region < 16 * ranks, f"a workspace of {workspace} bytes has less than 16 for each channel, half and rank")
    return region


def signal_bytes(channels: int) -> int:
    """Bytes of a rank's flags."""
    return PHASES * channels * MAX_RANKS * 8


def check(algorithm: str, x: Tensor, out: Tensor, device: Any) -> int:
    """The number of a message's type. ``ValueError`` for what the kernels do not take."""
    import torch

    kinds = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
    _refuse(algorithm not in ALGORITHMS, f"{algorithm} is none of {', '.join(ALGORITHMS)}")
    _refuse(x.dtype not in kinds, f"{x.dtype} is none of {', '.join(map(str, kinds))}")
    _refuse(out.shape != x.shape or out.dtype != x.dtype, "out has not x's shape and type")
    for name, tensor in (("x", x), ("out", out)):
        _refuse(tensor.device != device, f"{name} is on {tensor.device}, not on {device}")
        _refuse(not tensor.is_contiguous(), f"{name} is not contiguous")
        _refuse(tensor.data_ptr() % 16 != 0, f"{name} does not begin at a multiple of 16 bytes")
    apart = out.data_ptr() - x.data_ptr()
    _refuse(0 < abs(apart) < x.numel() * x.element_size(), "out overlaps x and is not x")
    return kinds[x.dtype]


def _refuse(bad: bool, message: str) -> None:
    if bad:
        raise ValueError(f"all_reduce: {message}")

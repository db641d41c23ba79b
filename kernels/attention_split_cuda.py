"""The Hopper half of :mod:`detent.kernels.attention_split`: builds the CUDA code for a head dim, once, and calls it.

The library lies in ``$DETENT_CACHE_DIR``, else ``$XDG_CACHE_HOME/detent``, else ``~/.cache/detent``, under a name made
from the sources, the flags and the compiler's version. Building takes nvcc (``$CUDA_HOME/bin``, the PATH or
``/usr/local/cuda/bin``) and some ten seconds.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor

SOURCES = ("attention_split_sm90.cu", *(f"attention_split_{part}.cuh" for part in (
    "sm90", "work", "rows", "combine", "launch")))
FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a",
         "-fmad=false")
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


def compiler() -> str | None:
    """The path of nvcc, or None."""
    home = os.environ.get("CUDA_HOME")
    places = [str(Path(home) / "bin")] if home else []
    return shutil.which("nvcc", path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))


def available() -> bool:
    """Whether the code can be built: nvcc and the sources are there."""
    return compiler() is not None and all((Path(__file__).parent / source).exists() for source in SOURCES)


def _folder() -> Path:
    named = os.environ.get("DETENT_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME")
    cache = Path(named) if named else (Path(shared) if shared else Path.home() / ".cache") / "detent"
    folder = cache / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{folder}: code is executed from it, so it must be yours and writable by nobody else")
    return folder


@functools.cache
def library(head_dim: int) -> ctypes.CDLL:
    """The compiled code for a head dim. ``RuntimeError`` where it cannot be compiled."""
    nvcc = compiler()
    if nvcc is None:
        raise RuntimeError("attention_split needs nvcc of CUDA 12.4 or later: set CUDA_HOME")
    here = Path(__file__).parent
    flags = (*FLAGS, f"-DHEAD_DIM={head_dim}")
    version = subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(b"\0".join([version, *map(str.encode, flags), *((here / s).read_bytes() for s in SOURCES)]))
    built = _folder() / f"attention_split_{head_dim}_{key.hexdigest()[:16]}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            made = Path(scratch) / built.name
            command = [nvcc, *flags, "-o", str(made), str(here / SOURCES[0])]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                raise RuntimeError(f"attention_split: nvcc failed\n{run.stdout}{run.stderr}")
            made.replace(built)
    loaded = ctypes.CDLL(str(built))
    loaded.detent_attention_split.argtypes = [ctypes.POINTER(Call)]
    loaded.detent_attention_split_error.restype = ctypes.c_char_p
    return loaded


def attend(
    torch: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor, cu: Tensor, used: Tensor, out: Tensor, *,
    max_seqlen_q: int, max_context: int, splits: int, stride: int, scale: float, multiprocessors: int,
) -> None:
    """Launch for checked arguments. ``scale`` is in powers of two; ``splits`` 1 means that no request has a second."""
    heads, head_dim = int(q.shape[1]), int(q.shape[2])
    page, kv_heads = int(k.shape[1]), int(k.shape[2])
    batch = int(used.shape[0])
    group = heads // kv_heads
    code = library(head_dim)
    all_short = max_seqlen_q <= WARPGROUP_ROWS // group
    short_q = max_seqlen_q if all_short else int(batch > 1)  # requests up to it are split among multiprocessors
    part_rows = batch * heads * splits * short_q if splits > 1 else 0
    room = part_rows * (head_dim + 2)
    if head_dim > 128 and splits > 1 and not all_short:  # states of rows between their splits
        room = max(room, multiprocessors * 2 * WARPGROUP_ROWS * head_dim)
    part = torch.empty(room, dtype=torch.float32, device=q.device) if room else None
    call = Call(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), None if part is None else part.data_ptr(),
        table.data_ptr(), cu.data_ptr(), used.data_ptr(), torch.cuda.current_stream(q.device).cuda_stream,
        q.stride(0), q.stride(1), out.stride(0), out.stride(1), table.stride(0), k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2), k.shape[0], part_rows,
        q.device.index, q.shape[0], batch, kv_heads, group, page, splits, stride, max_context, max_seqlen_q, short_q,
        scale)
    error = code.detent_attention_split(ctypes.byref(call))
    if error != 0:
        raise RuntimeError(f"attention_split: {code.detent_attention_split_error(error).decode()}")

"""Builds this folder's CUDA code with nvcc, once, into a cache.

A library lies in ``$DETENT_CACHE_DIR/kernels``, else ``$XDG_CACHE_HOME/detent/kernels``, else
``~/.cache/detent/kernels``, under a name made from the sources, the flags and the compiler's version.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a",
         "-fmad=false")


def compiler() -> str | None:
    """The path of nvcc, from ``$CUDA_HOME/bin``, the PATH or ``/usr/local/cuda/bin``; or None."""
    home = os.environ.get("CUDA_HOME")
    places = [str(Path(home) / "bin")] if home else []
    return shutil.which("nvcc", path=os.pathsep.join([*places, os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))


def folder() -> Path:
    """Where libraries lie; made where it is missing. ``PermissionError`` where others may write."""
    named = os.environ.get("DETENT_CACHE_DIR")
    shared = os.environ.get("XDG_CACHE_HOME")
    cache = Path(named) if named else (Path(shared) if shared else Path.home() / ".cache") / "detent"
    found = cache / "kernels"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = found.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{found}: code is executed from it, so it must be yours and writable by nobody else")
    return found


def build(kernel: str, name: str, sources: Sequence[Path], flags: Sequence[str], nvcc: str | None) -> Path:
    """The library of ``sources``, of which nvcc is given the first, as ``{name}_{hash}.so``.

    ``RuntimeError``, in the name of ``kernel``, without ``nvcc`` or where that fails.
    """
    if nvcc is None:
        raise RuntimeError(f"{kernel} needs nvcc of CUDA 12.4 or later: set CUDA_HOME")
    version = subprocess.run([nvcc, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(b"\0".join([version, *map(str.encode, flags), *(source.read_bytes() for source in sources)]))
    built = folder() / f"{name}_{key.hexdigest()[:16]}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            made = Path(scratch) / built.name
            run = subprocess.run([nvcc, *flags, "-o", str(made), str(sources[0])], capture_output=True, text=True)
            if run.returncode != 0:
                raise RuntimeError(f"{kernel}: nvcc failed\n{run.stdout}{run.stderr}")
            made.replace(built)
    return built

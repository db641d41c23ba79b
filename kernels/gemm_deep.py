"""The DeepGEMM half of :mod:`detent.kernels.gemm`: which of its configurations a model needs, and compiling them early.

DeepGEMM compiles one kernel for each configuration (weight shape, tile, cluster, stages), with nvcc, in 2.5 to 3.5
seconds when it is first met. ``configuration`` restates its choice, so that a padding grid's configurations can be
counted and compiled before serving: ``compile_all``, in parallel processes, into ``cache_folder()``. That folder may
be carried: ``adopt`` brings a carried one under this machine's names.

A cache entry's name is a hash over the compiler's version, its flags and the source, and the flags hold the path of
DeepGEMM's headers. ``compile_all`` writes the flags beside the entries (``detent.json``), so ``adopt`` can check that
it hashes as DeepGEMM does, on every entry, before it computes the name that this machine asks for.

DeepGEMM is ``deep_gemm`` (``sgl-deep-gemm``) or, without that, ``vllm.third_party.deep_gemm``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from detent.kernels.build_cuda import compiler, folder

if TYPE_CHECKING:
    Tensor = Any  # torch.Tensor

BLOCK_K = 64
SHARED_BYTES = 232448  # of a multiprocessor, less what the driver keeps
MOST_STAGES = 16
MANIFEST = "detent.json"
NAME = "sm90_bf16_gemm"


class Configuration(NamedTuple):
    """What DeepGEMM compiles for a weight shape. Bits depend on none of it: the sum over K is never cut."""

    rows: int  # of a tile
    columns: int
    cluster_rows: int
    cluster_columns: int
    stages: int


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _candidates(m: int, multiprocessors: int) -> Iterator[Configuration]:
    """In DeepGEMM's order: the first of equals wins."""
    small = [rows for rows in (16, 32) if m <= rows]
    for cluster_rows, cluster_columns in ((1, 1), (1, 2), (2, 1)):
        if multiprocessors % (cluster_rows * cluster_columns) != 0:
            continue
        for rows in (64, 128, *small, 256):
            for columns in range(16, 257, 16):
                result = _cdiv(rows * columns * 2, 1024) * 1024
                stages = min((SHARED_BYTES - result - MOST_STAGES * 16) // ((rows + columns) * BLOCK_K * 2),
                             MOST_STAGES)
                enough = stages >= (4 if rows * columns < 128 * 192 else 3)
                if enough and (rows <= 128 or columns <= 128):
                    yield Configuration(rows, columns, cluster_rows, cluster_columns, stages)


def _cycles(c: Configuration, m: int, n: int, k: int, multiprocessors: int) -> float:
    """DeepGEMM's estimate: traffic of both cache levels, over how evenly the tiles fill the multiprocessors."""
    tiles = _cdiv(m, c.rows) * _cdiv(n, c.columns)
    waves = _cdiv(tiles, multiprocessors)
    if c.cluster_rows * c.cluster_columns > 1 and waves <= 1:
        return float("inf")
    result = c.rows * c.columns * 2
    second = k * (c.rows // c.cluster_columns + c.columns // c.cluster_rows) * 2 + result
    first = k * (c.rows + c.columns) * 2 + k * (max(64, c.rows) + c.columns) * 2 + 2 * result
    bandwidth = int(min(64.0 * multiprocessors, 8e6 / 1.3e3))
    longest = max(second * tiles // bandwidth, first * tiles // (128 * multiprocessors))
    return int(_float32(_float32(longest) / _float32(_float32(tiles) / _float32(waves * multiprocessors))))


def configuration(m: int, n: int, k: int, multiprocessors: int = 132) -> Configuration:
    """The configuration that DeepGEMM picks on sm_90 for (m, k) times (n, k) transposed, bf16."""
    return min(_candidates(m, multiprocessors), key=lambda c: _cycles(c, m, n, k, multiprocessors))


def configurations(
    shapes: Iterable[tuple[int, int]], counts: Iterable[int], multiprocessors: int = 132,
) -> dict[tuple[int, int, Configuration], int]:
    """Every configuration of weight shapes (N, K) at padded row counts, with the fewest rows that need it."""
    found: dict[tuple[int, int, Configuration], int] = {}
    # Rows enter the choice as tiles of 64 and more, except for the two short tiles.
    fewest: dict[tuple[int, int], int] = {}
    for m in sorted(set(counts)):
        fewest.setdefault((0 if m <= 16 else 1 if m <= 32 else 2, _cdiv(m, 64)), m)
    for n, k in dict.fromkeys(shapes):
        for m in fewest.values():
            found.setdefault((n, k, configuration(m, n, k, multiprocessors)), m)
    return found


def cache_folder() -> Path:
    """Where compiled kernels lie: ``$DG_JIT_CACHE_DIR``, else a folder in Detent's cache."""
    named = os.environ.get("DG_JIT_CACHE_DIR")
    return Path(named) if named else folder() / "deep_gemm"


def available() -> bool:
    """Whether DeepGEMM is installed, and nvcc, without which it does not start; imports neither."""
    return _spec() is not None and compiler() is not None


def _spec() -> str | None:
    if importlib.util.find_spec("deep_gemm") is not None:
        return "deep_gemm"
    engine = importlib.util.find_spec("vllm")
    for place in (engine.submodule_search_locations or ()) if engine is not None else ():
        if (Path(place) / "third_party" / "deep_gemm" / "__init__.py").exists():
            return "vllm.third_party.deep_gemm"
    return None


@functools.cache
def module() -> Any:
    """DeepGEMM, imported and pointed at ``cache_folder()``. ``ImportError`` without it."""
    name = _spec()
    if name is None:
        raise ImportError("gemm: deep_gemm needs DeepGEMM: pip install sgl-deep-gemm, or vllm==0.26.0")
    os.environ.setdefault("DG_JIT_CACHE_DIR", str(cache_folder()))
    nvcc = compiler()
    if "CUDA_HOME" not in os.environ and "CUDA_PATH" not in os.environ and nvcc is not None:
        os.environ["CUDA_HOME"] = str(Path(nvcc).resolve().parent.parent)
    return importlib.import_module(name)


def version() -> str:
    """DeepGEMM's, or "" where it does not say."""
    return str(getattr(module(), "__version__", ""))


def launches_early() -> bool:
    """Whether this DeepGEMM can be told to launch as a programmatic dependent launch."""
    return hasattr(module(), "set_pdl")


def run(x: Tensor, weight: Tensor, out: Tensor, early: bool = False) -> None:
    """``out = x weight^T`` for checked arguments, on the current stream. ``early``: as a programmatic dependent launch.

    ``ValueError`` where this DeepGEMM has no such launch.
    """
    deep = module()
    if not early:
        deep.bf16_gemm_nt(x, weight, out)
        return
    if not launches_early():
        raise ValueError(f"gemm: DeepGEMM {version()} launches nothing early: it has no set_pdl")
    before = deep.get_pdl()
    deep.set_pdl(True)  # for the whole process: others' calls find it as they left it
    try:
        deep.bf16_gemm_nt(x, weight, out)
    finally:
        deep.set_pdl(before)


def compile_all(
    shapes: Iterable[tuple[int, int]], counts: Iterable[int], *, processes: int | None = None, device: int = 0,
    multiprocessors: int = 132,
) -> int:
    """Compile every configuration of weight shapes (N, K) at padded row counts on this GPU; how many there are.

    Each process launches the kernels of its share once, on memory of their true sizes (the largest weight and the
    largest result), since DeepGEMM compiles at a launch. What lies in the cache already is not compiled again.
    ``RuntimeError`` if a process fails, with what it said.
    """
    jobs = sorted((m, n, k) for (n, k, _), m in configurations(shapes, counts, multiprocessors).items())
    if not jobs:
        return 0
    cache = cache_folder()
    if _spec() is None:
        raise ImportError("gemm: DeepGEMM is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    share = min(processes or os.cpu_count() or 1, len(jobs))
    environment = os.environ | {
        "DG_JIT_CACHE_DIR": str(cache), "DG_JIT_PRINT_COMPILER_COMMAND": "1", "CUDA_MODULE_LOADING": "LAZY",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = []
    for part in range(share):
        log = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "detent.kernels.gemm_deep", json.dumps([device, jobs[part::share]])]
        running.append((subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment), log))
    said = []
    for process, log in running:
        failed = process.wait() != 0
        log.seek(0)
        said.append(log.read())
        log.close()
        if failed:
            for other, _ in running:
                other.kill()
            raise RuntimeError(f"gemm: compiling failed\n{said[-1][-2000:]}")
    flags = re.search(r"-cubin -o \S+ (.*)", "\n".join(said))
    if flags is not None:
        _write_manifest(cache, flags[1].strip())
    return len(jobs)


def _write_manifest(cache: Path, flags: str) -> None:
    include = re.search(r"-I(\S+)", flags)
    if include is None:
        raise RuntimeError(f"gemm: no header path in DeepGEMM's flags: {flags}")
    text = json.dumps({"flags": flags, "include": include[1], "compiler": _compiler_name()})
    with tempfile.NamedTemporaryFile("w", dir=cache, delete=False) as scratch:
        scratch.write(text + "\n")
    Path(scratch.name).replace(cache / MANIFEST)


def _compiler_name() -> str:
    """How DeepGEMM names the version of nvcc."""
    nvcc = os.environ.get("DG_JIT_NVCC_COMPILER") or compiler()
    if nvcc is None:
        raise RuntimeError("gemm: DeepGEMM needs nvcc: set CUDA_HOME")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", version)
    return f"NVCC{release[1]}.{release[2]}" if release is not None else version


def _digest(data: bytes) -> str:
    """DeepGEMM's hash: FNV-1a of 64 bits from two seeds, each finished by splitmix."""
    words = []
    for state in (0xC6A4A7935BD1E995, 0x9E3779B97F4A7C15):
        for byte in data:
            state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        words.append(state ^ state >> 31)
    return f"{words[0]:016x}{words[1]:016x}"


def entry_name(source: str, manifest: Mapping[str, str], include: str) -> str:
    """The folder in which DeepGEMM looks for a kernel's source compiled against headers in ``include``."""
    flags = manifest["flags"].replace(f"-I{manifest['include']}", f"-I{include}")
    return f"kernel.{NAME}." + _digest("$$".join((NAME, manifest["compiler"], flags, source)).encode())


def adopt(carried: Path, headers: str | None = None) -> int:
    """Copy a carried cache into ``cache_folder()`` under the names that this machine asks for; how many are new.

    ``headers``: DeepGEMM's include folder here, by default the installed one's. Kernels of another version of nvcc are
    left alone, since DeepGEMM would not ask for them. ``ValueError`` where an entry's name is not what ``entry_name``
    says: that DeepGEMM hashes otherwise.
    """
    manifest = json.loads((carried / MANIFEST).read_text())
    if manifest["compiler"] != _compiler_name():
        return 0
    include = headers or str(Path(os.path.abspath(module().__file__)).parent / "include")
    target, new = cache_folder(), 0
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted((carried / "cache").glob(f"kernel.{NAME}.*")):
        source = (entry / "kernel.cu").read_text()
        if entry_name(source, manifest, manifest["include"]) != entry.name:
            raise ValueError(f"gemm: {entry.name} is not named as this version of DeepGEMM names it")
        named = target / "cache" / entry_name(source, manifest, include)
        if not named.exists():
            named.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=named.parent) as scratch:  # complete when it appears
                shutil.copytree(entry, Path(scratch) / "entry")
                try:
                    (Path(scratch) / "entry").rename(named)
                except OSError:  # another process was first
                    continue
            new += 1
    if not (target / MANIFEST).exists():
        _write_manifest(target, manifest["flags"].replace(f"-I{manifest['include']}", f"-I{include}"))
    return new


def _compile_share(device: int, jobs: list[tuple[int, int, int]]) -> None:
    import torch  # type: ignore[import-not-found, unused-ignore]

    torch.cuda.set_device(device)

    def room(elements: int) -> Tensor:
        return torch.empty(elements, dtype=torch.bfloat16, device="cuda")

    x = room(max(m * k for m, _, k in jobs))
    weight = room(max(n * k for _, n, k in jobs))
    out = room(max(m * n for m, n, _ in jobs))
    for m, n, k in jobs:
        run(x[: m * k].view(m, k), weight[: n * k].view(n, k), out[: m * n].view(m, n))
    torch.cuda.synchronize()


if __name__ == "__main__":
    where, work = json.loads(sys.argv[1])
    _compile_share(where, [(m, n, k) for m, n, k in work])

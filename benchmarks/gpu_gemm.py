"""Compare the rows of ``gemm`` bit for bit, then time it beside cuBLAS, on one GPU: ``python benchmarks/gpu_gemm.py``.

Layers of Llama-3.1-8B, Llama-3.1-70B on two GPUs and Qwen3-30B-A3B at 18 numbers of rows. First bits: up to 32 rows,
each multiplied alone, against the same rows anywhere among others (some of them no numbers), with every configuration
of DeepGEMM that a padding leads to and every tile of the Triton kernel, outputs poisoned. Then times: the median over
replays of a CUDA graph of several calls, divided by the calls; a case's arms are replayed by turns and consecutive
calls read other copies of the weights, more of them than the second-level cache holds. ``x`` has room for its padding
behind it, as an engine's buffers have.

DeepGEMM must be importable for its arms. Everything is compiled first, in parallel processes; ``--carried`` names a
folder with kernels compiled elsewhere (``gemm_deep.adopt``). Prints tables; writes ``$OUT/gemm_h200.json`` as it goes.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detent.bench.gpu.environment import environment
from detent.kernels import gemm_deep
from detent.kernels.gemm import GEOMETRIC, gemm, padded

MODELS = {  # (N, K) of qkv, output, gate and up, down, head; Qwen's experts are not linear layers, its router is
    "llama-3.1-8b": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    "llama-3.1-70b-tp2": ((5120, 8192), (8192, 4096), (28672, 8192), (8192, 14336), (64128, 8192)),
    "qwen3-30b-a3b": ((5120, 2048), (2048, 4096), (128, 2048), (151936, 2048)),
}
ROWS = (1, 2, 7, 8, 16, 17, 33, 64, 65, 127, 129, 256, 257, 700, 1024, 2047, 4096, 8192)
PADDINGS = (1, 64, 128, 256, GEOMETRIC)  # 8 to 32 lead to the same configurations as 1 and 64
COPY_TB_S, MATRIX_TFLOP_S = 4.3, 790.0  # measured: copy, bytes read and written; 8192-cubed bf16 product
COLD = 160 << 20  # bytes of weights that are read before the first copy is read again
REPLAYS = 5
KNOWN = 32  # rows compared
Call = Callable[[Any, Any, Any], Any]


class Log:
    """The result so far, on disk after every step, and what went wrong."""

    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.perf_counter()
        self.found: dict[str, Any] = {"environment": {}, "seconds": {}, "errors": [], "bits": [], "times": []}

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def error(self, where: str) -> None:
        text = f"{where}: {traceback.format_exc(limit=3)[-500:]}"
        self.found["errors"].append(text)
        if len(self.found["errors"]) < 6:
            print("ERROR", text, flush=True)

    def write(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")


def compile_triton(part: int, parts: int) -> None:
    """Runs in a process of its own; compiled tiles stay in Triton's cache."""
    import torch

    from detent.kernels import gemm_triton

    x = torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16)
    for tile in gemm_triton.TILES[part::parts]:
        gemm_triton.launch(x, x, torch.empty_like(x), tile, 4)
    torch.cuda.synchronize()


def compile_everything(log: Log, shapes: list[tuple[int, int]], carried: str | None) -> bool:
    """Whether DeepGEMM's arms can run."""
    parts = min(8, os.cpu_count() or 1)
    children = [subprocess.Popen([sys.executable, __file__, "--compile-part", f"{part}/{parts}"])
                for part in range(parts)]
    deep = gemm_deep.available()
    if deep:
        try:
            if carried:
                log.found["environment"]["adopted"] = gemm_deep.adopt(Path(carried))
            before = set((gemm_deep.cache_folder() / "cache").glob("*"))
            counts = [padded(m, p) for m in ROWS for p in PADDINGS]
            began = time.perf_counter()
            log.found["environment"]["configurations"] = gemm_deep.compile_all(shapes, counts)
            log.found["seconds"]["compiling DeepGEMM"] = round(time.perf_counter() - began, 1)
            new = sorted(set((gemm_deep.cache_folder() / "cache").glob("*")) - before)
            log.found["environment"]["compiled_here"] = len(new)
            if new:  # to be carried next time
                with tarfile.open(log.path.parent / "deep_cache.tar.xz", "w:xz") as archive:
                    for entry in (*new, gemm_deep.cache_folder() / gemm_deep.MANIFEST):
                        archive.add(entry, entry.relative_to(gemm_deep.cache_folder()))
        except Exception:
            log.error("compiling DeepGEMM")
            deep = False
    for child in children:
        if child.wait() != 0:
            log.found["errors"].append("compiling Triton failed")
    return deep


def deep_paddings(m: int, n: int, k: int) -> dict[tuple[Any, ...], list[int]]:
    """Paddings by what they lead to: configuration, and tiles of rows."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for padding in PADDINGS:
        count = padded(m, padding)
        picked = gemm_deep.configuration(count, n, k)
        found.setdefault((picked, -(-count // picked.rows)), []).append(padding)
    return found


def arms_of(m: int, n: int, k: int, deep: bool, every: bool) -> dict[str, tuple[str, Call]]:
    """Implementation and call by name. ``every``: also tiles that the estimate rules out."""
    import gemm_tiles
    import torch

    from detent.kernels import gemm_triton

    processors = torch.cuda.get_device_properties(0).multi_processor_count

    def deep_call(padding: int, early: bool) -> Call:
        def call(x: Any, weight: Any, out: Any) -> Any:
            gemm_deep.module().set_pdl(early)
            return gemm(x, weight, padding=padding, implementation="deep_gemm",
                        out=out if padded(m, padding) == m else None)
        return call

    def triton_call(tile: Any) -> Call:
        def call(x: Any, weight: Any, out: Any) -> Any:
            gemm_triton.launch(x, weight, out, tile, processors)
            return out
        return call

    found: dict[str, tuple[str, Call]] = {"cublas": ("cublas", lambda x, w, out: torch.mm(x, w.T, out=out))}
    for paddings in deep_paddings(m, n, k).values() if deep else ():
        for early in (False, True):
            name = f"deep{'+early' if early else ''} {','.join('geo' if p == GEOMETRIC else str(p) for p in paddings)}"
            found[name] = ("deep_gemm", deep_call(paddings[0], early))
    tiles = [t for t in gemm_triton.TILES if gemm_tiles.fits(t, m)]
    least = min(gemm_tiles.clocks(t, m, n, k, processors) for t in tiles)
    for tile in tiles:
        if every or gemm_tiles.clocks(tile, m, n, k, processors) < 2.5 * least:
            found[gemm_tiles.name(tile)] = ("triton", triton_call(tile))
    return found


def compare_bits(log: Log, name: str, n: int, k: int, deep: bool, seed: int) -> None:
    import torch

    draw, generator = random.Random(seed), torch.Generator(device="cuda").manual_seed(seed)

    def wide(rows: int, columns: int) -> Any:  # of very different sizes: another order of additions shows
        values = torch.randn(rows, columns, generator=generator, device="cuda").bfloat16()
        return values * torch.exp2(torch.randint(-12, 13, values.shape, generator=generator, device="cuda",
                                                 dtype=torch.int8).bfloat16())

    def bits(rows: Any) -> Any:
        return rows.contiguous().view(torch.int16)

    weight, known = wide(n, k), wide(KNOWN, k)
    alone: dict[str, Any] = {}
    for arm, (kind, call) in arms_of(1, n, k, deep, False).items():
        if kind not in alone:
            rows = []
            for row in known:
                out = torch.full((1, n), math.nan, device="cuda", dtype=torch.bfloat16)
                rows.append(call(row[None], weight, out).clone())
            alone[kind] = bits(torch.cat(rows))
            if not bool(torch.isfinite(torch.cat(rows)).all()):
                log.found["errors"].append(f"{name} {n} {k} {arm}: a row alone is not finite")
    result: dict[str, Any] = {"layer": f"{name} {n}x{k}", "rows_compared": {}, "differ_from_own_rows_alone": {}}
    both = [kind for kind in ("deep_gemm", "triton") if kind in alone]
    result["rows_alone_that_differ_between"] = {
        f"{a},{b}": int((alone[a] != alone[b]).any(1).sum()) for a in alone for b in alone if a < b}
    pending = []
    for m in ROWS:
        x = wide(m, k)
        x[torch.rand(m, generator=generator, device="cuda") < 0.05] = math.nan
        chosen = draw.sample(range(m), min(m, KNOWN))
        which = draw.sample(range(KNOWN), len(chosen))
        x[chosen] = known[which]
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        for arm, (kind, call) in arms_of(m, n, k, deep, True).items():
            if "+early" in arm:
                continue
            try:
                out.fill_(math.nan)
                differ = (bits(call(x, weight, out)[chosen]) != alone[kind][which]).any(1).sum()
                pending.append((m, arm, kind, len(chosen), differ))
            except Exception:
                log.error(f"bits {name} {n} {k} {m} {arm}")
    for m, arm, kind, count, differ in pending:
        result["rows_compared"][kind] = result["rows_compared"].get(kind, 0) + count
        if int(differ):
            result["differ_from_own_rows_alone"][f"{arm} at {m}"] = int(differ)
    result["implementations"] = both
    errors = {}
    x = torch.randn(129, k, generator=generator, device="cuda").bfloat16()
    plain = torch.randn(min(n, 8192), k, generator=generator, device="cuda").bfloat16()
    want = x.double() @ plain.double().T
    for kind, call in (("cublas", lambda x, w: torch.mm(x, w.T)),
                       *((kind, lambda x, w, kind=kind: gemm(x, w, padding=1, implementation=kind)) for kind in both)):
        if kind != "deep_gemm" or n <= 8192:  # another N is another configuration to compile
            errors[kind] = float(f"{float((call(x, plain).double() - want).norm() / want.norm()):.4e}")
    result["relative_error_against_float64"] = errors
    log.found["bits"].append(result)


def captured(call: Call, x: Any, weights: Any, out: Any, calls: int) -> Any:
    import torch

    call(x, weights[0], out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            call(x, weights[turn % len(weights)], out)
    graph.replay()
    return graph


def time_case(log: Log, name: str, m: int, n: int, k: int, deep: bool, weights: Any) -> None:
    import torch

    floor = max(2e-6 * (n * k + m * k + m * n) / COPY_TB_S, 2e-6 * m * n * k / MATRIX_TFLOP_S)
    calls = len(weights) * max(1, math.ceil(1000 / (floor + 4) / len(weights)))
    room = torch.randn(padded(m, 256), k, device="cuda").bfloat16()
    x, out = room[:m], torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    graphs = {}
    for arm, (_, call) in arms_of(m, n, k, deep, False).items():
        try:
            graphs[arm] = captured(call, x, weights, out, calls)
        except Exception:
            log.error(f"time {name} {n} {k} {m} {arm}")
    marks: dict[str, list[Any]] = {arm: [] for arm in graphs}
    for _ in range(REPLAYS):
        for arm, graph in graphs.items():
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            graph.replay()
            after.record()
            marks[arm].append((before, after))
    torch.cuda.synchronize()
    times = {arm: round(statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3 / calls, 2)
             for arm, pairs in marks.items()}
    log.found["times"].append({"model": name, "n": n, "k": k, "m": m, "floor_us": round(floor, 2), "us": times})


def geometric_mean(values: list[float]) -> float:
    return round(math.exp(statistics.fmean(map(math.log, values))), 3) if values else math.nan


def chosen_tile(m: int, n: int, k: int) -> str:
    import gemm_tiles

    from detent.kernels import gemm_triton

    return gemm_tiles.name(gemm_triton.tile(m, n))


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Geometric means over cuBLAS."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        times, stock = dict(row["us"]), row["us"].get("cublas")
        if not stock:
            continue
        picks = {"deep": [t for a, t in times.items() if a.startswith("deep ")],
                 "deep+early": [t for a, t in times.items() if a.startswith("deep+early ")],
                 "triton": [t for a, t in times.items() if a.startswith("triton ")]}
        picks["deep, either"] = picks["deep"] + picks["deep+early"]
        picks["best of all"] = picks["deep, either"] + picks["triton"]
        picks["deep or triton"] = picks["deep"] + picks["triton"]
        for padding in PADDINGS:
            label = "geo" if padding == GEOMETRIC else str(padding)
            for early in ("", "+early"):
                picks[f"deep{early} {label}"] = [t for a, t in times.items()
                                                 if a.startswith(f"deep{early} ") and label in a.split()[1].split(",")]
        chosen = times.get(chosen_tile(row["m"], row["n"], row["k"]))
        picks["triton, chosen tile"] = [chosen] if chosen else []
        for label, found in picks.items():
            if found:
                groups.setdefault(label, []).append(min(found) / stock)
    return {label: geometric_mean(values) for label, values in groups.items()}


def report(log: Log) -> None:
    found = log.found
    rows = found["times"]
    found["over_cublas"] = {"all": ratios(rows)} | {
        f"m={m}": ratios([row for row in rows if row["m"] == m]) for m in ROWS} | {
        f"{n}x{k}": ratios([row for row in rows if (row["n"], row["k"]) == (n, k)])
        for shapes in MODELS.values() for n, k in shapes}
    log.write()
    print("environment", found["environment"], "seconds", found["seconds"], flush=True)
    for result in found["bits"]:
        print("bits", result["layer"], result["rows_compared"], "between", result["rows_alone_that_differ_between"],
              "error", result["relative_error_against_float64"],
              "DIFFER" if any(not a.startswith("cublas") for a in result["differ_from_own_rows_alone"]) else "same",
              {a: c for a, c in result["differ_from_own_rows_alone"].items() if not a.startswith("cublas")},
              "cublas differs at", sum(a.startswith("cublas") for a in result["differ_from_own_rows_alone"]))
    labels = ("deep", "deep+early", "triton", "triton, chosen tile", "deep or triton", "best of all")
    print("over cuBLAS, geometric means:", *labels, sep=" | ")
    for group, values in found["over_cublas"].items():
        if values:
            print(f"{group:14}", *(f"{values.get(label, math.nan):.3f}" for label in labels))
    print("all", found["over_cublas"]["all"])
    print("cases", len(rows), "errors", len(found["errors"]), found["errors"][:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS), help="which models' layers")
    parser.add_argument("--carried", help="folder with kernels that DeepGEMM compiled elsewhere")
    parser.add_argument("--seconds", type=float, default=165, help="stop timing after so long (default 165)")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    parser.add_argument("--skip-bits", action="store_true", help="times only")
    parser.add_argument("--compile-part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile_part:
        compile_triton(*map(int, arguments.compile_part.split("/")))
        return
    faulthandler.dump_traceback_later(arguments.seconds + 60, exit=True)
    log = Log(Path(arguments.out) / "gemm_h200.json")
    work = [(name, n, k) for name in arguments.models.split(",") for n, k in MODELS[name]]
    deep = compile_everything(log, [(n, k) for _, n, k in work], arguments.carried)
    log.found["seconds"]["compiling"] = round(log.elapsed(), 1)
    import torch

    log.found["environment"] |= {
        **environment(["python", *sys.argv]),
        "deep_gemm": getattr(gemm_deep.module(), "__version__", "?") if deep else None,
        "arms": {"cublas": "torch.mm", "deep P": "DeepGEMM at paddings P", "deep+early P": "the same, launched early",
                 "triton RxCxKxSTAGESxWARPSxSWAPxGROUPxPROGRAMSxHALVES": "this tile"}}
    print(log.found["environment"], f"{log.elapsed():.0f} s", flush=True)
    torch.manual_seed(0)
    for at, (name, n, k) in enumerate(work if not arguments.skip_bits else ()):
        try:
            compare_bits(log, name, n, k, deep, at)
        except Exception:
            log.error(f"bits {name} {n} {k}")
        torch.cuda.empty_cache()
        log.write()
    log.found["seconds"]["bits"] = round(log.elapsed() - log.found["seconds"]["compiling"], 1)
    print(f"bits done at {log.elapsed():.0f} s", flush=True)
    for name, n, k in work:
        try:
            copies = max(2, math.ceil(COLD / (2 * n * k)))
            weights = torch.randn(copies, n, k, device="cuda", dtype=torch.bfloat16)
            for m in ROWS:
                if log.elapsed() < arguments.seconds:
                    time_case(log, name, m, n, k, deep, weights)
        except Exception:
            log.error(f"time {name} {n} {k}")
        weights = None
        torch.cuda.empty_cache()
        log.write()
        print(f"{name} {n}x{k} done at {log.elapsed():.0f} s", flush=True)
    log.found["seconds"]["all"] = round(log.elapsed(), 1)
    report(log)


if __name__ == "__main__":
    main()

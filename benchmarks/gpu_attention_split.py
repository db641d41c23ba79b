"""Time ``attention_split`` beside stock FlashAttention-3 on one GPU: ``python benchmarks/gpu_attention_split.py``.

A time is the median over replays of a CUDA graph of several calls, divided by the calls. A case's graphs, stock and
ours at every stride, are replayed by turns, so that all meet the same clocks and power limit. Consecutive calls read
other pages, so that no cache serves what a model's layers would fetch from memory. Prints a table and writes JSON to
``$OUT/attention_split_h200.json`` (or the folder given with --out).

FlashAttention-3 comes from vLLM's library: --fa3 FILE names ``_vllm_fa3_C.abi3.so``, also as ``.xz``. Its time is the
better of its heuristic's splits and at most 32 splits (vLLM's setting in graphs), the metadata made beforehand as vLLM
does. Without it PyTorch's scaled_dot_product_attention stands in for prefill only: it reads no pages, so its decode
would be another task. ``DETENT_ATTENTION_SPLIT`` chooses our implementation.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from detent.kernels.attention_split import attention_split, implementation

COPY_TB_S = 4.3  # measured device-to-device copy, bytes read and written
MATRIX_TFLOP_S = 790.0  # measured 8192-cubed bf16 product on random data
REPLAYS = 11
COLD = 320 << 20  # bytes that consecutive calls read before they come back to the first pages


class Case:
    """Requests with ``context`` cached tokens, the last ``queries`` of them asked, in random pages of one pool."""

    def __init__(self, batch: int, context: int, queries: int, heads: int, kv_heads: int, dim: int,
                 page: int = 16) -> None:
        width = -(-context // page)
        bytes_read = 4 * batch * context * kv_heads * dim
        rounds = max(1, min(16, COLD // bytes_read))
        pages = rounds * batch * width
        self.name = f"b{batch} c{context} q{queries} h{heads}/{kv_heads} d{dim}"
        self.k, self.v = (torch.randn(pages, page, kv_heads, dim, device="cuda", dtype=torch.bfloat16)
                          for _ in range(2))
        self.tables = torch.randperm(pages, device="cuda").to(torch.int32).reshape(rounds, batch, width)
        self.q = torch.randn(batch * queries, heads, dim, device="cuda", dtype=torch.bfloat16)
        self.cu = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * queries
        self.used = torch.full((batch,), context, device="cuda", dtype=torch.int32)
        self.out = torch.empty_like(self.q)
        self.batch, self.context, self.queries, self.page = batch, context, queries, page
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        pairs = batch * (queries * context - queries * (queries - 1) // 2)
        self.floor = max((bytes_read + 4 * self.q.numel()) / COPY_TB_S, 4e-3 * pairs * heads * dim * 1e3
                         / MATRIX_TFLOP_S) / 1e6

    def split(self, stride: int) -> Callable[[int], Any]:
        def call(turn: int) -> Any:
            return attention_split(
                self.q, self.k, self.v, self.tables[turn % len(self.tables)], self.cu, self.used,
                max_seqlen_q=self.queries, max_context=self.context, num_splits=max(2, -(-self.context // stride)),
                split_stride=stride, softmax_scale=None, out=self.out)
        return call

    def fa3(self, splits: int) -> Callable[[int], Any]:
        ops = torch.ops._vllm_fa3_C
        ready = ops.get_scheduler_metadata(
            self.batch, self.queries, self.context, self.heads, self.kv_heads, self.dim, self.dim, torch.bfloat16,
            self.used, self.cu, None, None, None, None, self.page, 0, True, -1, -1, False, splits, None, 0)

        def call(turn: int) -> Any:
            return ops.fwd(
                self.q, self.k, self.v, None, None, None, self.out, self.cu, None, None, None, self.used,
                self.queries, self.context, self.tables[turn % len(self.tables)], None, None, None, None, None, None,
                None, None, 1 / math.sqrt(self.dim), True, -1, -1, 0.0, True, ready, splits, None, 0, None, 1, 0,
                None)
        return call

    def sdpa(self) -> Callable[[int], Any]:
        from torch.nn.attention.bias import causal_lower_right

        k, v = (part[self.tables[0, 0].long()].reshape(1, -1, self.kv_heads, self.dim)[:, : self.context]
                .transpose(1, 2).contiguous() for part in (self.k, self.v))
        q = self.q[None].transpose(1, 2).contiguous()
        bias = causal_lower_right(self.queries, self.context)
        return lambda _: torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)


def captured(call: Callable[[int], Any], calls: int) -> torch.cuda.CUDAGraph:
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            call(turn)
    graph.replay()
    return graph


def microseconds(arms: dict[str, Callable[[int], Any]], floor: float) -> dict[str, float]:
    """Each arm's time, the arms replayed by turns."""
    calls = max(2, min(20, int(4e3 / (floor + 10))))
    graphs = {name: captured(call, calls) for name, call in arms.items()}
    marks: dict[str, list[Any]] = {name: [] for name in arms}
    for _ in range(REPLAYS):
        for name, graph in graphs.items():
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            graph.replay()
            after.record()
            marks[name].append((before, after))
    torch.cuda.synchronize()
    return {name: round(statistics.median(before.elapsed_time(after) for before, after in pairs) * 1e3 / calls, 1)
            for name, pairs in marks.items()}


def copy_bandwidth() -> float:
    """TB/s of a device-to-device copy, bytes read and written."""
    source, target = (torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(REPLAYS):  # no graph: in one this is the copy engine's, which is slower
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        for _ in range(4):
            target.copy_(source)
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / 4)
    return round(4 * source.numel() / statistics.median(times) / 1e9, 3)


def accuracy(case: Case, call: Callable[[int], Any]) -> float:
    """Relative error against float64; every request's KV tokens lie in the first table."""
    case.out.fill_(math.nan)
    call(0)
    table = case.tables[0].long()
    off = norm = 0.0
    for request in range(case.batch):
        rows = slice(request * case.queries, (request + 1) * case.queries)
        for head in range(case.heads):
            k, v = (part[table[request], :, head * case.kv_heads // case.heads].flatten(0, 1)[: case.context].double()
                    for part in (case.k, case.v))
            scores = case.q[rows, head].double() @ k.T / math.sqrt(case.dim)
            last = torch.arange(case.context - case.queries, case.context, device="cuda")
            scores.masked_fill_(torch.arange(case.context, device="cuda")[None] > last[:, None], -math.inf)
            want = scores.softmax(-1) @ v
            off += float((case.out[rows, head].double() - want).square().sum())
            norm += float(want.square().sum())
    return math.sqrt(off / norm)


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    quick, dim, page = arguments.quick, arguments.dim, arguments.page
    for heads, kv_heads in ((32, 8),) if quick else ((32, 8), (32, 4)):
        for batch in (1, 8, 32) if quick else (1, 8, 32, 128):
            for context in (1024, 8192) if quick else (1024, 1025, 8192, 8193, 32768, 32769):
                yield "decode", Case(batch, context, 1, heads, kv_heads, dim, page)
        for context, queries in ((2048, 2048), (8192, 8192), (32768, 8192)):
            yield "prefill", Case(1, context, queries, heads, kv_heads, dim, page)


def load_fa3(path: Path, scratch: Path) -> None:
    if path.suffix == ".xz":
        library = scratch / path.stem
        library.write_bytes(lzma.decompress(path.read_bytes()))
        path = library
    torch.ops.load_library(str(path))


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    strides = tuple(map(int, arguments.strides.split(",")))
    environment = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "driver": subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                 capture_output=True, text=True).stdout.strip(),
        "command": " ".join(["python", *sys.argv]), "page": arguments.page, "implementation": implementation(),
        "copy_tb_s": copy_bandwidth(), "date": time.strftime("%Y-%m-%d"),
        "arms": {"split_us": "attention_split by split_stride", "sdpa_us": "PyTorch's, without pages",
                 "fa3_us": "FlashAttention-3 of vLLM 0.26.0, heuristic's splits and at most 32",
                 "floor_us": "bytes over 4.3 TB/s or operations over 790 TFLOP/s, the larger"},
    }
    rows = []
    for kind, case in cases(arguments):
        fa3 = {f"max_splits_{n}": case.fa3(n) for n in ((0, 32) if kind == "decode" else (0,))} if arguments.fa3 else {}
        split = {str(stride): case.split(stride) for stride in strides
                 if stride < 2 * case.context and case.context <= stride * 256}
        sdpa = {"sdpa": case.sdpa()} if kind == "prefill" and not fa3 else {}
        times = microseconds(fa3 | sdpa | split, case.floor)
        row: dict[str, Any] = {"kind": kind, "case": case.name, "floor_us": round(case.floor, 1)}
        row |= {"fa3_us": {name: times[name] for name in fa3}} if fa3 else {}
        row |= {"sdpa_us": times["sdpa"]} if sdpa else {}
        row["split_us"] = {name: times[name] for name in split}
        rows.append(row)
        print(row, flush=True)
    errors = {}
    for case in (Case(4, 2000, 1, 32, 8, 128), Case(1, 2000, 2000, 32, 8, 128)):
        arms = {f"split_{stride}": case.split(stride) for stride in (256, 2048)}
        arms |= {"fa3": case.fa3(0)} if arguments.fa3 else {}
        errors[case.name] = {name: float(f"{accuracy(case, call):.3e}") for name, call in arms.items()}
    print(errors)
    return {"environment": environment, "rows": rows, "relative_error_against_float64": errors}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios over FA3: each case's best stride, and the best single stride over all decode cases."""
    found: dict[str, Any] = {}
    for kind in ("decode", "prefill"):
        chosen = [(min(row["fa3_us"].values()), row["split_us"], row["case"]) for row in rows
                  if row["kind"] == kind and "fa3_us" in row]
        if not chosen:
            continue
        best = sorted((min(times.values()) / stock, case, min(times, key=lambda s: times[s]))
                      for stock, times, case in chosen)
        # A stride that covers a request in one split does the same as the smallest that does.
        single = {stride: geometric_mean([times.get(stride, times[max(times, key=int)]) / stock
                                          for stock, times, _ in chosen]) for stride in chosen[-1][1]}
        found[kind] = {"worst_at_best_stride": best[-1], "geometric_mean_at_best_stride":
                       round(geometric_mean([ratio for ratio, _, _ in best]), 3),
                       "geometric_mean_by_single_stride": {s: round(ratio, 3) for s, ratio in single.items()}}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fa3", help="vLLM's _vllm_fa3_C.abi3.so, or that file compressed with xz")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    parser.add_argument("--strides", default="256,512,1024,2048,4096,8192", help="strides to time")
    parser.add_argument("--quick", action="store_true", help="one head layout, fewer decode cases")
    parser.add_argument("--dim", type=int, default=128, help="head dim (default 128)")
    parser.add_argument("--page", type=int, default=16, help="page size in tokens (default 16)")
    arguments = parser.parse_args()
    if arguments.fa3:
        with tempfile.TemporaryDirectory() as scratch:
            load_fa3(Path(arguments.fa3), Path(scratch))
    result = measure(arguments)
    result["summary"] = summarise(result["rows"])
    result["summary"]["bandwidth_b32_c8192_over_copy"] = {
        row["case"]: round(row["floor_us"] * COPY_TB_S / min(row["split_us"].values())
                           / result["environment"]["copy_tb_s"], 3)
        for row in result["rows"] if row["case"].startswith("b32 c8192 q1 ")}
    path = Path(arguments.out) / "attention_split_h200.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()

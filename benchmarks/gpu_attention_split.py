"""Time ``attention_split`` beside stock FlashAttention-3 on one GPU: ``python benchmarks/gpu_attention_split.py``.

A time is the median over replays of a CUDA graph of several calls, divided by the calls; consecutive calls read other
pages, so that no cache serves what a model's layers would fetch from memory. Prints a table and writes JSON to
``$OUT/attention_split_h200.json`` (or the folder given with --out).

FlashAttention-3 comes from vLLM's library: --fa3 FILE names ``_vllm_fa3_C.abi3.so``, also as ``.xz``. Its time is the
better of its heuristic's splits and at most 32 splits (vLLM's setting in graphs), the metadata made beforehand as vLLM
does. Without it PyTorch's scaled_dot_product_attention stands in for prefill only: it reads no pages, so its decode
would be another task.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from detent.kernels import attention_split as module
from detent.kernels.attention_split import SHAPES, Shape, attention_split

PAGE = 16
COPY_TB_S = 4.3  # measured device-to-device copy, bytes read and written
MATRIX_TFLOP_S = 790.0  # measured 8192-cubed bf16 product on random data
COLD = 320 << 20  # bytes that consecutive calls read before they come back to the first pages


class Case:
    """Requests with ``context`` cached tokens, the last ``queries`` of them asked, in random pages of one pool."""

    def __init__(self, batch: int, context: int, queries: int, heads: int, kv_heads: int, dim: int) -> None:
        width = -(-context // PAGE)
        bytes_read = 4 * batch * context * kv_heads * dim
        rounds = max(1, min(16, COLD // bytes_read))
        pages = rounds * batch * width
        self.name = f"b{batch} c{context} q{queries} h{heads}/{kv_heads} d{dim}"
        self.k, self.v = (torch.randn(pages, PAGE, kv_heads, dim, device="cuda", dtype=torch.bfloat16)
                          for _ in range(2))
        self.tables = torch.randperm(pages, device="cuda").to(torch.int32).reshape(rounds, batch, width)
        self.q = torch.randn(batch * queries, heads, dim, device="cuda", dtype=torch.bfloat16)
        self.cu = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * queries
        self.used = torch.full((batch,), context, device="cuda", dtype=torch.int32)
        self.out = torch.empty_like(self.q)
        self.batch, self.context, self.queries = batch, context, queries
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
            self.used, self.cu, None, None, None, None, PAGE, 0, True, -1, -1, False, splits, None, 0)

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


def microseconds(call: Callable[[int], Any], floor: float) -> float:
    call(0)
    torch.cuda.synchronize()
    calls = max(2, min(20, int(4e3 / (floor + 10))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            call(turn)
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(9)]
    graph.replay()
    for before, after in marks:
        before.record()
        graph.replay()
        after.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in marks) * 1e3 / calls


def cases(quick: bool) -> Iterator[tuple[str, Case]]:
    for heads, kv_heads in ((32, 8),) if quick else ((32, 8), (32, 4)):
        for batch in (1, 8, 32) if quick else (1, 8, 32, 128):
            for context in (1024, 8192) if quick else (1024, 1025, 8192, 8193, 32768, 32769):
                yield "decode", Case(batch, context, 1, heads, kv_heads, 128)
        for context, queries in ((2048, 2048), (8192, 8192), (32768, 8192)):
            yield "prefill", Case(1, context, queries, heads, kv_heads, 128)


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
        "command": " ".join(["python", *sys.argv]), "page": PAGE, "shape": SHAPES[128]._asdict(), "beside": "sdpa",
    }
    if arguments.fa3:
        environment["beside"] = "FlashAttention-3 of vLLM 0.26.0, better of heuristic and at most 32 splits"
    rows = []
    for kind, case in cases(arguments.quick):
        row: dict[str, Any] = {"kind": kind, "case": case.name, "floor_us": round(case.floor, 1)}
        if arguments.fa3:
            row["fa3_us"] = {f"max_splits_{n}": round(microseconds(case.fa3(n), case.floor), 1)
                             for n in ((0, 32) if kind == "decode" else (0,))}
            case.fa3(0)(0)
            row["against_fa3"] = float((case.out.float() - attention_result(case)).norm() / case.out.float().norm())
        elif kind == "prefill":
            row["sdpa_us"] = round(microseconds(case.sdpa(), case.floor), 1)
        row["split_us"] = {str(stride): round(microseconds(case.split(stride), case.floor), 1) for stride in strides
                           if stride < 2 * case.context and case.context <= stride * 256}
        rows.append(row)
        print(row, flush=True)
    return {"environment": environment, "rows": rows}


def attention_result(case: Case) -> torch.Tensor:
    kept = case.out.float()
    mine: torch.Tensor = case.split(2048)(0).float()
    case.out.copy_(kept)
    return mine


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
    parser.add_argument("--shape", action="append", default=[], metavar="BLOCK,ROWS,STAGES,PROGRAMS,STAGES",
                        help="also time head dim 128 built like this (repeatable)")
    arguments = parser.parse_args()
    folder = Path(arguments.out)
    if arguments.fa3:
        with tempfile.TemporaryDirectory() as scratch:
            load_fa3(Path(arguments.fa3), Path(scratch))
    results = []
    for spec in arguments.shape or [",".join(map(str, SHAPES[128]))]:
        module.SHAPES[128] = Shape(*map(int, spec.split(",")))
        try:
            result = measure(arguments)
        except triton.runtime.errors.OutOfResources as error:
            print(spec, error, flush=True)
            continue
        result["summary"] = summarise(result["rows"])
        results.append(result)
        (folder / "attention_split_h200.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for result in results:
        print(json.dumps(result["environment"]["shape"]), json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()

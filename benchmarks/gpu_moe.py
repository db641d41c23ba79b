"""Test and time the expert layer on one GPU: ``python benchmarks/gpu_moe.py``, about three minutes.

In turn: compiles every kernel on all cores; compares bits of tokens in random batches with the same tokens alone;
measures errors against float64; says which rows of the engines' tables agree (``gpu_moe_rows``); and times one layer of
Qwen3-30B-A3B at tensor-parallel degrees 1, 2 and 4 for every row of the H200 tables. ``--pytest`` also runs
``tests_kernels/test_moe.py`` and ``test_topk_softmax.py``. A time is the median over replays of a CUDA graph of several
calls, rows by turns, each call with other experts. A part that fails says so and the next one runs.

Writes ``$OUT/moe_h200.json`` (or to --out) after every part. If vLLM can be imported, its kernel is timed beside ours.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from gpu_moe_rows import DETERMINISTIC, EXPERTS, HIDDEN, TOP_K, agreement, rows_of, shipped, short, show, width_of

from detent.bench.gpu.environment import environment
from detent.bench.gpu.timing import floor, microseconds
from detent.kernels import moe as module
from detent.kernels.moe import COLUMNS, activate, align, combine, grouped_gemm, moe, row_of, topk_softmax

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests_kernels"))
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
WIDTHS = {"tp1": 768, "tp2": 384, "tp4": 192}
ROUNDS = 8  # routings that consecutive calls take by turns


def columns(text: str) -> dict[str, int]:
    return dict(zip(COLUMNS, map(int, text.split("/")), strict=True))


def h200(width: int) -> dict[str, dict[str, Any]]:
    return rows_of(next(path for path in shipped() if width_of(path) == width and "H200" in path.name))


def warm(jobs: list[tuple[str, int]]) -> int:
    """Compile a share of the kernels, into Triton's cache on disk; runs in a process of its own."""
    failed = 0
    for text, width in jobs:
        try:
            gate_up, down = (torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
                             for shape in ((EXPERTS, 2 * width, HIDDEN), (EXPERTS, HIDDEN, width)))
            ids = torch.arange(8 * TOP_K, device="cuda", dtype=torch.int32).view(8, TOP_K)
            x = torch.zeros(8, HIDDEN, device="cuda", dtype=torch.bfloat16)
            moe(x, gate_up, down, ids, torch.ones(8, TOP_K, device="cuda"), row=columns(text))
            torch.cuda.synchronize()
        except Exception:
            failed += 1
    return failed


def compile_all() -> dict[str, Any]:
    jobs = dict.fromkeys([(short(row_of(row)), width_of(path)) for path in shipped()
                          for row in (DETERMINISTIC, *rows_of(path).values())])
    texts = list(dict.fromkeys(text for text, _ in jobs))  # a configuration's widths share kernels: one process each
    workers = min(12, os.cpu_count() or 1)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        waiting = [pool.submit(warm, [job for job in jobs if job[0] in texts[at::workers]]) for at in range(workers)]
        failed = sum(done.result() for done in as_completed(waiting, timeout=120))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return {"rows_and_widths": len(jobs), "failed": failed}


def bit_tests() -> dict[str, Any]:
    """Tokens in random batches beside the same tokens alone, for every row of the tables and the narrowest width, and
    for some at the others."""
    from moe_cases import Layer, alone, random_batches

    found: dict[str, Any] = {"cases": 0, "wrong": []}
    for name, width in WIDTHS.items():
        texts = list(dict.fromkeys(short(row_of(row)) for row in (DETERMINISTIC, *h200(width).values())))
        layer = Layer(150, seed=width, sizes=(EXPERTS, HIDDEN, width, TOP_K))
        for at, text in enumerate(texts if width == 192 else texts[:: 3 if width == 384 else 4]):
            row = columns(text)
            cases, wrong = random_batches(layer, row, alone(layer, row), 25, seed=at)
            found["cases"] += cases
            found["wrong"] += [f"{name} {text}: {what}" for what in wrong]
    print(f"bits: {found['cases']} tokens in random batches, {len(found['wrong'])} batches with other bits")
    return found


def run_pytest() -> dict[str, Any]:
    files = [str(ROOT / "tests_kernels" / name) for name in ("test_moe.py", "test_topk_softmax.py")]
    try:
        made = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "8", "-W", "default", "--show-capture=no",
                               "--disable-warnings", *files], capture_output=True, text=True, timeout=170, cwd=ROOT)
        tail = (made.stdout + made.stderr)[-4000:]
    except subprocess.TimeoutExpired as error:
        tail = f"timed out: {str(error.stdout)[-2000:]}"
    print(tail)
    return {"tail": tail[-1500:]}


def accuracy() -> dict[str, Any]:
    """Relative errors against float64, and those of torch's products rounded at the same places."""
    from moe_cases import Layer, error, reference, run

    found = {}
    for name, width in WIDTHS.items():
        layer = Layer(256, seed=width + 1, sizes=(EXPERTS, HIDDEN, width, TOP_K))
        want = reference(layer)
        rows = {"deterministic": DETERMINISTIC} | {key: h200(width)[key] for key in ("1", "256", "4096")}
        found[name] = {key: float(f"{error(run(layer, row), want):.4e}") for key, row in rows.items()}
        found[name]["torch bf16"] = float(f"{error(reference(layer, dtype=torch.bfloat16), want):.4e}")
    print("error against float64", found)
    return found


class Case:
    """A layer's tensors for a number of tokens, with several routings."""

    def __init__(self, tokens: int, width: int, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self.tokens, self.gate_up, self.down = tokens, gate_up, down
        self.x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
        made = [topk_softmax(torch.randn(tokens, EXPERTS, device="cuda"), TOP_K, renormalize=True)
                for _ in range(ROUNDS)]
        self.shares, self.ids = [shares for shares, _ in made], [ids for _, ids in made]
        self.out = torch.empty_like(self.x)
        touched = sum(len(ids.unique()) for ids in self.ids) / ROUNDS
        self.floor = floor(touched * 6 * width * HIDDEN + 4 * self.x.numel(),
                           tokens * TOP_K * 6 * width * HIDDEN)[0]

    def layer(self, row: dict[str, Any]) -> Callable[[int], Any]:
        return lambda turn: moe(self.x, self.gate_up, self.down, self.ids[turn % ROUNDS], self.shares[turn % ROUNDS],
                                row=row, out=self.out)

    def vllm(self, row: dict[str, Any]) -> Callable[[int], Any]:
        from vllm.model_executor.layers.fused_moe import override_config
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

        def call(turn: int) -> Any:
            with override_config(row | {"SPLIT_K": 1}):
                return fused_experts(self.x, self.gate_up, self.down, self.shares[turn % ROUNDS],
                                     self.ids[turn % ROUNDS])
        return call

    def stages(self, text: str) -> dict[str, Callable[[int], Any]]:
        """Each launch of the layer alone, for one routing; the sort is two."""
        row, ids, shares = row_of(columns(text)), self.ids[0], self.shares[0]
        blocks = align(ids, EXPERTS, row.block_m)
        pairs, width = self.tokens * TOP_K, self.down.shape[2]
        halves, folded, parts = (torch.randn(pairs, size, device="cuda", dtype=torch.bfloat16)
                                 for size in (2 * width, width, HIDDEN))
        return {
            "align": lambda turn: align(ids, EXPERTS, row.block_m),
            "gemm1": lambda turn: grouped_gemm(self.x, self.gate_up, halves, shares, blocks, row, second=False),
            "activation": lambda turn: activate(halves, folded, blocks),
            "gemm2": lambda turn: grouped_gemm(folded, self.down, parts, shares, blocks, row, second=True),
            "combine": lambda turn: combine(parts, ids, self.out, EXPERTS),
            "topk_softmax": lambda turn: topk_softmax(self.x[:, :EXPERTS], TOP_K, renormalize=True),
        }


def without_overlap(call: Callable[[int], Any]) -> Callable[[int], Any]:
    """The same with every kernel started after the one before has ended."""
    late = module._device.__wrapped__(False)

    def changed(turn: int) -> Any:
        kept = module._device
        module._device = functools.cache(lambda: late)
        try:
            return call(turn)
        finally:
            module._device = kept
    return changed


def tried(part: Callable[[], Any]) -> Any:
    """What a part gives, or what stopped it."""
    try:
        return part()
    except Exception as error:
        return None if isinstance(error, ImportError) else repr(error)[:200]


def extras(case: Case, table: dict[str, Any], best: str, listed: str) -> dict[str, Any]:
    """What overlapping launches are worth, each launch's time alone (memory caches warm), and vLLM's kernel."""
    first = case.layer(table["1"])
    arms = {"overlapped": first, "one after another": without_overlap(first)}
    return {
        "overlap_us": tried(lambda: microseconds(arms, case.floor)) if case.tokens <= 32 else None,
        "stages_us": tried(lambda: microseconds(case.stages(best), case.floor)),
        "vllm_us": tried(lambda: microseconds({"vllm": case.vllm(columns(listed))}, case.floor)["vllm"]),
    }


def times(save: Callable[[Any], None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, width in WIDTHS.items():
        table = h200(width)
        gate_up, down = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.03
                         for shape in ((EXPERTS, 2 * width, HIDDEN), (EXPERTS, HIDDEN, width)))
        texts = list(dict.fromkeys(short(row_of(row)) for row in (*table.values(), DETERMINISTIC)))
        rows: dict[int, Any] = {}
        for tokens in TOKENS:
            case = Case(tokens, width, gate_up, down)
            arms = {text: case.layer(columns(text)) for text in texts}
            stopped = {text: why for text, arm in arms.items()
                       if isinstance(why := tried(functools.partial(arm, 0)), str)}
            made = microseconds({text: arm for text, arm in arms.items() if text not in stopped}, case.floor)
            listed = short(row_of(table[min(table, key=lambda key: abs(int(key) - tokens))]))
            best = min((text for text in made if text != short(row_of(DETERMINISTIC))), key=lambda text: made[text])
            rows[tokens] = {"floor_us": round(case.floor, 1), "best": best, "best_us": made[best], "table": listed,
                            "table_us": made[listed], "us": made, "stopped": stopped,
                            **extras(case, table, best, listed)}
            del case, arms
            torch.cuda.empty_cache()
            found[name] = {"tokens": rows}
            save(found)
        found[name]["single"] = {
            text: {f"over_{than}": round(statistics.geometric_mean([row["us"][text] / row[f"{than}_us"]
                                                         for row in rows.values()]), 3) for than in ("best", "table")}
            for text in texts if all(text in row["us"] for row in rows.values())}
        show_times(name, found[name])
        del gate_up, down
    return found


def show_times(name: str, found: dict[str, Any]) -> None:
    rows = found["tokens"]
    print(f"\n{name}: us at {', '.join(map(str, rows))} tokens; geometric means over the best and over the table's row")
    for line, value in (("floor", "floor_us"), ("best", "best_us"), ("table's own", "table_us")):
        print(f"  {line:>18} " + " ".join(f"{row[value]:7.1f}" for row in rows.values()))
    for text, means in sorted(found["single"].items(), key=lambda item: item[1]["over_best"]):
        print(f"  {text:>18} " + " ".join(f"{row['us'][text]:7.1f}" for row in rows.values())
              + f"  {means['over_best']:.3f} {means['over_table']:.3f}")
    for tokens, row in rows.items():
        print(f"  {tokens}: best {row['best']}; {row['overlap_us'] or ''} {row['stages_us']} {row['vllm_us'] or ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    parser.add_argument("--pytest", action="store_true", help="run the tests as well")
    parser.add_argument("--only", default="", help="parts to run, of compile,bits,pytest,accuracy,rows,times")
    arguments = parser.parse_args()
    path = Path(arguments.out) / "moe_h200.json"
    result: dict[str, Any] = {"environment": environment(["python", *sys.argv])}

    def save(name: str, part: Any) -> None:
        result[name] = part
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    parts: dict[str, Callable[[], Any]] = {
        "compile": compile_all, "bits": bit_tests, "accuracy": accuracy,
        "rows": lambda: agreement(shipped()), "times": lambda: times(functools.partial(save, "times"))}
    if arguments.pytest:
        parts = {"compile": compile_all, "bits": bit_tests, "pytest": run_pytest} | parts
    for name, part in parts.items():
        if arguments.only and name not in arguments.only.split(","):
            continue
        began = time.time()
        try:
            save(name, part())
        except Exception as error:
            traceback.print_exc()
            save(f"{name} failed", {"error": repr(error)[:500]})  # what it had saved before stays
        print(f"[{name}: {time.time() - began:.1f} s]", flush=True)
    if "rows" in result:
        show(result["rows"], briefly=True)
    print({name: part.get("error", "ran") for name, part in result.items() if name != "environment"})
    print({key: part if key == "cases" else part[:8] for key, part in result.get("bits", {}).items()})


if __name__ == "__main__":
    main()

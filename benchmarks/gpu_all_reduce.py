"""Bits and times of ``detent.kernels.all_reduce``: ``python benchmarks/gpu_all_reduce.py [--ranks N | --simulated]``.

With N GPUs (all that are there, at most 8) one process a GPU compares every output with the sum in ascending order of
rank and times CUDA graphs of several calls: ours by algorithm, NCCL, PyTorch's symmetric memory, and vLLM's pick where
vLLM is installed (its custom all-reduce below 8 MiB, PyTorch's two-shot above; without it one-shot stands in). A time
is the median over replays, of the slowest rank. With ``--simulated``, on one GPU, all ranks are buffers: its times only
show that the code runs, they are **no all-reduce times**. ``$OUT/all_reduce_h200.json`` (or --out) is written as it
goes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from detent.bench.gpu import environment as on_gpu
from detent.kernels.all_reduce import ALGORITHMS, AllReduce, SimulatedAllReduce

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)  # bytes of bf16
ODD = (16 * KIB + 2, 250 * KIB - 6, 5 * MIB + 34)
REPLAYS = 21


def message(rank: int, size: int, seed: int) -> torch.Tensor:
    """A rank's values, the same on every device; magnitudes differ, so that the order of a sum shows."""
    at = torch.Generator("cuda").manual_seed(seed * 64 + rank)
    power = torch.randint(-6, 7, (size // 2,), generator=at, device="cuda").float()
    return (torch.randn(size // 2, generator=at, device="cuda") * power.exp2()).bfloat16()


def ascending(ranks: int, size: int, seed: int) -> torch.Tensor:
    """The sum over ranks 0, 1, ... in fp32 by elementwise additions, rounded once."""
    total = message(0, size, seed).float()
    for rank in range(1, ranks):
        total += message(rank, size, seed).float()
    return total.bfloat16()


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.view(torch.int16), want.view(torch.int16))


def microseconds(call: Callable[[], Any], calls: int, wait: Callable[[], None], around: Any = None) -> float:
    """Of one call. ``wait`` lets ranks start together; ``around`` is entered while the graph is captured."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with around or contextlib.nullcontext(), torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(REPLAYS):
        wait()
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()  # the first replay lets the ranks meet, and is not timed
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / calls)
    return statistics.median(times)


def calls_for(size: int) -> int:
    return 20 if size <= MIB else 5


def simulated(path: Path, environment: dict[str, Any]) -> None:
    rows: list[dict[str, Any]] = []
    for ranks in (2, 4, 8):
        for size in (*SIZES, *ODD):
            row: dict[str, Any] = {"ranks": ranks, "bytes": size}
            try:
                whole = SimulatedAllReduce(ranks, "cuda")
                inputs = [message(rank, size, 1) for rank in range(ranks)]
                want = ascending(ranks, size, 1)
                for algorithm in ALGORITHMS:
                    outs = [torch.full_like(x, math.nan) for x in inputs]
                    whole(inputs, algorithm, outs=outs)
                    row[f"{algorithm}_bits"] = all(same(out, want) for out in outs)
                    if size in SIZES:
                        row[f"{algorithm}_us"] = round(microseconds(
                            lambda a=algorithm, o=outs, w=whole, i=inputs: w(i, a, outs=o),  # type: ignore[misc]
                            calls_for(size), torch.cuda.synchronize), 1)
                        row[f"{algorithm}_bits_replayed"] = all(same(out, want) for out in outs)
            except Exception as error:  # one case must not cost the others
                row["error"] = repr(error)[:300]
            rows.append(row)
            print(row, flush=True)
            path.write_text(json.dumps({"environment": environment, "simulated_no_all_reduce_times": rows}, indent=1)
                            + "\n", encoding="utf-8")


def vllms_custom(device: torch.device) -> Any:
    """vLLM 0.26's pick on Hopper for messages below 8 MiB; None without vLLM."""
    import torch.distributed as dist

    try:
        from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

        made = CustomAllreduce(dist.new_group(backend="gloo"), device)
        return None if made.disabled else made
    except Exception as error:
        print("vLLM's custom all-reduce is not here:", repr(error)[:200], flush=True)
        return None


def stock_arms(x: torch.Tensor, pool: torch.Tensor, group: Any, vllm: Any) -> dict[str, Callable[[], Any]]:
    """What engines call. ``pool`` is symmetric memory of any contents and x's size."""
    import torch.distributed as dist

    plain = x.clone()
    arms: dict[str, Callable[[], Any]] = {
        "nccl": lambda: dist.all_reduce(plain),
        "torch_one_shot": lambda: torch.ops.symm_mem.one_shot_all_reduce(pool, "sum", group.group_name),
        "torch_two_shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(pool, "sum", group.group_name)}
    if vllm is not None and vllm.should_custom_ar(plain):
        arms["vllm_custom"] = lambda: vllm.custom_all_reduce(plain)
    return arms


def own_arms(x: torch.Tensor, out: torch.Tensor, made: dict[int, AllReduce]) -> dict[str, Callable[[], Any]]:
    return {f"{algorithm}_{workspace // MIB}MiB": functools.partial(reduce, x, algorithm, out=out)
            for workspace, reduce in made.items() for algorithm in ALGORITHMS}


def worker(rank: int, ranks: int, path: Path, environment: dict[str, Any]) -> None:
    import torch.distributed as dist
    from torch.distributed import _symmetric_memory as symmetric

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK=str(rank), WORLD_SIZE=str(ranks))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    group = dist.group.WORLD
    vllm = vllms_custom(device)
    made = {workspace: AllReduce(group, device, workspace=workspace) for workspace in (32 * MIB, 512 * MIB)}
    pool = symmetric.empty(SIZES[-1] // 2, dtype=torch.bfloat16, device=device)
    symmetric.rendezvous(pool, group)
    pool.zero_()

    def wait() -> None:
        torch.cuda.synchronize()
        dist.barrier()

    rows: list[dict[str, Any]] = []
    for size in (*SIZES, *ODD):
        row: dict[str, Any] = {"ranks": ranks, "bytes": size}
        x, want = message(rank, size, 1), ascending(ranks, size, 1)
        out = torch.empty_like(x)
        own = own_arms(x, out, made)
        stock = stock_arms(x, pool[: size // 2], group, vllm) if size in SIZES else {}
        for name, call in (own | stock).items():
            right, spent = 1.0, 0.0
            try:
                if name in own:
                    out.fill_(math.nan)
                    call()
                    right = float(same(out, want))
                if size in SIZES:
                    spent = microseconds(call, calls_for(size), wait, vllm.capture() if "vllm" in name else None)
                    right = min(right, float(same(out, want))) if name in own else right
            except Exception as error:  # one arm must not cost the others
                right, row[f"{name}_error"] = 0.0, repr(error)[:200]
            report = torch.tensor([-right, spent], device=device)
            dist.all_reduce(report, op=dist.ReduceOp.MAX)
            if name in own:
                row[f"{name}_bits"] = bool(report[0] == -1)
            if spent:
                row[f"{name}_us"] = round(float(report[1]), 1)
        # vLLM 0.26: its own below 8 MiB, else PyTorch's two-shot with two ranks. Without vLLM one-shot stands in.
        small = "vllm_custom_us" if "vllm_custom_us" in row else "torch_one_shot_us"
        pick = row.get(small if size < 8 * MIB else "torch_two_shot_us")
        best = [row[f"{name}_us"] for name in own if f"{name}_us" in row]
        if pick and best:
            row["over_stock"] = round(min(best) / pick, 3)
        rows.append(row)
        if rank == 0:
            print(row, flush=True)
            path.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    parser.add_argument("--ranks", type=int, default=0, help="GPUs to use (default all, at most 8)")
    parser.add_argument("--simulated", action="store_true", help="all ranks as buffers on one GPU")
    arguments = parser.parse_args()
    ranks = arguments.ranks or min(8, torch.cuda.device_count())
    environment = {**on_gpu.environment(["python", *sys.argv]), "gpus": ranks}
    if arguments.simulated:
        return simulated(Path(arguments.out) / "all_reduce_simulated_h200.json", environment)
    if ranks < 2:
        sys.exit("one GPU: give --simulated")
    from detent.kernels.all_reduce import library

    library()  # built once, before the ranks ask for it
    torch.multiprocessing.spawn(worker, (ranks, Path(arguments.out) / "all_reduce_h200.json", environment), ranks)


if __name__ == "__main__":
    main()

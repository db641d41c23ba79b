"""``all_reduce`` on 2, 4 and 8 GPUs, one process each, beside what vLLM 0.26.0 picks.

vLLM takes its own kernel below 8 MiB; from there PyTorch's two-shot kernel where multicast works, else NCCL: both are
timed and the faster counts. Where vLLM cannot be imported, PyTorch's one-shot kernel, which does what vLLM's does at
two ranks, stands in for it under its own name. A time is the slowest rank's median over graph replays, arms by turns.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from detent.bench.gpu import Bound, Case, NotHere, Options
from detent.bench.gpu.ranks import Ranks, ranks
from detent.bench.gpu.record import Record
from detent.bench.gpu.timing import REPLAYS, link_tb_s

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)  # bytes of bf16
FEW_SIZES = (16 * KIB, MIB, 64 * MIB)
COUNTS = (2, 4, 8)
WORKSPACES = (32 * MIB, 512 * MIB)
SMALL = 8 * MIB  # vLLM's limit for its own kernel
CUSTOM, ONE_SHOT, TWO_SHOT, NCCL = "vllm custom", "torch one-shot", "torch two-shot", "nccl"
MUST, AIM = 1.10, 1.00


def cases(options: Options) -> Iterator[Case]:
    """Every size on each number of GPUs that are here."""
    import torch

    there = torch.cuda.device_count()
    if there < 2:
        raise NotHere("an all-reduce needs two GPUs and here is one")
    for count in COUNTS:
        if count <= there:
            with ranks(count, Rank) as others:
                for size in FEW_SIZES if options.quick else SIZES:
                    yield _case(others, count, size)


def _case(others: Ranks, count: int, size: int) -> Case:
    answers = others.ask("arms", size)
    names = [name for name in answers[0] if all(name in each for each in answers)]

    def timed() -> dict[str, float]:
        found = others.ask("times", size, names)
        return {name: max(each[name] for each in found) for name in names}

    stock = pick(size, names)
    ours = tuple(name for name in names if name.startswith(("push", "pull")))
    least = 2 * (count - 1) / count * size / link_tb_s() / 1e6  # each rank sends and receives so much at least
    named = f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"
    return Case("all_reduce", f"W={count}", named, dict.fromkeys(names, _elsewhere), stock, ours, least, "link bytes",
                timed)


def _elsewhere(turn: int) -> None:
    raise RuntimeError("the ranks' processes call this arm")


def pick(size: int, names: list[str]) -> tuple[str, ...]:
    """Of the arms that are there what stands for vLLM's choice at a message of ``size`` bytes."""
    if size < SMALL:
        return (CUSTOM,) if CUSTOM in names else (ONE_SHOT,)
    return tuple(name for name in (TWO_SHOT, NCCL) if name in names)


class Rank:
    """One rank's tensors and kernels; called with what to do."""

    def __init__(self, rank: int, count: int, file: str) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed import _symmetric_memory as symmetric

        from detent.kernels.all_reduce import AllReduce, library

        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=count, device_id=device)
        group = dist.group.WORLD
        assert group is not None
        self._wait_for, self._group_name = dist.barrier, group.group_name
        if rank == 0:
            library()  # built once
        dist.barrier()
        self._made = {workspace: AllReduce(group, device, workspace=workspace) for workspace in WORKSPACES}
        self._vllm = _vllms(device)
        self._pool = symmetric.empty(SIZES[-1] // 2, dtype=torch.bfloat16, device=device).zero_()
        symmetric.rendezvous(self._pool, group)
        self._whole = torch.randn(SIZES[-1] // 2, device=device).bfloat16()
        self._out = torch.empty_like(self._whole)

    def __call__(self, what: str, size: int, names: list[str] | None = None) -> Any:
        arms = self._arms(size)
        return list(arms) if names is None else self._times(size, {name: arms[name] for name in names})

    def _arms(self, size: int) -> dict[str, Callable[[], Any]]:
        import torch
        import torch.distributed as dist

        x, out, pool, group = (self._whole[: size // 2], self._out[: size // 2], self._pool[: size // 2],
                               self._group_name)
        # NCCL adds in place: what it adds grows without a bound, which costs no time.
        arms: dict[str, Callable[[], Any]] = {
            NCCL: lambda: dist.all_reduce(out),
            ONE_SHOT: lambda: torch.ops.symm_mem.one_shot_all_reduce(pool, "sum", group),
            TWO_SHOT: lambda: torch.ops.symm_mem.two_shot_all_reduce_(pool, "sum", group)}
        if self._vllm is not None and self._vllm.should_custom_ar(x):
            arms[CUSTOM] = lambda: self._vllm.custom_all_reduce(x)
        for workspace, reduce in self._made.items():
            for algorithm in ("push", "pull"):
                arms[f"{algorithm} {workspace // MIB} MiB"] = functools.partial(reduce, x, algorithm, out=out)
        return arms

    def _times(self, size: int, arms: dict[str, Callable[[], Any]]) -> dict[str, float]:
        import torch

        calls = 20 if size <= MIB else 5
        graphs = {}
        for name, call in arms.items():
            call()
            torch.cuda.synchronize()
            graphs[name] = torch.cuda.CUDAGraph()
            with self._vllm.capture() if name == CUSTOM else contextlib.nullcontext(), torch.cuda.graph(graphs[name]):
                for _ in range(calls):
                    call()
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(REPLAYS):
            for name, graph in graphs.items():
                torch.cuda.synchronize()
                self._wait_for()
                before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                graph.replay()  # the first lets the ranks meet, and is not timed
                before.record()
                graph.replay()
                after.record()
                torch.cuda.synchronize()
                times[name].append(before.elapsed_time(after) * 1e3 / calls)
        return {name: round(statistics.median(each), 2) for name, each in times.items()}


def _vllms(device: Any) -> Any:
    """vLLM's own all-reduce; None where vLLM is not installed or finds that it cannot be used here."""
    import torch.distributed as dist

    try:
        from vllm.distributed.device_communicators.custom_all_reduce import (  # type: ignore[import-not-found, unused-ignore]
            CustomAllreduce,
        )
    except ImportError:
        return None
    made = CustomAllreduce(dist.new_group(backend="gloo"), device)
    return None if made.disabled else made


def bounds(record: Record) -> Iterator[Bound]:
    """The issue's at two ranks, whether or not it was measured; the same figure without a bound for more."""
    for count in COUNTS:
        rows = [row for row in record.of("all_reduce", f"W={count}") if row.stock]
        whole = len(rows) >= (len(SIZES) if count == 2 else 1)  # the bound is about every size
        worst = max(rows, key=lambda row: row.ratio() or math.inf) if whole else None
        if worst is not None or count == 2:
            must, aim = (MUST, AIM) if count == 2 else (None, None)
            over = worst.best_stock[0] if worst is not None and worst.best_stock is not None else ""
            yield Bound(f"all-reduce W={count} over the engine's pick, worst case", worst.ratio() if worst else None,
                        must, aim, f"{worst.name}, {worst.best[0]} over {over}" if worst else "")

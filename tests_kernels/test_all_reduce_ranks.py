"""Sums across processes, one a GPU: raw bits of the ascending sum, alone and in a replayed graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from all_reduce_cases import ascending, messages, wrong

from detent.bench.gpu.ranks import ranks
from detent.kernels import all_reduce

BYTES = (1 << 14, (1 << 14) + 2, 250 * 1024 - 6, 1 << 20, (5 << 20) + 34, 1 << 26)
REPLAYS = 3


def summing(rank: int, count: int, file: str) -> Callable[..., Any]:
    """A rank that reduces messages of a seed, and says how many elements are wrong."""
    import torch.distributed as dist

    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=count, device_id=device)
    made: dict[int, all_reduce.AllReduce] = {}

    def answer(size: int, algorithm: str, workspace: int) -> list[int]:
        if workspace not in made:
            made[workspace] = all_reduce.AllReduce(dist.group.WORLD, device, workspace=workspace, timeout=60.0)
        reduce, found = made[workspace], []
        x = torch.empty(size // 2, dtype=torch.bfloat16, device=device)
        out, graph = torch.empty_like(x), torch.cuda.CUDAGraph()
        for seed in range(REPLAYS):
            sent = messages(count, size // 2, torch.bfloat16, seed, device=f"cuda:{rank}")
            x.copy_(sent[rank])
            out.fill_(math.nan)
            torch.cuda.synchronize()
            if seed == 1:
                with torch.cuda.graph(graph):
                    reduce(x, algorithm, out=out)
            if seed:
                graph.replay()
            else:
                reduce(x, algorithm, out=out)
            torch.cuda.synchronize()
            found.append(wrong([out], ascending(sent)))
        return found

    return answer


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_every_rank_has_the_ascending_sum() -> None:
    count = min(8, torch.cuda.device_count())
    all_reduce.library()  # built before the ranks ask for it
    with ranks(count, summing) as made:
        for size in BYTES:
            for algorithm in all_reduce.ALGORITHMS:
                for workspace in (1 << 18, 32 << 20):
                    found = made.ask(size, algorithm, workspace)
                    assert found == [[0] * REPLAYS] * count, (size, algorithm, workspace)

"""``allreduce-sglang-stock``: all-reduce as SGLang 0.5.17 ships it.

Legal is a kernel that takes every message and adds the ranks of every element in one order. The three kernels that push
and pull add them in order and round once, to the same bits; multicast adds in the switch and NCCL picks its algorithm
by size. Those two are barred, whatever is pinned.
"""

from __future__ import annotations

from detent.lang import Runtime, Unpinnable, record, require, selection
from detent.programs.collectives import (
    BARRED,
    COPY_MAX,
    MULTICAST_THREADS,
    PULL_BLOCKS,
    VECTOR,
    assume_message,
    has_multicast,
    pull_limit,
    push_limit,
    require_kernels,
    sglang_algorithm,
    wave_threads,
)
from detent.programs.facts import AllReduce, Engine, Gpu, Limits, Model, Parallel


@record
class Call:
    """One all-reduce."""

    nbytes: Unpinnable[int]  # of the message: sizes buffers
    capturing: Runtime[bool]  # into a CUDA graph, or replayed from one
    piecewise: Runtime[bool]  # in a piecewise graph, whose tensors are not registered


@selection(family="allreduce")
def allreduce_sglang_stock(model: Model, parallel: Parallel, all_reduce: AllReduce, gpu: Gpu, engine: Engine,
                           limits: Limits, call: Call) -> dict[str, object]:
    """The method, the algorithm of SGLang's own kernels, what they read, and their launch."""
    assume_message(model, limits, call.nbytes)
    require_kernels(all_reduce, gpu)
    require(engine.name == "sglang", "the rules are SGLang's")
    require(2 <= parallel.tensor_parallel <= 8, "the tables are those of 2 to 8 ranks")

    world = parallel.tensor_parallel
    registered = call.capturing and not call.piecewise
    algorithm, source = sglang_algorithm(all_reduce, engine, world, call.nbytes, registered)
    vectors = call.nbytes // VECTOR
    if algorithm == "nccl":
        threads = 0
    elif source == "multicast":
        threads = MULTICAST_THREADS
    else:
        threads = wave_threads(-(-vectors // world) if algorithm == "two_shot_pull" else vectors, gpu.num_sm)
    method = "custom" if algorithm != "nccl" else "pynccl" if call.piecewise else "in_place"
    copies = algorithm in ("one_shot_pull", "two_shot_pull") and source != "graph"
    copy = ("kernel" if call.nbytes <= COPY_MAX else "driver") if copies else "none"

    require(algorithm == "nccl" or call.nbytes % VECTOR == 0, "SGLang's kernels move 16 bytes at a time")
    require(algorithm != "one_shot_push" or call.nbytes <= push_limit(all_reduce, world),
            "the push workspace holds the message")
    require(algorithm not in ("one_shot_pull", "two_shot_pull") or call.nbytes <= pull_limit(all_reduce, world),
            "the pull workspace holds the message")
    require((source == "none") == (algorithm == "nccl"), "SGLang's own kernels have a source")
    require(source != "graph" or (algorithm != "one_shot_push" and call.capturing and not call.piecewise),
            "tensors in a graph are registered, and pulled")
    require(source != "multicast" or (algorithm == "two_shot_pull" and has_multicast(all_reduce, world)),
            "the two-shot kernel has a multicast address")
    require((threads == 0) == (algorithm == "nccl"), "SGLang launches its own kernels only")
    require((method == "custom") == (algorithm != "nccl"), "the method is that of the algorithm")
    require(method != "in_place" or not call.piecewise, "a piecewise graph reduces out of place")
    require((copy == "none") == (algorithm in ("nccl", "one_shot_push") or source == "graph"),
            "what is pulled from a workspace is copied there")
    require(algorithm != "nccl" and source != "multicast", BARRED)
    return {
        "method": method,
        "algorithm": algorithm,
        "source": source,
        "blocks": (0 if algorithm == "nccl" else gpu.num_sm if algorithm == "one_shot_push"
                   else min(PULL_BLOCKS, 128 // world) if source == "multicast" else PULL_BLOCKS),
        "threads": threads,
        "copy": copy,
        "in_place": algorithm == "two_shot_pull" and source == "graph",
        "world_size": world,
        "dtype": model.dtype,
    }

"""Which all-reduce takes a message: the programs' rules beside the engines' own communicators."""

from __future__ import annotations

from typing import Any

import pytest
import reduce_engines as engines
import torch
from compare import Draw, sampled
from reduce_engines import Facts, Message

from detent.programs import collectives
from detent.programs.collectives import (
    custom_limit,
    dtype_bytes,
    has_multicast,
    pull_limit,
    push_limit,
    sglang_algorithm,
    sglang_pick,
    symm_mem_runs,
    takes_custom,
    takes_flashinfer,
    takes_nccl_symm_mem,
    takes_symm_mem,
    vllm_backend,
    vllm_kernel,
)
from detent.programs.facts import AllReduce, Engine, Model

KIB, MIB = 1024, 1024 * 1024
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def model_of(dtype: str, hidden: int) -> Model:
    return Model(name="", dtype=dtype, hidden_size=hidden, intermediate_size=0, vocab_size=0, num_attention_heads=1,
                 num_key_value_heads=1, head_dim=128, head_dim_v=128, causal=True, window_left=-1, window_right=-1,
                 softcap=0.0)


def engine_of(name: str, mode: bool) -> Engine:
    return Engine(name=name, version="", deterministic=mode, page_size=1, kv_cache_dtype="bf16", full_graphs=True,
                  max_capture_size=512, graph_splits=0, cascade_attention=None, fused_moe_sum_all_reduce=False)


def reduce_of(**facts: Any) -> AllReduce:
    return AllReduce(**({"custom": True, "max_bytes": 8 * MIB, "nvlink": True, "multicast": True, "symm_mem": True,
                         "nccl_symm_mem": False, "flashinfer": False, "fused_rms_norm": False,
                         "workspace_bytes": 0} | facts))


def message(draw: Draw, dtype: str) -> tuple[int, int]:
    """``(rows, hidden)``; in an edge case mostly a message of a constant's bytes, or a row more or less."""
    hidden = draw.one_of(1, 8, 100, 2048, 4096, 8192, draw.number(1, 16384))
    row = hidden * DTYPES[dtype].itemsize
    target = draw.rng.choice(draw.constants)
    rows = draw.near(target // row, 1, 1 << 27)
    if draw.met:
        draw.drawn.add(target)
    return rows, hidden


def test_vllm() -> None:
    """One of vLLM's own kernels is not told from the other: C++ chooses between them."""
    def case(draw: Draw) -> Any:
        dtype = draw.one_of("bf16", "bf16", "fp16", "fp32")
        limit = draw.one_of(8 * MIB, 8 * MIB, 64 * MIB, 16 * draw.number(1, 1 << 20))
        flags = {"custom": draw.flag(0.8), "nvlink": draw.flag(0.8), "multicast": draw.flag(0.7),
                 "symm_mem": draw.flag(), "nccl_symm_mem": draw.flag(0.3), "flashinfer": draw.flag(0.3)}
        return draw.one_of(2, 2, 3, 4, 4, 5, 6, 7, 8, 8), dtype, message(draw, dtype), limit, flags, draw.flag(0.1)

    def run(case: Any) -> tuple[Any, Any]:
        world, dtype, (rows, hidden), limit, flags, mode = case
        Facts.world, Facts.deterministic = world, mode
        Facts.nvlink, Facts.multicast, Facts.nccl_symm_mem = flags["nvlink"], flags["multicast"], flags["nccl_symm_mem"]
        made = engines.vllm_communicator(flags["custom"], flags["symm_mem"], flags["flashinfer"], limit)
        theirs = engines.vllm_choice(made, Message(rows, hidden, DTYPES[dtype]))
        model = model_of(dtype, hidden)
        kernel = vllm_kernel(reduce_of(**flags, max_bytes=limit), engine_of("vllm", mode), model, world,
                             rows * hidden * dtype_bytes(model))
        return theirs, "custom" if vllm_backend(kernel) == "custom" else kernel

    helpers = [vllm_kernel, vllm_backend, takes_custom, takes_flashinfer, takes_nccl_symm_mem, takes_symm_mem,
               custom_limit, symm_mem_runs, dtype_bytes]
    sampled(Draw("vllm all-reduce", helpers), "vllm", "cuda_communicator.CudaCommunicator.all_reduce", "vllm_kernel",
            helpers, case, run)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(("rows", "hidden", "multicast", "kernel"), [
    (1023, 4096, False, "custom"),
    (1024, 4096, False, "nccl"),
    (1024, 4096, True, {2: "two_shot", 4: "multimem"}),
    (1, 100, False, "nccl"),
    (2, 100, False, "custom"),
    (1, 100, True, {2: "two_shot", 4: "multimem"}),
])
def test_where_vllm_leaves_its_own_kernels(world: int, rows: int, hidden: int, multicast: bool, kernel: Any) -> None:
    """At 8 MiB, which is too large already, and at 200 bytes, which are no multiple of 16."""
    Facts.world, Facts.nvlink, Facts.multicast = world, True, multicast
    Facts.nccl_symm_mem = Facts.deterministic = False
    expected = kernel if isinstance(kernel, str) else kernel[world]
    made = engines.vllm_communicator(True, multicast, False, None)
    assert engines.vllm_choice(made, Message(rows, hidden, torch.bfloat16)) == expected
    ours = vllm_kernel(reduce_of(multicast=multicast, symm_mem=multicast), engine_of("vllm", False),
                       model_of("bf16", hidden), world, 2 * rows * hidden)
    assert (ours if vllm_backend(ours) != "custom" else "custom") == expected


def test_sglang() -> None:
    def case(draw: Draw) -> Any:
        dtype = draw.one_of("bf16", "bf16", "fp16", "fp32")
        limit = KIB * draw.one_of(16 * KIB, 16 * KIB, 128 * KIB, draw.number(1, 1 << 18))
        return (draw.one_of(2, 3, 4, 5, 6, 7, 8), dtype, message(draw, dtype), limit, draw.flag(0.9), draw.flag(0.9),
                draw.flag(0.7), draw.flag(0.1), draw.flag(), draw.flag(0.3))

    def run(case: Any) -> tuple[Any, Any]:
        world, dtype, (rows, hidden), limit, custom, nvlink, multicast, mode, capturing, piecewise = case
        Facts.world, Facts.nvlink, Facts.multicast = world, nvlink, multicast
        made = engines.sglang_communicator(limit)
        theirs = engines.sglang_choice(made, custom and not mode, Message(rows, hidden, DTYPES[dtype]), capturing,
                                       piecewise)
        model = model_of(dtype, hidden)
        reduce = reduce_of(custom=custom, nvlink=nvlink, multicast=multicast, max_bytes=limit)
        ours = sglang_algorithm(reduce, engine_of("sglang", mode), world, rows * hidden * dtype_bytes(model),
                                capturing and not piecewise)
        method = "custom" if ours[0] != "nccl" else "pynccl" if piecewise else "in_place"
        limits = push_limit(reduce, world), pull_limit(reduce, world)
        made_for = (made.max_push_size, made.max_pull_size) if nvlink else limits  # none are made without NVLink
        return (*theirs, *made_for), (method, *ours, *limits)

    helpers = [sglang_algorithm, sglang_pick, has_multicast, push_limit, pull_limit, dtype_bytes]
    sampled(Draw("sglang all-reduce", helpers), "sglang",
            "GroupCoordinator._resolve_outplace_all_reduce_method, CustomAllReduceV2._pick_algo", "sglang_algorithm",
            helpers, case, run)


def test_the_tables_are_the_engines() -> None:
    assert collectives.CUSTOM_BESIDE_SYMM_MEM == engines.utils.CUSTOM_ALL_REDUCE_MAX_SIZES["9.0"]
    assert collectives.SYMM_MEM_MAX == engines.utils.SYMM_MEM_ALL_REDUCE_MAX_SIZES["9.0"]
    assert list(collectives.MULTIMEM_WORLDS) == engines.symm_mem.SymmMemCommunicator._WORLD_SIZES_MULTIMEM["9.0"]
    assert collectives.FLASHINFER_MAX == {world: int(size * MIB) for world, size in engines.fi_sizes[90].items()}
    assert collectives.CUSTOM_WORLDS == tuple(engines.custom.CustomAllreduce._SUPPORTED_WORLD_SIZES)
    ranges = engines.utils.NCCL_SYMM_MEM_ALL_REDUCE_CONFIG["custom_ar_preferred_ranges"]
    assert {world: (collectives.NCCL_SYMM_MEM_BELOW[world], collectives.NCCL_SYMM_MEM_ABOVE[world])
            for world in collectives.NCCL_SYMM_MEM_BELOW} == ranges
    for world in range(2, 9):
        config = engines.sizes._sm90_config(world, 132)
        for table, theirs in ((collectives.GRAPH_SIZES, config.graph), (collectives.EAGER_SIZES, config.eager)):
            assert table[world] == (theirs.one_shot_push_threshold, theirs.one_shot_pull_threshold,
                                    theirs.two_shot_pull_threshold, *theirs.mc)
        assert config.num_pull_blocks == collectives.PULL_BLOCKS
        assert config.num_mc_blocks == (128 // world if world >= 4 else None)

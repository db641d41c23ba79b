"""``attention``: what Detent runs in both engines.

It decides as the engine's own FlashAttention-3 does and hands the result to kernels with a fixed split stride: split
``i`` covers KV tokens ``[i * split_stride, (i + 1) * split_stride)`` whatever the batch holds. That changes two
things. The heuristic's limits of 128 splits and of the number of SMs give way to the kernel's own 256, and the
device no longer counts splits: a request has as many as its length fills.
"""

from __future__ import annotations

from detent.lang import Runtime, Unpinnable, knob, record, require, selection
from detent.programs.fa3 import decide, element_bytes, model_tile, one_prepare_block, packs, seqlen_k
from detent.programs.fa3_conditions import (
    KERNEL_SPLITS,
    assume_batch,
    assume_table,
    require_launch,
    require_masks,
    require_model,
)
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STRIDES = (256, 512, 1024, 2048, 4096, 8192, 16384)  # KV tokens


@record
class Call:
    """One attention call. In a replayed graph these are the graph's padded sizes."""

    b: Unpinnable[int]  # sequences: sizes the grid
    max_seqlen_q: Unpinnable[int]  # query tokens of the longest: sizes the grid
    max_seqlen_k: Unpinnable[int]  # KV tokens of the longest
    total_q: Unpinnable[int]  # query tokens: sizes the buffers
    table_width: Unpinnable[int]  # pages a row of the page table has
    in_graph: Runtime[bool]  # captured or replayed in a whole CUDA graph


def behaviour(points: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> tuple[object, ...]:
    """What tells two legal assignments apart in a request's bits: all points but the split count and the stride, and in
    their place where the first boundary between splits is, 0 if KV is not split.

    Splits behind a request's last KV token are empty and add nothing, so of counts that cover the longest request none
    differs from another; nor do strides that cover it in one split.
    """
    kept = tuple(value for name, value in points.items() if name not in ("num_splits", "split_stride"))
    return *kept, min(points["split_stride"], facts["limits"]["max_context"]) if points["split"] else 0


@selection(family="attention")
def attention(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine, limits: Limits,
              call: Call) -> dict[str, object]:
    """19 template parameters of the kernel and 7 launch values."""
    assume_batch(limits, call.b, call.max_seqlen_q, call.max_seqlen_k, call.total_q)
    assume_table(limits, engine, call.max_seqlen_k, call.table_width)
    require(engine.name in ("vllm", "sglang"), "the rules are vLLM's and SGLang's")
    require_model(model, parallel, gpu, engine)

    split_stride = knob("split_stride", STRIDES, default=256)
    keys = seqlen_k(engine, limits, call.in_graph, call.max_seqlen_k, call.table_width)
    is_causal, is_local, one_wg, gathered, num_splits = decide(
        engine.name, model, parallel, gpu, engine, call.b, call.total_q, call.max_seqlen_q, keys, KERNEL_SPLITS,
        KERNEL_SPLITS)
    block_m, block_n, from_registers, overlap = model_tile(
        engine.name, model, engine, is_causal, is_local, gathered, one_wg)
    split = num_splits > 1
    pack = packs(engine.name, model, parallel, is_local, gathered, num_splits, call.max_seqlen_q, block_m)
    pdl = one_prepare_block(call.b)

    require_launch(engine, call.b, num_splits, block_n, gathered, pack, pdl)
    require_masks(model, engine, limits, call.in_graph, call.max_seqlen_q, call.max_seqlen_k, call.table_width,
                  is_causal, is_local)
    require(num_splits == 1 or num_splits * split_stride >= limits.max_context, "the splits cover the longest request")
    require(num_splits == 1 or split_stride % block_n == 0, "splits begin at a KV block")
    require(not one_wg or (model.head_dim in (64, 128) and model.head_dim_v == model.head_dim),
            "one-warpgroup kernels exist for head dims 64 and 128")
    return {
        "arch": gpu.arch,
        "head_dim": model.head_dim,
        "head_dim_v": model.head_dim_v,
        "cluster_m": 1,
        "element": "e4m3" if element_bytes(engine) == 1 else "bf16",
        "element_out": "bf16",
        "is_causal": is_causal,
        "is_local": is_local,
        "has_softcap": model.softcap > 0.0,
        "varlen": True,
        "paged_kv_non_tma": gathered,
        "append_kv": False,
        "has_qv": False,
        "only_qv": False,
        "pack_gqa": pack,
        "split": split,
        "v_colmajor": False,
        "use_one_mma_wg": one_wg,
        "sparse": False,
        "num_splits": num_splits,
        "split_stride": split_stride,
        "use_dynamic_split": False,
        "prepare_varlen_pdl": pdl,
        "varlen_sort_batches": engine.name == "sglang" and not is_local,
        "head_swizzle": is_causal or is_local,
        "num_sm": gpu.num_sm,
    }

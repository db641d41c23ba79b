"""What holds of an attention call, and what a kernel of FlashAttention-3 takes: shared by all its programs.

Lengths are handed in and not worked out by the programs, since a require names what holds of the true batch.
"""

from __future__ import annotations

from detent.lang import assume, require
from detent.programs.fa3 import (
    cdiv,
    head_dims_exist,
    needs_causal,
    needs_local,
    one_prepare_block,
    rank_heads,
    rank_kv_heads,
    seqlen_k,
)
from detent.programs.facts import Engine, Gpu, Limits, Model, Parallel

KERNEL_SPLITS = 256  # splits that the split kernel and its combine take


def assume_batch(limits: Limits, b: int, max_seqlen_q: int, max_seqlen_k: int, total_q: int) -> None:
    """What holds of every batch within the limits."""
    assume(1 <= b <= limits.max_num_seqs)
    assume(1 <= max_seqlen_q <= limits.max_num_batched_tokens)
    assume(1 <= max_seqlen_k <= limits.max_context)
    assume(1 <= total_q <= limits.max_num_batched_tokens)
    assume(max_seqlen_q <= max_seqlen_k)
    assume(max_seqlen_q <= total_q)
    assume(b <= total_q)


def assume_table(limits: Limits, engine: Engine, max_seqlen_k: int, table_width: int) -> None:
    """What holds of the pages that a row of the page table has."""
    assume(1 <= table_width <= cdiv(limits.max_context, engine.page_size))
    assume(max_seqlen_k <= table_width * engine.page_size)


def require_model(model: Model, parallel: Parallel, gpu: Gpu, engine: Engine) -> None:
    """What a deployment must have for the rules to be those of its kernels."""
    require(gpu.arch == 90, "the rules are those of sm_90")
    require(model.dtype == "bf16", "the kernels are those of bf16 queries")
    require(model.num_attention_heads % parallel.tensor_parallel == 0, "ranks have equal numbers of query heads")
    require(rank_heads(model, parallel) % rank_kv_heads(model, parallel) == 0, "KV heads serve equal groups")
    require(head_dims_exist(model, engine), "kernels for these head dims exist")


def require_launch(engine: Engine, b: int, num_splits: int, block_n: int, gathered: bool, pack: bool,
                   pdl: bool) -> None:
    """What every kernel takes of a launch."""
    require(1 <= num_splits <= KERNEL_SPLITS, "the kernel takes at most 256 splits")
    require(not pdl or one_prepare_block(b), "the dependent launch waits for one prepare block")
    require(pack or not (num_splits > 1 or gathered), "split and gathering kernels exist packed only")
    require(gathered or engine.page_size % block_n == 0, "TMA reads whole KV blocks of a page")


def require_masks(model: Model, engine: Engine, limits: Limits, in_graph: bool, max_seqlen_q: int, max_seqlen_k: int,
                  table_width: int, is_causal: bool, is_local: bool) -> None:
    """The masks that a batch of these lengths needs; vLLM's programs have no table and give 0 for its width."""
    require(not (is_causal and is_local), "a kernel has one mask")
    require(is_causal or is_local or not needs_causal(model, max_seqlen_q, seqlen_k(
        engine, limits, in_graph, max_seqlen_k, table_width)), "no query sees later keys")
    require(is_local or not needs_local(model, max_seqlen_q, seqlen_k(
        engine, limits, in_graph, max_seqlen_k, table_width)), "no query sees past its window")

"""What vLLM's attention builder decides before FlashAttention-3 does: how many splits to ask for, and cascades."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from compare import Draw, sampled
from engines import engine, stand

from detent.programs.fa3 import asked_splits, asks_splits, cascade_pays, cdiv, uses_cascade
from detent.programs.facts import Engine, Gpu, Model, Parallel

T = TypeVar("T")


class Builder(Generic[T]):
    """vLLM's base class keeps its arguments and decides nothing."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = (
            kv_cache_spec, layer_names, vllm_config, device)


stand("vllm.v1.attention.backend", AttentionMetadataBuilder=Builder)
stand("vllm.v1.attention.backends.fa_utils", is_flash_attn_varlen_func_available=lambda: True,
      get_flash_attn_version=lambda *args, **kwargs: 3, get_scheduler_metadata=lambda **kwargs: None)
stand("vllm.distributed.parallel_state",
      get_dcp_group=lambda: SimpleNamespace(world_size=1, rank_in_group=0))
envs = engine("vllm.envs")
vllm = engine("vllm.v1.attention.backends.flash_attn", "vllm.envs", "vllm.utils.math_utils")
vllm._get_sliding_window_configs = lambda config: {None}
vllm.is_quantized_kv_cache = lambda dtype: False

LIMIT = 1 << 15


def facts(**changed: Any) -> Engine:
    return Engine(**({"name": "vllm", "version": "0.26.0", "deterministic": False, "page_size": 16,
                      "kv_cache_dtype": "bf16", "full_graphs": True, "max_capture_size": 512, "graph_splits": 32,
                      "cascade_attention": True, "fused_moe_sum_all_reduce": False} | changed))


class _Config:
    """The parts of vLLM's configuration that the builder reads."""

    def __init__(self, full: bool, capture: int | None, splits: int) -> None:
        self.model_config = SimpleNamespace(get_num_attention_heads=lambda parallel: 8, get_head_size=lambda: 128,
                                            get_num_kv_heads=lambda parallel: 1, rswa_window=None)
        self.parallel_config = SimpleNamespace(cp_kv_cache_interleave_size=1)
        self.cache_config = SimpleNamespace(cache_dtype="auto")
        self.compilation_config = SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: full),
                                                  max_cudagraph_capture_size=capture)
        self.attention_config = SimpleNamespace(flash_attn_max_num_splits_for_cuda_graph=splits)
        self.scheduler_config = SimpleNamespace(max_num_seqs=4)


SPEC = SimpleNamespace(dtype=torch.bfloat16, block_size=16, sliding_window=None)
STARTS, LENGTHS = torch.tensor([0, 1]), torch.tensor([1])


def test_how_many_splits_are_asked_for() -> None:
    """vLLM's own builder is made and builds the metadata of a batch; 0 leaves the count to the heuristic."""
    def case(draw: Draw) -> Any:
        capture = draw.number(0, LIMIT)
        tokens = draw.near(capture, 1, LIMIT)
        return draw.flag(0.7), capture, draw.one_of(0, 1, draw.number(0, 256), 32), tokens, draw.flag(0.2)

    def run(case: Any) -> tuple[Any, Any]:
        full, capture, splits, tokens, mode = case
        envs.VLLM_BATCH_INVARIANT = mode
        builder = vllm.FlashAttentionMetadataBuilder(SPEC, ["layer"], _Config(full, capture, splits), "cpu")
        batch = SimpleNamespace(num_reqs=1, num_actual_tokens=tokens, max_query_len=1, max_seq_len=1, seq_lens=LENGTHS,
                                query_start_loc=STARTS, block_table_tensor=None, slot_mapping=None, causal=True,
                                mm_req_doc_ranges=None, rswa_prefix_lens=None)
        theirs = builder.build(0, batch).max_num_splits
        envs.VLLM_BATCH_INVARIANT = False
        engine = facts(full_graphs=full, max_capture_size=capture, graph_splits=splits, deterministic=mode)
        return theirs, asked_splits(engine) if asks_splits(engine, tokens) else 0

    helpers = [asks_splits, asked_splits]
    sampled(Draw("vllm splits", helpers), "vllm", "flash_attn.FlashAttentionMetadataBuilder.build",
            "asks_splits, asked_splits", helpers, case, run)


def test_when_a_shared_prefix_is_attended_once() -> None:
    """vLLM's runner asks its rule only where cascades are on; the deterministic mode switches them off."""
    def case(draw: Draw) -> Any:
        kv_heads, group = draw.number(1, 16), draw.one_of(1, 2, 4, 8, 16, draw.number(1, 300))
        return (draw.flag(0.95), draw.flag(0.05), kv_heads, group, draw.number(0, LIMIT), draw.number(1, 1100),
                draw.flag(0.8), draw.one_of(-1, -1, -1, 0, 4095), draw.one_of(-1, -1, -1, -1, 0),
                draw.one_of(132, 78, 114))

    def run(case: Any) -> tuple[Any, Any]:
        on, mode, kv_heads, group, prefix, sequences, decoding, left, right, num_sm = case
        lengths = np.ones(sequences, dtype=np.int32)
        if not decoding:
            lengths[-1] = 7
        theirs = on and not mode and vllm.use_cascade_attention(
            prefix, lengths, kv_heads * group, kv_heads, False, left >= 0 or right >= 0, False, num_sm, 1)
        model = Model(name="", dtype="bf16", hidden_size=0, intermediate_size=0, vocab_size=0,
                      num_attention_heads=kv_heads * group, num_key_value_heads=kv_heads, head_dim=128, head_dim_v=128,
                      causal=True, window_left=left, window_right=right, softcap=0.0)
        ours = uses_cascade(model, Parallel(tensor_parallel=1, expert_parallel=False),
                            Gpu(name="", arch=90, num_sm=num_sm, shared_memory=0),
                            facts(cascade_attention=on, deterministic=mode), prefix, sequences, 1 if decoding else 7)
        return bool(theirs), ours

    helpers = [uses_cascade, cascade_pays, cdiv]
    sampled(Draw("vllm cascade", helpers), "vllm", "flash_attn.use_cascade_attention", "uses_cascade, cascade_pays",
            helpers, case, run)

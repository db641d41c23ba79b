"""The model: what is computed for a batch of tokens. Knows nothing of requests, schedules or caches.

Matrix products, attention, experts, norms and softmax go through ``ops``, which selects kernels. What stands here is
element by element and rounds each element by itself, so that it cannot see the batch.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.engines.embedded.rope import Rotary, rotate
from detent.engines.embedded.weights import Checkpoint, Layer, read

if TYPE_CHECKING:
    from detent.engines.embedded.ops import Batch, Ops

LANES, BLOCK = 64, 16384


def silu(x: Tensor) -> Tensor:
    """SiLU of a contiguous tensor, with bits that do not depend on where an element stands.

    On a CPU, torch computes the last elements of each thread's share one by one and the others in vectors, and the
    two differ in their last bits. So the elements are padded to whole vectors (``LANES``) and computed in blocks too
    small to be shared among threads (``BLOCK``, below torch's grain of 32,768).
    """
    if x.is_cuda:
        return F.silu(x)
    count = x.numel()
    padded = F.pad(x.view(-1), (0, -count % LANES)) if count % LANES else x.view(-1)
    result = torch.empty_like(padded)
    for source, target in zip(torch.split(padded, BLOCK), torch.split(result, BLOCK), strict=True):
        torch.ops.aten.silu.out(source, out=target)
    return result[:count].view(x.shape)


class Model:
    """A checkpoint ready to compute. Attributes ``config``, ``weights``, ``tokenizer``, ``source``, ``identity``."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.config, self.weights, self.tokenizer = checkpoint.config, checkpoint.weights, checkpoint.tokenizer
        self.source = checkpoint.source
        self.device, self.dtype = self.weights.embedding.device, self.weights.embedding.dtype
        config = self.config
        self.rotary = Rotary(config.rope, config.head_dim, config.context, self.device)

    @property
    def identity(self) -> str:
        """SHA-256 of the weights."""
        return self.checkpoint.identity

    def first_layer(self) -> Model:
        """The same model without its other layers, which run the same lines."""
        short = copy(self)
        short.config = replace(self.config, layers=1)
        short.weights = replace(self.weights, layers=self.weights.layers[:1])
        return short

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, pages: tuple[Tensor, Tensor], batch: Batch,
                ops: Ops) -> Tensor:
        """Hidden states ``[T, H]`` before the last norm, for ``T`` tokens of all requests, one after the other.

        ``tokens``, ``positions``, ``slots``: ``[T]``, int64: ids, absolute positions, and where each token's keys and
        values go (page x tokens of a page + place). ``pages``: keys and values, each ``[layers, P, page, kv_heads,
        head_dim]``, which are written. ``batch``: which rows and pages belong to which request.
        """
        turn = self.rotary.at(positions)
        hidden = self.weights.embedding[tokens]
        for layer, keys, values in zip(self.weights.layers, *pages, strict=True):
            hidden = hidden + self._attention(hidden, layer, turn, slots, keys, values, batch, ops)
            normed = ops.norm(hidden, layer.mlp_norm, self.config.norm_eps)
            hidden = hidden + (self._mlp if layer.router is None else self._experts)(normed, layer, ops)
        return hidden

    def logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """Logits ``[M, V]`` of hidden states ``[M, H]``."""
        return ops.linear(ops.norm(hidden, self.weights.norm, self.config.norm_eps, "logits"), self.weights.logits)

    def _attention(self, hidden: Tensor, layer: Layer, turn: tuple[Tensor, Tensor], slots: Tensor, keys: Tensor,
                   values: Tensor, batch: Batch, ops: Ops) -> Tensor:
        config = self.config
        normed = ops.norm(hidden, layer.attention_norm, config.norm_eps)
        joint = ops.linear(normed, layer.qkv).view(len(hidden), -1, config.head_dim)
        turned, new_values = joint[:, :config.heads + config.kv_heads], joint[:, config.heads + config.kv_heads:]
        if layer.q_norm is not None and layer.k_norm is not None:
            turned = torch.cat((self._per_head(turned[:, :config.heads], layer.q_norm, ops, "queries"),
                                self._per_head(turned[:, config.heads:], layer.k_norm, ops, "keys")), dim=1)
        turned = rotate(turned, *turn)
        queries, new_keys = turned[:, :config.heads], turned[:, config.heads:]
        keys.view(-1, *keys.shape[-2:]).index_copy_(0, slots, new_keys)
        values.view(-1, *values.shape[-2:]).index_copy_(0, slots, new_values)
        mixed = ops.attention(queries, keys, values, batch)
        return ops.linear(mixed.reshape(len(hidden), -1), layer.output)

    def _per_head(self, x: Tensor, weight: Tensor, ops: Ops, site: str) -> Tensor:
        return ops.norm(x.reshape(-1, x.shape[-1]), weight, self.config.norm_eps, site).view(x.shape)

    def _mlp(self, normed: Tensor, layer: Layer, ops: Ops) -> Tensor:
        gate, up = ops.linear(normed, layer.gate_up).chunk(2, dim=-1)
        return ops.linear(silu(gate.contiguous()) * up, layer.down)

    def _experts(self, normed: Tensor, layer: Layer, ops: Ops) -> Tensor:
        assert layer.router is not None
        shares = ops.softmax(ops.linear(normed, layer.router))  # float32 [T, E]
        # A stable sort, not topk: of equal shares the lower expert comes first, however many rows there are.
        ranked, order = shares.sort(dim=-1, descending=True, stable=True)
        weights, ids = ranked[:, :self.config.experts_per_token], order[:, :self.config.experts_per_token]
        if self.config.norm_topk:
            total = weights[:, :1]
            for expert in range(1, self.config.experts_per_token):  # a sum in a fixed order, element by element
                total = total + weights[:, expert:expert + 1]
            weights = weights / total
        return ops.experts(normed, layer.gate_up, layer.down, ids, weights)


def load(source: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Model:
    """The model that ``source`` names: ``smollm2``, ``tiny``, ``tiny-moe``, a .gguf file or a Hugging Face folder.

    Raises DetentError, as :func:`detent.engines.embedded.weights.read`.
    """
    return Model(read(source, dtype, device))

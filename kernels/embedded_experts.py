"""The expert layer of the embedded engine: tokens sorted by expert, one pair of matrix products an expert.

Each token's experts are added in the order of its own list, so that the sum does not hang on who else chose an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from detent.kernels import embedded_norm

Product = Callable[[Tensor, Tensor], Tensor]


def experts(x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, product: Product) -> Tensor:
    """``x[M, H]`` through its experts: ``[M, H]``.

    ``gate_up[E, 2I, H]``, gate above up, and ``down[E, H, I]``; ``ids[M, k]``: experts of a token, all different,
    ``weights[M, k]``: their shares. ``product(rows, weight)`` multiplies rows of one expert.
    """
    tokens, chosen = ids.shape
    order = torch.argsort(ids.flatten(), stable=True)
    counts = torch.bincount(ids.flatten(), minlength=gate_up.shape[0]).tolist()
    pairs = x.new_empty(tokens * chosen, x.shape[1])
    for expert, own in enumerate(order.split(counts)):
        if len(own):
            gate, up = product(x[own // chosen], gate_up[expert]).chunk(2, -1)
            pairs[own] = product(embedded_norm.silu(gate) * up, down[expert])
    shares = pairs.view(tokens, chosen, -1).float() * weights.float().unsqueeze(-1)
    total = torch.zeros_like(shares[:, 0])
    for share in shares.unbind(1):
        total = total + share
    return total.to(x.dtype)

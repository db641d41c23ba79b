"""The expert layer of the embedded engine: tokens sorted by expert, one pair of matrix products an expert.

Each token's experts are added in the order of its own list, so that the sum does not hang on who else chose an expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor, Tensor], Tensor]


def experts(x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, product: Product,
            gate: Callable[[Tensor], Tensor]) -> Tensor:
    """``x[M, H]`` through its experts: ``[M, H]``.

    ``gate_up[E, 2I, H]``, ``down[E, H, I]``; ``ids[M, k]``: experts of a token, ``weights[M, k]``: their shares.
    ``product(rows, weight)`` multiplies rows of one expert, ``gate`` is the activation.
    """
    tokens, chosen = ids.shape
    order = torch.argsort(ids.flatten(), stable=True)
    counts = torch.bincount(ids.flatten(), minlength=gate_up.shape[0]).tolist()
    pairs = x.new_empty(tokens * chosen, x.shape[1])
    start = 0
    for expert, count in enumerate(counts):
        if count:
            own = order[start:start + count]
            rows = x[torch.div(own, chosen, rounding_mode="floor")]
            pairs[own] = product(gate(product(rows, gate_up[expert])), down[expert])
            start += count
    shares = pairs.view(tokens, chosen, -1).float() * weights.float().unsqueeze(-1)
    total = torch.zeros_like(shares[:, 0])
    for place in range(chosen):
        total = total + shares[:, place]
    return total.to(x.dtype)

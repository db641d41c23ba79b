"""The operations of a model whose kernels are selected: every matrix product, attention, expert layer, norm and softmax.

Before each call a selector says which kernel, in tiles and splits of which size. *Stock* is the programs unpinned,
*pinned* the programs under a commitment tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from detent.engines.embedded.batch import Batch
from detent.kernels import embedded_attention, embedded_experts, embedded_linear, embedded_norm

if TYPE_CHECKING:
    from torch import Tensor

    from detent.runtime.deployment import Deployment
    from detent.runtime.tuple import CommitmentTuple

__all__ = ["Batch", "Ops"]


class Ops:
    """Kernels and what selects them. ``hash``: the tuple's, or "stock"."""

    def __init__(self, hash: str) -> None:
        self.hash = hash
        self.inside = 0
        """How many of the operations are under way: what torch is asked for meanwhile was selected."""
        self._packed: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self._points: dict[str, Mapping[str, Any]] = {}

    @classmethod
    def stock(cls, deployment: Deployment) -> Ops:
        """As the programs select for each batch."""
        return cls("stock")

    @classmethod
    def pinned(cls, deployment: Deployment, commitment: CommitmentTuple | None = None) -> Ops:
        """As a tuple commits to, the default assignment without one."""
        return cls("default")

    def points_in_force(self) -> dict[str, Any]:
        """``program.point`` and its value, of the last call of each program."""
        return {f"{program}.{name}": value for program, points in self._points.items()
                for name, value in points.items()}

    def boundaries(self, max_tokens: int) -> tuple[int, ...]:
        """Token counts up to ``max_tokens`` at which an unpinned selection is another than for one token less."""
        return ()

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x[M, K]`` times ``weight[N, K]``: ``[M, N]``."""
        with self._selected():
            if embedded_linear.can_pack(weight):
                return embedded_linear.packed_linear(x, self._pack(weight))
            return embedded_linear.linear(x, weight, 8, True)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm of every row of ``x[M, H]``, times ``weight[H]``."""
        with self._selected():
            return embedded_norm.rms_norm(x, weight, eps, 8, True)

    def attention(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: Batch) -> Tensor:
        """Causal attention of ``q[T, heads, hd]`` to ``k_pages`` and ``v_pages[P, page, kv_heads, hd]``, which hold the
        step's own keys and values too: ``[T, heads, hd]``. Scores are scaled by ``hd ** -0.5``."""
        with self._selected():
            rows, stride = 8, 256
            plan = batch.plans.get((rows, stride))
            if plan is None:
                plan = batch.plans[rows, stride] = embedded_attention.plan(
                    batch.query_start, batch.lengths, batch.tables, batch.page, rows, stride,
                    q.shape[1] // k_pages.shape[2], q.dtype)
            return embedded_attention.attention(q, k_pages, v_pages, plan, rows)

    def experts(self, x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """``x[M, H]`` through its experts ``ids[M, k]`` with shares ``weights[M, k]``: ``[M, H]``.

        ``gate_up[E, 2I, H]``: gate above up; ``down[E, H, I]``.
        """
        with self._selected():
            return embedded_experts.experts(x, gate_up, down, ids, weights, self.linear,
                                            lambda rows: embedded_norm.gate(rows, 8, True))

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax of every row of ``x[M, V]``, in fp32."""
        with self._selected():
            return embedded_norm.softmax(x, 1, True)

    def log_softmax(self, x: Tensor) -> Tensor:
        """Logarithm of the softmax of every row of ``x[M, V]``, in fp32."""
        with self._selected():
            return embedded_norm.log_softmax(x, 1, True)

    def argmax(self, x: Tensor) -> Tensor:
        """The lowest index of the largest element of every row of ``x[M, V]``: ``[M]``."""
        with self._selected():
            return embedded_norm.argmax(x)

    @contextmanager
    def _selected(self) -> Iterator[None]:
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def _pack(self, weight: Tensor) -> Tensor:
        """The weight laid out anew, kept with the weight, whose address is the key."""
        key = (weight.data_ptr(), tuple(weight.shape))
        if key not in self._packed:
            self._packed[key] = (weight, embedded_linear.pack(weight))
        return self._packed[key][1]

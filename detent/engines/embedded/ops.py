"""The operations of a model whose kernels are selected: matrix products, attention, expert layers, norms, softmax.

Before each call a selector says which kernel, in tiles and splits of which size. *Stock* is the programs unpinned,
*pinned* the programs under a commitment tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from detent.engines.embedded.batch import Batch
from detent.engines.embedded.in_force import InForce
from detent.engines.embedded.selectors import Selectors
from detent.kernels import embedded_attention, embedded_experts, embedded_linear, embedded_norm, embedded_whole

if TYPE_CHECKING:
    from torch import Tensor

    from detent.runtime.deployment import Deployment
    from detent.runtime.tuple import CommitmentTuple

__all__ = ["Batch", "Ops"]


class Ops:
    """Kernels and what selects them. ``hash``: the tuple's, or "stock".

    Every operation raises :class:`detent.runtime.errors.Violation` for a call outside of what was solved.
    """

    def __init__(self, selectors: Selectors) -> None:
        self.selectors, self.hash = selectors, selectors.hash
        self.inside = Inside()
        """Open while an operation is under way: what torch is asked for meanwhile was selected."""
        self._packed: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self._attention, self._gemm, self._norm = (selectors.select[family] for family in ("attention", "gemm", "norm"))
        self._moe = selectors.select.get("moe")
        self._layers: dict[tuple[int, ...], str] = {
            shape: layer for layer, shape in selectors.shapes.items()}
        self._in_force = InForce(selectors.constant)

    @classmethod
    def stock(cls, deployment: Deployment) -> Ops:
        """As the programs select for each batch."""
        return cls(Selectors.stock(deployment))

    @classmethod
    def pinned(cls, deployment: Deployment, commitment: CommitmentTuple | None = None,
               identity: Mapping[str, str] | None = None) -> Ops:
        """As a tuple commits to, the default assignment without one.

        The tuple is bound to this machine's kernels, torch and threads, and to the ``identity`` of the model
        (environment parts such as ``model`` and ``weights``). Raises TupleMismatch, NotLegal.
        """
        return cls(Selectors.pinned(deployment, commitment, identity or {}))

    def begin(self) -> None:
        """A step begins: nothing but a tuple's constants is in force."""
        self._in_force.begin()

    def points_in_force(self) -> Mapping[str, Any]:
        """``program.point`` and its value: what every call of the step so far was computed with, and a tuple's
        constants. ``program.point (site)`` where a call site had another value than the first one."""
        return self._in_force.points()

    def boundaries(self, max_tokens: int) -> tuple[int, ...]:
        """Token counts up to ``max_tokens`` at which a stock selection is another than for one token less."""
        return self.selectors.boundaries(max_tokens)

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """``x[M, K]`` times ``weight[N, K]``: ``[M, N]``."""
        with self.inside:
            if self._moe is not None and weight.shape == self.selectors.router:
                points = self._moe(x.shape[0])
                self._in_force.note("moe", "router", points)
            else:
                points = self._gemm(x.shape[0])
                self._in_force.note("gemm", self._layers.get(weight.shape, "qkv"), points)
            return self._product(self.kernel(weight, points), points, x, weight)

    def norm(self, x: Tensor, weight: Tensor, eps: float, site: str = "layers") -> Tensor:
        """RMSNorm of every row of ``x[M, H]``, times ``weight[H]``. ``site``: what evidence calls the place, if its
        number of rows is another than that of the other norms."""
        with self.inside:
            points = self._norm(x.shape[0])
            self._in_force.note("norm", site, points)
            return embedded_norm.rms_norm(x, weight, eps, points["kernel"] == "torch")

    def attention(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, batch: Batch) -> Tensor:
        """Causal attention of ``q[T, heads, hd]`` to ``k_pages`` and ``v_pages[P, page, kv_heads, hd]``, which hold the
        step's own keys and values too: ``[T, heads, hd]``. Scores are scaled by ``hd ** -0.5``."""
        with self.inside:
            points = self._attention(len(batch.lengths), batch.longest_query, batch.keys)
            self._in_force.note("attention", "layers", points)
            if points["kernel"] == "whole":
                parts = batch.plans.get("whole")
                if parts is None:
                    parts = batch.plans["whole"] = embedded_whole.plan(
                        batch.query_start, batch.lengths, batch.tables, batch.page)
                return embedded_whole.attention(q, k_pages, v_pages, parts)
            rows, stride = points["query_rows"], points["split_stride"]
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
        with self.inside:
            assert self._moe is not None, "the deployment has no [moe]"
            points = self._moe(x.shape[0])
            self._in_force.note("moe", "experts", points)
            return embedded_experts.experts(x, gate_up, down, ids, weights, lambda rows, weight: self._product(
                points["kernel"], points, rows, weight))

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax of every row of ``x[M, V]``, in fp32."""
        with self.inside:
            return embedded_norm.softmax(x)

    def log_softmax(self, x: Tensor) -> Tensor:
        """Logarithm of the softmax of every row of ``x[M, V]``, in fp32."""
        with self.inside:
            return embedded_norm.log_softmax(x)

    def argmax(self, x: Tensor) -> Tensor:
        """The lowest index of the largest element of every row of ``x[M, V]``: ``[M]``."""
        with self.inside:
            return embedded_norm.argmax(x)

    def kernel(self, weight: Tensor, points: Mapping[str, Any]) -> str:
        """The kernel for a weight ``[N, K]`` of a linear layer, of the points of ``gemm-cpu`` or ``moe-cpu``."""
        kernel: str = points["kernel"] if "kernel" in points else points[
            f"kernel.{self._layers.get(weight.shape, 'qkv')}"]
        return kernel

    def _product(self, kernel: str, points: Mapping[str, Any], x: Tensor, weight: Tensor) -> Tensor:
        product: Callable[[Tensor, Tensor], Tensor] = embedded_linear.plain
        if kernel == "packed":
            product, weight = embedded_linear.packed, self._pack(weight)
        return embedded_linear.tiled(product, x, weight, points["rows"], points["fill"])

    def _pack(self, weight: Tensor) -> Tensor:
        """The weight laid out anew. It is kept beside the weight, so that no other can have its address."""
        key = (weight.data_ptr(), tuple(weight.shape))
        if key not in self._packed:
            self._packed[key] = (weight, embedded_linear.pack(weight))
        return self._packed[key][1]


class Inside:
    """A context that knows how often it has been entered and not yet left."""

    def __init__(self) -> None:
        self.depth = 0

    def __bool__(self) -> bool:
        return self.depth > 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.depth -= 1

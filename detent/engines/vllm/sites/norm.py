"""RMS norms: the hidden states' and those of Qwen3's queries and keys, on Detent's kernel in the tuple's block.

Every RMSNorm layer of vLLM issues one of two operators of its IR. Detent is a provider of both, first of their
priorities: eager they run ``detent::rms_norm`` and ``detent::fused_add_rms_norm`` themselves, and under torch.compile
vLLM's lowering puts those in their place, which Inductor keeps whole. The provider takes all arguments, so that vLLM
never falls back to another for some calls.

It is another kernel than vLLM's, with other bits: fp32 until the result, so that the weight meets no rounded value,
while vLLM rounds before the weight too. The sum with the residual is rounded before it is normalised, as in vLLM's CUDA
kernel; its native version normalises the unrounded one. Of the tuple's points the block decides the bits: so many
threads share a row (of hidden states) or eight heads. Loads are of up to ``vector_width`` elements, whatever the rows.

Elementwise operations stay vLLM's and Inductor's: SiLU and product, rotary embedding, sums, embedding. An element of
their results is one expression of a few inputs, in one order, wherever it lies in a batch; nothing is summed up.
"""

from __future__ import annotations

from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.engines.vllm.sites.operators import aligned, define
from detent.runtime.errors import DetentError

PROVIDER = "detent"
OPERATORS = ("rms_norm", "fused_add_rms_norm")
"""Of vLLM's IR, and fields of its priorities."""
WARP = 32


def warps(points: Any) -> int:
    """Warps that share a row. Raises DetentError for a block that Triton has none for."""
    block = int(points["block"])
    if block not in [WARP << power for power in range(6)]:
        raise DetentError(f"the tuple's norm has a block of {block} threads, which the kernel cannot be given",
                          "pin norm's block to 32 times a power of two, at most 1024")
    return block // WARP


def install(active: Active) -> None:
    """Route the norms. Raises DetentError for a block or a model that the kernel does not take."""
    import torch
    from vllm import ir  # type: ignore[import-not-found, unused-ignore]

    from detent.kernels import rows

    shared = warps(active.points["norm"])
    hidden = int(active.deployment.facts["model"]["hidden_size"])
    if hidden % rows.UNIT or hidden > rows.MAX_HIDDEN:
        raise DetentError(f"norms of {hidden} elements are not served",
                          f"serve a model whose hidden size is a multiple of {rows.UNIT}, at most {rows.MAX_HIDDEN}")

    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = x.new_empty(x.shape)
        if x.dim() == 3:  # queries or keys by head
            rows.head_norm(aligned(x), weight, eps, out=out, warps=shared)
        else:
            rows.rms_norm(aligned(x.reshape(-1, x.shape[-1])), weight, eps, out=out.view(-1, x.shape[-1]),
                          warps=shared)
        return out

    def fused_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
                           eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        out, total = x.new_empty(x.shape), x.new_empty(x.shape)
        flat = (-1, x.shape[-1])
        rows.rms_norm(aligned(x.reshape(flat)), weight, eps, residual=aligned(residual.reshape(flat)),
                      total=total.view(flat), out=out.view(flat), warps=shared)
        return out, total

    def shape(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return x.new_empty(x.shape)

    def shapes(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor,
               eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        return x.new_empty(x.shape), x.new_empty(x.shape)

    norm = define("rms_norm", rms_norm, shape)
    fused = define("fused_add_rms_norm", fused_add_rms_norm, shapes)

    def plain_norm(x: Any, weight: Any, epsilon: Any, variance_size: Any = None) -> Any:
        _refuse(weight, variance_size)
        return norm(x, weight, epsilon)

    def norm_of_sum(x: Any, x_residual: Any, weight: Any, epsilon: Any, variance_size: Any = None) -> Any:
        _refuse(weight, variance_size)
        return fused(x, x_residual, weight, epsilon)

    for name, provided in zip(OPERATORS, (plain_norm, norm_of_sum), strict=True):
        operator = getattr(ir.ops, name)
        if PROVIDER not in operator.impls:
            # vLLM reads the schema off the annotations, which are to be those of its own version.
            provided.__annotations__ = dict(operator.impls["native"].impl_fn.__annotations__)
            operator.register_impl(PROVIDER)(provided)

    def first(original: Any) -> Any:
        def defaults(self: Any, vllm_config: Any) -> None:
            original(self, vllm_config)
            for name in OPERATORS:
                others = [other for other in getattr(self.ir_op_priority, name) if other != PROVIDER]
                setattr(self.ir_op_priority, name, [PROVIDER, *others])
        return defaults

    hooks.rebind(hooks.KERNEL_CONFIG, "KernelConfig.set_platform_defaults", first)


def _refuse(weight: Any, variance_size: Any) -> None:
    if weight is None or variance_size is not None:
        raise DetentError("a norm without a weight, or of a part of a row, is not served", "serve another model")

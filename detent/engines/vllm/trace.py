"""A trace of one forward pass when a worker has its model: every operation that adds up numbers is Detent's.

The model runs without torch.compile, which would hide operations in its own kernels; what it compiles later are the
same operations. Attention and expert layers are operators of vLLM's whose insides the plug-in replaced; each of them
must come to what it was replaced by, which a layer of another backend does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detent.engines.routing import Unrouted, caller, floating, must_be_selected
from detent.engines.vllm import hooks
from detent.engines.vllm.sites.operators import NAMESPACE

TOKENS = 16
REPLACED_INSIDE = {
    "unified_attention": (hooks.FLASH_ATTN, "FlashAttentionImpl.forward"),
    "unified_attention_with_output": (hooks.FLASH_ATTN, "FlashAttentionImpl.forward"),
    "moe_forward": (hooks.TRITON_MOE, "TritonExperts.apply"),
    "moe_forward_shared": (hooks.TRITON_MOE, "TritonExperts.apply"),
}
"""Operators of the namespace ``vllm``, and the name whose replacement makes them Detent's."""


def check(worker: Any) -> list[str]:
    """Run a worker's model on a few tokens. The operations that it issued and that Detent's kernels computed.

    Raises Unrouted at the first call site that is not routed.
    """
    from vllm.forward_context import (  # type: ignore[import-not-found, unused-ignore]
        set_forward_context,
    )

    runner = worker.model_runner
    model, device = runner.model, runner.device
    watch = _Watch()
    with torch.inference_mode(), set_forward_context(None, runner.vllm_config, num_tokens=TOKENS, skip_compiled=True):
        ids = torch.zeros(TOKENS, dtype=torch.int32, device=device)
        positions = torch.arange(TOKENS, dtype=torch.int64, device=device)
        with watch.entries(), watch:
            hidden = model(input_ids=ids, positions=positions, intermediate_tensors=None, inputs_embeds=None)
            model.compute_logits(hidden)
    return sorted(watch.seen)


class _Watch(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this mode is on."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()
        self.entered: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def entries(self) -> Iterator[None]:
        """Count meanwhile how often each replacement is entered."""
        def counting(hook: tuple[str, str], inside: Any) -> Any:
            def enter(*args: Any, **kwargs: Any) -> Any:
                self.entered[hook] += 1
                return inside(*args, **kwargs)
            return enter

        with ExitStack() as back:
            for hook in set(REPLACED_INSIDE.values()) & set(hooks.replaced()):
                owner, name = hooks.find(*hook)
                inside = getattr(owner, name)
                back.callback(setattr, owner, name, inside)
                setattr(owner, name, counting(hook, inside))
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        inside = REPLACED_INSIDE.get(name) if func.namespace == "vllm" else None
        before = self.entered[inside] if inside else 0
        ours = func.namespace == NAMESPACE or func.namespace == "vllm_ir" and _ours(name, args, kwargs)
        if not ours and not inside and must_be_selected(name) and floating((args, kwargs)):
            raise Unrouted(f"{func.namespace}::{name}", caller(__file__))
        result = func(*args, **kwargs)
        if inside and self.entered[inside] == before:
            raise Unrouted(f"{func.namespace}::{name}", caller(__file__))
        if ours or inside:
            self.seen.add(name)
        return result


def _ours(name: str, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether an operator of vLLM's intermediate language is computed by the plug-in."""
    from vllm.ir.op import IrOp  # type: ignore[import-not-found, unused-ignore]

    return bool(IrOp.registry[name].dispatch(*args, **kwargs).provider == NAMESPACE)

"""Call sites of the embedded engine that are not routed: what a forward pass asks torch for beside ``Ops``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from detent.engines.routing import Unrouted, caller, floating, must_be_selected

if TYPE_CHECKING:
    from detent.engines.embedded.ops import Ops


def check(run: Callable[[], object], ops: Ops) -> None:
    """Call ``run``, a real forward pass (prefill and decode). Raises Unrouted at the first call site that is not
    routed through ``ops``."""
    with _Watch(ops):
        run()


class _Watch(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this mode is on; to skip the compiler, torch would have to import it (seconds)."""
        return False

    def __init__(self, ops: Ops) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside = ops.inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if not self._inside:
            name = func.overloadpacket.__name__
            if must_be_selected(name) and floating((args, kwargs)):
                raise Unrouted(name, caller(__file__))
        return func(*args, **(kwargs or {}))

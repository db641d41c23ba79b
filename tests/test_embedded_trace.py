"""What the embedded engine checks when it starts: call sites that are not routed, kernels that are not invariant."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from detent.engines.embedded import selfcheck, trace  # noqa: E402
from detent.engines.embedded.ops import Batch, Ops  # noqa: E402
from detent.kernels import embedded_attention, embedded_linear, embedded_norm  # noqa: E402
from detent.runtime.deployment import load  # noqa: E402
from detent.runtime.errors import DetentError, Violation  # noqa: E402


@pytest.fixture(scope="module")
def ops() -> Ops:
    return Ops.pinned(load("tiny-moe-cpu"))


@pytest.fixture
def x() -> Any:
    return torch.randn(6, 128, generator=torch.Generator().manual_seed(0))


UNROUTED: dict[str, Callable[[Any], object]] = {
    "mm": lambda x: x @ x.T,
    "bmm": lambda x: torch.einsum("abc,adc->abd", x.view(2, 3, 128), x.view(2, 3, 128)),
    "mv": lambda x: x @ x[0],
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(-1),
    "max": lambda x: x.max(-1),
    "argmax": lambda x: x.argmax(),
    "cumsum": lambda x: x.cumsum(0),
    "topk": lambda x: x.topk(2),
    "_softmax": lambda x: x.softmax(-1),
    "_log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "var": lambda x: x.var(),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x),
    "native_layer_norm": lambda x: torch.nn.functional.layer_norm(x, (128,)),
    "_scaled_dot_product_flash_attention_for_cpu": lambda x: torch.nn.functional.scaled_dot_product_attention(
        *[x.view(1, 2, 3, 128)] * 3),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2]),
}


@pytest.mark.parametrize("name", UNROUTED)
def test_unrouted_call_sites_are_found(name: str, ops: Ops, x: Any) -> None:
    with pytest.raises(trace.Unrouted, match=rf"test_embedded_trace.py:\d+ asks torch for {name}\w* beside") as found:
        trace.check(lambda: UNROUTED[name](x), ops)
    assert isinstance(found.value, DetentError) and not ops.inside


@pytest.mark.parametrize("inference", [False, True])
def test_they_are_found_in_inference_mode_too(inference: bool, ops: Ops, x: Any) -> None:
    with torch.inference_mode(inference), pytest.raises(trace.Unrouted):
        trace.check(lambda: torch.nn.functional.linear(x, x), ops)


def test_what_needs_no_selection_passes(ops: Ops, x: Any) -> None:
    numbers = torch.arange(10)
    trace.check(lambda: (x + x, x * 2, x.exp(), torch.nn.functional.silu(x), x.sort(), x[numbers[:3]], x.view(2, -1),
                         torch.cat((x, x)), numbers.sum(), numbers.max(), numbers.cumsum(0), numbers.bincount()), ops)


def test_operations_of_ops_pass(ops: Ops, x: Any) -> None:
    weight = torch.randn(256, 128)
    pages = torch.randn(4, 16, 2, 32)

    def run() -> None:
        ops.linear(x, weight)
        ops.norm(x, weight[0], 1e-5)
        ops.softmax(x), ops.log_softmax(x), ops.argmax(x)
        ops.attention(x[:3].view(3, 4, 32), pages, pages, Batch([0, 1, 3], [5, 20], torch.tensor([[1, 0], [2, 3]]), 16))
        ops.experts(x, torch.randn(8, 256, 128), torch.randn(8, 128, 128), torch.tensor([[0, 5]] * 6), torch.ones(6, 2))

    trace.check(run, ops)
    with pytest.raises(trace.Unrouted):  # and it has not left the door open
        trace.check(lambda: x.sum(), ops)


def test_an_error_inside_of_an_operation_closes_it(ops: Ops, x: Any) -> None:
    with pytest.raises(RuntimeError):
        ops.linear(x, torch.randn(4, 5))
    with pytest.raises(trace.Unrouted):
        trace.check(lambda: x.sum(), ops)


def test_more_rows_than_were_solved_for_are_refused(ops: Ops) -> None:
    with pytest.raises(Violation, match="num_rows"):
        ops.linear(torch.zeros(1025, 128), torch.zeros(9, 128))


# ---- invariance at start-up -------------------------------------------------------------------------------------


def weights() -> Any:
    own = torch.Generator().manual_seed(1)
    layer = SimpleNamespace(qkv=torch.randn(256, 128, generator=own), output=torch.randn(128, 128, generator=own),
                            gate_up=torch.randn(8, 256, 128, generator=own),
                            down=torch.randn(8, 128, 128, generator=own), router=torch.randn(8, 128, generator=own))
    return SimpleNamespace(layers=(layer,), norm=torch.ones(128), logits=torch.randn(272, 128, generator=own))


def test_our_kernels_hold(ops: Ops) -> None:
    selfcheck.check(ops, weights())


def test_stock_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "_rows", lambda *_: pytest.fail("checked"))
    selfcheck.check(Ops.stock(load("tiny-moe-cpu")), weights())


def by_count(x: Any, weight: Any) -> Any:
    """A product that scales with the number of rows in the last bits, as one with another order of adding would."""
    return torch.nn.functional.linear(x, torch.ones(1, x.shape[1])).expand(-1, 8) * (1 + len(x) % 2 * 2 ** -22)


def by_place(x: Any, *_: Any) -> Any:
    """A row-wise operation whose last row differs."""
    out = x.clone()
    out[-1] *= 1 + 2 ** -22 if len(x) > 1 else 1
    return out


def test_a_product_that_sees_the_number_of_rows_is_found(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_linear, "packed", by_count)
    with pytest.raises(selfcheck.NotInvariant, match=r"linear layer \d+ x 128, 2 rows: .*gemm.fill=true"):
        selfcheck.check(ops, weights())


def test_a_sum_whose_order_hangs_on_the_number_of_rows_is_found(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    def norm(x: Any, *_: Any) -> Any:
        """What a GPU does: the order is another one for many rows, which most rows' bits do not show."""
        mean = x.square().mean(-1, keepdim=True)
        if len(x) > 20:
            first, second = x.square().chunk(2, -1)
            mean = (first.sum(-1, keepdim=True) + second.sum(-1, keepdim=True)) / x.shape[1]
        return x * torch.rsqrt(mean + 1e-5)

    monkeypatch.setattr(embedded_norm, "rms_norm", norm)
    with pytest.raises(selfcheck.NotInvariant, match="norm, 33 rows"):
        selfcheck.check(ops, weights())


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "log_softmax"])
def test_a_row_that_sees_its_place_is_found(name: str, ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_norm, name, by_place)
    with pytest.raises(selfcheck.NotInvariant, match=name.removeprefix("rms_")):
        selfcheck.check(ops, weights())


def test_attention_that_sees_its_neighbours_is_found(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = embedded_attention.attention
    monkeypatch.setattr(embedded_attention, "attention",
                        lambda q, *rest: attention(q, *rest) * (1 + len(q) % 2 * 2 ** -22))
    with pytest.raises(selfcheck.NotInvariant, match="attention, query"):
        selfcheck._attention(ops, torch.ones(1), torch.Generator().manual_seed(0))

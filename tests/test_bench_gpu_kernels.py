"""The modules of ``detent bench kernels`` without a GPU: their cases' parts, their bounds, and ranks in processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from cli_support import invoke
from test_bench_gpu import ENVIRONMENT

from detent.bench.gpu import KERNELS, Case, NotHere, Options, all_reduce, moe, rows
from detent.bench.gpu.ranks import Ranks, ranks
from detent.bench.gpu.record import Record, geometric_mean
from detent.runtime.errors import DetentError


def record(kernel: str, *made: tuple[str, str, tuple[str, ...], dict[str, float]]) -> Record:
    """Rows of (group, name, stock arms, times); arms that are no stock are ours, but for those in brackets."""
    found = Record(None, ENVIRONMENT)
    for group, name, stock, times in made:
        ours = tuple(arm for arm in times if arm not in stock and not arm.startswith("("))
        found.add(Case(kernel, group, name, dict.fromkeys(times, lambda turn: None), stock, ours, 1.0, "bytes"), times)
    return found


def test_moe_pins_one_row_against_the_tables_own() -> None:
    few, many = (moe.arm(moe.chosen(192, tokens)) for tokens in (1, 8192))
    assert few != many
    found = {bound.what: bound for bound in moe.bounds(record(
        "moe", ("tp4", "1 tokens", (moe.VLLM,), {moe.VLLM: 10.0, few: 5.0, many: 20.0}),
        ("tp4", "8192 tokens", (moe.VLLM,), {moe.VLLM: 10.0, few: 11.0, many: 10.0})))}
    pinned = found["moe tp4, one row over the table's rows, geometric mean"]
    assert pinned.value == pytest.approx(geometric_mean([1.0, 1.1])) and pinned.detail == few
    best = found["moe tp4, best row over vllm, geometric mean"]
    assert best.value == pytest.approx(geometric_mean([0.5, 1.0])) and "8192 tokens" in best.detail
    assert all(bound.must is None and not bound.open for bound in found.values()) and len(found) == 2
    assert list(moe.bounds(record("moe"))) == []


def test_what_stands_in_for_vllm_is_named_so() -> None:
    beside = [bound.what for bound in moe.bounds(record("moe", (
        "tp1", "8 tokens", (moe.GROUPED,), {moe.GROUPED: 9.0, moe.arm(moe.chosen(768, 8)): 3.0})))]
    assert beside[1:] == ["moe tp1, best row over torch grouped_mm, geometric mean"]


@pytest.mark.parametrize("width", moe.WIDTHS.values())
def test_vllm_takes_the_row_of_the_nearest_count(width: int) -> None:
    table = moe.table(width)
    assert moe.chosen(width, 1) == table[1] and moe.chosen(width, 100000) == table[max(table)]
    assert moe.chosen(width, 33) == table[32] and moe.chosen(width, 47) == table[48]


def test_rows_have_figures_and_no_bound() -> None:
    found = {bound.what: bound for bound in rows.bounds(record(
        "rows", ("softmax", "1 x 9", ("torch",), {"torch": 10.0, "detent": 5.0}),
        ("softmax", "8 x 9", ("torch",), {"torch": 10.0, "detent": 12.0})))}
    assert list(found) == ["softmax over PyTorch, geometric mean"]
    bound = found["softmax over PyTorch, geometric mean"]
    assert bound.value == pytest.approx(geometric_mean([0.5, 1.2])) and bound.detail == "worst 1.200, 8 x 9"
    assert bound.must is None and set(rows.BYTES) == {*rows.WIDE, *rows.LONG}


def reduced(count: int, *times: float) -> Record:
    """Each size's stock takes 10."""
    return record("all_reduce", *((f"W={count}", str(size), (all_reduce.ONE_SHOT,), {
        all_reduce.ONE_SHOT: 10.0, "(other)": 1.0, "push 32 MiB": took}) for size, took in enumerate(times)))


def test_the_bound_of_all_reduce_is_about_every_size() -> None:
    sizes = len(all_reduce.SIZES)
    worst, = all_reduce.bounds(reduced(2, *[9.0] * (sizes - 1), 10.5))
    assert worst.value == pytest.approx(1.05) and worst.met and worst.detail == "6, push 32 MiB over torch one-shot"
    assert next(iter(all_reduce.bounds(reduced(2, *[9.0] * (sizes - 1), 11.5)))).met is False
    for some in (reduced(2, *[9.0] * (sizes - 1)), reduced(2), reduced(4)):
        bound, = all_reduce.bounds(some)
        assert bound.value is None and bound.met is None and bound.open
    two, four = all_reduce.bounds(reduced(4, 20.0))
    assert two.open and four.value == pytest.approx(2.0) and four.must is None


@pytest.mark.parametrize(("size", "names", "stock"), [
    (1 << 20, ("nccl", "torch one-shot", "torch two-shot", "vllm custom"), ("vllm custom",)),
    (1 << 20, ("nccl", "torch one-shot", "torch two-shot"), ("torch one-shot",)),
    (8 << 20, ("nccl", "torch one-shot", "torch two-shot", "vllm custom"), ("torch two-shot", "nccl")),
])
def test_the_arm_that_stands_for_vllms_choice(size: int, names: tuple[str, ...], stock: tuple[str, ...]) -> None:
    assert all_reduce.pick(size, list(names)) == stock


def test_one_gpu_reduces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(NotHere, match="needs two GPUs and here is one"):
        next(all_reduce.cases(Options()))


def test_a_stored_run_without_all_reduce_has_not_met_its_bound(tmp_path: Any) -> None:
    path = tmp_path / "kernels.json"
    Record(str(path), ENVIRONMENT).save()
    result = invoke("bench", "kernels", "--kernel", "all_reduce", "--show", path)
    assert result.exit_code == 2 and "not measured" in result.output


def test_every_kernel_has_a_module() -> None:
    assert {"attention", "gemm", "moe", "rows", "all_reduce"} == set(KERNELS)


def answering(rank: int, count: int, file: str) -> Callable[..., Any]:
    """A rank for these tests: it adds, fails, ends, or keeps silent."""
    def answer(what: str, number: int = 0) -> Any:
        if what == "add":
            return rank + number, count
        if rank == 1 and what == "fail":
            raise ValueError("no such luck")
        if rank == 1 and what == "end":
            os._exit(3)
        if rank == 1 and what == "hang":
            time.sleep(60)
    return answer


def test_ranks_answer_in_order() -> None:
    with ranks(3, answering) as made:
        assert made.ask("add", 10) == [(10, 3), (11, 3), (12, 3)]
        assert made.ask("add", 20) == [(20, 3), (21, 3), (22, 3)]


@pytest.mark.parametrize(("what", "told"), [
    ("fail", "no such luck"), ("end", "rank 1 ended"), ("hang", "says nothing")])
def test_a_rank_that_fails_ends_the_wait(what: str, told: str, tmp_path: Any) -> None:
    made = Ranks(2, answering, str(tmp_path / "x"), patience_s=1.0 if what == "hang" else 30.0)
    try:
        with pytest.raises(DetentError, match=told):
            made.ask(what)
    finally:
        made.close()

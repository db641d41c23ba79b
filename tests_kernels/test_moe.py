"""A token's bits depend on its own row, its experts and shares and the pinned row: alone, in any batch, order and
company. On the CPU, in Triton's interpreter, small; on a GPU larger."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attention_cases import assert_same
from moe_cases import (
    DEVICE,
    DTYPE,
    GPU,
    SIZES,
    Layer,
    alone,
    error,
    poisoned,
    random_batches,
    reference,
    row_dict,
    run,
)

from detent.bench.gpu import moe as bench
from detent.kernels import moe as module
from detent.kernels import moe_triton
from detent.kernels.moe import CHUNK, align, moe, row_of, topk_softmax

ROWS = (
    "16/64/64/1/4/5", "16/128/64/32/8/3", "16/64/256/1/4/2", "32/256/128/16/4/2", "64/128/64/16/4/3",
    "64/64/32/8/4/3", "128/256/64/16/8/4", "128/128/64/1/8/3") if GPU else ("16/32/32/2/4/3", "32/64/16/1/4/2")
ROW = row_dict(ROWS[0])
TOLERANCE = 6e-3 if GPU else 1e-3


@pytest.mark.parametrize("text", ROWS)
def test_a_token_has_its_bits_in_any_company(text: str) -> None:
    row = row_dict(text)
    layer = Layer(200 if GPU else 4, seed=1)
    cases, wrong = random_batches(layer, row, alone(layer, row), 40 if GPU else 3, seed=len(text))
    assert not wrong and cases > (1000 if GPU else 3), wrong


@pytest.mark.skipif(not GPU, reason="14 kernels a width, of sizes for a GPU")
@pytest.mark.parametrize("width", bench.WIDTHS.values())
def test_every_row_of_vllms_tables(width: int) -> None:
    """All for the narrowest layer, some for the others, which share the kernels."""
    rows = {bench.arm(row): row for row in bench.table(width).values()}
    layer = Layer(150, seed=width, sizes=(128, 2048, width, 8))
    for at, row in enumerate(list(rows.values())[:: 1 if width == 192 else 4]):
        cases, wrong = random_batches(layer, row, alone(layer, row), 25, seed=at)
        assert not wrong and cases > 500, wrong


@pytest.mark.parametrize("sizes", [SIZES, (128, 2048, 768, 8), (16, 512, 96, 2), (7, 112, 80, 1)] if GPU else
                         [SIZES, (7, 48, 16, 1)])
@pytest.mark.parametrize("text", ROWS)
def test_accuracy(text: str, sizes: tuple[int, int, int, int]) -> None:
    layer = Layer(130 if GPU else 5, seed=2, sizes=sizes)
    got, want = run(layer, row_dict(text)), reference(layer)
    assert not got.isnan().any() and error(got, want) < TOLERANCE
    if GPU:
        assert error(got, want) < 1.1 * error(reference(layer, dtype=DTYPE), want)


def test_pairs_are_added_in_the_order_of_a_tokens_list() -> None:
    """The layer equals its pairs, each computed as a layer of one expert a token, added in that order in fp32. Two
    large pairs undo each other, so that other orders show: where others are added between them, those are rounded."""
    layer = Layer(300 if GPU else 4, seed=3)
    k = layer.sizes[3]
    layer.ids[:, 1] = layer.ids[:, 0]
    layer.shares[:, 0], layer.shares[:, 1] = (1 << 20, -(1 << 20)) if GPU else (1 << 13, -(1 << 13))
    made = []
    for order in (list(range(k)), [0, *range(2, k), 1], list(range(k))[::-1]):
        ids, shares = layer.ids[:, order], layer.shares[:, order]
        total = torch.zeros(layer.tokens, layer.sizes[1], device=DEVICE)
        for j in range(k):
            total = total + run(layer, ROW, ids=ids[:, j : j + 1], shares=shares[:, j : j + 1]).float()
        made.append(run(layer, ROW, ids=ids, shares=shares))
        assert_same(made[-1], total.to(DTYPE), f"order {order}")
    assert not torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_experts_elsewhere_add_zero() -> None:
    layer = Layer(80 if GPU else 4, seed=4)
    for missing in (-1, layer.sizes[0], 1 << 30, -(1 << 31)) if GPU else (layer.sizes[0], -1):
        ids = layer.ids.clone()
        ids[:, 1] = missing
        ids[3] = missing
        keep = [j for j in range(layer.sizes[3]) if j != 1]
        short_ids, short_shares = ids[:, keep].contiguous(), layer.shares[:, keep].contiguous()
        got = run(layer, ROW, ids=ids)
        assert_same(got, run(layer, ROW, ids=short_ids, shares=short_shares), f"id {missing}")
        assert (got[3] == 0).all()
    ids.fill_(-1)
    assert (run(layer, ROW, ids=ids) == 0).all()


@pytest.mark.parametrize("k", (1, 2))
def test_one_expert_gets_all(k: int) -> None:
    tokens = 700 if GPU else 18
    layer = Layer(tokens, seed=5, sizes=(*SIZES[:3], k))
    layer.ids[:] = torch.tensor([3, 1][:k], dtype=torch.int32)
    got = run(layer, ROW)
    assert error(got, reference(layer)) < TOLERANCE
    for token in (0, 15, 16, tokens - 1):
        assert_same(run(layer, ROW, slice(token, token + 1)), got[token : token + 1], f"token {token}")


@pytest.mark.parametrize("block_m", (16, 64))
@pytest.mark.parametrize(("tokens", "k", "experts"), [
    (1, 1, 1), (1, 8, 128), (31, 3, 6), (CHUNK // 2, 2, 5), (CHUNK // 2 + 1, 2, 70),
    *([(8192, 8, 128), (4097, 7, 512), (60000, 4, 33), (400, 3, 300)] if GPU else [])])
def test_alignment(tokens: int, k: int, experts: int, block_m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order and blocks equal those of a plain sort, for ids that are all the same, random, few, or elsewhere."""
    monkeypatch.setattr(module, "_empty", poisoned)
    at = torch.Generator().manual_seed(tokens)
    for high in (1, experts, max(1, experts // 3)):
        ids = torch.randint(-1 if high < experts else 0, high, (tokens, k), generator=at, dtype=torch.int32)
        blocks = align(ids.to(DEVICE), experts, block_m)
        flat = ids.flatten()
        here = flat >= 0
        want = torch.argsort(torch.where(here, flat, experts), stable=True)[: int(here.sum())]
        counts = torch.bincount(flat[here], minlength=experts).tolist()
        table, start = [], 0
        for expert, count in enumerate(counts):
            table += [(expert, start + low, min(start + count, start + low + block_m))
                      for low in range(0, count, block_m)]
            start += count
        header = blocks.header.cpu()
        assert header[:2].tolist() == [len(table), start] and len(table) <= blocks.capacity
        got = header[4:].view(3, blocks.capacity)[:, : len(table)].T.tolist()
        assert [tuple(entry) for entry in got] == table
        assert blocks.order.cpu()[:start].tolist() == want.tolist()


def test_a_row_of_its_own_for_the_second_gemm() -> None:
    layer = Layer(50 if GPU else 5, seed=6)
    own = {name: value for name, value in row_dict(ROWS[1]).items() if name != "BLOCK_SIZE_M"}
    got = run(layer, ROW, down_row=own)
    assert error(got, reference(layer)) < TOLERANCE
    for token in (0, 3):
        assert_same(run(layer, ROW, slice(token, token + 1), down_row=own), got[token : token + 1], "alone")


def test_rows_apart_and_no_rows() -> None:
    """Rows of ``x`` and ``out`` may lie apart, one may lie anyhow, and there may be none."""
    layer = Layer(9, seed=7)
    want = run(layer, ROW)
    hidden = layer.sizes[1]
    wide, out = (torch.full((9, hidden + 16), math.nan, dtype=DTYPE, device=DEVICE) for _ in range(2))
    wide[:, :hidden] = layer.x
    got = moe(wide[:, :hidden], layer.gate_up, layer.down, layer.ids, layer.shares, row=ROW, out=out[:, :hidden])
    assert_same(got, want, "rows apart")
    assert out[:, hidden:].isnan().all()
    one = layer.x[2].contiguous().as_strided((1, hidden), (1, 1))
    assert_same(moe(one, layer.gate_up, layer.down, layer.ids[2:3], layer.shares[2:3], row=ROW), want[2:3], "one")
    assert run(layer, ROW, slice(0, 0)).shape == (0, hidden)


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("tokens", (1, 20, 300))
def test_graph_replays_with_other_contents(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_empty", poisoned)
    layer = Layer(3 * tokens, seed=8)
    x, ids, shares = (part[:tokens].clone() for part in (layer.x, layer.ids, layer.shares))
    out = torch.empty_like(x)
    moe(x, layer.gate_up, layer.down, ids, shares, row=ROW, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moe(x, layer.gate_up, layer.down, ids, shares, row=ROW, out=out)
    want = run(layer, ROW)
    for turn in (1, 2, 0, 3):
        part = slice(turn % 3 * tokens, (turn % 3 + 1) * tokens)
        for static, new in ((x, layer.x), (ids, layer.ids), (shares, layer.shares)):
            static.copy_(new[part])
        expected = want[part]
        if turn == 3:  # all to the same experts
            ids.copy_(layer.ids[:1].expand_as(ids))
            expected = moe(x, layer.gate_up, layer.down, ids, shares, row=ROW)
        out.fill_(math.nan)
        graph.replay()
        assert_same(out, expected, f"a replayed graph, turn {turn}")


@pytest.mark.skipif(not GPU, reason="many calls need a GPU")
def test_calls_side_by_side() -> None:
    """Kernels start before the ones before them end; calls in a row and on several streams share nothing."""
    layer = Layer(64, seed=9)
    want = run(layer, ROW)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    made = []
    for turn in range(200):
        with torch.cuda.stream(streams[turn % 4]):
            made.append(moe(layer.x, layer.gate_up, layer.down, layer.ids, layer.shares, row=ROW))
    torch.cuda.synchronize()
    for turn, got in enumerate(made):
        assert_same(got, want, f"call {turn}")


@pytest.mark.skipif(not GPU, reason="the interpreter compiles nothing")
def test_one_compiled_kernel_serves_every_number_of_tokens() -> None:
    """Triton compiles another kernel for an argument that is 1 or divisible by 16: none that hangs on the batch may."""
    layer = Layer(2000, seed=10)
    kernels = [getattr(moe_triton, name) for name in (
        "count_kernel", "place_kernel", "gemm_kernel", "activation_kernel", "combine_kernel", "topk_softmax_kernel")]

    def compiled() -> list[int]:
        return [len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels]

    before: list[int] = []
    for low, high in ((0, 16), (0, 1), (1, 2), (3, 20), (5, 37), (0, 64), (7, 1031), (0, 2000)):
        ids, shares = layer.ids[low:high], layer.shares[low:high]
        odd_ids, odd_shares = (torch.cat([part.flatten()[:1], part.flatten()])[1:].view_as(part)
                               for part in (ids, shares))  # begin 4 bytes behind a multiple of 16
        for a, b in ((ids, shares), (odd_ids, odd_shares)):
            moe(layer.x[low:high], layer.gate_up, layer.down, a, b, row=ROW)
        logits = layer.x[low:high, :128]
        topk_softmax(logits, 8, renormalize=True)
        topk_softmax(layer.x[low:high, 1:129], 8, renormalize=True)
        before = before or compiled()
        assert compiled() == before and min(before) > 0, (low, high)


E, H, W = 4, 32, 16


@pytest.mark.parametrize(("change", "message"), [
    ({"row": {**ROW, "BLOCK_SIZE_M": 48}}, "BLOCK_SIZE_M 48"),
    ({"row": {**ROW, "BLOCK_SIZE_K": 8}}, "BLOCK_SIZE_K 8"),
    ({"row": {**ROW, "num_warps": 2}}, "num_warps 2"),
    ({"row": {**ROW, "num_stages": 9}}, "num_stages 9"),
    ({"row": {**ROW, "GROUP_SIZE_M": 0}}, "GROUP_SIZE_M 0"),
    ({"row": {**ROW, "GROUP_SIZE_M": True}}, "GROUP_SIZE_M True"),
    ({"row": {**ROW, "SPLIT_K": 2}}, "SPLIT_K is 2"),
    ({"row": {**ROW, "WAVES": 2}}, "WAVES"),
    ({"row": {"BLOCK_SIZE_M": 16}}, "BLOCK_SIZE_N is missing"),
    ({"row": {**ROW, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 256, "num_stages": 8}}, "bytes of shared memory"),
    ({"down_row": {**ROW, "BLOCK_SIZE_M": 64}}, "one sorted index"),
    ({"x": torch.zeros(2, H + 16, dtype=DTYPE)}, "not"),
    ({"x": torch.zeros(2, H, dtype=torch.float64)}, "float64"),
    ({"x": torch.zeros(2, 2 * H, dtype=DTYPE)[:, ::2]}, "not contiguous"),
    ({"x": torch.zeros(2, H + 8, dtype=DTYPE)[:, :H]}, "16 elements"),
    ({"x": torch.zeros(3, H, dtype=DTYPE)}, "are not"),
    ({"x": torch.zeros(2, 1, H, dtype=DTYPE)}, "tokens, hidden"),
    ({"gate_up": torch.zeros(E, W, H, dtype=DTYPE)}, "2 \\* width"),
    ({"down": torch.zeros(E + 1, H, W, dtype=DTYPE)}, "gate_up"),
    ({"gate_up": torch.zeros(E, 2 * 24, H, dtype=DTYPE), "down": torch.zeros(E, H, 24, dtype=DTYPE)}, "multiples"),
    ({"topk_ids": torch.zeros(2, 2, dtype=torch.int64)}, "int32"),
    ({"topk_ids": torch.zeros(2, 3, dtype=torch.int32)}, "topk_ids"),
    ({"topk_weights": torch.zeros(2, 2, dtype=torch.float64)}, "float32"),
    ({"out": torch.zeros(3, H, dtype=DTYPE)}, "x's shape"),
    ({"out": torch.zeros(2, H, dtype=torch.float64)}, "float64"),
])
def test_what_the_kernels_do_not_take_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": torch.zeros(2, H, dtype=DTYPE), "gate_up": torch.zeros(E, 2 * W, H, dtype=DTYPE),
        "down": torch.zeros(E, H, W, dtype=DTYPE), "topk_ids": torch.zeros(2, 2, dtype=torch.int32),
        "topk_weights": torch.zeros(2, 2), "row": ROW} | change
    moved = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):  # Tensor.to drops strides
            value = (value._base.to(DEVICE).as_strided(value.shape, value.stride()) if value._base is not None
                     else value.to(DEVICE))
        moved[name] = value
    with pytest.raises(ValueError, match=message):
        moe(**moved)


def test_a_row_of_a_table() -> None:
    assert row_of({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "SPLIT_K": 1}) == (
        64, 64, 32, 8, 4, 3)
    with pytest.raises(ValueError, match="down_row"):
        row_of({"BLOCK_SIZE_N": 64}, "down_row", 16)


def test_a_row_that_was_made_is_taken_beside_a_mapping() -> None:
    """And refused alike, also a second time."""
    layer, down_row = Layer(3, seed=5), {**ROW, "BLOCK_SIZE_N": 16}
    made, down = row_of(ROW), row_of(down_row, "down_row", ROW["BLOCK_SIZE_M"])
    arguments = layer.x, layer.gate_up, layer.down, layer.ids, layer.shares
    assert_same(moe(*arguments, row=made, down_row=down), moe(*arguments, row=ROW, down_row=down_row), "a Row")
    for change, message in (({"warps": 2}, "^moe: row: num_warps 2 is not"), ({"group": 0}, "GROUP_SIZE_M 0 is no"),
                            ({"block_k": 8}, "BLOCK_SIZE_K 8 is none")) * 2:
        with pytest.raises(ValueError, match=message):
            moe(*arguments, row=made._replace(**change))
    with pytest.raises(ValueError, match="^moe: down_row: BLOCK_SIZE_M 64 is not row's"):
        moe(*arguments, row=made, down_row=made._replace(block_m=64))

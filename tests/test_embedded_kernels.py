"""Kernels of the embedded engine: right values, and bits that depend on nothing but a row's own request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import linear, scaled_dot_product_attention, silu  # noqa: E402

from detent.kernels import embedded_attention, embedded_experts, embedded_linear, embedded_norm, embedded_whole  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 16, 4
SIZES = [(1, 8), (4, 8), (8, 32)]  # queries of a tile, keys of a split


def generator(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def same_bits(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool(torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)))


class Cache:
    """Pages with keys and values of some requests of ``lengths`` tokens, and a query for every token."""

    def __init__(self, lengths: Sequence[int], seed: int = 0) -> None:
        own = generator(seed)
        widths = [-(-length // PAGE) for length in lengths]
        count = sum(widths) + 3
        self.keys, self.values = (torch.randn(count, PAGE, KV_HEADS, DIM, generator=own) for _ in range(2))
        order = torch.randperm(count, generator=own)[:sum(widths)].split(widths)
        self.tables = torch.nn.utils.rnn.pad_sequence(order, batch_first=True)
        self.queries = [torch.randn(length, HEADS, DIM, generator=own) for length in lengths]

    def attention(self, parts: Sequence[tuple[int, int, int]], sizes: tuple[int, int] | None) -> list[Any]:
        """Results of (request, first position, end), all in one call; without ``sizes`` by torch's own attention."""
        starts = [0]
        for _, begin, end in parts:
            starts.append(starts[-1] + end - begin)
        q = torch.cat([self.queries[r][begin:end] for r, begin, end in parts])
        tables, lengths = self.tables[[r for r, _, _ in parts]], [end for _, _, end in parts]
        if sizes is None:
            out = embedded_whole.attention(q, self.keys, self.values, embedded_whole.plan(
                starts, lengths, tables, PAGE))
        else:
            plan = embedded_attention.plan(starts, lengths, tables, PAGE, *sizes, HEADS // KV_HEADS, q.dtype)
            out = embedded_attention.attention(q, self.keys, self.values, plan, sizes[0])
        return list(out.split([end - begin for _, begin, end in parts]))

    def expected(self, request: int, begin: int, end: int) -> Any:
        keys, values = (pages[self.tables[request]].flatten(0, 1)[:end].transpose(0, 1)
                        for pages in (self.keys, self.values))
        mask = torch.arange(begin, end).view(-1, 1) >= torch.arange(end)
        return scaled_dot_product_attention(self.queries[request][begin:end].transpose(0, 1), keys, values, mask,
                                            enable_gqa=True).transpose(0, 1)


LENGTHS = [1, 7, 8, 9, 33, 70]


@pytest.mark.parametrize("sizes", [None, *SIZES])
@pytest.mark.parametrize("parts", [
    [(r, length - 1, length) for r, length in enumerate(LENGTHS)],
    [(r, 0, length) for r, length in enumerate(LENGTHS)],
    [(5, 40, 70), (0, 0, 1), (4, 32, 33), (3, 5, 9)],
])
def test_attention_is_attention(sizes: tuple[int, int] | None, parts: list[tuple[int, int, int]]) -> None:
    cache = Cache(LENGTHS)
    for part, found in zip(parts, cache.attention(parts, sizes), strict=True):
        assert torch.allclose(found, cache.expected(*part), atol=2e-6)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_querys_bits_do_not_depend_on_chunks_or_neighbours(sizes: tuple[int, int]) -> None:
    """Prefilled whole and alone; in chunks; decoded one by one; beside others that decode or prefill; in other rows."""
    cache = Cache(LENGTHS)
    for request, length in enumerate(LENGTHS):
        [whole] = cache.attention([(request, 0, length)], sizes)
        for cut in {1, length // 2, length - 1} - {0, length}:
            first, rest = (cache.attention([part], sizes)[0] for part in ((request, 0, cut), (request, cut, length)))
            assert same_bits(torch.cat((first, rest)), whole)
        for position in {0, length // 3, length - 1}:
            [alone] = cache.attention([(request, position, position + 1)], sizes)
            others = [(r, n - 1, n) for r, n in enumerate(LENGTHS) if r != request]
            beside = cache.attention([*others, (request, position, position + 1)], sizes)[-1]
            mixed = cache.attention([(5, 3, 60), (request, position, position + 1), *others], sizes)[1]
            assert all(same_bits(bits, whole[position:position + 1]) for bits in (alone, beside, mixed))


CONSECUTIVE = {  # first pages of requests of LENGTHS tokens, and how many have to be gathered to decode and to prefill
    "equally far": ([0, 20, 40, 60, 80, 100], 0, 0),
    "in another order": ([100, 80, 60, 40, 20, 0], 0, 0),
    "at the end": ([0, 119, 117, 0, 0, 0], 0, 0),
    "the third apart, which decodes beside the second": ([0, 20, None, 60, 80, 100], 2, 1),
    "the last apart": ([0, 20, 40, 60, 80, None], 1, 1),
}


@pytest.mark.parametrize("firsts, decode, prefill", CONSECUTIVE.values(), ids=CONSECUTIVE)
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_consecutive_pages_are_read_where_they_are(firsts: list[int | None], decode: int, prefill: int,
                                                   kind: str) -> None:
    cache = Cache(LENGTHS)
    pages = 121
    cache.keys, cache.values = (torch.randn(pages, PAGE, KV_HEADS, DIM, generator=generator(n)) for n in (1, 2))
    for table, length, first in zip(cache.tables, LENGTHS, firsts, strict=True):
        used = -(-length // PAGE)
        table[:used] = torch.arange(first, first + used) if first is not None else torch.arange(used, 0, -1)
    parts = [(r, length - 1 if kind == "decode" else 0, length) for r, length in enumerate(LENGTHS)]
    for part, found in zip(parts, cache.attention(parts, None), strict=True):
        assert torch.allclose(found, cache.expected(*part), atol=2e-6)
    planned = embedded_whole.plan([0, *itertools.accumulate(end - begin for _, begin, end in parts)], LENGTHS,
                                  cache.tables, PAGE)
    looked_for = sum(part.count for part in planned if part.where is not None)
    assert looked_for == (decode if kind == "decode" else prefill)


def test_requests_that_are_equally_far_from_each_other_are_computed_in_one_call() -> None:
    lengths = [30, 32, 29, 31, 30, 32]
    tables = torch.tensor([[first + place for place in range(8)] for first in (8, 20, 32, 44, 60, 72)])
    assert calls(lengths, tables) == [(4, 8, 12), (2, None, 0)]
    assert calls(lengths[3:], tables[3:]) == [(3, None, 0)]  # two of three are not worth a call


def test_a_shorter_request_is_filled_up_with_its_own_last_page_alone() -> None:
    tables = torch.tensor([[first + place for place in range(10)] for first in (8, 72)])
    assert calls([40, 37], tables) == [(2, 8, 64)]
    assert calls([40, 36], tables) == [(2, None, 0)]


def calls(lengths: list[int], tables: Any) -> list[tuple[int, int | None, int]]:
    """Requests of each call that decodes; first page and pages from request to request, None if they are gathered."""
    return [(part.count, part.begin // PAGE if part.where is None else None, part.apart // PAGE)
            for part in embedded_whole.plan(list(range(len(lengths) + 1)), lengths, tables, PAGE)]


def test_sizes_of_tiles_and_splits_are_in_the_bits() -> None:
    """Otherwise the tests above would show nothing."""
    cache = Cache([70], seed=1)
    results = {bytes(cache.attention([(0, 0, 70)], (4, stride))[0].contiguous().numpy().tobytes())
               for stride in (8, 16, 32)}
    assert len(results) == 3


def test_what_lies_behind_a_request_in_its_pages_is_not_seen() -> None:
    cache = Cache([30])
    [before] = cache.attention([(0, 10, 20)], (4, 8))
    cache.keys[cache.tables[0, 5:]] += 1.0  # positions 20 and on
    [after] = cache.attention([(0, 10, 20)], (4, 8))
    assert same_bits(before, after)


# ---- matrix products ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_rows_of_full_tiles_have_bits_of_their_own(rows: int) -> None:
    weight = torch.randn(40, 72, generator=generator(0))
    x = torch.randn(50, 72, generator=generator(1))
    alone = torch.cat([embedded_linear.tiled(embedded_linear.plain, row, weight, rows, True) for row in x.split(1)])
    assert torch.allclose(alone, linear(x, weight), atol=1e-5)
    for count in (2, 3, 15, 16, 17, 50):
        assert same_bits(embedded_linear.tiled(embedded_linear.plain, x[:count], weight, rows, True), alone[:count])
    shifted = torch.empty(51, 72)[1:].copy_(x)  # memory that does not begin at a cache line
    assert same_bits(embedded_linear.tiled(embedded_linear.plain, shifted, weight, rows, True), alone)


@pytest.mark.parametrize(("count", "rows", "fill", "expected"), [
    (3, 8, False, [3]), (3, 8, True, [8]), (8, 8, False, [8]), (19, 8, False, [8, 8, 3]), (19, 8, True, [8, 8, 8])])
def test_products_of_tiles(count: int, rows: int, fill: bool, expected: list[int]) -> None:
    found: list[int] = []

    def product(x: Any, weight: Any) -> Any:
        found.append(len(x))
        return embedded_linear.plain(x, weight)

    x, weight = torch.randn(count, 8), torch.randn(4, 8)
    assert torch.allclose(embedded_linear.tiled(product, x, weight, rows, fill), linear(x, weight), atol=1e-5)
    assert found == expected


def test_packed_weights_add_in_one_order_for_any_number_of_rows() -> None:
    weight = torch.randn(96, 200, generator=generator(0))
    if not embedded_linear.can_pack(weight):
        pytest.skip("oneDNN is not part of this torch")
    packed = embedded_linear.pack(weight)
    x = torch.randn(130, 200, generator=generator(1))
    alone = torch.cat([embedded_linear.packed(row, packed) for row in x.split(1)])
    assert torch.allclose(alone, linear(x, weight), atol=1e-4)
    assert all(same_bits(embedded_linear.packed(x[:count], packed), alone[:count]) for count in range(1, 131))


def test_only_fp32_on_a_cpu_is_packed() -> None:
    assert not embedded_linear.can_pack(torch.zeros(4, 4, dtype=torch.bfloat16))
    assert not embedded_linear.can_pack(torch.zeros(4, 4, device="meta"))


# ---- experts -----------------------------------------------------------------------------------------------------


def tokens(count: int, experts: int = 5, chosen: int = 2) -> tuple[Any, ...]:
    own = generator(2)
    ids = torch.stack([torch.randperm(experts, generator=own)[:chosen] for _ in range(count)])
    return (torch.randn(count, 12, generator=own), torch.randn(experts, 16, 12, generator=own),
            torch.randn(experts, 12, 8, generator=own), ids, torch.rand(count, chosen, generator=own))


def tile_of(rows: int) -> Callable[[Any, Any], Any]:
    return lambda x, weight: embedded_linear.tiled(embedded_linear.plain, x, weight, rows, True)


def test_experts_are_experts() -> None:
    x, gate_up, down, ids, weights = tokens(9)
    found = embedded_experts.experts(x, gate_up, down, ids, weights, embedded_linear.plain)
    for token in range(9):
        expected = torch.zeros(12)
        for expert, share in zip(ids[token], weights[token], strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            expected += share * (down[expert] @ (silu(gate) * up))
        assert torch.allclose(found[token], expected, atol=1e-4)


def test_a_tokens_experts_do_not_see_other_tokens() -> None:
    x, gate_up, down, ids, weights = tokens(40)
    together = embedded_experts.experts(x, gate_up, down, ids, weights, tile_of(4))
    for token in (0, 17, 39):
        own = slice(token, token + 1)
        assert same_bits(embedded_experts.experts(x[own], gate_up, down, ids[own], weights[own], tile_of(4)),
                         together[own])


# ---- rows and elements -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_rms_norm(own: bool) -> None:
    x, weight = torch.randn(70, 24, generator=generator(0)) * 3, torch.randn(24, generator=generator(1))
    found = embedded_norm.rms_norm(x, weight, 1e-5, own)
    assert torch.allclose(found, x / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt().float() * weight,
                          atol=1e-5)
    assert same_bits(torch.cat([embedded_norm.rms_norm(row, weight, 1e-5, own) for row in x.split(1)]), found)
    assert embedded_norm.rms_norm(x.bfloat16(), weight.bfloat16(), 1e-5, own).dtype == torch.bfloat16


@pytest.mark.parametrize("function", [embedded_norm.softmax, embedded_norm.log_softmax])
def test_softmax_by_rows(function: Callable[[Any], Any]) -> None:
    x = torch.randn(20, 1001, generator=generator(0))
    found = function(x)
    assert same_bits(torch.cat([function(row) for row in x.split(1)]), found)
    assert function(x.bfloat16()).dtype == torch.float32
    total = found.double().exp() if function is embedded_norm.log_softmax else found.double()
    assert torch.allclose(total.sum(-1), torch.ones(20, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("width", [1, 2, 3, 96, 100])
def test_a_sum_by_halves_is_the_sum(width: int) -> None:
    whole = torch.randint(-1000, 1000, (5, width), generator=generator(0)).float()
    assert same_bits(embedded_norm._sum(whole), whole.sum(-1, keepdim=True))
    x = torch.randn(5, width, generator=generator(1))
    assert torch.allclose(embedded_norm._sum(x), x.sum(-1, keepdim=True), atol=1e-5)
    assert all(same_bits(embedded_norm._sum(x[n:n + 1]), embedded_norm._sum(x)[n:n + 1]) for n in range(5))


def test_argmax_takes_the_lowest_index() -> None:
    x = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    assert embedded_norm.argmax(x).tolist() == [0, 1, 0]
    assert embedded_norm.argmax(x[:1]).tolist() == [0]
    ties = torch.zeros(3, 50000)
    ties[:, [17, 40000]] = 1.0
    assert embedded_norm.argmax(ties).tolist() == [17] * 3


@pytest.mark.parametrize(("ours", "theirs"), [(embedded_norm.exp, torch.exp), (embedded_norm.silu, silu)])
def test_an_elements_bits_do_not_depend_on_its_place(ours: Callable[[Any], Any], theirs: Callable[[Any], Any]) -> None:
    value = torch.randn(7, generator=generator(3))
    long = value.repeat(9001)
    found = ours(long)
    assert torch.allclose(found, theirs(long))
    assert same_bits(found.view(-1, 7), ours(value).expand(9001, 7))
    assert same_bits(ours(long.view(9001, 7)), found.view(9001, 7))


@pytest.mark.parametrize("units", [1, 2, 15, 16, 17, 40])
def test_what_a_gpu_multiplies_in_batches_is_what_torch_attends(units: int) -> None:
    torch.manual_seed(units)
    q, keys, values = (torch.randn(units, 2, rows, 16) for rows in (8, 32, 32))
    mask = torch.where(torch.arange(32) <= torch.arange(24, 32).view(-1, 1), 0.0, -torch.inf)
    mask = mask.expand(units, 1, 8, 32)
    parts = [embedded_attention._products(*part) for part in zip(
        *(embedded_attention._batches(x) for x in (q, keys, values, mask)), strict=True)]
    assert {len(out) for out, _ in parts} == {embedded_attention.BATCH}
    found = torch.cat([out for out, _ in parts])[:units]
    expected = torch.nn.functional.scaled_dot_product_attention(q, keys, values, mask)
    assert torch.allclose(found, expected, atol=1e-5)

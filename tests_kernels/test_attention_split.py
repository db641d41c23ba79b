"""A row's bits depend on its own query and keys and on the stride: decoded, prefilled whole or in chunks, behind a
cached prefix, at any page size, in any batch. On the CPU, in Triton's interpreter, small; on a GPU larger."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from attention_cases import DEVICE, DTYPE, GPU, Batch, Stream, assert_same, error, reference, stream

from detent.kernels.attention_split import HEAD_DIMS, attention_split

STRIDES = (256, 512, 2048, 16384) if GPU else (256,)
GROUPS = (1, 4, 5, 8) if GPU else (4,)
PAGES = (1, 16, 64)
ANY_PAGE = (1, 1, 2, 4, 8, 16, 64)
TOKENS = 2600 if GPU else 330
KV_HEADS = 2 if GPU else 1


def whole(request: Stream, stride: int, page: int = 16, splits: int | None = None) -> torch.Tensor:
    return Batch([(request, len(request), len(request))], page).run(stride, splits=splits)[0]


def stock(request: Stream) -> torch.Tensor:
    """PyTorch's own kernel on the whole request."""
    q, k, v = (part.transpose(0, 1)[None] for part in (request.q, request.k, request.v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def test_what_errors_are_compared_with_is_the_same_attention() -> None:
    request = stream(300, KV_HEADS, 4, 64, seed=9)
    assert error(stock(request), reference(request, 300, 300)) < (6e-3 if GPU else 1e-3)


def some_rows(tokens: int, seed: int) -> list[int]:
    """Rows beside every kind of boundary, and random ones."""
    near = {at + by for at in (0, 64, 128, 256, 512, 1024, 2048, tokens) for by in (-1, 0, 1)}
    near |= set(random.Random(seed).sample(range(tokens), 120 if GPU else 2))
    kept = sorted(row for row in near if 0 <= row < tokens)
    return kept if GPU else [row for row in kept if row in (0, 63, 255, 256, tokens - 1)]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_every_path_gives_a_row_the_same_bits(dim: int, group: int, stride: int) -> None:
    request = stream(TOKENS, KV_HEADS, group, dim, seed=dim + group)
    want, exact = whole(request, stride), reference(request, TOKENS, TOKENS)
    assert error(want, exact) < (2 * error(stock(request), exact) if GPU else 1e-3)
    rows = some_rows(TOKENS, stride)
    for page in PAGES:
        decoded = Batch([(request, row + 1, 1) for row in rows], page, seed=page).run(stride)
        assert_same(torch.cat(decoded), want[rows], f"decoded, page {page}")
    for page, cuts in zip(PAGES, ((1, 113), (100, 407), (256, 512)), strict=True):
        ends = [*cuts, TOKENS] if GPU else [cuts[0], min(cuts[0] + 130, TOKENS)]
        for low, high in zip([0, *ends], ends, strict=False):
            chunk = Batch([(request, high, high - low)], page, seed=high).run(stride)[0]
            assert_same(chunk, want[low:high], f"tokens {low} to {high} as a chunk, page {page}")


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_neighbours_change_nothing(dim: int) -> None:
    """The same rows among decoding, prefilling, short and empty requests, in several orders."""
    tokens, stride = (1500, 512) if GPU else (270, 256)
    request = stream(tokens, KV_HEADS, 4, dim, seed=1)
    want = whole(request, stride)
    others = [stream(tokens * 2, KV_HEADS, 4, dim, seed=seed) for seed in (2, 3)]
    for part in others[1].q, others[1].k, others[1].v:
        part.mul_(100)
    mine = [(request, tokens, 1), (request, tokens - 40, 3), (request, tokens - 7, 140)]
    theirs = [(others[0], tokens * 2, 1), (others[1], 77, 77), (others[1], 0, 0), (others[0], 130, 20)]
    for seed in range(20 if GPU else 1):
        draw = random.Random(seed)
        batch = mine + theirs * draw.randint(0, 2)
        draw.shuffle(batch)
        got = Batch(batch, draw.choice(ANY_PAGE), seed).run(stride)
        for (owner, used, queries), rows in zip(batch, got, strict=True):
            if owner is request:
                assert_same(rows, want[used - queries : used], f"{queries} tokens before {used}, batch {seed}")


def test_later_keys_change_nothing_however_large() -> None:
    """Rows of a chunk whose later tokens hold huge values: a hidden key's weight is zero, and zero it adds."""
    tokens = 700 if GPU else 300
    request = stream(tokens, 1, 4, 128, seed=9)
    want = whole(request, 256)
    cut = tokens - 150
    for part in request.k, request.v:
        part[cut:] *= 3e4 if GPU else 1e3
    assert_same(whole(request, 256)[:cut], want[:cut], "rows before the large values")


@pytest.mark.parametrize("queries", (1, 3))
def test_surplus_splits_change_nothing(queries: int) -> None:
    tokens, stride = (5000, 512) if GPU else (600, 256)
    request = stream(tokens, KV_HEADS, 4, 128, seed=4)
    batch = Batch([(request, tokens, queries), (request, 300, queries)])
    want = batch.run(stride)
    for splits in (16, 64, 256):
        for got, rows in zip(batch.run(stride, splits=splits), want, strict=True):
            assert_same(got, rows, f"{splits} splits")
    longest = batch.longest
    batch.longest = batch.arrays["page_table"].shape[1] * batch.page  # the declared maximum context
    for got, rows in zip(batch.run(stride, splits=256), want, strict=True):
        assert_same(got, rows, f"maximum context {batch.longest} for {longest}")


def test_unsplit_is_one_split_and_strides_differ() -> None:
    """One split whatever the stride, equal to a stride that covers the request; a smaller one gives other bits."""
    tokens = 3000 if GPU else 400
    request = stream(tokens, KV_HEADS, 4, 64, seed=5)
    for batch in (Batch([(request, tokens, 1)]), Batch([(request, tokens, tokens)])):
        unsplit = batch.run(256, splits=1)[0]
        assert_same(batch.run(4096)[0], unsplit, "a covering stride")
        assert not torch.equal(batch.run(256)[0], unsplit), "the splits of 256 tokens are not seen in any bit"


def test_declared_maximum_changes_nothing() -> None:
    """The most query tokens decides which kernel takes a request, never its bits."""
    tokens = 1000 if GPU else 300
    request = stream(tokens, KV_HEADS, 8, 128, seed=6)
    batch = Batch([(request, tokens, 1), (request, 290, 5)])
    want = batch.run(256)
    for max_q in (8, 9, 40, 200):
        for got, rows in zip(batch.run(256, max_q=max_q), want, strict=True):
            assert_same(got, rows, f"max_seqlen_q {max_q}")


def test_rows_without_keys_are_zero() -> None:
    """A padded graph's requests: a query token, no KV token; and queries before the first key."""
    request = stream(100, KV_HEADS, 4, 128, seed=7)
    for max_q in (5, 100):
        batch = Batch([(request, 90, 1), (request, 5, 5)])
        batch.arrays["seqused_k"][0] = 0
        batch.arrays["seqused_k"][1] = 2
        first, second = batch.run(256, max_q=max_q)
        assert torch.equal(first, torch.zeros_like(first)) and torch.equal(second[:3], torch.zeros_like(second[:3]))
        assert second[3:].abs().min() > 0 or second[3:].abs().sum() > 0


@pytest.mark.skipif(not GPU, reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("queries", (1, 100))
def test_graph_replays_with_other_contents(queries: int) -> None:
    request = stream(4000, KV_HEADS, 4, 128, seed=8)
    old = Batch([(request, 500, queries), (request, 900, queries), (request, 128, queries)])
    new = Batch([(request, 3900, queries), (request, 101, queries), (request, 2048, queries)])
    width = new.arrays["page_table"].shape[1]
    static = {name: array.clone() for name, array in new.arrays.items()}
    static["seqused_k"].copy_(old.arrays["seqused_k"])
    arguments: dict[str, Any] = {"max_seqlen_q": queries, "max_context": width * 16, "num_splits": 64,
                                 "split_stride": 512, "softmax_scale": None}
    out = torch.empty_like(static["q"])
    attention_split(**static, **arguments, out=out)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        attention_split(**static, **arguments, out=out)
    for batch in (new, old, new):
        for name, array in batch.arrays.items():
            if name == "page_table":
                static[name][:, : array.shape[1]].copy_(array)
            elif name in ("k_cache", "v_cache"):
                static[name][: len(array)].copy_(array)
            else:
                static[name].copy_(array)
        out.fill_(float("nan"))
        graph.replay()
        for got, want in zip(out.split(queries), batch.run(512), strict=True):
            assert_same(got, want, "a replayed graph")


@pytest.mark.skipif(not GPU, reason="too many rows for the interpreter")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_random_batches(dim: int, seed: int) -> None:
    """Fresh requests, strides, pages, orders, chunks, and declared maxima; about a thousand rows each."""
    draw = random.Random(1000 * dim + seed)
    tokens, stride, group = draw.randint(300, 3000), draw.choice((256, 512, 768, 1024, 4096)), draw.randint(1, 16)
    owners = [stream(tokens, KV_HEADS, group, dim, seed=draw.randrange(1 << 30)) for _ in range(2)]
    want = [whole(owner, stride, draw.choice(ANY_PAGE)) for owner in owners]
    for _ in range(3):
        chosen = []
        for _ in range(draw.randint(1, 40)):
            owner, used = draw.randrange(2), draw.randint(1, tokens)
            chosen.append((owner, used, min(used, draw.choice((0, 1, 1, 1, 2, 4, draw.randint(1, 60), 200)))))
        batch = Batch([(owners[owner], used, queries) for owner, used, queries in chosen], draw.choice(ANY_PAGE), seed)
        surplus = -(-batch.longest // stride) + draw.choice((0, 1, 9))
        got = batch.run(stride, splits=max(2, surplus), max_q=batch.longest_q + draw.choice((0, 0, 5, 100)))
        expected = torch.cat([want[owner][used - queries : used] for owner, used, queries in chosen])
        assert_same(torch.cat(got), expected, f"stride {stride}, (stream, tokens, queries) {chosen}")


@pytest.mark.skipif(not GPU, reason="the interpreter fetches all pages alike")
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_short_pages_of_a_slice_of_a_wider_cache(dim: int) -> None:
    """Gathered from rows that lie apart, and more than once: what a ring's slot held before must not show."""
    request = stream(2500, KV_HEADS, 4, dim, seed=dim)
    want = whole(request, 512)
    for page in (1, 2):
        for queries in (1, 3, 300):
            batch = Batch([(request, used, min(used, queries)) for used in (2500, 129, 2371, 1, 640)], page, seed=page)
            for name in ("k_cache", "v_cache"):
                wide = torch.full((*batch.arrays[name].shape[:3], 2 * dim), math.nan, device=DEVICE, dtype=DTYPE)
                wide[..., dim:] = batch.arrays[name]
                batch.arrays[name] = wide[..., dim:]
            for _ in range(3):
                got = torch.cat(batch.run(512))
                expected = torch.cat([want[used - count : used] for _, used, count in batch.requests])
                assert_same(got, expected, f"page {page}, {queries} queries")


@pytest.mark.skipif(not GPU, reason="streams need a GPU")
def test_streams_and_graphs_side_by_side() -> None:
    """Calls of several streams and replays of several graphs overlap and share nothing."""
    request = stream(3000, 8, 4, 128, seed=11)
    batch = Batch([(request, 3000 - 7 * i, 1) for i in range(16)])
    want = torch.cat(batch.run(256))
    arguments: dict[str, Any] = {**batch.arrays, "max_seqlen_q": 1, "max_context": 3000, "num_splits": 12,
                                 "split_stride": 256, "softmax_scale": None}
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = [torch.empty_like(want) for _ in range(8)]
    graphs = []
    for out in outs[4:]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):
                attention_split(**arguments, out=out)
        graphs.append(graph)
    for turn in range(20):
        for out in outs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        for at, lane in enumerate(streams):
            with torch.cuda.stream(lane):
                attention_split(**arguments, out=outs[at])
                graphs[at].replay()
                attention_split(**arguments, out=outs[at])
        torch.cuda.synchronize()
        for out in outs:
            assert_same(out, want, f"turn {turn}")


def strided_to_device(value: torch.Tensor) -> torch.Tensor:
    """On the device with its strides and offset, which ``Tensor.to`` drops."""
    return value._base.to(DEVICE).as_strided(value.shape, value.stride(), value.storage_offset()) if (
        value._base is not None) else value.to(DEVICE)


@pytest.mark.parametrize(("change", "message"), [
    ({"split_stride": 300}, "stride 300"),
    ({"split_stride": 128}, "stride 128"),
    ({"split_stride": 320}, "stride 320"),
    ({"split_stride": 32768}, "stride 32768"),
    ({"num_splits": 257}, "257 splits"),
    ({"num_splits": 2, "max_context": 600}, "do not cover"),
    ({"max_context": 10**6}, "do not hold"),
    ({"softmax_scale": 0.0}, "softmax scale"),
    ({"max_seqlen_q": 0}, "begin at 1"),
    ({"q": torch.zeros(1, 4, 80, dtype=DTYPE)}, "head dim 80"),
    ({"q": torch.zeros(1, 3, 128, dtype=DTYPE)}, "3 heads"),
    ({"q": torch.zeros(1, 4, 128, dtype=torch.float64)}, "float64"),
    ({"q": torch.zeros(1, 4, 256, dtype=DTYPE)[..., ::2]}, "not contiguous"),
    ({"q": torch.zeros(1, 4 * 132 + 4, dtype=DTYPE)[:, 4:].reshape(1, 4, 132)[..., 4:]}, "16 bytes"),
    ({"k_cache": torch.zeros(60, 24, 2, 128, dtype=DTYPE), "v_cache": torch.zeros(60, 24, 2, 128, dtype=DTYPE)},
     "page size 24"),
    ({"seqused_k": torch.zeros(1, dtype=torch.int64)}, "int32"),
    ({"seqused_k": torch.zeros(2, dtype=torch.int32)}, "one batch"),
    ({"out": torch.zeros(2, 4, 128, dtype=DTYPE)}, "q's shape"),
])
def test_what_the_kernels_do_not_take_is_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        **Batch([(stream(600, 2, 2, 128, seed=0), 600, 1)]).arrays, "max_seqlen_q": 1, "max_context": 512,
        "num_splits": 8, "split_stride": 256, "softmax_scale": None}
    moved = {name: strided_to_device(value) if isinstance(value, torch.Tensor) else value
             for name, value in change.items()}
    with pytest.raises(ValueError, match=message):
        attention_split(**(arguments | moved))

"""The paged KV cache and its index of prefixes."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from detent.engines.embedded.cache import Cache  # noqa: E402
from detent.engines.embedded.config import Config, Limits  # noqa: E402

CONFIG = Config("none", "llama", vocabulary=8, hidden=8, layers=2, heads=1, kv_heads=1, head_dim=2, intermediate=8,
                context=64)


def make(pages: int = 6, page: int = 4, salt: str = "a") -> Cache:
    return Cache(CONFIG, Limits(4, 16, 64, page, pages), torch.device("cpu"), torch.float32, salt)


def write(cache: Cache, tokens: list[int]) -> list[int]:
    """Pages with these tokens, published and still held; keys and values say which token stands where."""
    pages, parent = [], cache.root
    for start in range(0, len(tokens), cache.page):
        part = tokens[start:start + cache.page]
        page = cache.allocate()
        assert page is not None
        for side in cache.pages:
            side[:, page, :len(part)] = torch.tensor(part, dtype=torch.float32).view(1, -1, 1, 1)
        parent = cache.publish(page, parent, part)
        pages.append(page)
    return pages


def stored(cache: Cache, pages: list[int], length: int) -> list[int]:
    """The tokens whose keys and values are in pages."""
    keys, values = (side[:, pages].flatten(1, 2)[:, :length] for side in cache.pages)
    assert torch.equal(keys, values) and bool((keys == keys[:1, :, :, :1]).all())
    return [int(value) for value in keys[0, :, 0, 0]]


@pytest.mark.parametrize("length", range(12))
def test_a_hit_ends_at_any_token(length: int) -> None:
    cache = make()
    cache.release(write(cache, list(range(11))))
    wanted = [*range(length), *[99] * (12 - length)]
    pages, keys, found = cache.match(wanted)
    assert found == min(length, 11) and stored(cache, pages, found) == wanted[:found]
    assert len(keys) == found // 4 and len(pages) == -(-found // 4)


def test_whole_pages_are_shared_and_a_part_is_copied() -> None:
    cache = make()
    written = write(cache, list(range(8)))
    pages, _, length = cache.match([0, 1, 2, 3, 4, 5, 9])
    assert length == 6 and pages[0] == written[0] and pages[1] not in written
    cache.pages[0][:, pages[1], 2:] = 9.0  # what the second request adds
    assert [int(v) for v in cache.pages[0][0, written[1], :, 0, 0]] == [4, 5, 6, 7]


def test_the_longest_of_several_parts_is_taken() -> None:
    cache = make()
    cache.release(write(cache, [1, 2, 3, 4]))
    cache.release(write(cache, [1, 2, 7, 8]))
    pages, _, length = cache.match([1, 2, 7, 9])
    assert length == 3 and stored(cache, pages, 3) == [1, 2, 7]


def test_another_salt_finds_nothing() -> None:
    cache = make()
    cache.release(write(cache, list(range(8))))
    assert cache.match(list(range(8)))[2] == 8
    cache.flush("b")
    assert cache.match(list(range(8)))[2] == 0
    assert make(salt="a").root == make(salt="a").root != cache.root


def test_pages_in_use_outlive_a_flush() -> None:
    cache = make(pages=2)
    held = write(cache, list(range(8)))
    cache.flush()
    assert cache.available == 0 and cache.allocate() is None
    cache.release(held)
    assert cache.available == 2 and cache.match(list(range(8)))[2] == 0


def test_what_is_needed_longest_goes_last() -> None:
    cache = make(pages=3)
    cache.release(write(cache, list(range(12))))
    assert cache.allocate() is not None
    pages, _, length = cache.match(list(range(12)))
    assert length == 8 and len(pages) == 2  # the end was given up, the beginning is still there


def test_forgotten_pages_are_not_found() -> None:
    cache = make()
    cache.release(write(cache, list(range(8))), forget=True)
    assert cache.match(list(range(8)))[2] == 0 and cache.available == 6


def test_a_prefix_that_fills_the_pool_is_found_without_a_copy() -> None:
    cache = make(pages=2)
    cache.release(write(cache, list(range(8))))
    first, _, length = cache.match([0, 1, 2, 3, 4, 5, 6, 7])
    assert length == 8 and cache.available == 0
    cache.release(first)
    pages, _, length = cache.match([0, 1, 2, 3, 4, 9])
    assert (length, len(pages)) == (4, 1)  # no page is left to copy to: the part's own is held meanwhile


@pytest.mark.parametrize("seed", range(8))
def test_random_use_keeps_every_promise(seed: int) -> None:
    """Held pages are never given out or overwritten, and what is found is what was written."""
    chosen = random.Random(seed)
    cache = make(pages=12)
    held: list[tuple[list[int], list[int]]] = []
    for _ in range(400):
        if held and (chosen.random() < 0.45 or cache.available < 4):
            pages, tokens = held.pop(chosen.randrange(len(held)))
            assert stored(cache, pages, len(tokens)) == tokens
            cache.release(pages, forget=chosen.random() < 0.2)
        else:
            tokens = [chosen.randrange(2) for _ in range(chosen.randrange(1, 13))]
            pages, keys, length = cache.match(tokens)
            assert stored(cache, pages, length) == tokens[:length]
            parent = keys[-1] if keys else cache.root
            for place in range(len(keys), -(-len(tokens) // 4)):
                if place >= len(pages):
                    page = cache.allocate()
                    if page is None:
                        break
                    pages.append(page)
                part = tokens[place * 4:place * 4 + 4]
                for side in cache.pages:
                    side[:, pages[place], :len(part)] = torch.tensor(part, dtype=torch.float32).view(1, -1, 1, 1)
                parent = cache.publish(pages[place], parent, part)
            held.append((pages, tokens[:len(pages) * 4]))
        in_use = {page for pages, _ in held for page in pages}
        assert cache.available == 12 - len(in_use)
        if chosen.random() < 0.02:
            cache.flush(f"salt {chosen.random()}" if chosen.random() < 0.5 else None)


def test_what_is_not_finite_stays_with_its_request() -> None:
    """Another one masks what it has not written of a page, but 0 times NaN is NaN."""
    cache = make(pages=70)
    held = write(cache, list(range(270)))
    cache.pages[1][0, held[66], 1] = float("inf")
    cache.pages[0][1, held[2], 3] = float("nan")
    again, _, length = cache.match(list(range(12)))
    cache.release(held)
    assert length == 12 and bool(cache.pages[0][1, held[2], 3].isnan().all())  # still held by the second request
    cache.release(again)
    assert all(bool(torch.isfinite(side).all()) for side in cache.pages)
    assert cache.match(list(range(12)))[2] == 8 and cache.match(list(range(4)))[2] == 4

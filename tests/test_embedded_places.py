"""Where requests' pages go."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from detent.engines.embedded.cache import Cache  # noqa: E402
from detent.engines.embedded.config import Config, Limits  # noqa: E402
from detent.engines.embedded.places import Places  # noqa: E402
from detent.engines.embedded.scheduler import Scheduler, Sequence  # noqa: E402
from detent.engines.interface import Request  # noqa: E402

CONFIG = Config("none", "llama", vocabulary=8, hidden=8, layers=1, heads=1, kv_heads=1, head_dim=2, intermediate=8,
                context=512)


def begin(places: Places, taken: int, room: int) -> list[int]:
    """The first pages of a request that may come to need ``room``."""
    return grow(places, [], taken, room)


def grow(places: Places, pages: list[int], more: int, room: int) -> list[int]:
    for _ in range(more):
        page = places.take(pages[-1] if pages else None, room - len(pages))
        assert page is not None
        pages.append(page)
    return pages


def end(places: Places, pages: list[int]) -> None:
    for page in reversed(pages):
        places.give(page)
    places.settle()


def consecutive(pages: list[int]) -> bool:
    return pages == list(range(pages[0], pages[0] + len(pages)))


def test_requests_grow_beside_each_other_in_pages_that_follow_one_another() -> None:
    places = Places(100)
    requests = [begin(places, 2, room) for room in (17, 18, 19, 20)]  # of about one length
    for _ in range(15):
        for pages in requests:
            grow(places, pages, 1, 17)
    assert all(consecutive(pages) for pages in requests)
    assert len({after[0] - before[0] for before, after in zip(requests, requests[1:], strict=False)}) == 1


def test_what_ended_longest_ago_is_used_first() -> None:
    places = Places(12)
    first, second, third = (begin(places, 4, 4) for _ in range(3))
    for pages in (second, first, third):
        end(places, pages)
    assert [begin(places, 4, 4) for _ in range(3)] == [second, first, third]


def test_the_end_of_a_request_is_used_before_its_beginning() -> None:
    places = Places(4)
    end(places, begin(places, 4, 4))
    assert [places.take(None, 1) for _ in range(5)] == [3, 2, 1, 0, None]


def test_a_promise_costs_no_page() -> None:
    places = Places(8)
    own = begin(places, 1, 8)
    others = [places.take(None, 1) for _ in range(7)]
    assert sorted(others) == list(range(1, 8)) and places.free == 0 and places.take(own[-1], 7) is None
    end(places, others[:1])
    assert places.take(own[-1], 7) == others[0]


def test_other_pages_are_used_before_promised_ones() -> None:
    places = Places(8)
    own = begin(places, 1, 4)
    assert {places.take(None, 1) for _ in range(4)} == {4, 5, 6, 7}
    assert consecutive(grow(places, own, 3, 4))


def test_a_promise_ends_with_its_request() -> None:
    places = Places(8)
    end(places, begin(places, 2, 8))
    assert consecutive(begin(places, 8, 8))


def test_a_promise_outlives_another_request() -> None:
    places = Places(8)
    own = begin(places, 2, 4)
    other = begin(places, 1, 4)
    end(places, other)
    assert consecutive(grow(places, own, 2, 4))


def test_a_page_that_is_found_again_is_no_longer_promised() -> None:
    places = Places(4)
    own = begin(places, 2, 4)
    places.hold(2)  # by a request with a stored prefix
    assert places.take(own[-1], 2) == 3  # the only one there is
    end(places, [2])
    assert places.take(None, 1) == 2


@pytest.mark.parametrize("seed", range(10))
def test_random_use(seed: int) -> None:
    """Never a page twice, never none while there is one."""
    chosen = random.Random(seed)
    places, running, held = Places(60), [], set()
    for _ in range(600):
        pages = chosen.choice(running) if running and chosen.random() < 0.6 else []
        if pages and chosen.random() < 0.1:
            running.remove(pages)
            held -= set(pages)
            end(places, pages)
            continue
        page = places.take(pages[-1] if pages else None, chosen.randrange(1, 70))
        assert (page is None) == (len(held) == 60)
        if page is not None:
            assert page not in held
            held.add(page)
            pages.append(page)
            if len(pages) == 1:
                running.append(pages)
        assert places.free == 60 - len(held)


def test_the_engines_requests_lie_one_after_the_other() -> None:
    """Of four that begin together, and of one that begins where an earlier one ended."""
    limits = Limits(max_seqs=8, budget=256, context=512, page=16, pages=64)
    cache = Cache(CONFIG, limits, torch.device("cpu"), torch.float32, "a")
    scheduler = Scheduler(limits)

    def add(number: int) -> None:
        prompt = tuple(1000 * number + place for place in range(40))
        scheduler.waiting.append(Sequence(number, Request(prompt, 64), 0.0, 0))

    def step(times: int) -> None:
        for _ in range(times):
            for piece in scheduler.plan(cache, "t"):
                scheduler.advance(piece, cache)
                piece.sequence.tokens.append(0)

    for number in range(4):
        add(number)
    step(20)
    scheduler.finish(scheduler.running[1], cache)
    add(4)
    step(30)
    tables = [sequence.pages for sequence in scheduler.running]
    assert [len(pages) for pages in tables] == [6, 6, 6, 5] and all(map(consecutive, tables))
    assert [pages[0] for pages in tables[:3]] == [0, 14, 21] and tables[3][0] == 28


def test_what_is_promised_to_few_is_shared_with_more() -> None:
    """Eight requests to the end of a context promise the whole pool; eight more get its other halves."""
    places = Places(2048)
    requests = [begin(places, 2, 256) for _ in range(16)]
    for _ in range(100):
        for pages in requests:
            grow(places, pages, 1, 256)
    assert all(map(consecutive, requests))
    assert sorted(pages[0] for pages in requests) == list(range(0, 2048, 128))


def test_a_run_that_fits_is_promised_though_a_wider_one_does_not() -> None:
    places = Places(130)
    own = begin(places, 1, 130)
    other = begin(places, 2, 4)
    assert consecutive(grow(places, own, 40, 130)) and consecutive(other)

"""The embedded engine: batching, chunks, prefixes, pre-emption and tuples leave a request's bits alone."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from embedded_support import bits, engine, ops, prompt, request, serve  # noqa: E402

from detent.engines.embedded import engine as engines  # noqa: E402
from detent.engines.embedded import selfcheck  # noqa: E402
from detent.engines.embedded.config import LARGEST_SPLIT, Limits  # noqa: E402
from detent.engines.embedded.engine import DETENT, STOCK, Engine, Record, Refused  # noqa: E402
from detent.engines.embedded.model import load  # noqa: E402
from detent.engines.interface import Request, Sampling, Submission  # noqa: E402
from detent.kernels import embedded_attention, embedded_experts, embedded_norm  # noqa: E402
from detent.programs.attention_cpu import STRIDES  # noqa: E402
from detent.runtime.errors import DetentError  # noqa: E402

MODELS = ("tiny", "tiny-moe")


@pytest.mark.parametrize("name", MODELS)
def test_a_request_keeps_its_bits_in_any_company(name: str) -> None:
    served = engine(name)
    greedy, seeded = request(20, 8), request(33, 8, 1, temperature=0.8, top_p=0.9, seed=5)
    alone = [bits(serve(served, each)[0]) for each in (greedy, seeded)]
    assert len(alone[0][0]) == 8 and alone[0] != alone[1]
    chosen = random.Random(2)
    for _ in range(3):
        served.flush()
        batch = [request(chosen.randrange(1, 90), chosen.randrange(1, 10), salt, temperature=chosen.choice((0.0, 1.0)))
                 for salt in range(2, 2 + chosen.randrange(1, 6))]
        places = chosen.sample(range(len(batch) + 2), 2)
        for place, each in sorted(zip(places, (greedy, seeded), strict=True)):
            batch.insert(place, each)
        outputs = serve(served, *batch)
        assert [bits(outputs[batch.index(each)]) for each in (greedy, seeded)] == alone


@pytest.mark.parametrize("name", MODELS)
def test_chunks_and_decoding_and_prefixes_give_the_same_bits(name: str) -> None:
    whole = serve(engine(name, budget=256), request(150, 6))[0]
    assert whole.chunks == (150,) and whole.cached == 0
    pieces = serve(engine(name, budget=37), request(150, 6))[0]
    assert pieces.chunks == (37, 37, 37, 37, 2) and bits(pieces) == bits(whole)
    served = engine(name)
    serve(served, request(75, 1))  # 75 of the prompt's tokens, of which the last page has 11
    again = serve(served, request(150, 6))[0]
    assert again.cached == 75 and again.chunks == (64, 11) and bits(again) == bits(whole)
    decoded = serve(engine(name), Request((*prompt(150), *whole.tokens[:4]), 2))[0]
    assert bits(decoded) == (whole.tokens[4:], whole.logprobs[4:])


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    served = engine()
    first = serve(served, request(48, 4))[0]
    again = serve(served, request(48, 4))[0]
    assert again.cached == 47 and again.chunks == (1,) and bits(again) == bits(first)
    served.flush()
    assert serve(served, request(48, 4))[0].cached == 0


def test_evidence_is_of_the_step() -> None:
    served = engine()
    first, second = served.run([Submission(request(20, 6)), Submission(request(30, 3, 1), start=2)])
    assert [(s.batch, s.row, s.tokens, s.graph) for s in first.steps] == [
        (1, 0, 20, False), (1, 0, 1, False), (2, 0, 31, False), (2, 0, 2, False), (2, 0, 2, False), (1, 0, 1, False)]
    assert [(s.batch, s.row) for s in second.steps] == [(2, 1)] * 3
    assert first.steps[0].selections == ops().points_in_force()
    assert first.arrival <= first.times[0] <= first.times[-1] and len(first.times) == 6
    assert first.arrival < second.arrival


def test_no_step_is_larger_than_the_limits() -> None:
    served, seen = engine(budget=40, max_seqs=3), []
    served.record = seen.append
    outputs = serve(served, *(request(25 + 10 * i, 4, i) for i in range(5)))
    assert max(sum(record.counts) for record in seen) <= 40
    assert max(len(record.ids) for record in seen) == 3
    assert all(len(output.tokens) == 4 for output in outputs)
    served = engine(budget=512)
    assert [bits(serve(served, request(25 + 10 * i, 4, i))[0]) for i in range(5)] == [bits(o) for o in outputs]


def test_preemption_for_want_of_pages_changes_nothing() -> None:
    requests = [request(30, 20, salt, temperature=0.7, seed=salt) for salt in range(4)]
    scarce = serve(engine(pages=9), *requests)  # each begins with 2 pages and ends with 4
    assert sum(output.preemptions or 0 for output in scarce) > 0
    assert [bits(output) for output in scarce] == [bits(serve(engine(), each)[0]) for each in requests]


def test_preemption_on_demand_recomputes() -> None:
    served, seen = engine(), []
    plain = serve(served, request(20, 10))[0]
    served.flush()
    served.record = seen.append
    forced = served.run([Submission(request(20, 10), preempt=4), Submission(request(25, 10, 1))])[0]
    assert forced.preemptions == 1 and bits(forced) == bits(plain)
    assert forced.cached == 0 and forced.chunks == (20,)
    assert any(record.counts[record.ids.index(1)] == 24 for record in seen if 1 in record.ids)  # prompt and output


def test_a_step_may_be_shared_by_more_than_the_pool_holds() -> None:
    """Every request fits alone, no two fit together: they still all end."""
    outputs = serve(engine(pages=3), *(request(30, 18, salt) for salt in range(4)))
    assert all(len(output.tokens) == 18 for output in outputs)


def test_requests_end_at_stop_tokens_and_strings() -> None:
    served = engine()
    free = serve(served, request(20, 12))[0]
    token = free.tokens[5]
    where = free.tokens.index(token)
    stopped = serve(served, replace(request(20, 12), stop_tokens=(token,)))[0]
    assert stopped.finish == "stop" and stopped.tokens == free.tokens[:where + 1]
    text = served.model.tokenizer.decode
    letter = next(c for c in text(free.tokens) if c != "\ufffd")
    wanted = next(n for n in range(1, 13) if letter in text(free.tokens[:n]))
    stopped = serve(served, replace(request(20, 12), stop=("no such text", letter)))[0]
    assert stopped.finish == "stop" and stopped.tokens == free.tokens[:wanted]
    assert free.finish == "length"


BAD: dict[str, tuple[Request, str]] = {
    "empty": (Request((), 4), "has no prompt"),
    "long": (request(510, 4), "510 prompt tokens and asks for 4, which is more than the context of 512"),
    "none asked": (request(5, 0), "asks for 0 tokens"),
    "unknown id": (Request((1, 272), 4), "ids 272; ids go from 0 to 271"),
    "negative id": (Request((-1,), 4), "ids -1"),
    "hot": (request(temperature=-1.0), "temperature is -1.0"),
    "cold": (request(temperature=1e-40), "temperature is 1e-40; give 0 for greedy"),
    "too large": (request(temperature=10 ** 400), "temperature is 1000"),
    "no temperature": (request(temperature="x"), "has temperature 'x', which is no number"),
    "no top_p": (request(top_p=None), "has top_p None, which is no number"),
    "broken seed": (request(temperature=1.0, seed=1.5), "has seed 1.5, which is no integer"),
    "no seed": (request(temperature=1.0, seed="x"), "has seed 'x', which is no integer"),
    "broken top_k": (request(temperature=1.0, top_k=1.5), "has top_k 1.5, which is no integer"),
    "flag": (request(temperature=1.0, top_k=True), "has top_k True, which is no integer"),
    "broken count": (Request((1, 2), 2.5), "has max_tokens 2.5, which is no integer"),  # type: ignore[arg-type]
    "broken id": (Request((1.5, 2), 4), "has token id 1.5, which is no integer"),  # type: ignore[arg-type]
    "letter": (Request(("a",), 4), "has token id 'a', which is no integer"),  # type: ignore[arg-type]
    "text": (Request("abc", 4), "has a prompt 'abc', which is no list"),  # type: ignore[arg-type]
    "stop": (Request((1,), 4, stop=(3,)), "has stop string 3, which is no text"),  # type: ignore[arg-type]
    "bare stop": (Request((1,), 4, stop="end"), "has stop 'end', which is no list"),  # type: ignore[arg-type]
    "stop id": (Request((1,), 4, stop_tokens=("a",)), "stop token 'a', which is no"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_served_is_refused_alone(name: str) -> None:
    bad, why = BAD[name]
    bad = replace(bad, name="mine")
    served = engine()
    with pytest.raises(Refused, match=f"request 'mine'.*{why}"):
        serve(served, bad)
    outputs = served.run([Submission(bad), Submission(request(), start=3), Submission(request(salt=1))])
    assert [output.finish for output in outputs] == ["refused", "length", "length"]
    assert why in outputs[0].error and not served.busy


def test_the_widest_settings_are_served() -> None:
    served = engine()
    greedy = serve(served, request(20, 4))[0]
    assert serve(served, request(20, 4, temperature=1e-6, top_k=2 ** 70, top_p=0.9))[0].tokens == greedy.tokens
    assert len(serve(served, request(20, 4, temperature=1e6, seed=-2 ** 80))[0].tokens) == 4


@pytest.mark.parametrize("limits", [{"budget": 16, "max_seqs": 8}, {"max_seqs": 1, "budget": 33, "context": 320},
                                    {"context": 42}, {"context": 2, "page": 1}, {"budget": 1}, {"page": 64}])
def test_legal_limits_start(own_cache: None, limits: dict[str, int]) -> None:
    """Where a step has one request at most, torch's attention is all there is to select: stock alone has that."""
    loaded = load("tiny")
    chosen = Limits.of(loaded.config, **{"pages": 64, **limits})
    served = Engine.start(loaded, chosen, STOCK if chosen.max_seqs == 1 else DETENT)
    assert len(serve(served, Request((1,), 1))[0].tokens) == 1


def test_a_model_of_short_context_starts(own_cache: None) -> None:
    loaded = load("tiny")
    loaded.config = replace(loaded.config, context=32)
    served = Engine.start(loaded, Limits.of(loaded.config, pages=8))
    assert len(serve(served, request(20, 12))[0].tokens) == 12


def test_limits_that_no_step_can_keep_are_refused() -> None:
    config = engine().model.config
    assert Limits.of(config, budget=16).max_seqs == 16
    with pytest.raises(DetentError, match="budget of 16 tokens and max_seqs of 17"):
        Limits.of(config, budget=16, max_seqs=17)
    with pytest.raises(DetentError, match="context is 1; give at least 2"):
        Limits.of(config, context=1)


@pytest.mark.parametrize("limits, told", [
    ({"pages": 2.5}, "pages is 2.5; give a whole number, at least 1"),
    ({"budget": 2.5}, "budget is 2.5; give a whole"), ({"max_seqs": True}, "max_seqs is True; give a whole"),
    ({"context": "8"}, "context is '8'; give a whole number, at least 2"),
    ({"page": None}, "page is None; give a whole number, at least 1"),
    ({"budget": 0}, "budget is 0; give at least 1"), ({"pages": -1}, "pages is -1; give at least 1"),
    ({"max_seqs": 8, "budget": 4}, "budget of 4 tokens and max_seqs of 8"),
])
def test_limits_that_are_none(limits: dict[str, Any], told: str) -> None:
    with pytest.raises(DetentError, match=re.escape(told)):
        Limits.of(engine().model.config, **limits)
    with pytest.raises(DetentError, match=re.escape(told)):
        Limits(**{"context": 512, **limits})


@pytest.mark.parametrize("pages", [10 ** 9, 10 ** 18, 10 ** 400])
def test_a_pool_that_is_larger_than_the_memory(pages: int) -> None:
    with pytest.raises(DetentError, match="of 16 tokens needs .*MiB, and this machine has .*; start the engine with"):
        engine(pages=pages)


def test_a_pool_for_which_no_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(engines, "Cache", full)
    with pytest.raises(DetentError, match="the KV pool of 64 pages of 16 tokens needs 1 MiB, which are not free"):
        engine()


def test_pages_that_divide_no_split() -> None:
    """Of pages up to 1024 tokens, those that divide a stride of ``attention-cpu`` are the ones that pinned engines
    take."""
    legal = {page for page in range(1, 1025) if any(stride % page == 0 for stride in STRIDES)}
    assert legal == {page for page in range(1, 1025) if LARGEST_SPLIT % page == 0}
    loaded = load("tiny")
    for page in (3, 1024):
        limits = Limits.of(loaded.config, page=page, pages=8)
        with pytest.raises(DetentError, match=f"page is {page}, and .* 64 to 512 keys; give a page of 1, 2, 4, 8, 16, "
                                              "32, 64, 128, 256 or 512 tokens, or take the arm stock"):
            Engine.start(loaded, limits, DETENT)
    assert len(serve(Engine.start(loaded, limits, STOCK), request(5, 2))[0].tokens) == 2


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("most, budget", [(1, 1), (1, 2), (1, 5), (2, 2), (3, 7)])
def test_the_check_at_the_start_stays_within_the_limits(name: str, most: int, budget: int, own_cache: None) -> None:
    loaded = load(name)
    limits = Limits(most, budget, 64, 16, 8)
    small = serve(Engine.start(loaded, limits, DETENT), request(20, 4))[0]
    assert bits(small) == bits(serve(Engine.start(loaded, limits, DETENT), request(20, 4), request(9, 9, 1))[0])


@pytest.mark.parametrize("most, budget, rows", [(1, 2, 2), (2, 2, 2), (1, 7, 7), (3, 7, 7)])
@pytest.mark.parametrize("module, kernel", [(embedded_attention, "attention"), (embedded_norm, "rms_norm"),
                                            (embedded_experts, "experts")])
def test_the_check_at_the_start_tries_what_the_limits_let_occur(
        module: Any, kernel: str, most: int, budget: int, rows: int, own_cache: None,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose bits are others for as many rows as the largest step has."""
    right = getattr(module, kernel)
    monkeypatch.setattr(module, kernel, lambda x, *rest: right(x, *rest) * (1 + (len(x) == rows) * 2 ** -20))
    with pytest.raises(selfcheck.NotInvariant):
        Engine.start(load("tiny-moe"), Limits(most, budget, 64, 16, 8), DETENT)


def test_a_pool_that_is_too_small_for_one_request_refuses_it() -> None:
    assert len(serve(engine(pages=3), request(40, 9))[0].tokens) == 9  # 48 tokens have keys and values
    with pytest.raises(Refused, match="needs 4 KV pages of 16 tokens, the pool has 3"):
        serve(engine(pages=3), request(40, 10))


def test_requests_that_were_there_before_keep_their_outputs() -> None:
    served = engine()
    number = served.add(request(20, 2), arrival=1.5)
    serve(served, request(10, 6, 1))
    (found, output), = served.step()
    assert found == number and output.arrival == 1.5 and not served.busy
    assert bits(output) == bits(serve(engine(), request(20, 2))[0])


def test_unseeded_draws_differ() -> None:
    served = engine()
    assert len({bits(serve(served, request(temperature=2.0))[0]) for _ in range(4)}) > 1


def test_a_switch_drains_and_flushes_and_mixes_nothing() -> None:
    served, seen = engine(operations=ops("tuple a", stride=64), max_seqs=3), []
    served.record = seen.append
    before = [served.add(request(30, 12, salt)) for salt in range(5)]
    for _ in range(3):
        served.step()
    begun = {sequence.id for sequence in served.scheduler if sequence.hash}
    assert begun == set(before[:3])
    served.scheduler.preempt(served.scheduler.running[0], served.cache)  # it began: it ends under the same tuple
    served.switch(ops("tuple b", stride=128))
    assert not served.scheduler.running and [s.id for s in served.scheduler.waiting] == before[3:]
    after = served.add(request(30, 12, 0))
    ended: dict[int, Any] = {}
    while served.busy:
        ended.update(served.step())
    hashes: dict[int, set[str]] = {}
    for record in seen:
        for number in record.ids:
            hashes.setdefault(number, set()).add(record.hash)
        assert record.points["attention-cpu.split_stride"] == {"tuple a": 64, "tuple b": 128}[record.hash]
    assert hashes == {number: {"tuple a" if number in begun else "tuple b"} for number in (*before, after)}
    assert ended[after].cached == 0  # the same prompt under the first tuple is not read
    for number, salt in ((before[0], 0), (before[4], 4), (after, 0)):
        selected = ops(*(("tuple a", 64) if number in begun else ("tuple b", 128)))
        assert bits(ended[number]) == bits(serve(engine(operations=selected), request(30, 12, salt))[0])


def test_the_record_tells_what_a_step_was() -> None:
    served, seen = engine(), []
    served.record = seen.append
    serve(served, request(20, 2), request(10, 2, 1))
    assert seen == [Record("tuple a", (0, 1), (20, 10), (20, 10), ops().points_in_force()),
                    Record("tuple a", (0, 1), (1, 1), (21, 11), ops().points_in_force())]


@pytest.mark.parametrize("seed", range(2))
def test_random_loads_keep_every_bit(seed: int) -> None:
    """Arrivals, lengths, shared prefixes, pre-emptions and settings at random, in a pool that is often too small."""
    chosen = random.Random(seed)
    served = engine(budget=chosen.choice((16, 48, 64)), max_seqs=chosen.choice((2, 5)), pages=9)
    submissions = []
    for _ in range(8):
        sampling = Sampling(chosen.choice((0.0, 0.9)), chosen.choice((1.0, 0.8)), chosen.choice((0, 20)),
                            chosen.randrange(3))
        submissions.append(Submission(Request(prompt(chosen.randrange(1, 80), chosen.randrange(2)),
                                              chosen.randrange(1, 12), sampling),
                                      chosen.randrange(4), chosen.choice((None, None, 2))))
    outputs = served.run(submissions)
    assert any(output.preemptions for output in outputs) and any(output.cached for output in outputs)
    plain = engine()
    for submission, output in zip(submissions, outputs, strict=True):
        plain.flush()
        assert bits(output) == bits(serve(plain, submission.request)[0])


def test_no_request_is_handed_anothers_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel reads and masks is the request's own too: 0 times what is not finite is not 0."""
    served = engine("tiny", page=16, pages=40)
    attention, rows = served.ops.attention, []

    def seen(q: Any, keys: Any, values: Any, batch: Any) -> Any:
        rows.extend((table, -(-length // batch.page)) for table, length in zip(batch.tables.tolist(), batch.lengths,
                                                                               strict=True))
        return attention(q, keys, values, batch)

    monkeypatch.setattr(served.ops, "attention", seen)
    serve(served, request(60, 20, salt=1), request(20, 20, salt=2), request(3, 20, salt=3))
    assert any(len(table) > used for table, used in rows)
    assert all(table[used:] == [table[used - 1]] * (len(table) - used) for table, used in rows)

"""What was not shown to have happened is not exercised: engines that only seem to do what a cell is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from battery_fake import Fake, View

from detent.battery import Settings, evidence, verify
from detent.battery.report import CHANGED, NOT_APPLICABLE, NOT_EXERCISED, SAME, Report, Result
from detent.battery.runner import Runner, cells_of
from detent.battery.scenario import ABSENT, SEEN, UNTOLD, Scenario, Served
from detent.battery.wording import headline
from detent.battery.workload import Sizes, Workload
from detent.engines.interface import Output, Request, Sampling, Step, Submission, Unsupported

SMALL: dict[str, Any] = {"max_seqs": 70, "captures": (), "boundaries": ()}


class Changing(Fake):
    """An engine that serves other requests than it was given."""

    def change(self, sampling: Sampling) -> Sampling:
        return sampling

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        return super().run([replace(s, request=replace(s.request, sampling=self.change(s.request.sampling)))
                            for s in submissions])


class Serial(Fake):
    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        return [output for s in submissions for output in Fake.run(self, [replace(s, start=0)])]


def some(fake: Fake, *kinds: str) -> dict[str, Result]:
    """Results of the extended cells of these kinds."""
    work = Workload(fake.traits, Sizes.of(fake.traits), 0)
    with Runner(fake) as runner:
        return {cell.name: runner.run(cell) for cell in cells_of(work, Settings(sets=("extended",)))
                if cell.kind in kinds}


def by_verdict(results: dict[str, Result], verdict: str) -> set[str]:
    return {name for name, result in results.items() if result.verdict == verdict}


# ---- sampling ------------------------------------------------------------------------------------------------------

BESIDE_TOP_P = {"greedy-beside-top-p", "seeded-beside-top-p"}
IGNORED = {
    "temperature": (lambda s: Sampling(), None),
    "seed": (lambda s: replace(s, seed=None if s.seed is None else 5), {
        "greedy-beside-unseeded"}),
    "top_p": (lambda s: replace(s, top_p=1.0), BESIDE_TOP_P | {"top-p-beside-mixed"}),
    "top_k": (lambda s: replace(s, top_k=0), {"top-k-beside-mixed"}),
}


@pytest.mark.parametrize("name", IGNORED)
def test_an_engine_that_ignores_a_parameter_exercises_no_cell_about_it(name: str) -> None:
    change, names = IGNORED[name]

    class Ignoring(Changing):
        def change(self, sampling: Sampling) -> Sampling:
            return change(sampling)  # type: ignore[no-untyped-call, no-any-return]

    results = some(Ignoring(**SMALL), "sampling", "prefilled", "pre-emption")
    plain = {"prefilled-1", "prefilled-8", "prefilled-15", "preempted", "preempted-neighbour", "preempted-before"}
    assert not by_verdict(results, CHANGED)
    if name in ("temperature", "seed"):
        assert by_verdict(results, SAME) == plain | (names or set())
    else:
        assert by_verdict(results, NOT_EXERCISED) == names
    assert all("nothing shows that it was heeded" in results[each].reason
               for each in by_verdict(results, NOT_EXERCISED))


def test_seeded_neighbours_whose_tokens_do_not_repeat_are_not_seeded() -> None:
    class Fresh(Fake):
        """It draws anew for every request but the compared one."""

        def run(self, submissions: Sequence[Submission]) -> list[Output]:
            return super().run([s if s.request.name.startswith("subject") else replace(s, request=replace(
                s.request, sampling=replace(s.request.sampling, seed=None))) for s in submissions])

    results = some(Fresh(**SMALL), "sampling")
    assert by_verdict(results, NOT_EXERCISED) == {
        "greedy-beside-seeded", "greedy-beside-top-p", "seeded-beside-seeded", "seeded-beside-top-p",
        "top-p-beside-mixed", "top-k-beside-mixed"}
    assert results["greedy-beside-seeded"].reason == "a seeded neighbour has other tokens when it is served again"


def test_what_was_seen_of_sampling_is_told_and_sought_only_where_bits_are_the_same() -> None:
    clean, faulty = Fake(**SMALL), Fake(lambda v: int(len(v.batch) > 1), **SMALL)
    assert some(clean, "sampling")["seeded-beside-top-p"].reason.endswith(
        "; other tokens without temperature, with another seed, without top-p")
    assert set(r.verdict for r in some(faulty, "sampling").values()) == {CHANGED}
    assert faulty.runs < clean.runs


# ---- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [("paper",), ("strong",), ("extended",), ("all",), ()])
def test_a_battery_without_a_batch_ends_with_2(chosen: tuple[str, ...]) -> None:
    settings = Settings(sets=chosen, random=0 if chosen else 8)
    report = verify(Serial(**SMALL), settings)
    sets = ("paper", "strong", "extended") if chosen == ("all",) else chosen or ("random",)
    assert report.exit_code == 2 and report.without_batch == sets and not any(
        r.verdict == CHANGED for r in report.results)
    assert headline(report).endswith(f"; no batch of several requests was exercised in: {', '.join(sets)}")
    assert report.as_json()["without_batch"] == list(sets)
    assert verify(Fake(**SMALL), settings).exit_code == 0


def test_each_set_needs_a_batch_of_its_own() -> None:
    class Small(Serial):
        """Two together, and no more."""

        def run(self, submissions: Sequence[Submission]) -> list[Output]:
            return (Fake if len(submissions) < 3 else Serial).run(self, submissions)

    one = verify(Small(**SMALL), Settings(sets=("paper", "strong")))
    assert one.without_batch == () and one.exit_code == 0
    other = Report(one.traits, one.sizes, 0, "", tuple(
        r for r in one.results if r.group == "paper" or not r.name.startswith("strong-1-")))
    assert other.without_batch == ("strong",) and other.exit_code == 2


def test_a_serial_engine_exercises_nothing_that_needs_company() -> None:
    results = some(Serial(**SMALL), "stop string", "pre-emption", "restart", "neighbour length", "sampling")
    assert {"stop-string-beside", "preempted-neighbour", "restart-batch"} <= by_verdict(results, NOT_EXERCISED)
    assert by_verdict(results, SAME) == {"stop-string-before", "preempted", "preempted-seeded", "preempted-before",
                                         "restart-alone"}
    rerun = {r.name: r for r in verify(Serial(), Settings()).results}["rerun-batch"]
    assert (rerun.verdict, rerun.reason) == (NOT_EXERCISED, "served again, 1 in a step: never in a batch")


# ---- one request's evidence is not another's -----------------------------------------------------------------------


def served(*outputs: Output, subjects: tuple[int, ...] = (0,), stop: int | None = None,
           before: tuple[Output, ...] = ()) -> Served:
    submissions = [Submission(Request((7,) * 9, 4, stop=("x",) if place == stop else ())) for place in
                   range(len(outputs))]
    first = (tuple(Submission(Request((8,), 1)) for _ in before),) if before else ()
    return Served(Scenario(tuple(submissions), subjects, first), outputs, (before,) if before else ())


def told(preemptions: int | None = 0, finish: str = "length", chunks: tuple[int, ...] | None = None,
         cached: int | None = None, steps: Sequence[tuple[int, int | None]] = ()) -> Output:
    return Output((1,), (b"",), tuple(Step(batch=b, tokens=t) for b, t in steps), cached, chunks, preemptions, finish)


def test_a_pre_emption_is_the_requests_own_and_the_references_has_none() -> None:
    none, mine, other = served(told(), told()), served(told(1), told()), served(told(), told(1))
    request, neighbour, before = (evidence.preempted(whose) for whose in ("the request", "a neighbour", "before"))
    assert [judge(none, mine).state for judge in (request, neighbour, before)] == [SEEN, ABSENT, ABSENT]
    assert [judge(none, other).state for judge in (request, neighbour, before)] == [ABSENT, SEEN, ABSENT]
    assert before(none, served(told(), told(), before=(told(2),))).state == SEEN
    assert request(other, served(told(5), told())).state == ABSENT
    assert request(served(told(), told(), before=(told(1),)), mine).state == ABSENT
    assert request(none, mine).text == "the request pre-empted 1 times, reference 0"
    assert request(none, served(told(None), told())).state == UNTOLD


def test_a_stop_is_that_of_the_request_that_was_given_the_string() -> None:
    judge, none = evidence.stopped(), served(told(), told())
    assert judge(none, served(told(), told(finish="stop"), stop=1)).state == SEEN
    assert judge(none, served(told(finish="stop"), told(), stop=1)).state == ABSENT
    assert judge(served(told(finish="stop"), told()), served(told(), told(finish="stop"), stop=1)).state == ABSENT
    assert judge(none, served(told(), told(finish="stop"))).text == "the neighbour said nothing printable to stop at"


def test_a_neighbours_length_must_be_seen() -> None:
    def pair(was: Output, now: Output, steps: tuple[list[tuple[int, int | None]], ...]) -> tuple[Served, Served]:
        return served(told(steps=steps[0]), was), served(told(steps=steps[1]), now)

    judge, steps = evidence.neighbour_length, [(2, 24), (2, 2)]
    assert judge(*pair(told(chunks=(15,)), told(chunks=(9, 7)), (steps, steps))).state == SEEN
    assert judge(*pair(told(chunks=(15,)), told(chunks=(8, 7)), (steps, [(2, 30), (2, 2)]))).state == ABSENT
    assert judge(*pair(told(chunks=(8,), cached=8), told(chunks=(8,), cached=16), (steps, steps))).state == SEEN
    assert judge(*pair(told(), told(), (steps, [(2, 25), (2, 2)]))).state == SEEN
    assert judge(*pair(told(), told(), (steps, [(1, 25), (2, 2)]))).state == ABSENT
    assert judge(*pair(told(), told(), (steps, steps))).state == ABSENT
    assert judge(*pair(told(), told(), ([(2, None)], [(2, None)]))).text == (
        "the target does not tell the neighbour's chunks or tokens of a step")


@pytest.mark.parametrize(("hidden", "verdict"), [
    ({"chunks"}, SAME), ({"tokens"}, SAME), ({"chunks", "tokens"}, NOT_EXERCISED), ({"batch"}, NOT_EXERCISED)])
def test_a_neighbours_length_is_read_from_what_is_told(hidden: set[str], verdict: str) -> None:
    results = some(Fake(hidden=frozenset(hidden), **SMALL), "neighbour length")
    assert {r.verdict for r in results.values()} == {verdict} and len(results) == 3


def test_an_engine_that_cuts_long_prompts_has_no_longer_neighbour() -> None:
    class Cutting(Fake):
        def run(self, submissions: Sequence[Submission]) -> list[Output]:
            return super().run([replace(s, request=replace(s.request, prompt=s.request.prompt[:47]))
                                for s in submissions])

    results = some(Cutting(**SMALL), "neighbour length")
    assert by_verdict(results, NOT_EXERCISED) == set(results)


# ---- what the target lacks -----------------------------------------------------------------------------------------


class Mute(Fake):
    """It cannot tell the text of ids; ``texts``: but sends the text along."""

    texts = False

    def decode(self, tokens: Sequence[int]) -> str:
        raise Unsupported("no text")

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        plain, self.decode = self.decode, super().decode  # type: ignore[method-assign]
        try:
            outputs = super().run(submissions)
        finally:
            self.decode = plain  # type: ignore[method-assign]
        return [replace(o, text=Fake.decode(self, o.tokens)) for o in outputs] if self.texts else outputs


def test_stop_strings_are_cut_from_the_text_that_came_along() -> None:
    mute, talking = Mute(**SMALL), Mute(**SMALL)
    talking.texts = True
    assert {(r.verdict, r.reason) for r in some(mute, "stop string").values()} == {(NOT_APPLICABLE, "no text")}
    assert {r.verdict for r in some(talking, "stop string").values()} == {SAME}


def test_what_the_target_cannot_be_asked_does_not_apply() -> None:
    class Plain(Fake):
        def run(self, submissions: Sequence[Submission]) -> list[Output]:
            return [replace(made, tokens=(), logprobs=(), finish="unsupported", error="no top-k here")
                    if s.request.sampling.top_k else made
                    for s, made in zip(submissions, super().run(submissions), strict=True)]

    results = some(Plain(**SMALL), "sampling")
    assert by_verdict(results, NOT_APPLICABLE) == {"top-k-beside-mixed"}
    assert results["top-k-beside-mixed"].reason.endswith("no top-k here")
    assert by_verdict(results, SAME) == set(results) - {"top-k-beside-mixed"}


# ---- random batches ------------------------------------------------------------------------------------------------


def sampled(view: View) -> bool:
    return view.mine.request.sampling.temperature > 0


@pytest.mark.parametrize("fault", [
    lambda v: int(v.mine.preemptions > 0 and len(v.batch) > 0 and v.mine.request.name.startswith("subject")),
    lambda v: int(sampled(v) and v.mine.request.sampling.top_p < 1 and v.row > 0),
    lambda v: int(sampled(v) and v.mine.request.sampling.top_k > 0 and v.row > 0),
])
def test_random_batches_pre_empt_and_sample_the_compared_request(fault: Any) -> None:
    report = verify(Fake(fault, **SMALL), Settings(sets=(), random=60))
    assert 0 < sum(r.verdict == CHANGED for r in report.results) < 60

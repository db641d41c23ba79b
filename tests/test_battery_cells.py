"""Each cell finds the fault it is for, and no cell finds one where there is none."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from battery_fake import TRAITS, Fake, Fault, View

from detent.battery import Settings, runner, verify
from detent.battery.report import CHANGED, NOT_APPLICABLE, NOT_EXERCISED, SAME, Result
from detent.battery.runner import cells_of
from detent.battery.scenario import Cell
from detent.battery.workload import COMPARED, Sizes, Workload

ALL = Settings(sets=("all",))


def run(fake: Fake, settings: Settings = ALL) -> dict[str, Result]:
    return {result.name: result for result in verify(fake, settings).results}


def changed(results: dict[str, Result]) -> set[str]:
    return {name for name, result in results.items() if result.verdict == CHANGED}


def kinds(results: dict[str, Result]) -> set[str]:
    return {results[name].kind for name in changed(results)}


def test_the_counts_are_the_papers() -> None:
    work = Workload(TRAITS, Sizes.of(TRAITS), 0)
    paper = cells_of(work, Settings())
    assert Counter(cell.kind for cell in paper) == {"rerun": 2, "co-batch": 14, "row": 4, "prefix": 6}
    assert len(cells_of(work, Settings(sets=("strong",)))) == 9
    every = cells_of(work, ALL)
    assert len({cell.name for cell in every}) == len(every)
    assert [c.name for c in cells_of(work, Settings(sets=("paper", "all", "strong")))] == [c.name for c in every]
    (lengths,) = {cell.plan(None)[0].batch[0].request.max_tokens  # type: ignore[arg-type]
                  for cell in paper if cell.kind == "prefix"}
    assert lengths == COMPARED == 16


def test_an_invariant_engine_changes_nothing_and_every_cell_that_applies_is_exercised() -> None:
    results = run(Fake(), replace(ALL, random=25))
    assert {r.verdict for r in results.values()} == {SAME, NOT_APPLICABLE}
    left = {name for name, r in results.items() if r.verdict == NOT_APPLICABLE}
    assert left == {"short-prefix-half", "short-prefix-whole", "prefix-1-token", "prefix-page-minus-1"}


def test_pages_of_one_token_bring_all_26_cells() -> None:
    results = run(Fake(page=1), Settings())
    assert {r.verdict for r in results.values()} == {SAME} and len(results) == 26


def prompts(view: View) -> list[int]:
    return [len(each.request.prompt) for each in view.others]


SMALL = {"max_seqs": 70, "captures": (1, 8, 32)}  # batches above 70 take most of the time
# Each fault, the cells that must find it, and the only kinds of cells that may.
FAULTS: dict[str, tuple[Fault, set[str], set[str] | None]] = {
    "two in a batch": (lambda v: int(len(v.batch) == 2), {"short-beside-1-short", "strong-1-long-last"}, None),
    "more than 32 in a batch": (lambda v: int(len(v.batch) > 32),
                                {"strong-32-short-first", "strong-32-long-last", "strong-32-mixed-last"}, None),
    "row": (lambda v: int(v.row > 0 and len(v.batch) == 4), {"row-last-of-4-short"}, None),
    "exactly 45": (lambda v: int(len(v.batch) == 45), {"concurrency-45"}, {"concurrency"}),
    "a neighbour's length": (lambda v: sum(prompts(v)) % 2 if len(v.batch) == 2 and v.mine.index else 0,
                             {"neighbour-1-longer"}, None),
    "24 tokens in a step": (lambda v: int(v.tokens == 24), {"tokens-24", "decode-24"}, None),
    "a cached page": (lambda v: int(v.mine.cached == 16),
                      {"prefix-page", "prefix-one-page", "prefix-page-plus-1"}, {"prefix"}),
    "a prompt all cached": (lambda v: int(v.mine.cached == len(v.mine.request.prompt) - 16 == 32),
                            {"prefix-whole-pages"}, {"prefix"}),
    "pages that decoding wrote": (lambda v: int(v.mine.from_decode), {"prefix-decoded"}, {"prefix"}),
    "chunks": (lambda v: int(len(v.mine.chunks) == 3), {"chunks-short-head"}, {"chunks"}),
    "copies of a prompt": (
        lambda v: int(sum(o.request.prompt == v.mine.request.prompt for o in v.others) == 2 and v.row == 1),
        {"same-prompt-thrice"}, {"same prompt"}),
    "top-p in the batch": (lambda v: int(any(o.request.sampling.top_p < 1 for o in v.batch)),
                           {"greedy-beside-top-p", "seeded-beside-top-p"}, {"sampling"}),
    "greedy beside seeded": (
        lambda v: int(v.mine.request.sampling.temperature > 0
                      and any(o.request.sampling.temperature == 0 for o in v.others)),
        {"seeded-beside-greedy"}, {"sampling"}),
    "a stop string once": (lambda v: v.engine.stops & 1, {"stop-string-before", "stop-string-beside"},
                           {"stop string"}),
    "pre-emption": (lambda v: int(v.mine.preemptions > 0), {"preempted"}, {"pre-emption"}),
    "noise that changes on pre-emption": (
        lambda v: int(v.mine.preemptions > 0 and v.mine.request.sampling.temperature > 0), {"preempted-seeded"},
        {"pre-emption"}),
    "noise counted from the first output token": (
        lambda v: v.mine.index if v.mine.request.sampling.temperature > 0 else 0,
        {"prefilled-1-seeded", "prefilled-8-seeded", "prefilled-15-seeded"}, {"prefilled"}),
    "a top-p request beside others": (
        lambda v: int(v.mine.request.sampling.top_p < 1 and any(o.request.sampling.top_p == 1 for o in v.others)),
        {"top-p-beside-mixed"}, {"sampling"}),
    "a top-k request beside others": (
        lambda v: int(v.mine.request.sampling.top_k > 0 and any(o.request.sampling.top_k == 0 for o in v.others)),
        {"top-k-beside-mixed"}, {"sampling"}),
    "another's pre-emption": (lambda v: int(any(o.preemptions for o in v.others)), {"preempted-neighbour"},
                              {"pre-emption"}),
    "the first output token": (lambda v: int(v.mine.index == 0), {"prefilled-1", "prefilled-8", "prefilled-15"},
                               {"prefilled"}),
    "beyond the graphs": (lambda v: int(not v.graph and v.mine.index > 0 and v.mine.length < 60),
                          {"graph-left-by-prefill", "graph-left-by-batch", "tokens-33", "decode-33"}, None),
    "a new process": (lambda v: int(v.engine.restarted), {"restart-alone", "restart-batch"}, {"restart"}),
    "late tokens": (lambda v: int(v.mine.index > 500 and len(v.batch) > 1), {"output-1024"}, {"long output"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    fault, finders, only = FAULTS[name]
    results = run(Fake(fault, **SMALL))
    assert finders <= changed(results), results
    if only is not None:
        assert kinds(results) <= only


def test_a_fault_above_the_usual_maximum_is_found() -> None:
    assert changed(run(Fake(lambda v: int(len(v.batch) > 256)))) == {"concurrency-257"}


def test_a_pre_emption_leaves_its_mark_on_the_next_batch() -> None:
    """The mark goes away with the next reference, as a stale buffer's would."""
    results = run(Fake(lambda v: int(v.engine.preempted % 2 == 1 and len(v.batch) == 1), **SMALL))
    assert "preempted-before" in changed(results)


def test_cells_that_the_engine_cannot_have_do_not_apply() -> None:
    results = run(Fake(max_seqs=8, captures=(), boundaries=(), can_preempt=False, context=1000))
    reasons = {name: result.reason for name, result in results.items() if result.verdict == NOT_APPLICABLE}
    assert reasons["strong-32-short-first"] == "the target serves at most 8 requests together"
    assert reasons["concurrency-43"] == reasons["strong-32-short-first"]
    assert reasons["graph-left-by-prefill"] == "the target has no captured graphs"
    assert reasons["preempted"] == "the target cannot be asked to pre-empt"
    assert reasons["output-1024"] == "12 + 1024 tokens are longer than a context of 1000"
    assert not any(name.startswith(("tokens-", "decode-")) for name in results)
    assert {r.verdict for r in results.values()} == {SAME, NOT_APPLICABLE}


@pytest.mark.parametrize(("hidden", "untold"), [("row", "row"), ("cached", "prefix"), ("chunks", "chunks"),
                                                ("graph", "graph"), ("preemptions", "pre-emption")])
def test_a_cell_without_evidence_is_not_exercised(hidden: str, untold: str) -> None:
    results = run(Fake(hidden=frozenset({hidden}), **SMALL), Settings(sets=("paper", "extended")))
    without = {r.kind for r in results.values() if r.verdict == NOT_EXERCISED}
    assert without == ({untold, "prefilled"} if hidden == "cached" else {untold})
    assert not changed(results)


def test_a_change_without_evidence_is_still_a_change() -> None:
    results = run(Fake(lambda v: int(len(v.batch) > 1), hidden=frozenset({"batch"})), Settings())
    assert "short-beside-1-short" in changed(results)
    assert results["short-beside-1-short"].reason == "the perturbation was not seen: the target does not tell the batch"


def test_an_engine_that_serves_one_after_another_is_not_exercised() -> None:
    class Serial(Fake):
        def run(self, submissions):  # type: ignore[no-untyped-def]
            return [output for s in submissions for output in super(Serial, self).run([s])]

    results = run(Serial(), Settings(sets=("strong",)))
    assert {r.verdict for r in results.values()} == {NOT_EXERCISED}
    assert results["strong-8-short-middle"].reason == "1 requests in a step, reference 1; 9 are needed"


@pytest.mark.parametrize("budget", [64, 300, 4096, None])
@pytest.mark.parametrize("page", [1, 16, 64, None])
def test_the_perturbations_happen_at_other_limits(budget: int | None, page: int | None) -> None:
    fake = Fake(budget=budget, page=page)
    results = run(fake, Settings(sets=("paper", "strong"), random=10))
    missed = [name for name, result in results.items() if result.verdict not in (SAME, NOT_APPLICABLE)]
    assert not missed, [results[name] for name in missed]


@pytest.mark.parametrize("context", [256, 700])
@pytest.mark.parametrize("budget", [32, 2048])
def test_requests_fit_a_short_context(context: int, budget: int) -> None:
    """The engine asserts it of every request."""
    settings = replace(ALL, random=10)
    results = run(Fake(context=context, budget=budget, **SMALL), settings)
    assert not changed(results) and sum(r.verdict == SAME for r in results.values()) > 60


def test_random_batches_are_the_same_for_a_seed_and_grow_in_number() -> None:
    work = Workload(TRAITS, Sizes.of(TRAITS), 3)
    few, many, other = (cells_of(work, Settings(sets=(), random=n, seed=s)) for n, s in ((5, 3), (9, 3), (5, 4)))
    assert [c.plan(None) for c in few] == [c.plan(None) for c in many[:5]]  # type: ignore[arg-type]
    assert [c.what for c in few] != [c.what for c in other]


def test_a_random_batch_is_made_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = runner.random_cell

    def watched(work: Workload, number: int, seed: int) -> Cell:
        made.append(number)
        return make(work, number, seed)

    def begins(number: int, count: int, name: str) -> None:
        assert (count, name) == (10_000, f"random-{number:04}") and made == list(range(1, number))
        if number == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(runner, "random_cell", watched)
    with pytest.raises(KeyboardInterrupt):
        runner.verify(Fake(), Settings(sets=(), random=10_000), begins)


def test_random_batches_find_a_fault() -> None:
    results = run(Fake(lambda v: int(5 < len(v.batch) < 9 and v.row == 3)), Settings(sets=(), random=60))
    assert 0 < len(changed(results)) < 60


def test_prompts_hold_no_special_ids_and_fit_any_vocabulary() -> None:
    traits = replace(TRAITS, vocabulary=7, special=(0, 2, 6))
    work = Workload(traits, Sizes.of(traits), 0)
    assert set(work.prompts.ids("x", 500)) == {1, 3, 4, 5}
    assert work.prompts.ids("x", 40) != work.prompts.ids("y", 40)


def test_the_page_lists_the_cells(root: Path) -> None:
    """Names that hold one of the target's own numbers stand there with N."""
    tables = [line for line in (root / "docs" / "verify.md").read_text(encoding="utf-8").splitlines()
              if line.startswith("| ") and line.count("|") == 6]
    listed = {(line.split("|")[1].strip(), name) for line in tables for name in re.findall(r"`([^`]+)`", line)}
    work = Workload(TRAITS, Sizes.of(TRAITS), 0)
    made = {(cell.kind, re.sub(r"^(tokens|decode)-\d+$", r"\1-N", cell.name)) for cell in cells_of(work, ALL)}
    assert listed == made

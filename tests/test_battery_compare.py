"""Outputs as bits, what a difference says, and reports that go through JSON unharmed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from battery_fake import TRAITS, Fake, View

from detent.battery import Settings, verify
from detent.battery.compare import broken, compare, no_evidence, shown
from detent.battery.report import CHANGED, COULD_NOT_RUN, NOT_EXERCISED, SAME, Report, Result, result_of
from detent.battery.wording import difference_lines, headline
from detent.battery.workload import Sizes
from detent.engines.interface import Output, Step, Submission


def bits(*values: float) -> tuple[bytes, ...]:
    return tuple(struct.pack(">d", value) for value in values)


def output(tokens: Sequence[int], probs: Sequence[float], points: Sequence[dict[str, Any]] | None = None) -> Output:
    steps = tuple(Step(selections=each) for each in points) if points else ()
    return Output(tuple(tokens), bits(*probs), steps)


def test_equal_numbers_with_other_bits_differ() -> None:
    found = compare(output([1], [0.0]), output([1], [-0.0]), 0, True)
    assert found is not None and (found.what, found.at) == ("logprob", 0)
    assert (found.reference, found.perturbed) == ("0.0 (00000000)", "-0.0 (80000000)")
    nan = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
    assert compare(output([1], [nan]), output([1], [nan]), 0, True) is None


def test_what_follows_another_token_has_other_inputs() -> None:
    found = compare(output([1, 2, 3, 4], [-1, -2, -3, -4]), output([1, 2, 9, 4], [-1, -2.5, -3.5, -4.5]), 0, True)
    assert found is not None
    assert (found.at, found.what, found.same_inputs, found.other_inputs) == (1, "logprob", 1, 1)
    assert difference_lines(found)[1] == "selections not told; 1 more differ; 1 more have other inputs (token ids)"


def test_token_ids_come_first() -> None:
    found = compare(output([7], [-1]), output([8], [-1]), 0, True)
    assert found is not None and (found.what, found.tokens) == ("token", (7, 8))
    assert difference_lines(found)[0] == "token 0 (ids 7 and 8): -1.0 (bf800000), then -1.0 (bf800000)"


def test_an_end_that_comes_early_is_a_difference() -> None:
    found = compare(output([1, 2], [-1, -2]), output([1], [-1]), 0, True)
    assert found is not None and (found.what, found.at, found.tokens) == ("length", 1, (2, None))
    assert (found.reference, found.perturbed) == ("goes on", "ended")


def test_a_prompt_that_holds_output_is_compared_with_the_rest() -> None:
    whole = output([1, 2, 3], [-1, -2, -3])
    assert compare(whole, output([3], [-3]), 2, True) is None
    found = compare(whole, output([3], [-4]), 2, True)
    assert found is not None and found.at == 2


def test_selections_up_to_the_first_difference_are_named() -> None:
    was = output([1, 2, 3], [-1, -2, -3], [{"gemm.rows": 1}, {"gemm.rows": 1}, {"gemm.rows": 1}])
    now = output([1, 2, 3], [-1, -9, -9], [{"gemm.rows": 16}, {"gemm.rows": 1}, {"gemm.rows": 2, "new": 0}])
    found = compare(was, now, 0, True)
    assert found is not None and found.diagnosis == "selection differs" and found.points == {"gemm.rows": (0, 1, 16)}
    same = compare(was, replace(now, steps=was.steps), 0, True)
    assert same is not None and same.diagnosis == "selection constant, bits differ"


def test_a_cached_prefix_was_selected_for_by_the_request_before() -> None:
    was = output([1], [-1], [{"gemm.rows": 64}])
    now = replace(output([1], [-2], [{"gemm.rows": 64}]), cached=16)
    first = output([5], [-1], [{"gemm.rows": 16}])
    found = compare(was, now, 0, True, before=[first])
    assert found is not None and found.points == {"gemm.rows": (-1, 64, 16)}
    assert difference_lines(found)[2] == "gemm.rows: 64, then 16 (the prompt)"
    unseen = compare(was, now, 0, True)
    assert unseen is not None and unseen.diagnosis == "selection constant where it is told, bits differ"
    chunked = compare(was, replace(now, cached=0, chunks=(9, 3)), 0, True)
    assert chunked is not None and chunked.diagnosis == unseen.diagnosis


def test_digits_are_compared_as_text() -> None:
    was, now = (Output((1,), (digits,)) for digits in (b"-0.10", b"-0.1"))
    found = compare(was, now, 0, False)
    assert found is not None and (found.reference, found.perturbed) == ("-0.10", "-0.1")
    assert shown(b"-0.12345", False) == "-0.12345" and shown(bits(0.1)[0], True) == "0.1 (3fb999999999999a)"


def test_outputs_that_show_nothing() -> None:
    assert no_evidence(output([], []), 16, True) == "no output token"
    assert no_evidence(output([1], [-1]), 16, True) == "ended after 1 of 16 output tokens"
    assert no_evidence(output([1, 2], [0, 0]), 2, True).startswith("all log-probabilities are 0.0 (00000000)")
    assert no_evidence(output([1, 2], [0, -1]), 2, True) == ""


def test_outputs_that_cannot_be_compared() -> None:
    assert broken(Output((), (), finish="refused", error="too long"), True) == "too long"
    assert broken(Output((1, 2), bits(-1)), True) == "2 tokens came with 1 log-probabilities"
    for value in (float("nan"), float("inf"), -float("inf")):
        assert broken(output([1], [value]), True) == "a log-probability is not a finite number"
    for digits in (b"NaN", b"nan", b"-Infinity", b"Infinity", b"-1e999", b"", b"none"):
        assert broken(Output((1,), (digits,)), False) == "a log-probability is not a finite number"
    assert broken(Output((1,), (b"-0.1",)), True) and not broken(Output((1,), (b"-0.1",)), False)


# ---- with an engine ------------------------------------------------------------------------------------------------


def reports(fake: Fake, **settings: Any) -> Report:
    return verify(fake, Settings(**settings))


def by_name(report: Report) -> dict[str, Result]:
    return {result.name: result for result in report.results}


class Flaky(Fake):
    """Every run has other bits."""

    def __init__(self) -> None:
        super().__init__(lambda view: view.engine.runs)


def test_a_reference_that_does_not_repeat_is_named() -> None:
    results = by_name(reports(Flaky()))
    assert results["rerun-alone"].verdict == CHANGED
    assert {d.diagnosis for r in results.values() for d in r.differences} == {"the reference does not repeat"}
    assert reports(Flaky()).exit_code == 1


def test_kernels_and_programs_are_told_apart() -> None:
    def fault(view: View) -> int:
        return int(len(view.batch) == 8)

    kernel = by_name(reports(Fake(fault, lambda view: {"gemm.rows": 16})))
    program = by_name(reports(Fake(fault, lambda view: {"gemm.rows": len(view.batch), "norm.threads": 1})))
    assert kernel["short-beside-7-short"].differences[0].diagnosis == "selection constant, bits differ"
    assert program["short-beside-7-short"].differences[0].points == {"gemm.rows": (0, 1, 8)}


def test_a_refused_neighbour_is_no_pass() -> None:
    class Small(Fake):
        def run(self, submissions: Sequence[Submission]) -> list[Output]:
            return [replace(made, tokens=(), logprobs=(), finish="refused", error="the pool is too small")
                    if len(s.request.prompt) > 90 else made
                    for s, made in zip(submissions, super().run(submissions), strict=True)]

    results = by_name(reports(Small()))
    assert results["short-beside-1-long"].verdict == COULD_NOT_RUN
    assert results["short-beside-1-long"].reason == "neighbour 0 of 96: the pool is too small"
    assert results["short-beside-1-short"].verdict == SAME


def test_log_probabilities_that_are_all_0_exercise_nothing() -> None:
    class Blind(Fake):
        def run(self, submissions: Sequence[Submission]) -> list[Output]:
            return [replace(made, logprobs=bits(*[0.0] * len(made.tokens))) for made in super().run(submissions)]

    report = reports(Blind())
    assert {r.verdict for r in report.results} == {NOT_EXERCISED, "not applicable"} and report.exit_code == 2


def test_reruns_alone_do_not_make_a_pass() -> None:
    report = reports(Fake(hidden=Fake().traits.evidence))
    assert report.without_batch == ("paper",) and report.exit_code == 2
    assert by_name(report)["rerun-alone"].verdict == SAME


@pytest.mark.parametrize("page", [1, 16])
def test_a_cache_that_cannot_be_emptied_still_gives_prefix_cells(page: int) -> None:
    """Prompts are new in each cell, and what must find a part of one in the cache goes first."""
    clean = reports(Fake(can_flush=False, page=page), sets=("paper", "strong"))
    assert clean.salt and {r.verdict for r in clean.results} <= {SAME, "not applicable"}, clean.results
    faulty = by_name(reports(Fake(lambda v: int(v.mine.cached == page), can_flush=False, page=page)))
    assert faulty["prefix-page"].verdict == CHANGED
    assert by_name(clean)["prefix-page"].reason.startswith(f"{page} of {page} shared")


def test_references_are_served_once_where_the_cache_can_be_emptied() -> None:
    fake, other = Fake(), Fake(can_flush=False)
    verify(fake, Settings(sets=("strong",)))
    verify(other, Settings(sets=("strong",)))
    assert (fake.runs, other.runs) == (1 + 9, 3 * 9)


def test_a_target_that_cannot_start_again_does_not_apply() -> None:
    from detent.runtime.errors import DetentError

    class Served(Fake):
        def fresh(self) -> Fake:
            raise DetentError("its server is not ours", "restart it")

    result = by_name(reports(Served(), sets=("extended",)))["restart-alone"]
    assert (result.verdict, result.reason) == ("not applicable", "its server is not ours; restart it")


def test_the_fresh_process_is_closed() -> None:
    made: list[Fake] = []

    class Parent(Fake):
        def fresh(self) -> Fake:
            made.append(super().fresh())
            return made[-1]

    verify(Parent(max_seqs=20), Settings(sets=("extended",)))
    assert len(made) == 1 and made[0].closed


def test_a_fresh_process_with_another_tuple_is_no_restart() -> None:
    class Edited(Fake):
        def fresh(self) -> Fake:
            other = super().fresh()
            other.traits = replace(other.traits, environment={"tuple": "other"})
            return other

    report = reports(Edited(max_seqs=20, environment={"tuple": "this"}), sets=("extended",))
    result = by_name(report)["restart-alone"]
    assert result.verdict == COULD_NOT_RUN and report.exit_code == 2
    assert result.reason == "the new process has another tuple; run the battery again"


def test_results_go_through_json() -> None:
    report = reports(Fake(lambda v: int(len(v.batch) > 3), lambda v: {"gemm.rows": len(v.batch)}), random=3)
    content = json.loads(json.dumps(report.as_json()))
    again = tuple(result_of(entry) for entry in content["cells"])
    assert [r.as_json() for r in again] == [r.as_json() for r in report.results]
    assert again[0].differences == report.results[0].differences
    with pytest.raises(ValueError, match="verdict"):
        result_of({**content["cells"][0], "verdict": "fine"})


def test_the_headline_counts_what_there_is() -> None:
    empty = Report(TRAITS, Sizes.of(TRAITS), 0, "", ())
    assert headline(empty) == "fake (stock), 0 cells: none" and empty.exit_code == 0


def test_the_battery_knows_the_runtime_and_the_interface_alone(root: Path) -> None:
    code = ("import pkgutil, sys, importlib, detent.battery as b\n"
            "for m in pkgutil.iter_modules(b.__path__): importlib.import_module(f'detent.battery.{m.name}')\n"
            "print(*sys.modules)")
    loaded = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": str(root)}).stdout.split()
    ours = {name for name in loaded if name.split(".")[0] == "detent"}
    allowed = ("detent.battery", "detent.runtime", "detent.engines.interface")
    assert all(name in ("detent", "detent.engines") or name.startswith(allowed) for name in ours), ours
    assert not {"torch", "numpy", "xdsl", "click"} & set(loaded)

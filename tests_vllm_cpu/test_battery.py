"""The battery on a real engine over HTTP, and on the same engine in this process.

What vLLM keeps the same is its own affair and depends on the processor; here the instrument is tested: cells run, the
evidence is the engine's, and a fault that is put in is found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from conftest import Server

from detent.battery import Settings, verify
from detent.battery.report import CHANGED, COULD_NOT_RUN, NOT_APPLICABLE, NOT_EXERCISED, SAME, Result
from detent.battery.runner import Runner, cells_of
from detent.battery.workload import Sizes, Workload
from detent.engines.http import HttpTarget
from detent.engines.interface import Request, Submission
from detent.engines.vllm.target import VllmTarget
from detent.runtime.errors import DetentError
from detent.tools.flip_proxy import Proxy

JUDGED = (SAME, CHANGED)
CRITICAL = "short-beside-3-short"
TRIES = 5


def detent(*arguments: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "detent", *arguments], capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL)


def cells(report: dict[str, Any], kind: str) -> dict[str, str]:
    return {cell["name"]: cell["verdict"] for cell in report["cells"] if cell["kind"] == kind}


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}")


def summary(report: dict[str, Any]) -> str:
    changed = [cell["name"] for cell in report["cells"] if cell["verdict"] == CHANGED]
    return f"{report['target']['name']}: {report['summary']}; changed: {', '.join(changed) or 'none'}"


def test_smollm2_knows_the_capital(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    target = HttpTarget(server.url)
    (output,) = target.run([Submission(Request(target.encode("The capital of France is"), 8))])
    assert target.decode(output.tokens).startswith(" Paris")
    tell(capsys, f"vllm serve started in {server.seconds:.0f} s; 8 tokens in {output.times[-1] - output.arrival:.2f} s")


def test_the_papers_cells_over_http(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    run = detent("verify", "--engine", server.url, "--set", "paper", "--json")
    assert run.returncode in (0, 1), run.stderr
    report = json.loads(run.stdout)
    tell(capsys, summary(report))
    verdicts = [cell["verdict"] for cell in report["cells"]]
    assert len(verdicts) == 26 and COULD_NOT_RUN not in verdicts
    assert all(judged(server, *cell, (SAME,)) for cell in cells(report, "rerun").items()), cells(report, "rerun")
    assert all(judged(server, *cell) for cell in cells(report, "co-batch").items()), cells(report, "co-batch")
    assert set(cells(report, "row").values()) <= {CHANGED, NOT_EXERCISED}  # HTTP does not show rows
    prefixes = cells(report, "prefix")
    short = {prefixes.pop(name) for name in ("short-prefix-half", "short-prefix-whole")}
    assert short == {NOT_APPLICABLE}  # less than a page
    assert all(judged(server, *cell) for cell in prefixes.items()), prefixes
    assert report["target"]["resolution"] == "all of a float32, as 17 digits"


def exercised(target: HttpTarget, name: str) -> Result:
    """A cell's result. Requests are sent at once, but whether the server computes them in one step is a matter of
    milliseconds: where it did not, the cell is run again with other prompts."""
    for seed in range(TRIES):
        work = Workload(target.traits, Sizes.of(target.traits), seed)
        cell = next(cell for cell in cells_of(work, Settings()) if cell.name == name)
        with Runner(target) as runner:
            result = runner.run(cell)
        if result.verdict != NOT_EXERCISED:
            break
    return result


def judged(server: Server, name: str, verdict: str, allowed: Collection[str] = JUDGED) -> bool:
    """Whether a cell has one of these verdicts, also where its requests met only when it was run again."""
    return verdict in allowed or (
        verdict == NOT_EXERCISED and exercised(HttpTarget(server.url), name).verdict in allowed)


def test_a_flipped_bit_is_caught(server: Server) -> None:
    """The proxy flips a bit only where requests overlap: the rerun alone stays the same, the neighbours show it."""
    with Proxy(server.url).serving() as proxy:
        target = HttpTarget(proxy.url)
        alone, beside = exercised(target, "rerun-alone"), exercised(target, CRITICAL)
    assert alone.verdict == SAME and proxy.flips > 0
    assert beside.verdict == CHANGED and beside.differences[0].what == "logprob"


def test_the_same_cell_without_the_proxy(server: Server) -> None:
    result = exercised(HttpTarget(server.url), CRITICAL)
    if result.verdict == CHANGED:
        pytest.skip("on this processor vLLM itself changes these bits")
    assert result.verdict == SAME


def test_bad_input_is_one_line_and_exit_code_2(server: Server) -> None:
    missing = detent("verify", "--engine", server.url, "--model", "smollm3", timeout=60)
    dead = detent("verify", "--engine", "http://127.0.0.1:9", timeout=60)
    for run, message in ((missing, "did you mean 'smollm2'?"), (dead, "no connection")):
        assert run.returncode == 2 and not run.stdout
        assert message in run.stderr.splitlines()[-1] and run.stderr.splitlines()[-1].startswith("error: ")


def test_a_prompt_that_is_too_long_is_refused_alone(server: Server) -> None:
    long, short = HttpTarget(server.url).run([Submission(Request((50,) * 3000, 4)), Submission(Request((50, 51), 4))])
    assert long.finish == "refused" and "2048" in long.error and short.finish == "length"


def test_the_strong_cells_over_http(full: None, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify(HttpTarget(server.url), Settings(sets=("strong",)))
    tell(capsys, summary(report.as_json()))
    assert all(result.verdict in JUDGED for result in report.results)


@pytest.fixture(scope="module")
def engine(full: None, model: Path) -> VllmTarget:
    return VllmTarget(str(model), enforce_eager=True, dtype="float32", max_model_len=2048, block_size=32,
                      max_num_seqs=64, max_num_batched_tokens=1024)


def test_the_papers_cells_in_process(engine: VllmTarget, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify(engine, Settings(long=512))
    tell(capsys, summary(report.as_json()))
    results = {result.name: result for result in report.results}
    assert {result.verdict for result in results.values() if result.kind == "rerun"} == {SAME}
    assert all(result.verdict in JUDGED for result in results.values() if result.kind in ("co-batch", "row"))


def test_in_process_evidence_is_the_schedulers(engine: VllmTarget) -> None:
    engine.flush()
    prompts = [tuple(range(start, start + length)) for start, length in ((100, 20), (200, 1500), (300, 30))]
    first, long, late = engine.run([Submission(Request(prompts[0], 12)), Submission(Request(prompts[1], 4)),
                                    Submission(Request(prompts[2], 4), start=4)])
    assert first.chunks == (20,) and long.chunks == (1004, 496) and late.chunks == (30,)
    assert first.steps[0].tokens == 1024 and first.steps[0].batch == 2
    assert [step.row for step in long.steps] == [1] * 4 and late.steps[0].batch == 3
    (again,) = engine.run([Submission(Request(prompts[1], 4))])
    assert again.cached == 1500 // 32 * 32 and again.chunks == (1500 - again.cached,)


def test_preemption_in_process(engine: VllmTarget) -> None:
    request = Request(tuple(range(100, 120)), 8)
    plain, preempted = (engine.run([Submission(request, preempt=preempt)])[0] for preempt in (None, 3))
    assert (plain.preemptions, preempted.preemptions) == (0, 1) and len(preempted.tokens) == 8


def test_a_fresh_process_gives_the_same_bits(engine: VllmTarget) -> None:
    submissions = [Submission(Request(tuple(range(100, 140)), 8))]
    here = engine.run(submissions)[0]
    other = engine.fresh()
    try:
        there = other.run(submissions)[0]
    finally:
        other.close()
    assert (here.tokens, here.logprobs) == (there.tokens, there.logprobs)


def test_a_model_that_is_missing(full: None) -> None:
    with pytest.raises(DetentError, match="vLLM does not start with /no/such/model"):
        VllmTarget("/no/such/model")

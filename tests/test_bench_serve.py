"""``detent bench serve`` against an engine that is a queue with a virtual clock."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_support import TRAITS, Queue
from cli_support import done, refused

import detent.cli.bench_serve as command
from detent.bench import plots
from detent.bench.arms import Arm, specs
from detent.bench.load import drive
from detent.bench.metrics import measured
from detent.bench.page import page
from detent.bench.serve import Document, Plan, checked, maximum, serve
from detent.bench.summary import matrix, milliseconds, summary
from detent.bench.workloads import Load, loads, replay, traffic
from detent.engines.interface import Output
from detent.runtime.errors import BadFile, BadInput, DetentError
from detent.solver.views.sections import render

SCALE = 0.004


def quiet(_: object) -> None:
    """Nothing is said and nothing is saved."""


def plan(arms: dict[str, Callable[[], Queue]], names: str = "A1,A4,B1,C1,C2", **changes: Any) -> Plan:
    made = [Arm(name, name, opened) for name, opened in arms.items()]
    return replace(Plan("simulated", "toy", made, loads(names.split(",")), 2, SCALE), **changes)


ARMS: dict[str, Callable[[], Queue]] = {
    "stock": lambda: Queue(bits=lambda batch: bytes([batch])),
    "detent": lambda: Queue(base=0.011, per_request=0.0011, per_token=0.00011),
    "W-A": lambda: Queue(base=0.0105), "W-B": lambda: Queue(base=0.012, per_token=0.00009),
}


@pytest.fixture(scope="module")
def document() -> Document:
    found = serve(plan(ARMS, "A1,A4,B1,C1,C2,A67,B100"), quiet, quiet)
    found["summary"] = summary(found)
    return found


def test_all_runs_are_there_and_every_arm_was_sent_the_same(document: Document) -> None:
    keys = [(run["load"], run["run"], run["arm"]) for run in document["runs"]]
    assert len(keys) == len(set(keys)) == 4 * 2 * (7 + 2)
    for load in {load for load, _, _ in keys}:
        assert len({run["replay"] for run in document["runs"] if run["load"] == load}) == 1
    first = [(load, number, arm) for load, number, arm in keys if load == "offline W-A"]
    assert [arm for _, _, arm in first] == [*ARMS, *reversed(ARMS)]  # they take turns
    assert keys[:8] == first


def test_rates_are_shares_of_the_maximum(document: Document) -> None:
    stock, own = maximum(document, "stock", "W-A"), maximum(document, "detent", "W-A")
    assert own < stock
    rates = {(run["load"], run["arm"]): run["rate"] for run in document["runs"]}
    assert rates["A1", "stock"] == rates["A1", "detent"] == 0.25 * stock
    assert rates["A67", "detent"] == 0.67 * own
    assert rates["C1", "stock"] is None


def test_ratios_are_what_the_queues_differ_by(document: Document) -> None:
    cells, means = document["summary"]["cells"], document["summary"]["means"]
    assert cells["C1"]["detent"]["ratio"]["p50"] == pytest.approx(1.1)  # one in flight: nothing but the steps
    interval = cells["C1"]["detent"]["interval"]
    assert interval["low"] <= 1.1 + 1e-9 and interval["high"] >= 1.1 - 1e-9
    assert 1.05 < means["detent"]["all"]["p50"] < 1.3
    assert set(means["detent"]) == {"all", "W-A", "W-B", "W-B-c"} and "stock" not in means
    assert document["summary"]["offline"]["W-B"]["detent"]["ratio"] == pytest.approx(1 / 1.1)
    assert cells["C2"]["stock"]["p50"][0] > cells["C1"]["stock"]["p50"][0]
    assert cells["A1"]["stock"]["runs"] == 2


def test_chats_are_cached_and_documents_are_not(document: Document) -> None:
    cells, shapes = document["summary"]["cells"], document["workloads"]
    assert 0.2 < cells["A1"]["stock"]["cached"] <= shapes["W-A"]["shared"]
    assert cells["B1"]["stock"]["cached"] == 0
    assert all(cell["beyond"] == 0 for by_arm in cells.values() for cell in by_arm.values())


def test_changed_bits_are_counted(document: Document) -> None:
    found = document["summary"]["changed"]["W-A"]
    assert found["stock"]["changed"] > 0 and found["stock"]["mcnemar"] is None
    assert found["detent"]["changed"] == 0 and found["detent"]["wilson"]["low"] == 0
    assert found["detent"]["mcnemar"] < 0.05
    assert found["detent"]["runs"] == 2 * 4  # A1, A4, A67 and offline


def test_the_matrix_divides_by_the_loads_own_tuple(document: Document) -> None:
    found = document["summary"]["matrix"]
    assert found["rows"] == ["detent", "W-A", "W-B"] and found["columns"] == ["A1", "A4", "B1", "C1", "C2"]
    for column, name in enumerate(found["columns"]):
        values = [row[column] for row in found["values"]]
        assert min(values) == 1 and values[found["rows"].index(found["over"][name])] == 1
    assert found["own"] == [[False] * 5, [True, True, False, False, False], [False, False, True, False, False]]
    cells = {"A1": {"default": {"p50": [3.0]}, "A1": {"p50": [2.0]}, "other": {"p50": [1.0]}}}
    tuned = matrix(cells, [{"name": name} for name in cells["A1"]])
    assert tuned["over"] == {"A1": "A1"} and tuned["values"] == [[1.5], [1.0], [0.5]]


class Reader(HTMLParser):
    """Collects tags and refuses those that are closed in another order than opened."""

    VOID = ("meta", "line", "path", "rect", "circle", "i")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_shows_what_was_measured(document: Document) -> None:
    text = page(document)
    reader = Reader()
    reader.feed(text)
    assert not reader.open and not reader.links and "script" not in reader.seen
    assert reader.seen.count("svg") == 5  # p50 and p99 over Stock, percentiles, the matrix, own maxima
    assert "nan" not in re.sub(r"<[a-z]+[^>]*>", "", text).lower().split() and "{{" not in text
    ratio = document["summary"]["cells"]["C1"]["detent"]["ratio"]["p50"]
    assert f"C1, detent: p50 {ratio:.3f}× Stock’s" in text
    assert "queue" in text and "Figure" not in text


def test_the_page_takes_names_as_text(document: Document) -> None:
    nasty = json.loads(json.dumps(document).replace('"W-B"', '"<b>&x"').replace('"toy"', '"</title><script>"'))
    nasty["summary"] = document["summary"]
    assert "<script" not in page(nasty) and "&lt;/title&gt;&lt;script&gt;" in page(nasty)
    assert "&lt;b&gt;&amp;x" in plots.legend(["<b>&x"])


def test_times_are_shown_to_three_digits() -> None:
    assert [milliseconds(seconds) for seconds in (0.0123456, 0.9994, 3.8042)] == ["12.3", "999", "3,804"]


def test_ticks_are_round_and_inside() -> None:
    assert plots.ticks(0.9, 2.0) == pytest.approx([0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    assert plots.ticks(3.0, 300.0) == pytest.approx([5, 10, 20, 50, 100, 200])


def test_what_was_measured_is_not_measured_again() -> None:
    whole = serve(plan(ARMS, "A1,C1"), quiet, quiet)
    saved: list[Document] = []
    opened: list[Queue] = []

    def counted() -> Queue:
        opened.append(Queue(bits=lambda batch: bytes([batch])))
        return opened[-1]

    class Interrupted(Exception):
        pass

    def stop_after_five(found: Document) -> None:
        saved.append(json.loads(json.dumps(found)))
        if len(found["runs"]) == 5:
            raise Interrupted

    arms = ARMS | {"stock": counted}
    with pytest.raises(Interrupted):
        serve(plan(arms, "A1,C1"), stop_after_five, quiet)
    assert opened[0].closed
    resumed = serve(plan(arms, "A1,C1"), quiet, quiet, saved[-1])
    assert len(resumed["runs"]) == len(whole["runs"]) == 4 * 2 * 3
    for again, run in zip(resumed["runs"], whole["runs"], strict=True):
        assert (again["arm"], again["load"], again["run"]) == (run["arm"], run["load"], run["run"])
        assert again["latency"] == pytest.approx(run["latency"])
    served = opened[1].submitted
    serve(plan(arms, "A1,C1"), quiet, quiet, resumed)
    assert served > 0 and opened[2].submitted == 0
    more = serve(plan(ARMS, "C2"), quiet, quiet, resumed)
    assert {run["load"] for run in more["runs"]} == {"offline W-A", "A1", "C1", "C2"}


@pytest.mark.parametrize("changes, told", [
    ({"scale": 0.005}, "scale was 0.004 and is 0.005"), ({"seed": 3}, "seed was 0 and is 3"),
    ({"model": "x"}, "model was toy and is x"),
])
def test_a_file_of_another_measurement_is_refused(changes: dict[str, Any], told: str) -> None:
    earlier = serve(plan({"stock": Queue}, "C1", runs=1), quiet, quiet)
    with pytest.raises(DetentError, match=told):
        serve(plan({"stock": Queue}, "C1", runs=1, **changes), quiet, quiet, earlier)
    moved = copy.deepcopy(earlier)
    moved["environment"]["cpus"] = 9000
    with pytest.raises(DetentError, match="cpus was 9000 and is"):
        serve(plan({"stock": Queue}, "C1", runs=1), quiet, quiet, moved)
    other = Queue(replace(TRAITS, environment={"tuple": "another"}))
    with pytest.raises(DetentError, match="of arm stock: tuple was None and is another"):
        serve(plan({"stock": lambda: other}, "C1", runs=1), quiet, quiet, earlier)


def test_engines_that_cannot_flush_get_other_token_ids_each_run() -> None:
    made = Queue(replace(TRAITS, can_flush=False))
    found = serve(plan({"stock": lambda: made}, "A1,A2"), quiet, quiet)
    replays = [run["replay"] for run in found["runs"]]
    assert len(set(replays)) == len(replays) == 6
    assert made.flushes == 0 and all(run["beyond"] == 0 for run in found["runs"])
    assert summary(found)["changed"] == {}


def test_what_earlier_runs_left_in_the_cache_is_told() -> None:
    class Forgetful(Queue):
        def flush(self) -> None:
            pass

    found = serve(plan({"stock": Forgetful}, "C1", runs=2), quiet, quiet)
    assert [run["beyond"] > 0 for run in found["runs"]] == [False, True]
    found["summary"] = summary(found)
    assert "cached beyond the workload" in page(found)


@pytest.mark.parametrize("fraction, grows", [(0.5, False), (3.0, True)])
def test_a_queue_that_grows_is_marked(fraction: float, grows: bool) -> None:
    source = traffic("W-A", 0.02, 0)

    def sent(load: Load, rate: float | None) -> Any:
        return replay(source, load, rate=rate, seed=0, salt="", vocabulary=300, special=())

    offline = sent(Load("offline", "W-A", offline=True), None)
    most = measured(offline, drive(Queue(), offline))
    assert not most.growing
    online = sent(Load("x", "W-A", fraction), fraction * most.requests_per_s)
    assert measured(online, drive(Queue(), online)).growing is grows


def test_the_driver_keeps_to_times_and_to_numbers_in_flight() -> None:
    source = traffic("W-B", 0.001, 0)
    online = replay(source, Load("x", "W-B", 1.0), rate=0.5, seed=0, salt="", vocabulary=300, special=())
    outputs = drive(Queue(clock=100.0), online)
    assert [output.arrival for output in outputs] == pytest.approx([100.0 + at for at in online.arrivals or ()])
    assert [len(output.tokens) for output in outputs] == [request.max_tokens for request in online.requests]
    closed = replay(source, Load("x", "W-B", concurrency=3), rate=None, seed=0, salt="", vocabulary=300, special=())
    outputs = drive(Queue(), closed)
    events = sorted([(o.arrival, 1) for o in outputs] + [(o.times[-1], -1) for o in outputs])
    at_once = [sum(change for _, change in events[:i + 1]) for i in range(len(events))]
    assert max(at_once) == 3
    ends = {output.times[-1] for output in outputs}
    assert all(output.arrival in ends for output in outputs[3:])  # the next begins when one has ended


@pytest.mark.parametrize("output, told", [
    (Output((), (), finish="refused", error="too long"), "was refused: too long"),
    (Output((1,), (b"",), times=(0.1,)), "has 1 tokens with 1 times and was to have"),
])
def test_a_request_that_was_not_served_ends_the_run(output: Output, told: str) -> None:
    class Broken(Queue):
        def poll(self, until: float | None) -> list[tuple[int, Output]]:
            return [(1, output)] if self.submitted else super().poll(until)

    with pytest.raises(DetentError, match=told):
        serve(plan({"stock": Broken}, "C1"), quiet, quiet)


def test_what_cannot_be_measured_is_told_at_once() -> None:
    with pytest.raises(DetentError, match="no arm is Stock, and loads are fractions of its maximum"):
        serve(plan({"detent": Queue}, "A1"), quiet, quiet)
    own = serve(plan({"detent": Queue}, "A67", runs=1), quiet, quiet)
    assert [run["load"] for run in own["runs"]] == ["offline W-A", "A67"]
    short = Queue(replace(TRAITS, context=100))
    with pytest.raises(DetentError, match="has a request of .* the engine's context is 100") as raised:
        serve(plan({"stock": lambda: short}, "C1"), quiet, quiet)
    told = re.fullmatch("give a smaller --scale, such as ([0-9.e-]+)", raised.value.remedy)
    assert told and serve(plan({"stock": lambda: short}, "C1", scale=float(told[1])), quiet, quiet)["runs"]
    served = Queue(replace(TRAITS, context=100, engine="http", name="http://here"))
    with pytest.raises(DetentError, match="such as .*, or start http://here with a longer context"):
        serve(plan({"stock": lambda: served}, "C1"), quiet, quiet)
    other = Queue(replace(TRAITS, vocabulary=400))
    with pytest.raises(DetentError, match="different vocabularies"):
        serve(plan({"stock": Queue, "detent": lambda: other}, "C1"), quiet, quiet)
    with pytest.raises(DetentError, match="give its file: --trace azure=FILE"):
        serve(plan({"stock": Queue}, "azure"), quiet, quiet)


def test_without_stock_there_are_numbers_and_no_ratios() -> None:
    found = serve(plan({"detent": Queue}, "A67,C1", runs=1), quiet, quiet)
    found["summary"] = summary(found)
    assert found["summary"]["means"] == {} and found["summary"]["matrix"]["columns"] == []
    assert found["summary"]["cells"]["C1"]["detent"]["ratio"] is None
    text = page(found)
    assert "Percentiles" in text and "over Stock, p50" not in text
    assert re.search(r"C1 +detent +\d", render(command.sections(found)))


def test_progress_is_told_in_tenths() -> None:
    said: list[str] = []
    serve(plan({"stock": Queue}, "A1", runs=1, scale=0.05), quiet, said.append)
    a1 = [line for line in said if "A1, stock" in line]
    assert a1[0].startswith("run 2 of 2: A1, stock, request 0 of 134") and a1[-1].endswith("request 134 of 134")
    assert len(a1) == 11


def test_recorded_workloads_run(root: Path) -> None:
    traces = {name: str(root / "tests/data/bench" / file)
              for name, file in (("azure", "azure.csv"), ("mooncake", "mooncake.jsonl"))}
    found = serve(plan({"stock": Queue}, "azure,mooncake", runs=1, traces=traces, scale=0.0025), quiet, quiet)
    assert [run["load"] for run in found["runs"]] == ["azure", "mooncake"]
    assert found["workloads"]["mooncake"]["shared"] > 0.03
    assert summary(found)["cells"]["azure"]["stock"]["rate"] is None


def test_arms_by_name() -> None:
    assert [(s.name, s.kind, s.what) for s in specs(["stock", "dir/fast.json", "A1=b.json", "mine=http://h:1"])] == [
        ("stock", "stock", "stock"), ("fast", "tuple", "dir/fast.json"), ("A1", "tuple", "b.json"),
        ("mine", "url", "http://h:1")]
    for wrong, told in (("fast", "unknown arm"), ("http://h:1", "has no name"), ("stock=detent", "stock is the name"),
                        ("fast=stock", "stock is the name")):
        with pytest.raises(BadInput, match=told):
            specs([wrong])
    with pytest.raises(BadInput, match="two arms are called x"):
        specs(["a/x.json", "b/x.json"])


def test_a_file_that_is_no_document() -> None:
    for content, told in (([], "no document"), ({"kind": "x"}, "no document"),
                          ({"kind": "bench serve", "format": 0}, "format 0")):
        with pytest.raises(BadFile, match=told):
            checked("f", content)


@pytest.mark.parametrize("name, text, told", [
    ("mooncake", "{", "line 1: "), ("azure", "[]", "holds no requests; give the azure trace as published"),
    ("azure", "", "holds no requests; give the azure"), ("mooncake", None, "there is no such file; give the mooncake"),
])
def test_a_trace_is_read_before_an_engine_starts(name: str, text: str | None, told: str, tmp_path: Path) -> None:
    def started() -> Queue:
        raise AssertionError("an engine was started")

    file = tmp_path / "trace"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(DetentError, match=f"is a recorded one; give its file: --trace {name}=FILE"):
        serve(plan({"stock": started}, name), quiet, quiet)
    with pytest.raises(DetentError, match=told):
        serve(plan({"stock": started}, name, traces={name: str(file)}), quiet, quiet)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_embedded", lambda spec, model: Queue(base=0.011 if spec.kind == "detent" else 0.01))


def test_command(simulated: None, tmp_path: Path) -> None:
    kept, shown = tmp_path / "bench.json", tmp_path / "bench.html"
    wanted = ("bench", "serve", "--workloads", "A1,C1", "--scale", "0.001", "--runs", "2", "--json", kept,
              "--html", shown)
    text = done(*wanted)
    assert "detent: 1." in text and "over Stock" in text and "A1: W-A, 0.25 of Stock’s maximum" in text
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert found["settings"] == {"engine": "embedded", "model": "smollm2", "scale": 0.001, "seed": 0}
    assert found["summary"]["cells"]["C1"]["detent"]["ratio"]["p50"] == pytest.approx(1.06, abs=0.02)
    assert shown.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    done(*wanted)
    assert len(json.loads(kept.read_text(encoding="utf-8"))["runs"]) == len(found["runs"]) == 12


@pytest.mark.parametrize("given, told", [
    (("--arms", "fast"), "unknown arm 'fast'"), (("--workloads", "A9"), "unknown workload 'A9'"),
    (("--scale", "2"), "scale 2 is not above 0"), (("--trace", "x=y"), "unknown recorded workload 'x'"),
    (("--trace", "azure"), "names no workload"), (("--json", "no/such/folder/f.json"), "cannot be written"),
    (("--seed", "-1"), "-1 is not in the range x>=0"), (("--html", "."), "is a directory"),
    (("--arms", ""), "no arm is named"), (("--arms", " , "), "no arm is named"),
    (("--workloads", ""), "no workload is named"),
    (("--arms", "stock,no/such.json"), "no/such.json"), (("--workloads", "azure"), "--trace azure=FILE"),
])
def test_bad_input_is_one_line(given: tuple[str, ...], told: str, simulated: None) -> None:
    assert told in refused("bench", "serve", *given)

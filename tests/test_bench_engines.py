"""``detent bench serve`` on engines: an HTTP server, and the embedded engine with a model of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import done, refused
from http_fake import Fake, serving

from detent.bench.load import drive
from detent.bench.metrics import measured
from detent.bench.workloads import Load, Replay, replay, traffic
from detent.engines.http_serving import Heard, HttpServing
from detent.engines.interface import Request
from detent.runtime.errors import DetentError


def sent(load: Load, vocabulary: int, special: tuple[int, ...] = (), rate: float | None = None) -> Replay:
    return replay(traffic(load.workload, 0.0002, 0), load, rate=rate, seed=0, salt="", vocabulary=vocabulary,
                  special=special)


def test_an_http_server_is_driven_at_its_times() -> None:
    fake = Fake()
    with serving(fake):
        server = HttpServing(fake.url, None, "stock")
        asked = sent(Load("x", "W-B", 1.0), server.traits.vocabulary, rate=40.0)
        before = server.now()
        outputs = drive(server, asked)
        server.flush()
    assert [len(output.tokens) for output in outputs] == [request.max_tokens for request in asked.requests]
    late = [output.arrival - before - at for output, at in zip(outputs, asked.arrivals or (), strict=True)]
    assert all(0 <= delay < 0.05 for delay in late) and max(late) - min(late) < 0.02
    assert all(output.arrival < output.times[0] < output.times[-1] for output in outputs)
    body = fake.asked[-1]
    assert "logprobs" not in body and body["ignore_eos"] is True and body["stream"] is True
    run = measured(asked, outputs)
    assert run.cached == 0 and run.bare == len(outputs) and set(run.digests) == {""}  # it told no ids


def test_a_closed_loop_over_http_keeps_so_many_in_flight() -> None:
    fake = Fake()
    with serving(fake):
        server = HttpServing(fake.url, None, "stock")
        outputs = drive(server, sent(Load("x", "W-B", concurrency=2), server.traits.vocabulary))
    events = sorted([(o.arrival, 1) for o in outputs] + [(o.times[-1], -1) for o in outputs])
    at_once = [sum(change for _, change in events[:i + 1]) for i in range(len(events))]
    assert max(at_once) == 2


@pytest.mark.parametrize("fault, told", [
    ("breaks off", "the reply broke off"), ("error amid", "out of memory"), ("failing", "engine dead"),
    ("null choice", "^http.*choices are not a list of JSON objects"),
])
def test_a_server_that_fails_amid_a_run_ends_it(fault: str, told: str) -> None:
    fake = Fake()
    with serving(fake):
        server = HttpServing(fake.url, None, "stock")
        fake.fault = fault
        with pytest.raises(DetentError, match=told):
            drive(server, sent(Load("x", "W-B", concurrency=1), server.traits.vocabulary))


def test_a_request_that_a_server_refuses_ends_the_run() -> None:
    fake = Fake()
    with serving(fake):
        server = HttpServing(fake.url, None, "stock")
        wrong = Replay((Request((1,) * 600, 4, name="long"),), (0.0,), None, (0,), "")
        with pytest.raises(DetentError, match="request 'long' was refused: .*too long"):
            drive(server, wrong)


def test_tokens_of_a_piece_that_holds_several() -> None:
    heard = Heard()
    heard.take({"choices": [{"text": "ab", "token_ids": [7, 8]}]}, 1.0)
    heard.take({"choices": [{"text": "", "token_ids": [9], "finish_reason": "length"}]}, 2.0)
    heard.take({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}}, 2.5)
    assert (heard.tokens, heard.times, heard.cached) == ([7, 8, 9], [1.0, 1.0, 2.0], 5)
    bare = Heard()
    bare.take({"choices": [{"text": "a"}]}, 1.0)
    bare.take({"choices": [{"text": "bc"}]}, 2.0)
    bare.take({"choices": [], "usage": {"completion_tokens": 3}}, 2.5)
    assert (bare.tokens, bare.times) == ([-1, -1, -1], [1.0, 2.0, 2.0])


def test_command_over_http(tmp_path: Path) -> None:
    fake, kept = Fake(), tmp_path / "bench.json"
    with serving(fake):
        text = done("bench", "serve", "--arms", f"stock={fake.url},mine={fake.url}", "--workloads", "C2", "--scale",
                    "0.0002", "--runs", "1", "--json", kept)
    assert "mine: " in text and "Requests whose bits changed" not in text
    found = json.loads(kept.read_text(encoding="utf-8"))
    assert found["settings"]["engine"] == "HTTP" and [arm["model"] for arm in found["arms"]] == ["fake", "fake"]


def test_a_dead_server_is_one_line() -> None:
    fake = Fake()
    url = fake.url
    fake.server_close()
    assert f"{url}: no connection" in refused("bench", "serve", "--arms", f"stock={url}", "--workloads", "C1")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The document of a measurement of the embedded engine with random weights."""
    pytest.importorskip("torch")
    kept = tmp_path_factory.mktemp("embedded") / "bench.json"
    done("bench", "serve", "--model", "tiny", "--workloads", "A1,C2", "--scale", "0.0004", "--runs", "2", "--json",
         kept)
    found: dict[str, object] = json.loads(kept.read_text(encoding="utf-8"))
    return found


def test_the_embedded_engine(embedded: dict[str, dict[str, dict[str, dict[str, dict[str, object]]]]]) -> None:
    assert [arm["name"] for arm in embedded["arms"]] == ["stock", "detent"]  # type: ignore[index]
    cell = embedded["summary"]["cells"]["A1"]["detent"]
    assert cell["runs"] == 2 and cell["beyond"] == 0
    assert embedded["summary"]["changed"]["W-A"]["detent"]["changed"] == 0
    assert embedded["summary"]["changed"]["W-A"]["detent"]["compared"] == "tokens and logprob bits"

"""The HTTP target against a small server: what it reads, what it says it cannot see, and how it fails."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cli_support import refused
from http_fake import CONTEXT, Fake, logprob, serving

from detent.battery import Settings
from detent.battery.report import CHANGED, COULD_NOT_RUN, SAME
from detent.battery.runner import Runner, cells_of
from detent.battery.workload import Sizes, Workload
from detent.engines.http import HttpTarget
from detent.engines.http_counters import Counters, confirmed, counters, overlaps, page
from detent.engines.http_reply import digits
from detent.engines.interface import Request, Sampling, Submission, Unsupported
from detent.runtime.errors import DetentError
from detent.tools.flip_proxy import Proxy, flip


@contextmanager
def fake(fault: str = "", parallel: int = 64) -> Iterator[Fake]:
    server = Fake(fault, parallel)
    with serving(server):
        yield server


def asked(first: int, tokens: int = 12, start: int = 0) -> Submission:
    return Submission(Request((first, 41, 42), tokens), start)


def test_tokens_and_digits_come_back_as_they_were_sent() -> None:
    with fake() as server:
        target = HttpTarget(server.url)
        (output,) = target.run([asked(7, 5)])
    assert output.tokens == tuple(60 + (90 + i) % 26 for i in range(5))
    assert output.logprobs == tuple(repr(logprob([7, 41, 42], i)).encode() for i in range(5))
    assert (output.finish, output.cached, output.preemptions) == ("length", 0, 0)
    assert [step.batch for step in output.steps] == [1] * 5
    assert output.arrival < output.times[0] <= output.times[-1]


def test_traits_say_what_is_told_and_what_is_assumed() -> None:
    with fake() as server:
        told = HttpTarget(server.url).traits
    assert (told.model, told.context, told.page, told.can_flush) == ("fake", CONTEXT, 16, True)
    assert told.evidence == {"batch", "cached", "preemptions"}
    assert told.resolution == "all of a float32, as 17 digits"
    assert told.environment["server"] == "1.2.3" and told.environment["vocabulary"].startswith("at least")
    with fake("no tokenizer") as server:
        assert HttpTarget(server.url).traits.environment["vocabulary"] == "assumed"


def test_parameters_leave_nothing_to_the_models_defaults() -> None:
    with fake() as server:
        target = HttpTarget(server.url)
        target.run([Submission(Request((1,), 2, Sampling(0.5, 0.9, 4, seed=3), stop_tokens=(9,), stop=("zz",)))])
        body = server.asked[-1]
    assert {key: body[key] for key in ("temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids")} == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 4, "seed": 3, "stop": ["zz"], "stop_token_ids": [9]}
    assert body["ignore_eos"] is True and body["repetition_penalty"] == 1.0 and body["prompt"] == [1]


def test_a_strict_server_is_asked_only_what_it_knows() -> None:
    with fake("strict") as server:
        target = HttpTarget(server.url)
        plain, picky = target.run([asked(1), Submission(Request((1,), 2, Sampling(0.5, top_k=4, seed=1)))])
    assert plain.finish == "length" and "ignore_eos" not in server.asked[-1]
    assert picky.finish == "unsupported" and "top_k" in picky.error


def test_requests_overlap_and_the_servers_counter_confirms_it() -> None:
    with fake() as server:
        outputs = HttpTarget(server.url).run([asked(i, 30) for i in range(4)])
    for output in outputs:
        assert max(step.batch or 0 for step in output.steps) == 4


def test_one_request_at_a_time_behind_overlapping_replies_is_no_batch() -> None:
    with fake(parallel=1) as server:
        outputs = HttpTarget(server.url).run([asked(i, 30) for i in range(4)])
    assert {step.batch for output in outputs for step in output.steps} == {None}


def test_without_counters_no_batch_is_told() -> None:
    with fake("no metrics") as server:
        target = HttpTarget(server.url)
        outputs = target.run([asked(i, 30) for i in range(2)])
    assert target.traits.evidence == {"cached"} and target.traits.page is None
    assert {step.batch for output in outputs for step in output.steps} == {None}
    assert [output.preemptions for output in outputs] == [None, None]


def test_counters_tell_cached_tokens_where_replies_do_not() -> None:
    with fake("no usage") as server:
        target = HttpTarget(server.url)
        server.cached, run = 0, target.run([asked(1)])
        assert run[0].cached == 0 and "cached" in target.traits.evidence


def test_a_later_request_waits_for_the_firsts_tokens() -> None:
    with fake() as server:
        first, second, third = HttpTarget(server.url).run([asked(1, 20), asked(2, 4, start=6), asked(3, 4, start=50)])
    assert second.arrival >= first.times[5] and second.arrival < first.times[-1]
    assert third.arrival >= first.times[-1]  # the first never has 50 tokens: it ends


def test_the_first_request_starts_whatever_it_says() -> None:
    with fake() as server:
        (output,) = HttpTarget(server.url).run([asked(1, 4, start=9)])
    assert len(output.tokens) == 4


def test_a_refused_request_stands_beside_others() -> None:
    with fake() as server:
        long, short = HttpTarget(server.url).run([Submission(Request((1,) * CONTEXT, 4)), asked(2)])
    assert long.finish == "refused" and "too long" in long.error and not long.tokens
    assert short.finish == "length" and len(short.tokens) == 12


def test_texts_become_ids_of_our_own() -> None:
    with fake("texts") as server:
        target = HttpTarget(server.url)
        a, b = target.run([asked(1), asked(1)])
        assert a.tokens == b.tokens and max(a.tokens) < 0 and len(set(a.tokens)) == 12
        assert target.decode(a.tokens[:2]) == "".join(chr(60 + (84 + i) % 26) for i in range(2))
        (output,) = target.run([Submission(Request(a.tokens[:2], 4))])
    assert output.finish == "unsupported" and "no token ids" in output.error


def test_a_server_that_does_not_stream_is_read_whole() -> None:
    with fake("whole") as server:
        (output,) = HttpTarget(server.url).run([asked(1, 4)])
    assert output.tokens == (60, 61, 62, 63) and output.finish == "length"


def test_text_ids_and_flush() -> None:
    with fake() as server:
        target = HttpTarget(server.url)
        assert target.decode(target.encode("AB")) == "AB"
        target.flush()
    assert server.flushes == 2  # it says no the first time


def test_text_comes_with_the_reply_and_else_is_not_to_be_had() -> None:
    with fake("no tokenizer") as server:
        target = HttpTarget(server.url)
        (output,) = target.run([asked(7, 3)])
        assert output.text == "".join(chr(token) for token in output.tokens)
        with pytest.raises(Unsupported, match="does not tell the text of token ids"):
            target.decode(output.tokens)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_log_probabilities_that_are_no_numbers_could_not_run(value: float) -> None:
    with fake() as server:
        target = HttpTarget(server.url)
        server.shown = value
        work = Workload(target.traits, Sizes.of(target.traits), seed=0)
        with Runner(target) as runner:
            result = runner.run(cells_of(work, Settings())[0])
    assert result.verdict == COULD_NOT_RUN and "a log-probability is not a finite number" in result.reason


def test_a_fresh_server_cannot_be_had() -> None:
    with fake() as server, pytest.raises(DetentError, match="not started afresh"):
        HttpTarget(server.url).fresh()


@pytest.mark.parametrize(("fault", "message"), [
    ("website", "did not answer with a JSON object"),
    ("no api", "no OpenAI-compatible server"),
    ("no logprobs", "come without log-probabilities"),
    ("null logprobs", "come without log-probabilities"),
    ("text logprobs", "a log-probability is '-0.1', which is no number"),
    ("true logprobs", "a log-probability is True, which is no number"),
    ("bare logprob", "come without log-probabilities"),
    ("null choice", "choices are not a list of JSON objects"),
    ("null choices", "choices are not a list of JSON objects"),
    ("key", "DETENT_API_KEY"),
    ("failing", "engine dead"),
    ("breaks off", "broke off"),
    ("error amid", "out of memory"),
    ("stalls", "no answer within 0.5 s"),
    ("mute", "no answer within 0.5 s"),
])
def test_faults_are_one_line_and_soon(fault: str, message: str) -> None:
    begun = time.monotonic()
    with fake(fault) as server, pytest.raises(DetentError, match=message) as raised:
        HttpTarget(server.url, timeout=0.5)
    assert str(raised.value).startswith(server.url) and time.monotonic() - begun < 4


def test_a_request_may_queue_while_others_are_served() -> None:
    with fake("queues") as server:
        target = HttpTarget(server.url, timeout=0.4)
        first, second = target.run([asked(1, 60), asked(2, 4)])
    assert len(second.tokens) == 4 and second.times[0] > first.times[-1] > first.arrival + 0.4


def test_a_key_is_sent_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DETENT_API_KEY", "sesame")
    with fake("key") as server:
        assert HttpTarget(server.url).traits.model == "fake"


def test_a_model_that_is_not_served() -> None:
    with fake() as server, pytest.raises(DetentError, match="unknown model 'fale'; did you mean 'fake'"):
        HttpTarget(server.url, "fale")


def test_a_dead_address() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening: refused
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(DetentError, match="no connection"):
            HttpTarget(url, timeout=1)


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1", "http://127.0.0.1:port", "http://127.0.0.1?x=1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(DetentError, match="is not the address of a server"):
        HttpTarget(url)


def test_no_http_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        def chat() -> None:
            connection, _ = held.accept()
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

        threading.Thread(target=chat, daemon=True).start()
        with pytest.raises(DetentError, match="no proper HTTP"):
            HttpTarget(f"http://127.0.0.1:{held.getsockname()[1]}", timeout=2)


def test_the_proxy_flips_one_bit_only_when_requests_overlap() -> None:
    with fake() as server:
        with Proxy(server.url).serving() as proxy:
            target = HttpTarget(proxy.url)
            (alone,) = target.run([asked(1)])
            assert proxy.flips == 0
            beside = target.run([asked(1), asked(2), asked(3)])[0]
    differing = [i for i, (a, b) in enumerate(zip(alone.logprobs, beside.logprobs, strict=True)) if a != b]
    assert alone.tokens == beside.tokens and len(differing) == 1 and proxy.flips >= 2
    assert flip(float(alone.logprobs[differing[0]])) == float(beside.logprobs[differing[0]])


@pytest.mark.parametrize("number", [-0.5, -1.25e-5, 0.1, -3.0000001])
def test_flipping_twice_gives_the_number_back(number: float) -> None:
    assert flip(number) != number and flip(flip(number)) == number and abs(flip(number) / number - 1) < 2e-7


def test_resolution_of_digits() -> None:
    assert digits(["-0.25805968046188354", "-1e-05"]) == "17 digits"  # 1e-05 is no float32
    assert digits(["-0.25805968046188354", "-2.5"]) == "all of a float32, as 17 digits"
    assert digits(["-0.025", "-12.3"]) == "3 digits"


def test_a_coarse_servers_resolution() -> None:
    with fake("coarse") as server:
        assert HttpTarget(server.url).traits.resolution == "4 digits"


def test_counters_of_several_engines_add_up() -> None:
    text = ('vllm:iteration_tokens_total_count{engine="0"} 3.0\nvllm:iteration_tokens_total_count{engine="1"} 4.0\n'
            'vllm:generation_tokens_total{engine="0"} 1e2\nvllm:prefix_cache_hits_total 5\nbroken line\n')
    assert counters(text) == Counters(7, 100, 5, None)
    assert counters("up 1") is None and page("up 1") is None


def test_overlaps_count_replies_between_first_and_last_token() -> None:
    assert overlaps([[1.0, 2.0, 3.0], [2.0, 2.5], []]) == [[1, 2, 1], [2, 2], []]


@pytest.mark.parametrize(("steps", "generated", "told"), [
    (16, 64, ""), (17, 64, ""), (32, 64, "32 steps"), (64, 64, "64 steps"), (16, 90, "other clients"), (0, 64, "0 st"),
])
def test_the_servers_steps_must_fit_the_overlap(steps: int, generated: int, told: str) -> None:
    reason = confirmed([[4] * 16] * 4, Counters(steps, generated, 0, 0))
    assert reason == told if not told else told in reason


def test_the_battery_finds_the_proxys_flips_and_nothing_else() -> None:
    """The rerun alone and the neighbours pass on the server itself; through the proxy, neighbours change bits."""
    with fake() as server, Proxy(server.url).serving() as proxy:
        verdicts = {}
        for url in (server.url, proxy.url):
            target = HttpTarget(url)
            work = Workload(target.traits, Sizes.of(target.traits), seed=0)
            with Runner(target) as runner:
                results = [runner.run(cell) for cell in cells_of(work, Settings())
                           if cell.name in ("rerun-alone", "short-beside-3-short")]
            verdicts[url] = [result.verdict for result in results]
    assert verdicts == {server.url: [SAME, SAME], proxy.url: [SAME, CHANGED]}
    assert results[1].differences[0].what == "logprob"


def test_the_command_ends_with_2_and_one_line() -> None:
    for fault in ("null logprobs", "no logprobs"):
        with fake(fault) as server:
            assert "come without log-probabilities" in refused("verify", "--engine", server.url)
    assert "no connection" in refused("verify", "--engine", server.url)  # it is gone now

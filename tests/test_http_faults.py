"""Servers that keep a client waiting, and replies whose fields are not what they must be: one line, and soon."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cli_support import refused
from http_fake import Fake, Handler, serving

from detent.engines.http import HttpTarget
from detent.engines.http_client import Server
from detent.engines.http_counters import counters, page
from detent.engines.http_serving import HttpServing
from detent.engines.interface import Request
from detent.runtime.errors import DetentError

EVENT = 'data: {"choices":[]}\n\n'
TIMEOUT = 0.5


class Odd(Handler):
    """Answers a path with a text of its own, or for ever with a piece at a time. ``heads``: also the header drips."""

    def do_GET(self) -> None:
        self._odd(super().do_GET)

    def do_POST(self) -> None:
        if self.path in self.server.fault:
            self.rfile.read(int(self.headers["content-length"]))
        self._odd(super().do_POST)

    def _odd(self, usual: Callable[[], None]) -> None:
        how: dict[str, Any] = json.loads(self.server.fault)
        if self.path in how:
            self._answer(how[self.path])
        elif self.path == how.get("slow"):
            self._line("HTTP/1.1 200 OK\r\n" if how["kind"] == "head" else
                       f"HTTP/1.1 200 OK\r\nContent-Type: {how['kind']}\r\nConnection: close\r\n\r\n")
            self.close_connection = True
            begun = time.monotonic()
            while time.monotonic() < begun + 8:
                self._line(how["piece"])
                time.sleep(0.05)
        else:
            usual()


@contextmanager
def odd(**how: str) -> Iterator[Fake]:
    server = Fake(json.dumps(how))
    server.RequestHandlerClass = Odd
    with serving(server):
        yield server


WAITS = {
    "a blank now and then": ("/v1/models", "application/json", " "),
    "a header now and then": ("/v1/models", "head", "X: y\r\n"),
    "an endless header": ("/v1/models", "head", "x"),
    "a completion's blanks": ("/v1/completions", "application/json", " "),
    "pieces without choices": ("/v1/completions", "text/event-stream", EVENT),
    "pieces without tokens": ("/v1/completions", "text/event-stream", 'data: {"choices":[{"text":""}]}\n\n'),
    "an end again and again": ("/v1/completions", "text/event-stream",
                               'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n'),
    "an endless line": ("/v1/completions", "text/event-stream", "data: "),
    "comments": ("/v1/completions", "text/event-stream", ": ping\n\n"),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_server_that_keeps_one_waiting_is_left(name: str) -> None:
    slow, kind, piece = WAITS[name]
    begun = time.monotonic()
    with odd(slow=slow, kind=kind, piece=piece) as server, \
            pytest.raises(DetentError, match=f"no answer within {TIMEOUT} s") as raised:
        HttpTarget(server.url, timeout=TIMEOUT)
    assert str(raised.value).startswith(server.url) and time.monotonic() - begun < 4


@pytest.mark.parametrize("name", [name for name, (slow, _, _) in WAITS.items() if slow == "/v1/completions"])
def test_the_bench_leaves_such_a_server_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, kind, piece = WAITS[name]
    with odd() as usual, odd(slow="/v1/completions", kind=kind, piece=piece) as server:
        served = HttpServing(usual.url, None, "stock")
        monkeypatch.setattr(served, "_server", Server(server.url, TIMEOUT))
        begun = time.monotonic()
        served.submit(Request((1, 2), 4), served.now())
        with pytest.raises(DetentError, match=f"no answer within {TIMEOUT} s"):
            served.poll(begun + 6)
        assert time.monotonic() - begun < 4


def test_a_slow_reader_is_no_silence() -> None:
    with odd(**{"/x": "{}"}) as server:
        connection = Server(server.url, TIMEOUT).send("/v1/completions", {"prompt": [1], "max_tokens": 3})
        heard: list[Any] = []
        for each in Server(server.url, TIMEOUT).pieces(connection, "/v1/completions", lambda: len(heard)):
            heard.append(each)
            time.sleep(TIMEOUT * 1.2)
    assert len(heard) >= 3


def models(**fields: Any) -> str:
    return json.dumps({"data": [{"id": "m", **fields}]})


FIELDS: dict[str, tuple[str, str, str]] = {
    "context is text": ("/v1/models", models(max_model_len="abc"), r"data\[0\].max_model_len in the reply is 'abc'"),
    "context is infinite": ("/v1/models", '{"data":[{"id":"m","max_model_len":1e999}]}', "max_model_len"),
    "context is negative": ("/v1/models", models(max_context_length=-5), "max_context_length in the reply is -5"),
    "context is a flag": ("/v1/models", models(max_model_len=True), "max_model_len"),
    "context is endless": ("/v1/models", models(max_model_len=10 ** 30), "max_model_len"),
    "model is null": ("/v1/models", '{"data":[{"id":null}]}', r"data\[0\].id in the reply is None, which is no text"),
    "model is a number": ("/v1/models", '{"data":[7]}', r"data\[0\] in the reply is 7"),
    "models are none": ("/v1/models", '{"data":5}', "data in the reply is 5, which is no list"),
    "brackets": ("/v1/models", "[" * 100000, "did not answer with a JSON object"),
    "paths are a list": ("/openapi.json", '{"paths":[1,2]}', "/openapi.json.paths in the reply is"),
    "a path is a number": ("/openapi.json", '{"paths":{"/flush_cache":5}}', "paths./flush_cache in the reply is 5"),
    "ids are texts": ("/tokenize", '{"tokens":["x","y"]}', r"/tokenize: tokens\[0\] in the reply is 'x'"),
    "ids are a number": ("/tokenize", '{"tokens":5}', "tokens in the reply is 5, which is no list"),
    "an id is infinite": ("/tokenize", '{"tokens":[1,Infinity]}', r"tokens\[1\]"),
    "an id is huge": ("/tokenize", '{"tokens":[1000000000000]}', r"tokens\[0\]"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_field_is_named(name: str) -> None:
    path, reply, message = FIELDS[name]
    with odd(**{path: reply}) as server:
        line = refused("verify", "--engine", server.url)
    import re

    assert re.search(message, line) and server.url in line and "fault in Detent" not in line


def piece(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", "finish_reason": "length",
                         "logprobs": {"tokens": ["x"], "token_logprobs": [-0.5]}, **choice}]}


PIECES: dict[str, tuple[dict[str, Any], str]] = {
    "cached is text": ({**piece(), "usage": {"prompt_tokens_details": {"cached_tokens": "x"}}},
                       "usage.prompt_tokens_details.cached_tokens in the reply is 'x'"),
    "cached is infinite": ({**piece(), "usage": {"prompt_tokens_details": {"cached_tokens": float("inf")}}}, "cached_"),
    "usage is a list": ({**piece(), "usage": [1]}, "usage in the reply is"),
    "ids are texts": (piece(token_ids=["x"]), r"choice.token_ids\[0\] in the reply is 'x'"),
    "ids are infinite": (piece(token_ids=[float("inf")]), r"choice.token_ids\[0\]"),
    "names are numbers": (piece(logprobs={"tokens": [3], "token_logprobs": [-0.5]}), r"logprobs.tokens\[0\]"),
    "logprobs are a number": (piece(logprobs=3), "choice.logprobs in the reply is 3"),
    "the end is a number": (piece(finish_reason=4), "choice.finish_reason in the reply is 4"),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_wrong_field_of_a_completion_is_named(name: str) -> None:
    reply, message = PIECES[name]
    with odd(**{"/v1/completions": json.dumps(reply)}) as server, pytest.raises(DetentError, match=message) as raised:
        HttpTarget(server.url, timeout=2)
    assert str(raised.value).startswith(server.url)


def test_counters_that_are_no_numbers_tell_nothing() -> None:
    text = "vllm:iteration_tokens_total_count +Inf\nvllm:generation_tokens_total 3\n"
    assert counters(text) is None and counters(text.replace("+Inf", "NaN")) is None
    assert page(f'vllm:cache_config_info{{block_size="{"9" * 5000}"}} 1.0') is None

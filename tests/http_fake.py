"""A small OpenAI-compatible server on loopback for the tests, with the faults that real ones have."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 500
CONTEXT = 512


class Fake(ThreadingHTTPServer):
    """``fault``: what is wrong with it, see :class:`Handler`. ``parallel``: requests of one engine step; the engine
    makes a step whenever all running requests wait for one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, fault: str = "", parallel: int = 64) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fault, self.parallel = fault, parallel
        self.steps = self.generated = self.cached = self.flushes = 0
        self.shown: float | None = None  # instead of every other log-probability
        self.asked: list[dict[str, Any]] = []
        self.gate = threading.Condition()
        self.running = self.waiting = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def step(self) -> None:
        """Return once an engine step has made this request's next token."""
        with self.gate:
            step = self.steps
            self.waiting += 1
            self.generated += 1
            if self.waiting >= min(self.running, self.parallel):
                self._advance()
            else:
                while self.steps == step and self.gate.wait(timeout=0.2):
                    pass
                if self.steps == step:
                    self._advance()

    def _advance(self) -> None:
        time.sleep(0.02 if self.fault == "queues" else 0.002)
        self.waiting = 0
        self.steps += 1
        self.gate.notify_all()


def logprob(prompt: list[int], at: int) -> float:
    """A float32 that depends on the prompt and the place alone."""
    value: float = struct.unpack("f", struct.pack("f", -0.1 - (sum(prompt) * 31 + at * 17) % 1000 / 331))[0]
    return value


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def do_GET(self) -> None:
        fault, path = self.server.fault, self.path
        if fault == "website":
            self._answer("<html>hello</html>", kind="text/html")
        elif fault == "no api":
            self._answer('{"detail":"Not Found"}', status=404)
        elif fault == "key" and self.headers.get("Authorization") != "Bearer sesame":
            self._answer('{"error":"Unauthorized"}', status=401)
        elif fault == "mute":
            time.sleep(5)
        elif path == "/v1/models":
            self._answer(json.dumps({"data": [{"id": "fake", "max_model_len": CONTEXT}]}))
        elif path == "/metrics" and fault != "no metrics":
            engine = '{engine="0",model_name="fake"}'
            self._answer("# HELP vllm:x y\n" + "".join(f"vllm:{name}{engine} {float(value)}\n" for name, value in (
                ("iteration_tokens_total_count", self.server.steps), ("generation_tokens_total", self.server.generated),
                ("prefix_cache_hits_total", self.server.cached), ("num_preemptions_total", 0),
            )) + 'vllm:cache_config_info{block_size="16",cache_dtype="auto"} 1.0\n', kind="text/plain")
        elif path == "/openapi.json":
            self._answer(json.dumps({"paths": {"/reset_prefix_cache": {"post": {}}}}))
        elif path == "/version":
            self._answer('{"version":"1.2.3"}')
        else:
            self._answer("", status=404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or "null")
        if self.path == "/v1/completions":
            self._complete(body)
        elif self.path == "/tokenize" and self.server.fault != "no tokenizer":
            self._answer(json.dumps({"tokens": [ord(c) % VOCABULARY for c in body["prompt"]]}))
        elif self.path == "/detokenize" and self.server.fault != "no tokenizer":
            self._answer(json.dumps({"prompt": "".join(map(chr, body["tokens"]))}))
        elif self.path == "/reset_prefix_cache":
            self.server.flushes += 1
            self._answer(json.dumps({"success": self.server.flushes != 1}))
        else:
            self._answer("", status=404)

    def _complete(self, body: dict[str, Any]) -> None:
        fault = self.server.fault
        self.server.asked.append(body)
        if fault == "strict" and "ignore_eos" in body:
            self._answer('{"error":{"message":"Unrecognized request argument supplied: ignore_eos"}}', status=400)
        elif len(body["prompt"]) + body["max_tokens"] > CONTEXT:
            self._answer('{"error":{"message":"the prompt is too long"}}', status=400)
        elif fault == "failing":
            self._answer('{"error":{"message":"engine dead"}}', status=500)
        elif fault == "whole":
            self.server.generated += body["max_tokens"]
            ids = list(range(60, 60 + body["max_tokens"]))
            probs = [logprob(body["prompt"], at) for at in range(len(ids))]
            self._answer(json.dumps({"choices": [{"text": "x", "finish_reason": "length", "token_ids": ids,
                                                  "logprobs": {"tokens": ["x"] * len(ids), "token_logprobs": probs}}]}))
        else:
            self._stream(body)

    def _stream(self, body: dict[str, Any]) -> None:
        server, fault, prompt = self.server, self.server.fault, body["prompt"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with server.gate:
            while fault == "queues" and server.running:
                server.gate.wait()
            server.running += 1
        try:
            for at in range(body["max_tokens"]):
                server.step()
                self._piece(body, prompt, at)
                if fault == "breaks off" and at == 2:
                    return
                if fault == "stalls" and at == 2:
                    for _ in range(40):
                        self._line(": ping\n\n")
                        time.sleep(0.05)
            usage = {"prompt_tokens_details": {"cached_tokens": 0}} if fault != "no usage" else {}
            self._line("data: " + json.dumps({"choices": [], "usage": usage}) + "\n\ndata: [DONE]\n\n")
        finally:
            with server.gate:
                server.running -= 1
                server.gate.notify_all()

    def _piece(self, body: dict[str, Any], prompt: list[int], at: int) -> None:
        fault, token = self.server.fault, 60 + (sum(prompt) + at) % 26
        last = at + 1 == body["max_tokens"]
        choice: dict[str, Any] = {"text": chr(token), "finish_reason": "length" if last else None}
        if fault != "no logprobs":
            value = round(logprob(prompt, at), 3) if fault == "coarse" else logprob(prompt, at)
            if self.server.shown is not None and at % 2:
                value = self.server.shown
            name = chr(token) if fault == "texts" else f"token_id:{token}"
            shown = {"null logprobs": None, "text logprobs": "-0.1", "true logprobs": True}.get(fault, value)
            choice["logprobs"] = {"tokens": [name], "token_logprobs": 0.5 if fault == "bare logprob" else [shown]}
        if fault == "error amid" and at == 2:
            self._line('data: {"error":{"message":"out of memory"}}\n\n')
        else:
            told = {"null choice": [None], "null choices": None}.get(fault, [choice])
            self._line("data: " + json.dumps({"choices": told}) + "\n\n")

    def _line(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _answer(self, text: str, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has left
            pass


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """The server, answering in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

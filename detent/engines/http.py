"""Any OpenAI-compatible server as a target: ``/v1/completions`` with prompts of token ids, streamed.

Log-probabilities stay as the digits that the reply shows, so what is compared is what the server sent. Of the
evidence, the digits' resolution and the cached tokens come from replies, the batch of a token from overlapping
replies where the server's own counters agree; rows, chunks and graphs are not to be seen from here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from detent.engines import http_fields as fields
from detent.engines.http_client import Refused, Server
from detent.engines.http_counters import Counters, confirmed, counters, overlaps, page
from detent.engines.http_reply import Ids, Reply, completion, digits, impossible
from detent.engines.interface import Output, Request, Step, Submission, Traits, Unsupported
from detent.runtime.errors import DetentError, UnknownName

if TYPE_CHECKING:
    from http.client import HTTPConnection

COMPLETIONS = "/v1/completions"
PROBE = 8
"""Output tokens of the request that finds out what the server can do."""
ASSUMED_CONTEXT, ASSUMED_VOCABULARY = 2048, 256
"""Where the server does not tell. Byte-level and byte-fallback vocabularies all have so many ids."""
SETTLE = 2.0
"""Seconds that counters may lag behind the replies."""
FLUSHES = ("/reset_prefix_cache", "/flush_cache")
"""What empties the prefix cache: vLLM's in its development mode, SGLang's."""
SAMPLE = ("The quick brown fox jumps over 1,234,567 lazy dogs; naïve façades, señor, Straße, żółć. Привет, мир! 你好"
          "こんにちは 안녕하세요 مرحبا שלום नमस्ते ∑∫√∞ → 🙂🚀 {\"key\": [0.5, null]} def f(x): return x**2 <b>&amp;</b> "
          "photosynthesis antidisestablishmentarianism Massachusetts Schwarzenegger zeitgeist quixotic\n\t\t\n")
"""A text of many scripts: its largest token id is a lower bound of the vocabulary."""


class HttpTarget:
    """The server at ``url``; ``model``: one of its models, by default the first. ``arm``: what the report calls it.

    Raises DetentError where no OpenAI-compatible server answers within ``timeout`` seconds or where its completions
    come without log-probabilities.
    """

    def __init__(self, url: str, model: str | None = None, *, arm: str = "as served", timeout: float = 60.0) -> None:
        self._server = Server(url, timeout)
        self._ids = Ids()
        self._extras = True
        served = self._models()
        names = [name for name, _ in served]
        if model is not None and model not in names:
            raise UnknownName("model", model, names, url)
        self._model = model or names[0]
        resolution = self._probe()
        metrics = self._text("/metrics")
        self._counted = counters(metrics) is not None
        self._flush = self._offered(FLUSHES)
        context = served[names.index(self._model)][1]
        vocabulary = self._vocabulary()
        told = {"batch"} if self._counted else set()
        if self._counted or self._cached_told:
            told.add("cached")
        if self._counted:
            told.add("preemptions")
        self._traits = Traits(
            name=url, engine="http", arm=arm, model=self._model, vocabulary=vocabulary or ASSUMED_VOCABULARY,
            context=context or ASSUMED_CONTEXT, page=page(metrics), evidence=frozenset(told), resolution=resolution,
            can_flush=self._flush is not None,
            environment={
                "server": self._version(),
                "token ids": "as text, interned" if self._ids.own else "told",
                "vocabulary": "at least what a sample text uses" if vocabulary else "assumed",
                "context": "told" if context else "assumed",
                "batch": "overlapping replies, where the server's step counter agrees" if self._counted else "not told",
            },
        )

    @property
    def traits(self) -> Traits:
        return self._traits

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        """Send the requests in order and read their replies side by side. A request that the server refuses comes
        back as such; any other failure raises DetentError."""
        before = self._counters()
        replies = self._serve(submissions)
        for reply in replies:
            if reply.fault is not None:
                raise reply.fault
        return self._outputs(replies, before)

    def flush(self) -> None:
        if self._flush is None:
            raise DetentError(f"{self._server.url}: its prefix cache cannot be emptied from here",
                              "start vLLM with VLLM_SERVER_DEV_MODE=1")
        for _ in range(20):  # pages of a request that has just ended may not be free yet
            told = self._server.post(self._flush)
            if '"success":false' not in told.replace(" ", ""):
                return
            time.sleep(0.05)
        raise DetentError(f"{self._server.url}: {self._flush} did not succeed",
                          "check that nobody else uses the server")

    def fresh(self) -> HttpTarget:
        raise DetentError(f"{self._server.url}: a server that Detent did not start is not started afresh",
                          "restart it yourself and verify again")

    def encode(self, text: str) -> tuple[int, ...]:
        found = self._server.post_json("/tokenize", {"model": self._model, "prompt": text, "content": text,
                                                     "add_special_tokens": False})
        with self._server.naming("/tokenize"):
            return fields.token_ids("tokens", found.get("tokens"))

    def decode(self, tokens: Sequence[int]) -> str:
        if self._ids.own:
            return self._ids.text(tokens)
        try:
            found = self._server.post_json("/detokenize", {"model": self._model, "tokens": list(tokens)})
        except Refused as error:
            if error.status not in (404, 405, 501):
                raise
            raise Unsupported(f"the server does not tell the text of token ids: {error.message}") from error
        name = next((name for name in ("prompt", "text", "content") if name in found), "prompt")
        with self._server.naming("/detokenize"):
            return fields.text(name, found.get(name))

    def close(self) -> None:
        """Nothing stays open between runs."""

    # ---- finding out what the server can do ---------------------------------------------------------------------

    def _models(self) -> list[tuple[str, int | None]]:
        try:
            found = self._server.get_json("/v1/models")
        except Refused as error:
            if error.status in (401, 403):
                raise
            raise DetentError(f"{error.message}: no OpenAI-compatible server", "check the address") from error
        with self._server.naming("/v1/models"):
            models = fields.models(found)
        if not models:
            raise DetentError(f"{self._server.url}: /v1/models lists no model: no OpenAI-compatible server",
                              "check the address")
        return models

    def _probe(self) -> str:
        """How the digits are, after one request. Extra parameters are dropped if the server does not take them."""
        request = Request(tuple(range(40, 56)), PROBE)
        for extras in (True, False):
            self._extras = extras
            (reply,) = self._serve([Submission(request)])
            if reply.fault is not None:
                raise reply.fault
            if reply.finish != "refused":
                break
        if reply.finish == "refused":
            raise DetentError(f"{self._server.url}: {COMPLETIONS} refuses a prompt of token ids: {reply.error}",
                              "a server is needed whose completions take token ids")
        if not reply.tokens:
            raise DetentError(f"{self._server.url}: {COMPLETIONS} answered no token", "look at the server's log")
        self._cached_told = reply.cached is not None
        return digits([p.decode() for p in reply.logprobs])

    def _text(self, path: str) -> str:
        try:
            return self._server.get(path)
        except DetentError:
            return ""

    def _counters(self) -> Counters | None:
        return counters(self._text("/metrics")) if self._counted else None

    def _offered(self, paths: Sequence[str]) -> str | None:
        """The first of the paths that the server's own description lists."""
        try:
            listed = self._server.get_json("/openapi.json")
        except DetentError:
            return None
        with self._server.naming("/openapi.json"):
            return next((path for path in paths if fields.posts(listed, path)), None)

    def _vocabulary(self) -> int | None:
        try:
            return max(self.encode(SAMPLE), default=-1) + 1 or None
        except fields.Malformed:
            raise
        except DetentError:
            return None

    def _version(self) -> str:
        with suppress(DetentError):
            return str(self._server.get_json("/version").get("version", "not told"))
        return "not told"

    # ---- one request --------------------------------------------------------------------------------------------

    def _serve(self, submissions: Sequence[Submission]) -> list[Reply]:
        """Send each request when it is due, and wait until all replies have ended. If none of them brings a token
        for the server's timeout, they are cut off: one alone may queue while others are served."""
        replies = [Reply(submission) for submission in submissions]
        news = threading.Condition()

        def wait(until: Callable[[], bool]) -> None:
            with news:
                while not until():
                    if not news.wait(self._server.timeout):
                        for reply in replies:
                            if not reply.done:
                                reply.cut(self._server.silent())

        threads: list[threading.Thread] = []
        for reply in [*replies[:1], *sorted(replies[1:], key=lambda r: r.submission.start)]:
            due = 0 if reply is replies[0] else reply.submission.start
            wait(lambda due=due: due == 0 or replies[0].done or len(replies[0].tokens) >= due)  # type: ignore[misc]
            if replies[0].fault is not None:
                break
            threads.append(self._start(reply, news))
        wait(lambda: sum(reply.done for reply in replies) == len(threads))
        for thread in threads:
            thread.join()
        return replies

    def _start(self, reply: Reply, news: threading.Condition) -> threading.Thread:
        """Send the request now and read its reply in a thread: they reach the server in this order."""
        request, connection = reply.submission.request, None
        reply.arrival = time.monotonic()
        reply.error = impossible(request, self._extras)
        if reply.error:
            reply.finish = "unsupported"
        else:
            try:
                connection = self._server.send(COMPLETIONS, completion(self._model, request, self._extras))
                reply.socket = connection.sock
                connection.sock.settimeout(None)
            except DetentError as error:
                reply.fault = error
        thread = threading.Thread(target=self._read, args=(reply, connection, news), daemon=True)
        thread.start()
        return thread

    def _read(self, reply: Reply, connection: HTTPConnection | None, news: threading.Condition) -> None:
        try:
            if connection is not None:
                for piece in self._server.pieces(connection, COMPLETIONS):
                    if reply.take(piece, self._ids):
                        with news:
                            news.notify_all()
                if not reply.finish:
                    raise DetentError(f"{self._server.url}: the reply ended without a reason",
                                      "look at the server's log")
        except Refused as error:
            if error.status in (400, 413, 422):
                reply.finish, reply.error = "refused", error.message
            else:
                reply.cut(error)
        except DetentError as error:
            told = error.message
            reply.cut(error if told.startswith(self._server.url) else
                      DetentError(f"{self._server.url}: {told}", error.remedy))
        finally:
            with news:
                reply.done = True
                news.notify_all()

    # ---- evidence -----------------------------------------------------------------------------------------------

    def _outputs(self, replies: Sequence[Reply], before: Counters | None) -> list[Output]:
        added = self._added(before, sum(len(reply.tokens) for reply in replies))
        batches = overlaps([reply.times for reply in replies])
        told = added is not None and not confirmed(batches, added)

        def share(total: int | None) -> int | None:
            """What a total says of each request: all of it if there is one, nothing if it is 0."""
            return total if total == 0 or len(replies) == 1 else None

        return [
            Output(
                tokens=tuple(reply.tokens), logprobs=tuple(reply.logprobs),
                steps=tuple(Step(batch=size if told else None) for size in sizes),
                cached=share(added.cached) if reply.cached is None and told and added is not None else reply.cached,
                preemptions=share(added.preemptions) if added is not None else None,
                finish=reply.finish, error=reply.error, arrival=reply.arrival, times=tuple(reply.times),
                text=reply.text or None,
            )
            for reply, sizes in zip(replies, batches, strict=True)
        ]

    def _added(self, before: Counters | None, tokens: int) -> Counters | None:
        """What the server counted since, once its counters hold the replies' tokens."""
        until = time.monotonic() + SETTLE
        while before is not None and (after := self._counters()) is not None:
            added = after.since(before)
            if added.generated >= tokens or time.monotonic() > until:
                return added
            time.sleep(0.02)
        return None

"""An OpenAI-compatible server under load: a thread a request, tokens timed as they arrive, no log-probabilities.

Log-probabilities would slow the server down and are not asked for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from detent.engines import http_fields as fields
from detent.engines.http import COMPLETIONS, HttpTarget
from detent.engines.http_client import Refused, Server
from detent.engines.http_reply import completion
from detent.engines.interface import Output, Request, Traits
from detent.runtime.errors import DetentError

PATIENCE_S = 900.0
"""Seconds without a token until the server counts as dead: under load a request may wait long for its first."""


class HttpServing:
    """The server at ``url`` for :func:`detent.bench.load.drive`. Raises what :class:`HttpTarget` raises."""

    def __init__(self, url: str, model: str | None, arm: str) -> None:
        self._target = HttpTarget(url, model, arm=arm)
        self._server = Server(url, PATIENCE_S)
        self._ended: queue.SimpleQueue[tuple[int, Output | DetentError]] = queue.SimpleQueue()
        self._next = 0

    @property
    def traits(self) -> Traits:
        return self._target.traits

    def now(self) -> float:
        return time.monotonic()

    def submit(self, request: Request, arrival: float) -> int:
        self._next += 1
        threading.Thread(target=self._serve, args=(self._next, request, arrival), daemon=True).start()
        return self._next

    def poll(self, until: float | None) -> list[tuple[int, Output]]:
        timeout = None if until is None else until - self.now()
        try:
            # A time in the past is no time to wait: what has ended is taken all the same.
            found = [self._ended.get(timeout is None or timeout > 0, timeout)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            found.append(self._ended.get())
        ended = []
        for number, output in found:
            if isinstance(output, DetentError):
                raise output
            ended.append((number, output))
        return ended

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._target.close()

    def _serve(self, number: int, request: Request, arrival: float) -> None:
        self._ended.put((number, self._output(request, arrival)))

    def _output(self, request: Request, arrival: float) -> Output | DetentError:
        """What came back; a refusal is an output, any other failure an error."""
        body = completion(self.traits.model, request, extras=True)
        del body["logprobs"]
        heard = Heard(request.max_tokens)
        try:
            connection = self._server.send(COMPLETIONS, body)
            for piece in self._server.pieces(connection, COMPLETIONS, lambda: (len(heard.tokens), heard.finish)):
                heard.take(piece, self.now())
                if len(heard.tokens) > request.max_tokens:
                    raise DetentError("more tokens came than were asked for", "look at the server's log")
        except Refused as error:
            if error.status in (400, 413, 422):
                return Output((), (), finish="refused", error=error.message)
            return error
        except DetentError as error:
            told = error.message
            return error if told.startswith(self._server.url) else DetentError(f"{self._server.url}: {told}",
                                                                               error.remedy)
        return Output(tuple(heard.tokens), (), cached=heard.cached, finish=heard.finish, arrival=arrival,
                      times=tuple(heard.times))


class Heard:
    """The tokens of one reply, of which ``most`` were asked for. A server that shows no ids gives -1 for each."""

    def __init__(self, most: int = fields.LARGEST_COUNT) -> None:
        self.most = most
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.cached: int | None = None
        self.finish = "length"

    def take(self, piece: Mapping[str, Any], now: float) -> None:
        """Add a piece of the reply that came at ``now``."""
        for choice in fields.choices(piece):
            told = fields.token_ids("choice.token_ids", choice.get("token_ids")) or (-1,) * bool(choice.get("text"))
            self.tokens += told
            self.times += [now] * len(told)
            self.finish = fields.text("choice.finish_reason", choice.get("finish_reason")) or self.finish
        cached = fields.cached_tokens(piece)
        self.cached = self.cached if cached is None else cached
        # A piece may hold several tokens; where no ids tell so, the total does. The last one's time is right.
        total = fields.count(*fields.field(piece.get("usage"), "usage", "completion_tokens")) or 0
        missing = min(total, self.most) - len(self.tokens)
        if missing > 0 and self.times and not piece["choices"]:
            self.tokens += [-1] * missing
            self.times += [self.times[-1]] * missing

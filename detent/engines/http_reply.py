"""One completion on its way: what is asked of an OpenAI-compatible server, and what its reply tells."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR, socket
from typing import Any

from detent.engines import http_fields as fields
from detent.engines.http_client import Digits
from detent.engines.interface import Request, Submission
from detent.runtime.errors import DetentError, brief_repr


class Ids:
    """Token ids of a reply. Where a server tells only texts, each text gets an id of our own below zero."""

    def __init__(self) -> None:
        self._own: dict[str, int] = {}

    @property
    def own(self) -> bool:
        """Whether the server tells only texts."""
        return bool(self._own)

    def of(self, text: str) -> int:
        """The id that a token's text is or stands for."""
        name, _, number = text.partition(":")
        if name == "token_id" and number.isdecimal():
            return int(number)
        return self._own.setdefault(text, -1 - len(self._own))

    def text(self, tokens: Sequence[int]) -> str:
        """The text of ids of our own."""
        texts = {number: text for text, number in self._own.items()}
        return "".join(texts.get(token, "") for token in tokens)


@dataclass
class Reply:
    """A request and what came back so far. ``socket``: over which it comes. ``fault``: what went wrong that is not
    this request's own."""

    submission: Submission
    socket: socket | None = None
    arrival: float = 0.0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    cached: int | None = None
    text: str = ""
    finish: str = ""
    error: str = ""
    fault: DetentError | None = None
    done: bool = False

    def cut(self, why: DetentError) -> None:
        """Stop waiting for more."""
        self.fault = self.fault or why
        if self.socket is not None:
            with suppress(OSError):  # it is closed already
                self.socket.shutdown(SHUT_RDWR)

    def take(self, piece: Mapping[str, Any], ids: Ids) -> bool:
        """Add a piece; whether it brought a token or the end. Raises DetentError for one that cannot be compared or
        is no part of a completion."""
        now, before = time.monotonic(), (len(self.tokens), self.finish)
        cached = fields.cached_tokens(piece)
        self.cached = self.cached if cached is None else cached
        for choice in fields.choices(piece):
            values = fields.field(choice, "choice", "logprobs", "token_logprobs")[1] or []
            listed = values if isinstance(values, list) else [None]
            others = [value for value in listed if value is not None and not _is_number(value)]
            if others:
                raise DetentError(f"a log-probability is {brief_repr(others[0])}, which is no number",
                                  "let the server show log-probabilities as numbers")
            if None in listed or choice.get("text") and not values:
                raise DetentError("completions come without log-probabilities",
                                  "let the server show them; without, there is nothing to compare")
            tokens = fields.token_ids("choice.token_ids", choice.get("token_ids"))
            if not tokens:
                name, texts = fields.field(choice, "choice", "logprobs", "tokens")
                tokens = tuple(ids.of(fields.text(f"{name}[{place}]", each))
                               for place, each in enumerate(fields.entries(name, texts)))
            if len(tokens) != len(values):
                raise DetentError(f"{len(tokens)} tokens came with {len(values)} log-probabilities",
                                  "look at the server's log")
            self.tokens += tokens
            self.logprobs += [(v.text if isinstance(v, Digits) else repr(v)).encode() for v in values]
            self.times += [now] * len(tokens)
            self.text += fields.text("choice.text", choice.get("text"))
            if len(self.tokens) > self.submission.request.max_tokens:
                raise DetentError("more tokens came than were asked for", "look at the server's log")
            self.finish = fields.text("choice.finish_reason", choice.get("finish_reason")) or self.finish
        return (len(self.tokens), self.finish) != before


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def completion(model: str, request: Request, extras: bool) -> dict[str, Any]:
    """The body of a request. ``extras``: also what vLLM and SGLang take beyond OpenAI's parameters: neither the
    model's defaults nor its end-of-text token may decide anything."""
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model, "prompt": list(request.prompt), "max_tokens": request.max_tokens,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "logprobs": 1, "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if request.stop:
        body["stop"] = list(request.stop)
    if extras:
        body |= {"top_k": sampling.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True,
                 "stop_token_ids": list(request.stop_tokens), "return_token_ids": True,
                 "return_tokens_as_token_ids": True}
    return body


def impossible(request: Request, extras: bool) -> str:
    """Why the server cannot be asked this; empty where it can."""
    if min(request.prompt, default=0) < 0:
        return "the server tells no token ids, so its output cannot be a prompt"
    if not extras and (request.sampling.top_k or request.stop_tokens):
        return "the server takes neither top_k nor stop tokens"
    return ""


def digits(texts: Sequence[str]) -> str:
    """How finely numbers are shown: their significant digits, and whether these are all there is to a float32."""
    most = max(len(re.sub(r"e.*", "", text.lower()).replace("-", "").replace(".", "").lstrip("0")) for text in texts)
    if most >= 16 and all(_is_float32(float(text)) for text in texts):
        return f"all of a float32, as {most} digits"
    return f"{most} digits"


def _is_float32(value: float) -> bool:
    return bool(struct.unpack("f", struct.pack("f", value))[0] == value)

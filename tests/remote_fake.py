"""A target for another process to make: it tells what it was made of and where it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from detent.engines.interface import Output, Submission, Traits
from detent.runtime.errors import BadFile


class FakeTarget:
    def __init__(self, model: str) -> None:
        if model == "missing":
            raise BadFile(model, "no such model", "name another")
        print("a line on standard output")
        self.traits = Traits("fake", "fake", "stock", model, vocabulary=8, context=16,
                             environment={"process": os.getpid(), "cache": os.environ.get("FAKE_CACHE")})

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        if not submissions:
            os._exit(3)
        return [Output(s.request.prompt, tuple(bytes([t]) for t in s.request.prompt)) for s in submissions]

    def flush(self) -> None:
        raise BadFile("cache", "is in use")

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()

    def close(self) -> None:
        pass

"""The embedded engine in a process of its own, whose compile caches are empty at its start.

Messages are pickles over the process's standard input and output: a method's name and arguments there, its result or
the error back.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from detent.engines.interface import Output, Submission, Target, Traits
from detent.runtime.errors import DetentError

CACHES = ("DETENT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Environment variables that say where compiled things are kept."""


class RemoteTarget:
    """A target that runs elsewhere; ``options`` are those of ``EmbeddedTarget.open``. Raises what that raises."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._folder = tempfile.TemporaryDirectory(prefix="detent-fresh-")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                       **{name: os.path.join(self._folder.name, name.lower()) for name in CACHES}}
        self._process = subprocess.Popen([sys.executable, "-m", "detent.engines.embedded.remote"],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        try:
            self._traits: Traits = self._call("open", self.options)
        except BaseException:
            self.close()
            raise

    @property
    def traits(self) -> Traits:
        return self._traits

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        outputs: list[Output] = self._call("run", list(submissions))
        return outputs

    def flush(self) -> None:
        self._call("flush")

    def fresh(self) -> Target:
        return RemoteTarget(self.options)

    def encode(self, text: str) -> tuple[int, ...]:
        tokens: tuple[int, ...] = self._call("encode", text)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._call("decode", tuple(tokens)))

    def close(self) -> None:
        """End the process and remove its caches."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()  # it reads an end and leaves
        except OSError:
            pass  # it was gone already
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def _call(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((name, arguments), self._process.stdin)
            self._process.stdin.flush()
            error, result = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise DetentError("the engine's new process ended before it answered",
                              "what it wrote to standard error says why") from None
        if error is not None:
            raise error
        return result


def serve() -> None:
    """Answer calls until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the answers
    target: Any = None
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        error: DetentError | None = None
        result: Any = None
        try:
            if name == "open":
                from detent.engines.embedded.target import EmbeddedTarget

                target = EmbeddedTarget.open(**arguments[0])
                result = target.traits
            else:
                result = getattr(target, name)(*arguments)
        except DetentError as raised:
            error = raised
        pickle.dump((error, result), answers)
        answers.flush()


if __name__ == "__main__":
    serve()

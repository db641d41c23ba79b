"""A target in a process of its own, whose compile caches are empty at its start.

Messages are pickles over the process's standard input and output: a method's name and arguments there, its result or
the error back.
"""

from __future__ import annotations

import importlib
import operator
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from detent.engines.interface import Output, Submission, Traits
from detent.runtime.errors import DetentError


class RemoteTarget:
    """The target that ``factory`` ("module:callable") makes of ``options`` elsewhere. Raises what that raises.

    ``caches``: environment variables that say where compiled things are kept; each gets an empty folder.
    """

    def __init__(self, factory: str, options: Mapping[str, Any], caches: Sequence[str] = ()) -> None:
        self._made = (factory, dict(options), tuple(caches))
        self._folder = tempfile.TemporaryDirectory(prefix="detent-fresh-")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                       **{name: os.path.join(self._folder.name, name.lower()) for name in caches}}
        self._process = subprocess.Popen([sys.executable, "-m", "detent.engines.remote"],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        try:
            self._traits: Traits = self._call("open", factory, self._made[1])
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

    def fresh(self) -> RemoteTarget:
        return RemoteTarget(*self._made)

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
            self._process.wait(30)
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
            break
        error: DetentError | None = None
        result: Any = None
        try:
            if name == "open":
                module, _, function = arguments[0].partition(":")
                target = operator.attrgetter(function)(importlib.import_module(module))(**arguments[1])
                result = target.traits
            else:
                result = getattr(target, name)(*arguments)
        except DetentError as raised:
            error = raised
        pickle.dump((error, result), answers)
        answers.flush()
    if target is not None:
        target.close()


if __name__ == "__main__":
    serve()

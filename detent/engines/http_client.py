"""The wire to an HTTP server: JSON whose numbers keep their digits, replies that arrive piece by piece, clear errors.

Standard library only.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from detent.engines.http_fields import Malformed
from detent.runtime.errors import DetentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from _typeshed import WriteableBuffer

KEY = "DETENT_API_KEY"
"""Environment variable with the key that a server may ask for. No other one is sent anywhere."""


class Digits(float):
    """A number of a reply, with the text it was written as."""

    text: str

    def __new__(cls, text: str) -> Digits:
        number = super().__new__(cls, text)
        number.text = text
        return number


class Refused(DetentError):
    """The server answered that it will not do this. ``status``: of HTTP."""

    def __init__(self, message: str, remedy: str = "", status: int = 400) -> None:
        super().__init__(message, remedy)
        self.args = (message, remedy, status)
        self.status = status


def parse(text: str | bytes) -> Any:
    """JSON with every fraction as :class:`Digits`, also ``NaN`` and ``Infinity``. Raises ValueError."""
    try:
        return json.loads(text, parse_float=Digits, parse_constant=Digits)
    except RecursionError:
        raise ValueError("too many brackets") from None


class Clock:
    """Until when something must have come, whatever comes meanwhile; ``patience`` None: for ever."""

    def __init__(self, patience: float | None) -> None:
        self.patience = patience
        self.restart()

    def restart(self) -> None:
        self.until = None if self.patience is None else time.monotonic() + self.patience

    def left(self) -> float | None:
        """Seconds. Raises TimeoutError where there are none."""
        if self.until is None:
            return None
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class Timed(io.RawIOBase):
    """What comes from a socket until a clock runs out: a server that sends a byte now and then is as late as one that
    sends none."""

    def __init__(self, sock: socket, clock: Clock) -> None:
        self._socket, self._file, self._clock = sock, sock.makefile("rb", buffering=0), clock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._clock.left()
        with suppress(OSError):  # it was cut off
            self._socket.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class Response(http.client.HTTPResponse):
    """A reply that must come before a clock runs out."""

    def __init__(self, sock: socket, clock: Clock, method: str | None = None) -> None:
        super().__init__(sock, method=method)
        self.fp.close()
        self.fp = io.BufferedReader(Timed(sock, clock))


def answer(connection: http.client.HTTPConnection, clock: Clock) -> http.client.HTTPResponse:
    """The reply to what went over the connection."""
    connection.response_class = lambda sock, debuglevel=0, method=None, url=None: Response(sock, clock, method)  # type: ignore[assignment]
    return connection.getresponse()


class Server:
    """A server at ``url`` (``http`` or ``https``; a path is kept, a final ``/v1`` dropped).

    ``timeout``: seconds in which a whole answer must have come, or of a streamed one the next token.
    """

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        wrong = DetentError(f"{url!r} is not the address of a server", "write http://HOST:PORT")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # a port that is no number, a bracket that is not closed
            raise wrong from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise wrong
        self.url, self.timeout = url, timeout
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"
        self._base = parts.path.rstrip("/").removesuffix("/v1")

    def get(self, path: str) -> str:
        """The text at a path. Raises :class:`Refused` for a status other than 200."""
        return self._whole("GET", path, None)

    def get_json(self, path: str) -> dict[str, Any]:
        """What a path answers, if that is JSON."""
        return self._json(self.get(path), path)

    def post(self, path: str, content: Mapping[str, Any] | None = None) -> str:
        """The text that a path answers."""
        return self._whole("POST", path, content)

    def post_json(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """What a path answers to some JSON, if that is JSON."""
        return self._json(self.post(path, content), path)

    def send(self, path: str, content: Mapping[str, Any]) -> http.client.HTTPConnection:
        """The connection over which some JSON went; :meth:`pieces` reads the answer and closes it."""
        with self._errors():
            return self._request("POST", path, content)

    def pieces(self, connection: http.client.HTTPConnection, path: str,
               heard: Callable[[], object] = lambda: None) -> Iterator[Any]:
        """The JSON values of a reply of server-sent events as they arrive, or of one whole reply.

        ``heard``: what the reader has of the reply so far. Raises :class:`Refused` for a status other than 200 or an
        error amid the reply, and DetentError for a reply that breaks off or in which ``heard`` stays the same for the
        connection's timeout: comments and pieces without tokens, which only keep it open, are nothing.
        """
        clock = Clock(connection.sock.gettimeout())
        with self._errors(), closing(connection), answer(connection, clock) as response:
            if response.status != 200 or "event-stream" not in response.headers.get("content-type", ""):
                yield self._json(self._body(response, path), path)
                return
            while line := response.readline():
                clock.left()
                name, _, data = line.decode("utf-8", "replace").partition(":")
                if name != "data":
                    continue
                if data.strip() == "[DONE]":
                    return
                piece = self._json(data, path)
                if "error" in piece:
                    raise Refused(f"{self.url}: {_told(piece)}", status=500)
                before, began = heard(), time.monotonic()
                yield piece
                if heard() != before:
                    clock.restart()
                elif clock.until is not None:
                    clock.until += time.monotonic() - began  # what the reader did is not the server's silence
            raise DetentError(f"{self.url}: the reply broke off", "look at the server's log")

    def silent(self) -> DetentError:
        """The error of a server from which nothing comes."""
        return DetentError(f"{self.url}: no answer within {self.timeout:g} s", "check the server")

    @contextmanager
    def naming(self, path: str) -> Iterator[None]:
        """A field that is not what it must be is named with the server and the path."""
        try:
            yield
        except Malformed as error:
            raise error.of(f"{self.url}: {path}") from None

    def _whole(self, method: str, path: str, content: Mapping[str, Any] | None) -> str:
        with self._errors():
            clock = Clock(self.timeout)
            with closing(self._request(method, path, content)) as connection, answer(connection, clock) as response:
                return self._body(response, path)

    def _request(self, method: str, path: str, content: Mapping[str, Any] | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self.timeout)
        headers = {"Accept": "application/json, text/event-stream, text/plain"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        body = None
        if content is not None:
            body, headers["Content-Type"] = json.dumps(content).encode(), "application/json"
        try:
            connection.request(method, self._base + path, body, headers)
        except BaseException:
            connection.close()
            raise
        return connection

    def _body(self, response: http.client.HTTPResponse, path: str) -> str:
        text = response.read().decode("utf-8", "replace")
        if response.status == 200:
            return text
        remedy = f"put the server's key into {KEY}" if response.status in (401, 403) else ""
        try:
            told = _told(parse(text))
        except ValueError:
            told = ""
        raise Refused(f"{self.url}: {path} answered {response.status}" + (f": {told}" if told else ""), remedy,
                      response.status)

    def _json(self, text: str, path: str) -> dict[str, Any]:
        try:
            found = parse(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DetentError(f"{self.url}: {path} did not answer with a JSON object",
                              "check that an OpenAI-compatible server runs there")
        return found

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What goes wrong on the way to the server and back, as errors of ours."""
        try:
            yield
        except TimeoutError as error:
            raise self.silent() from error
        except http.client.HTTPException as error:
            raise DetentError(f"{self.url}: no proper HTTP came back ({type(error).__name__})",
                              "check that an OpenAI-compatible server runs there") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise DetentError(f"{self.url}: no connection ({why})",
                              "check the address, and that the server is up") from error


def _told(reply: Any) -> str:
    """The message in an error of an OpenAI-compatible server, in any of its usual places."""
    while isinstance(reply, Mapping):
        reply = next((reply[key] for key in ("error", "message", "detail") if reply.get(key)), "")
    return str(reply)

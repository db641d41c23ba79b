"""A proxy that breaks batch invariance a little: ``python -m detent.tools.flip_proxy UPSTREAM --port PORT``.

It stands on loopback before an OpenAI-compatible server. A completion that passes while another one is under way has
the last bit of one log-probability flipped; alone, it passes as it is. A battery that does not find this finds
nothing.
"""

from __future__ import annotations

import argparse
import http.client
import re
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

NUMBER = re.compile(rb'("token_logprobs":\s*\[\s*)(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)')
DROPPED = {"transfer-encoding", "connection", "content-length", "keep-alive"}
TIMEOUT = 120.0


def flip(number: float) -> float:
    """The number with its last bit flipped: a float32's where it is one, else a double's."""
    if struct.unpack("f", struct.pack("f", number))[0] == number:
        bits = struct.unpack("I", struct.pack("f", number))[0]
        flipped: float = struct.unpack("f", struct.pack("I", bits ^ 1))[0]
    else:
        bits = struct.unpack("Q", struct.pack("d", number))[0]
        flipped = struct.unpack("d", struct.pack("Q", bits ^ 1))[0]
    return flipped


class Proxy(ThreadingHTTPServer):
    """Serves on loopback. ``under_way``: completions being answered; ``flips``: log-probabilities changed so far."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, upstream: str, port: int = 0) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{upstream!r} is not http://HOST:PORT")
        super().__init__(("127.0.0.1", port), Handler)
        self.host, self.upstream_port = parts.hostname, parts.port
        self.lock = threading.Lock()
        self.under_way = 0
        self.flips = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[Proxy]:
        """Serve in a thread."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.upstream_port, timeout=TIMEOUT)


class Handler(BaseHTTPRequestHandler):
    """Passes one request on and its reply back, line by line."""

    server: Proxy

    def do_GET(self) -> None:
        self._pass(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.endswith("/completions"):
            self._pass(body)
            return
        with self.server.lock:
            self.server.under_way += 1
        try:
            self._pass(body, completion=True)
        finally:
            with self.server.lock:
                self.server.under_way -= 1

    def _pass(self, body: bytes | None, completion: bool = False) -> None:
        connection = self.server.connect()
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in {*DROPPED, "host"}}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in DROPPED:
                    self.send_header(name, value)
            self.end_headers()  # HTTP/1.0: the reply ends where the connection does
            flipped = not completion
            while line := response.readline():
                if not flipped and self.server.under_way > 1:
                    line, count = NUMBER.subn(self._flipped, line, count=1)
                    flipped = count > 0
                self.wfile.write(line)
                self.wfile.flush()
        except (OSError, http.client.HTTPException) as error:
            print(f"{self.path}: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            connection.close()

    def _flipped(self, found: re.Match[bytes]) -> bytes:
        with self.server.lock:
            self.server.flips += 1
        return found[1] + repr(flip(float(found[2]))).encode()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing a request."""


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m detent.tools.flip_proxy", description="A faulty proxy")
    parser.add_argument("upstream", help="the server, http://HOST:PORT")
    parser.add_argument("--port", type=int, default=0, help="port on loopback (0: any free one)")
    options = parser.parse_args(argv)
    try:
        proxy = Proxy(options.upstream, options.port)
    except (ValueError, OSError, OverflowError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(proxy.url, flush=True)
    try:
        proxy.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        proxy.server_close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

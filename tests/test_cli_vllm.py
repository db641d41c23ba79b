"""``detent vllm``: a model compared with a tuple, and what keeps vLLM from being started under one. vLLM is faked."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cli_support import CONFIGS, done, invoke, refused

from detent.engines.vllm import active
from detent.runtime.tuple import CommitmentTuple

DEPLOYMENT = "llama-3.1-8b-tp1-h200"
MODEL = CONFIGS / "Llama-3.1-8B"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the commands put into the environment is gone afterwards."""
    names = (active.VARIABLE, active.DEPLOYMENT, "VLLM_PLUGINS")
    for name in names:
        monkeypatch.setenv(name, "")  # so that the old state is known
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", sys.argv)
    yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuple of one GPU."""
    written = tmp_path_factory.mktemp("tuple") / "tuple.json"
    done("tuple", "new", "-d", DEPLOYMENT, written)
    return written


def installed(monkeypatch: pytest.MonkeyPatch, version: str = "0.26.0", plugins: tuple[str, ...] = ("detent",),
              run: Any = None) -> None:
    """A vLLM that does nothing but ``run``."""
    real = importlib.metadata.version
    monkeypatch.setattr("detent.engines.vllm.rules.version", lambda name: version if name == "vllm" else real(name))
    monkeypatch.setattr(importlib.metadata, "entry_points",
                        lambda group: [SimpleNamespace(name=name) for name in plugins])
    for name in ("vllm", "vllm.entrypoints", "vllm.entrypoints.cli", "vllm.entrypoints.cli.main"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    setattr(sys.modules["vllm.entrypoints.cli.main"], "main", run or (lambda: None))  # noqa: B010 (no such attribute)


def test_serve_hands_everything_else_to_vllm(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    ran: list[list[str]] = []
    installed(monkeypatch, run=lambda: ran.append(list(sys.argv)))
    result = invoke("vllm", "serve", "--tuple", path, "some/model", "--port", "8001", "-tp", "1", "-cc.mode=3",
                    "--max-model-len=4096", "--no-enable-prefix-caching")
    assert result.exit_code == 0, result.output
    assert ran == [["vllm", "serve", "some/model", "--port", "8001", "-tp", "1", "-cc.mode=3", "--max-model-len=4096",
                    "--no-enable-prefix-caching"]]
    assert os.environ["DETENT_TUPLE"] == str(path)


def test_serve_without_vllm(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    def none(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("detent.engines.vllm.rules.version", none)
    assert refused("vllm", "serve", "--tuple", path, "m") == (
        "vLLM is not installed here; run: pip install 'detent[vllm]'")


def test_serve_with_a_version_that_nobody_has_read(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    installed(monkeypatch, version="0.33.0")
    assert refused("vllm", "serve", "--tuple", path, "m") == (
        "vLLM 0.33.0 is installed, whose selections nobody has read; install vllm==0.26.0")


def test_serve_where_vllm_would_not_load_the_plugin(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    installed(monkeypatch, plugins=("another",))
    assert "vLLM does not find Detent's plug-in; install Detent" in refused("vllm", "serve", "--tuple", path, "m")
    installed(monkeypatch)
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    assert "VLLM_PLUGINS is 'another'" in refused("vllm", "serve", "--tuple", path, "m")
    monkeypatch.setenv("VLLM_PLUGINS", "another,detent")
    assert invoke("vllm", "serve", "--tuple", path, "m").exit_code == 0


def test_serve_with_a_tuple_of_another_engine(monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path) -> None:
    installed(monkeypatch)
    commitment = CommitmentTuple.load(str(path))
    other = tmp_path / "other.json"
    CommitmentTuple("llama-3.1-8b-tp1-h100-sglang", commitment.families, commitment.environment).write(str(other))
    assert "the tuple is for sglang, not for vLLM" in refused("vllm", "serve", "--tuple", other, "m")


def test_serve_with_a_file_that_is_no_tuple(tmp_path: Path, path: Path) -> None:
    assert "No such file" in refused("vllm", "serve", "--tuple", tmp_path / "none.json", "m")
    edited = json.loads(path.read_text(encoding="utf-8"))
    edited["families"]["gemm"]["knobs"]["padding"] = 512
    (tmp_path / "edited.json").write_text(json.dumps(edited), encoding="utf-8")
    assert "it was edited after it was written" in refused("vllm", "serve", "--tuple", tmp_path / "edited.json", "m")
    assert "missing option '--tuple'" in refused("vllm", "serve", "m")
    assert "missing argument" in refused("vllm", "serve", "--tuple", path)


def test_what_vllm_raises_is_one_line(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    def fails() -> None:
        raise RuntimeError("Engine core initialization failed.\nmore")

    installed(monkeypatch, run=fails)
    assert refused("vllm", "serve", "--tuple", path, "m") == (
        "vLLM stopped: Engine core initialization failed.; its log above says why")


def test_what_the_plugin_refuses_has_a_line_each(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    from detent.runtime.errors import Refused

    def refuses() -> None:
        raise Refused("tuple.json does not hold for this vLLM", ["one: change --a", "two: change --b"])

    installed(monkeypatch, run=refuses)
    result = invoke("vllm", "serve", "--tuple", path, "m")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == ("error: tuple.json does not hold for this vLLM:\n  one: change --a\n  two: change --b\n")


def test_check_of_the_tuples_model(path: Path) -> None:
    assert "facts of the model are those of llama-3.1-8b-tp1-h200" in done("vllm", "check", "--tuple", path, MODEL)
    assert done("vllm", "check", "--tuple", path, MODEL) == done(
        "vllm", "check", "--tuple", path, MODEL / "config.json").replace(f"{MODEL / 'config.json'}", str(MODEL))


def test_check_of_another_model(path: Path) -> None:
    result = invoke("vllm", "check", "--tuple", path, CONFIGS / "Llama-3.2-1B", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 1 and not told["matches"] and "model.hidden_size" in told["compared"]
    assert any(line.startswith("model.head_dim: the tuple has 128, the engine has 64: serve the model of")
               for line in told["differences"])


def test_check_of_no_model(path: Path, tmp_path: Path) -> None:
    assert "config.json: No such file" in refused("vllm", "check", "--tuple", path, tmp_path)


def test_neither_torch_nor_vllm_is_needed_to_say_so(root: Path, path: Path) -> None:
    code = ("import sys\nfor name in ('torch', 'vllm', 'triton'):\n    sys.modules[name] = None\n"
            "from detent.cli import main\n"
            f"print(main(['vllm', 'check', '--tuple', {str(path)!r}, {str(MODEL)!r}]))\n"
            f"print(main(['vllm', 'serve', '--tuple', {str(path)!r}, 'm']))\n")
    run = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert run.stdout.splitlines()[-2:] == ["0", "2"] and "Traceback" not in run.stderr

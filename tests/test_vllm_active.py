"""The tuple that a process of vLLM serves under: which one is taken, from where its deployment comes, and what is
refused. No vLLM is needed for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import done

from detent.engines.vllm import active
from detent.runtime.errors import BadFile, DetentError, TupleMismatch, Violation
from detent.runtime.tuple import CommitmentTuple

NAME = "llama-3.1-8b-tp1-h200"
PART = {"program": "p", "key": "0", "facts": {}, "pins": {}, "knobs": {}}
NEEDED = ("attention", "gemm", "norm", "sampler")


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole tuple of a deployment of Detent's own."""
    path = tmp_path_factory.mktemp("tuple") / "tuple.json"
    done("tuple", "new", "-d", NAME, path)
    return path


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that serves under nothing yet."""
    monkeypatch.setattr(active, "_active", None)
    monkeypatch.delenv(active.DEPLOYMENT, raising=False)


def tuple_of(path: Path, deployment: str, families: tuple[str, ...] = NEEDED) -> str:
    """A tuple that nobody solved: enough for what is refused before a selector is asked for."""
    CommitmentTuple(deployment, dict.fromkeys(families, PART), {}).write(str(path))
    return str(path)


def test_points_and_conditions_of_a_tuple(solved: Path) -> None:
    """The same points for every call; inputs are compared with what the tuple was solved for."""
    found = active.activate(str(solved))
    assert active.get() is found and found.hash == json.loads(solved.read_text(encoding="utf-8"))["hash"]
    assert set(found.points) == set(NEEDED)
    assert found.points["attention"]["split_stride"] == 256 and found.points["gemm"]["kernel"] == "deep_gemm"
    limits = found.deployment.facts["limits"]
    context, tokens = limits["max_context"], limits["max_num_batched_tokens"]
    width = -(-context // found.deployment.facts["engine"]["page_size"])
    for inputs in ((1, 1, context, 1, width, True), (7, 30, 4000, 100, width, False)):
        found.check("attention", *inputs)
        assert dict(found.select["attention"](*inputs)) == dict(found.points["attention"])
    found.check("gemm", tokens)
    with pytest.raises(TypeError):
        found.points["gemm"]["padding"] = 8  # type: ignore[index]
    for family, inputs, text in (
            ("attention", (1, 1, context + 1, 1, width, True), "1 <= max_seqlen_k <= limits.max_context"),
            ("gemm", (tokens + 1,), "num_tokens <= limits.max_num_batched_tokens"),
            ("norm", (tokens + 1,), "num_tokens <= limits.max_num_batched_tokens")):
        with pytest.raises(Violation, match="assume does not hold") as stopped:
            found.check(family, *inputs)
        told = str(stopped.value)
        assert text in told and "programs/" in told and f"={inputs[-1]}" in told
        assert int(told.partition(".py:")[2].partition(":")[0]) > 1  # the condition's line


def test_one_tuple_a_process(solved: Path, tmp_path: Path) -> None:
    """The same file again, also by another way to it, is nothing new; another one is refused."""
    found = active.activate(str(solved))
    link = tmp_path / "link.json"
    link.symlink_to(solved)
    assert active.activate(os.path.relpath(solved)) is found and active.activate(str(link)) is found
    copy = tmp_path / "copy.json"
    copy.write_bytes(solved.read_bytes())
    with pytest.raises(DetentError, match=r"copy\.json: this process already serves under .*tuple\.json"):
        active.activate(str(copy))
    assert active.get() is found


def test_open_parts_are_bound_once(solved: Path) -> None:
    found = active.activate(str(solved))
    bound = active.bind({"gpu": "NVIDIA H200"})
    assert active.get() is bound and bound.hash != found.hash and bound.points is found.points
    assert active.bind({"gpu": "NVIDIA H200"}).hash == bound.hash
    with pytest.raises(TupleMismatch, match="gpu: the tuple has NVIDIA H200, found NVIDIA H100"):
        active.bind({"gpu": "NVIDIA H100"})
    assert active.get() is not None and active.get().hash == bound.hash  # type: ignore[union-attr]


def test_files_that_are_no_tuple(solved: Path, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"absent\.json"):
        active.activate(str(tmp_path / "absent.json"))
    text = tmp_path / "text.json"
    text.write_text("{", encoding="utf-8")
    with pytest.raises(BadFile, match="not JSON"):
        active.activate(str(text))
    text.write_text(solved.read_text(encoding="utf-8").replace('"padding": 1', '"padding": 64'), encoding="utf-8")
    with pytest.raises(TupleMismatch, match="edited after it was written"):
        active.activate(str(text))
    assert active.get() is None


def test_a_deployment_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DetentError, match="my-own-h200"):
        active.activate(tuple_of(tmp_path / "t.json", "my-own-h200"))


def test_a_tuple_for_sglang(tmp_path: Path) -> None:
    with pytest.raises(DetentError, match="the tuple is for sglang, not for vLLM"):
        active.activate(tuple_of(tmp_path / "t.json", "llama-3.1-8b-tp1-h100-sglang"))
    assert active.get() is None


@pytest.mark.parametrize("deployment, families, lacking", [
    (NAME, ("attention", "gemm"), "norm, sampler"),
    (NAME, ("moe", "allreduce"), "attention, gemm, norm, sampler"),
    ("qwen3-30b-a3b-tp1-h200", NEEDED, "moe"),
    ("qwen3-30b-a3b-tp2-h200", NEEDED, "allreduce, moe"),
    ("llama-3.1-70b-tp2-h200", NEEDED, "allreduce"),
])
def test_a_family_that_the_model_needs_is_missing(tmp_path: Path, deployment: str, families: tuple[str, ...],
                                                  lacking: str) -> None:
    with pytest.raises(DetentError, match=rf"the tuple has nothing for {lacking};.* --deployment {deployment} "):
        active.activate(tuple_of(tmp_path / "t.json", deployment, families))


# ---- the deployment's file ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """A folder with a deployment of somebody's own and its tuple."""
    folder = tmp_path_factory.mktemp("own")
    text = (root / "programs" / "deployments" / f"{NAME}.toml").read_text(encoding="utf-8")
    lines = ["max_num_seqs = 48" if line.startswith("max_num_seqs") else line for line in text.splitlines()]
    (folder / "mine.toml").write_text("\n".join(lines).replace(NAME, "mine") + "\n", encoding="utf-8")
    done("tuple", "new", "-d", folder / "mine.toml", folder / "tuple.json")
    return folder


def test_a_deployment_beside_its_tuple(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found from any folder, also by a link to the tuple."""
    monkeypatch.chdir(tmp_path)
    found = active.activate(str(own / "tuple.json"))
    assert found.deployment.name == "mine" and found.deployment.facts["limits"]["max_num_seqs"] == 48
    with pytest.raises(Violation, match=r"1 <= b <= limits\.max_num_seqs"):
        found.check("attention", 49, 1, 1, 49, 1, False)
    monkeypatch.setattr(active, "_active", None)
    (tmp_path / "link.json").symlink_to(own / "tuple.json")
    assert active.activate("link.json").deployment.name == "mine"


def test_a_deployment_that_a_variable_names(own: Path, solved: Path, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed where the file is elsewhere, goes before the one beside the tuple, and must be the tuple's."""
    copy = tmp_path / "tuple.json"
    copy.write_bytes((own / "tuple.json").read_bytes())
    with pytest.raises(DetentError, match="mine"):
        active.activate(str(copy))
    monkeypatch.setenv(active.DEPLOYMENT, str(own / "mine.toml"))
    assert active.activate(str(copy)).deployment.name == "mine"
    monkeypatch.setattr(active, "_active", None)
    with pytest.raises(DetentError, match=rf"mine\.toml is deployment mine, the tuple's is {NAME}"):
        active.activate(str(solved))
    assert active.get() is None


def test_a_deployment_that_was_changed_since(own: Path, tmp_path: Path) -> None:
    (tmp_path / "tuple.json").write_bytes((own / "tuple.json").read_bytes())
    text = (own / "mine.toml").read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(text.replace("max_num_seqs = 48", "max_num_seqs = 64"), encoding="utf-8")
    with pytest.raises(TupleMismatch, match=r"limits\.max_num_seqs: the tuple has 48, found 64"):
        active.activate(str(tmp_path / "tuple.json"))


# ---- the entry point ------------------------------------------------------------------------------------------------

INERT = """
import os, sys, time
from detent.engines.vllm.plugin import register
register()
times = []
for _ in range(5):
    begun = time.perf_counter()
    register()
    times.append(time.perf_counter() - begun)
print(min(times), *(name for name in sys.modules if name.partition(".")[0] in ("torch", "vllm", "triton", "numpy")))
"""


@pytest.mark.parametrize("value", (None, ""))
def test_the_entry_point_costs_nothing_without_a_tuple(root: Path, value: str | None) -> None:
    variables: dict[str, Any] = {name: text for name, text in os.environ.items() if name != active.VARIABLE}
    variables |= {} if value is None else {active.VARIABLE: value}
    run = subprocess.run([sys.executable, "-c", INERT], cwd=root, env=variables, check=True, capture_output=True,
                         text=True)
    fastest, *imported = run.stdout.split()
    assert float(fastest) < 1e-3 and imported == []

"""The host's side of the CUDA kernels, without a GPU: what is chosen, built and passed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detent.kernels import attention_split, attention_split_cuda


def test_python_and_cuda_name_the_same_arguments() -> None:
    source = (Path(attention_split_cuda.__file__).parent / "attention_split_launch.cuh").read_text(encoding="utf-8")
    found = re.search(r"struct Call \{(.*?)\};", source, re.DOTALL)
    assert found
    code = re.sub(r"//.*", "", found[1])
    names = [name for line in code.split(";") for name in re.findall(r"(\w+)(?=\s*(?:,|$))", line.strip())]
    assert names == [field[0] for field in attention_split_cuda.Call._fields_]


def test_sources_include_one_another_and_nothing_else_of_ours() -> None:
    folder = Path(attention_split_cuda.__file__).parent
    included = {name for source in attention_split_cuda.SOURCES
                for name in re.findall(r'#include "(.*)"', (folder / source).read_text(encoding="utf-8"))}
    assert included == set(attention_split_cuda.SOURCES[1:])


def test_implementation_is_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = attention_split.implementation.__wrapped__
    for name in ("sm90", "triton"):
        monkeypatch.setenv("DETENT_ATTENTION_SPLIT", name)
        assert chosen() == name
    monkeypatch.setenv("DETENT_ATTENTION_SPLIT", "sm80")
    with pytest.raises(ValueError, match="sm80"):
        chosen()


def test_without_a_compiler_an_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_split_cuda, "compiler", lambda: None)
    assert not attention_split_cuda.available()
    with pytest.raises(RuntimeError, match="CUDA_HOME"):
        attention_split_cuda.library.__wrapped__(128)


def test_a_failing_build_is_an_error_with_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\n[ $1 = --version ] && echo 1 && exit\necho no such luck; exit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setattr(attention_split_cuda, "compiler", lambda: str(fake))
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="no such luck"):
        attention_split_cuda.library.__wrapped__(128)
    assert not list((tmp_path / "cache" / "kernels").iterdir())


def test_a_folder_others_may_write_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path))
    with pytest.raises(PermissionError, match="executed"):
        attention_split_cuda._folder()

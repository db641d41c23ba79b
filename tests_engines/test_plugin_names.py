"""Every name that the plug-in replaces exists: in the vLLM that is served, and, read as text, in the newest release.

``make test-vllm-newest`` downloads the newest one's wheel; nothing of it is installed or run. Without the wheel that
test is skipped.
"""

from __future__ import annotations

import importlib.machinery
import os
import zipfile
from pathlib import Path

import pytest

from detent.engines.vllm import hooks

FOLDER = "DETENT_VLLM_NEWEST"
"""Environment variable: the folder with the wheel."""


def test_the_served_version_has_every_name() -> None:
    spec = importlib.machinery.PathFinder.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations is not None
    assert hooks.missing(str(Path(next(iter(spec.submodule_search_locations))).parent)) == []


def test_every_hook_is_of_a_module_of_ours() -> None:
    folder = Path(hooks.__file__).parent
    for hook in hooks.HOOKS:
        assert (folder / f"{hook.site.replace('.', '/')}.py").is_file(), hook


def test_the_newest_release_has_every_name(tmp_path: Path) -> None:
    wheels = sorted(Path(os.environ[FOLDER]).glob("vllm-*.whl")) if os.environ.get(FOLDER) else []
    if not wheels:
        pytest.skip("NOT checked: the newest vLLM's wheel is not here; make test-vllm-newest downloads it")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        wheel.extractall(tmp_path, [name for name in wheel.namelist() if name.endswith(".py")])
    assert hooks.missing(str(tmp_path)) == []

"""The walls of the design: who may import whom, and what a fresh process pays for an import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

import detent

NEW_MODULES = """
import json, sys
before = set(sys.modules)
{code}
print(json.dumps(sorted(set(sys.modules) - before)))
"""

IMPORT_ALL_OF_RUNTIME = """
import importlib, pkgutil
import detent.runtime
for module in pkgutil.walk_packages(detent.runtime.__path__, "detent.runtime."):
    importlib.import_module(module.name)
"""


def modules_loaded_by(code: str, root: Path) -> set[str]:
    """The modules that ``code`` adds to those of a bare interpreter, in a fresh process."""
    command = [sys.executable, "-c", NEW_MODULES.format(code=code)]
    run = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return set(json.loads(run.stdout))


def test_contracts_hold(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    status = lint_imports(config_filename="pyproject.toml", no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_runtime_is_the_standard_library_alone(root: Path) -> None:
    loaded = modules_loaded_by(IMPORT_ALL_OF_RUNTIME, root)
    ours = {name for name in loaded if name.split(".")[0] == "detent"}
    assert "detent.runtime" in ours
    assert {name for name in ours if not name.startswith("detent.runtime")} == {"detent"}
    assert {name.split(".")[0] for name in loaded - ours} <= sys.stdlib_module_names


def test_kernels_import_nothing_of_ours(root: Path) -> None:
    """The kernels' folder is no package, so that import-linter does not see it."""
    files = sorted((root / "kernels").glob("*.py"))
    assert files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
            ours = [name for name in names if name.split(".")[0] in ("detent", "")]
            assert all(name.startswith("detent.kernels") for name in ours), (file.name, ours)


def test_importing_detent_imports_nothing_else(root: Path) -> None:
    assert modules_loaded_by("import detent", root) <= {"detent", "__future__"}


@pytest.mark.parametrize("name", detent.__all__)
def test_lazy_names_resolve(name: str) -> None:
    assert getattr(detent, name) is getattr(detent, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'solver_of_everything'"):
        detent.solver_of_everything  # noqa: B018

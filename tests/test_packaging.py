"""What is installed equals the tree, and the wheel works where the checkout is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
import rich
import xdsl

import detent

pytestmark = pytest.mark.xdist_group("wheel")  # one worker builds the wheel once

SELIR = """
selir.program "tiny" family "toy" {
  %tokens = selir.input "tokens" unpinnable : !selir.int
  %two = selir.constant <2> : !selir.int
  %unused = selir.mul %tokens, %two : (!selir.int, !selir.int) -> !selir.int
  selir.points ["two"] %two : !selir.int
}
"""

PROGRAM = """
from detent.lang import Unpinnable, assume, record, selection

@record
class Call:
    tokens: Unpinnable[int]

@selection(family="toy")
def tiny(call: Call):
    assume(1 <= call.tokens <= 8)
    return {"rows": 4 if call.tokens > 4 else 1}
"""


@pytest.fixture(scope="module")
def setuptools(root: Path) -> dict[str, Any]:
    config: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    return config


def files_below(folder: Path) -> list[Path]:
    """The files under a folder, not through links, without what Python and tools leave behind."""
    return [
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        if "__pycache__" not in parent
        for name in names
        if not name.endswith((".pyc", ".md"))
    ]


def packages_in_tree(root: Path, mapping: dict[str, str]) -> set[str]:
    found = set(mapping)
    for package, folder in mapping.items():
        for file in files_below(root / folder):
            if file.suffix == ".py":
                found.add(".".join([package, *file.parent.relative_to(root / folder).parts]))
    return found


def test_every_package_of_the_tree_is_listed(root: Path, setuptools: dict[str, Any]) -> None:
    mapping = setuptools["package-dir"]
    assert set(setuptools["packages"]) == packages_in_tree(root, mapping)
    for package in setuptools["packages"]:
        outer = max((name for name in mapping if f"{package}.".startswith(f"{name}.")), key=len)
        folder = root / mapping[outer] / package.removeprefix(outer).replace(".", "/").lstrip("/")
        assert (folder / "__init__.py").is_file() == (package != "detent.kernels"), folder


def test_links_equal_the_mapping(root: Path, setuptools: dict[str, Any]) -> None:
    links = {f"detent.{path.name}": os.readlink(path) for path in (root / "detent").iterdir() if path.is_symlink()}
    outer = {package: folder for package, folder in setuptools["package-dir"].items() if package != folder}
    assert links == {package: f"../{folder}" for package, folder in outer.items()}


def test_version_is_written_once(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == detent.__version__


@pytest.fixture(scope="module")
def wheel(root: Path, setuptools: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that nothing is left in the checkout, and without the links: none is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    links = [path.name for path in (root / "detent").iterdir() if path.is_symlink()]
    for name in setuptools["package-dir"].values():
        ignore = shutil.ignore_patterns("__pycache__", *(links if name == "detent" else ()))
        shutil.copytree(root / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_tree(root: Path, setuptools: dict[str, Any], wheel: Path) -> None:
    expected = {
        (Path(package.replace(".", "/")) / file.relative_to(root / folder)).as_posix()
        for package, folder in setuptools["package-dir"].items()
        for file in files_below(root / folder)
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected
    assert {"detent/py.typed", "detent/tools/opt.py"} <= names


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment: the wheel installed, its dependencies borrowed from this one."""
    folder = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", str(wheel)]
    subprocess.run([*install, "--disable-pip-version-check"], check=True)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    # A folder named in a .pth file comes after the wheel, and its own .pth files (this checkout) are not followed.
    homes = {str(Path(module.__file__ or "").parents[1]) for module in (click, rich, xdsl)}
    (site / "borrowed.pth").write_text("\n".join(sorted(homes)) + "\n", encoding="utf-8")
    return python


def output(command: list[str | Path], cwd: Path) -> str:
    run = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_stock_xdsl_opt_finds_our_universe(installed: Path, tmp_path: Path) -> None:
    where = output([installed, "-c", "import detent.passes; print(detent.passes.__file__)"], tmp_path)
    assert Path(where).is_relative_to(installed.parents[1])
    ir, program = tmp_path / "tiny.mlir", tmp_path / "tiny.py"
    ir.write_text(SELIR, encoding="utf-8")
    program.write_text(PROGRAM, encoding="utf-8")
    stock: list[str | Path] = [installed, "-m", "xdsl.tools.xdsl_opt"]
    cleaned = output([*stock, ir, "-p", "selir-dce"], tmp_path)
    assert "selir.points" in cleaned and "selir.mul" not in cleaned
    pipeline = 'selir-pipeline{deployment="qwen3-30b-a3b-tp4-h200"}'  # the wheel's own deployment file
    assert "def select(tokens):" in output([*stock, program, "-p", pipeline, "-t", "selir-python"], tmp_path)


def test_installed_commands_start(installed: Path, tmp_path: Path) -> None:
    assert detent.__version__ in output([installed.with_name("detent-opt"), "--version"], tmp_path)
    assert "solve" in output([installed.with_name("detent"), "--help"], tmp_path)
    assert "solve" in output([installed, "-m", "detent", "--help"], tmp_path)

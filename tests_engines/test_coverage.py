"""The coverage tables against the shipped trees: files and lines exist, settings exist, and no place is left out.

Nothing of the engines is imported; their sources are read.
"""

from __future__ import annotations

import ast
import importlib.machinery
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from detent.runtime.coverage import load
from detent.runtime.settings import Check, Switch

ENGINES = ("vllm", "sglang")
# What asks for the deterministic mode, and the folders it is asked in. SGLang's tests and its image models are none of
# the engine that serves text.
ASKS = {"vllm": re.compile(r"envs\.VLLM_BATCH_INVARIANT|vllm_is_batch_invariant"),
        "sglang": re.compile(r"deterministic_inference|is_batch_invariant_mode_enabled\(|ENABLE_DETERMINISTIC")}
FOLDERS = {"vllm": (".",), "sglang": ("srt", "kernels")}


def package(engine: str) -> Path:
    spec = importlib.machinery.PathFinder.find_spec(engine)
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations)))


def settings(engine: str) -> list[Switch | Check]:
    coverage = load(engine)
    return [*coverage.switches(), *coverage.refusals()]


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_name_files_and_lines_of_the_wheel(engine: str) -> None:
    root = package(engine).parent
    for row in load(engine).rows:
        for where in row.where:
            path, _, line = where.partition(":")
            if path.startswith("sgl_kernel/"):
                continue  # a wheel of its own
            assert (root / path).exists(), (row.id, where)
            if line:
                text = (root / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
                assert text.strip(), (row.id, where)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_place_that_asks_for_the_deterministic_mode_is_left_out(engine: str) -> None:
    root = package(engine)
    named = {where.partition(":")[0] for row in load(engine).rows for where in row.where}
    asking = {file.relative_to(root.parent).as_posix() for folder in FOLDERS[engine]
              for file in (root / folder).rglob("*.py") if ASKS[engine].search(file.read_text(encoding="utf-8"))}
    assert len(asking) > 20
    assert asking - named == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_variables_are_read_by_the_engine(engine: str) -> None:
    names = {each.name for each in settings(engine) if each.kind == "env"}
    text = (package(engine) / ("envs.py" if engine == "vllm" else "srt/environ.py")).read_text(encoding="utf-8")
    assert names and all(re.search(rf"\b{name}\b", text) for name in names)


@pytest.mark.parametrize("engine", ENGINES)
def test_options_are_attributes_of_the_configuration(engine: str) -> None:
    start = ("VllmConfig", "config") if engine == "vllm" else ("ServerArgs", "srt")
    for each in settings(engine):
        if each.kind == "option":
            assert missing(package(engine) / start[1], start[0], each.name.split(".")) is None, each.name


def missing(folder: Path, class_name: str, path: list[str]) -> str | None:
    """The first name of an option's path that its class does not have; classes of other packages have every name."""
    name, *rest = path
    if class_name == "ServerArgs" and name == "model_config":
        return missing(folder, "ModelConfig", rest)
    members = members_of(folder, class_name)
    if members is None:
        return None
    if name not in members:
        return f"{class_name}.{name}"
    if not rest:
        return None
    owner = next((word for word in re.findall(r"\w+", members[name]) if members_of(folder, word)), "")
    return missing(folder, owner, rest)


@cache
def members_of(folder: Path, class_name: str) -> dict[str, str] | None:
    """A class's fields with their annotations, its methods, and what those set; None if it is defined elsewhere."""
    for node in classes(folder):
        if node.name == class_name:
            found: dict[str, str] = {}
            for each in ast.walk(node):
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    found[each.target.id] = ast.unparse(each.annotation)
                elif isinstance(each, ast.FunctionDef):
                    found.setdefault(each.name, "")
                elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    found.setdefault(each.attr, "")
            return found
    return None


@cache
def classes(folder: Path) -> tuple[ast.ClassDef, ...]:
    def read() -> Iterator[ast.ClassDef]:
        files = [folder / "server_args.py", folder / "configs" / "model_config.py"]
        for file in files if files[0].exists() else sorted(folder.glob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            yield from (node for node in tree.body if isinstance(node, ast.ClassDef))

    return tuple(read())

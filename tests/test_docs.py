"""The pages of docs/ say what happens: their blocks run, and their tables list what the source has."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from docs_support import FENCE, Block, Page, blocks_of, matches

from detent.dialects.selir import SELIR
from detent.dialects.selir.semantics import SEMANTICS
from detent.dialects.selir.unbound import BUILTINS
from detent.lang.calls import SIGNATURES
from detent.lang.expressions import BUILTIN_OPERATORS, EXPRESSIONS, SCALARS
from detent.lang.refusals import FUNCTIONS, REFUSALS
from detent.lang.statements import STATEMENTS
from detent.runtime.tuple import ENVIRONMENT
from detent.solver.compiled import ABLATIONS
from detent.solver.lint import RULES, lint
from detent.tools.doc_tables import filled
from detent.universe import PASSES, PREFIX, TARGETS, UNIVERSE

PAGES = ("language", "ir", "passes", "embedding", "cache", "lint")


def text_of(root: Path, name: str) -> str:
    return (root / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture
def page(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page about to be read, in a folder with a cache of its own and the example beside it."""
    folder = Path(shutil.copytree(root / "examples" / "rowsum", tmp_path / "page"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(root))
    before = set(sys.modules)
    yield Page(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.mark.parametrize("name", PAGES)
def test_every_block_does_what_it_shows(name: str, root: Path, page: Page) -> None:
    for block in blocks_of(text_of(root, name)):
        try:
            page.run(block)
        except AssertionError as error:
            raise AssertionError(f"docs/{name}.md:{block.line}\n{error}") from None


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str, root: Path) -> None:
    text = FENCE.sub("", text_of(root, name))
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    headings = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    links = re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", text)
    for path, anchor in links:
        assert not path or (root / "docs" / path).exists(), path
        assert path or anchor.removeprefix("#") in headings, anchor


# ---- pages against the source -------------------------------------------------------------------------------------


def test_the_table_of_refusals_is_the_front_ends(root: Path) -> None:
    text = text_of(root, "language")
    assert filled(text) == text, "run python -m detent.tools.doc_tables"
    for refusal in REFUSALS.values():
        assert refusal.instead.replace("|", "\\|") in text
    for name in FUNCTIONS:
        assert f"| `{name}(...)` |" in text


def examples(root: Path) -> list[ast.AST]:
    """Every node of the page's examples of what is allowed, and of the frame around them."""
    blocks = [block.text for block in blocks_of(text_of(root, "language"))
              if block.info == ("examples",) or block.option("file") == "frame.py"]
    return [node for text in blocks for part in re.split(r"\n\s*\n", text) for node in ast.walk(parsed(part))]


def parsed(part: str) -> ast.AST:
    """The tree of some statements, which may return."""
    return ast.parse("def example():\n" + "\n".join(f"    {line}" for line in part.strip("\n").split("\n")))


def test_every_allowed_construct_has_an_example(root: Path) -> None:
    nodes = examples(root)
    shown = {type(node) for node in nodes}
    allowed = {*STATEMENTS, *EXPRESSIONS, *SCALARS, *BUILTIN_OPERATORS, ast.And, ast.Or}
    assert {kind.__name__ for kind in allowed - shown} == set()
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    methods = {f"dict.{node.func.attr}" for node in nodes
               if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    assert {name for name in SIGNATURES if name not in called | methods} <= {"pow"}  # written **


def test_the_page_of_lint_has_every_rule_and_shows_each(root: Path, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(root, "lint")
    assert re.findall(r"^\| `([\w-]+)` \| (?:warning|note)", text, re.M) == list(RULES)
    monkeypatch.setenv("DETENT_CACHE_DIR", str(tmp_path / "cache"))
    for block in blocks_of(text):
        if block.option("file") in ("tiles.py", "tiles.toml"):
            (tmp_path / str(block.option("file"))).write_text(block.text, encoding="utf-8")
    found = lint(f"{tmp_path / 'tiles.py'}:tiles", str(tmp_path / "tiles.toml"))
    assert {finding.rule for finding in found} == set(RULES)  # the example breaks every rule


def test_the_page_of_the_ir_has_everything(root: Path) -> None:
    text = text_of(root, "ir")
    code = "".join(block.text for block in blocks_of(text))
    used = set(re.findall(r"selir\.\w+", code))
    scalars = {f"selir.{kind}" for kind in SEMANTICS}
    assert {op.name for op in SELIR.operations} - used <= scalars
    table = text[text.index("## Scalar operations"):text.index("## Unbound programs")]
    first = "".join(re.findall(r"^\| (`.*?) \|", table, re.M))
    assert sorted(re.findall(r"`(\w+)`", first)) == sorted(SEMANTICS)
    for attribute in SELIR.attributes:
        assert f"`{'#' if attribute.name in ('selir.source', 'selir.value') else '!'}selir" in text
        assert attribute.name.removeprefix("selir.") in text
    assert {name for name in BUILTINS if f"`{name}`" not in text} == set()


def test_what_may_fail_is_listed(root: Path) -> None:
    text = text_of(root, "ir")
    found = re.search(r"could refuse \((.*?)\)", text, re.DOTALL)
    assert found is not None
    assert set(re.findall(r"`(\w+)`", found[1])) == {kind for kind, entry in SEMANTICS.items() if entry.fails}


def test_passes_options_and_targets_are_listed(root: Path) -> None:
    text = text_of(root, "passes")
    for name in PASSES:
        section = re.search(rf"^## {PREFIX}{name}\n(.*?)^## ", text, re.M | re.DOTALL)
        if name == "pipeline":
            continue
        assert section is not None, name
        for option in fields(UNIVERSE.all_passes[PREFIX + name]()):
            assert f"`{option.name.replace('_', '-')}" in section[1], (name, option.name)
    for target in TARGETS:
        assert f"`{PREFIX}{target}`" in text
    table = text[text.index("## Ablations"):text.index("## The flat graph")]
    assert set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M)))) == set(ABLATIONS)


def test_the_page_of_the_cache_names_every_part(root: Path) -> None:
    text = text_of(root, "cache")
    assert {part for part in ENVIRONMENT if f"`{part}`" not in text} == set()


# ---- the pass that passes.md writes ---------------------------------------------------------------------------------


def test_the_new_pass_runs_in_stock_xdsl_opt(root: Path, tmp_path: Path) -> None:
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    for block in blocks_of(text_of(root, "passes")):
        if block.option("file") in ("house_passes.py", "pyproject.toml", "fold_offsets.mlir"):
            (package / str(block.option("file"))).write_text(block.text, encoding="utf-8")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--no-build-isolation", "--no-index", "--target", str(site), str(package)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                   "PYTHONPATH": os.pathsep.join([str(site), str(root)])}
    declare_detent(site)
    (run,) = re.findall(r"// RUN: (.*)", (package / "fold_offsets.mlir").read_text(encoding="utf-8"))
    command = run.replace("%s", str(package / "fold_offsets.mlir"))
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def declare_detent(site: Path) -> None:
    """Detent's entry point, where this checkout is only on the path and not installed."""
    try:
        distribution("detent")
    except PackageNotFoundError:
        info = site / "detent-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: detent\nVersion: 0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text("[xdsl.universe]\ndetent = detent.universe:UNIVERSE\n", encoding="utf-8")


# ---- the checks themselves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("a  b", "a b\n", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\n...\nz", "a\nz", True),
        ("a ... z", "a 1 2 z", True),
        ("a", "a\nb", False),
        ("a\nb", "a", False),
        ("a.c", "abc", False),
    ],
)
def test_outputs_are_compared(shown: str, real: str, same: bool) -> None:
    assert matches(shown, real) is same


@pytest.mark.parametrize(
    ("language", "info", "text"),
    [
        ("python", ("check",), "assert 1 == 2\n"),
        ("pycon", ("check",), ">>> 1 + 1\n3\n"),
        ("console", ("check",), "$ detent programs\nnothing\n"),
        ("console", ("check",), "$ detent solve nothing -d nowhere\n...\n"),
        ("console", ("check",), "$ rm file\n"),
        ("mlir", ("after=selir-dce",), "something else\n"),
        ("python", (), "x = 1\n"),
        ("python", ("typo",), "x = 1\n"),
    ],
)
def test_a_wrong_block_fails(language: str, info: tuple[str, ...], text: str, page: Page) -> None:
    page.mlir = "builtin.module {\n}\n"
    with pytest.raises(AssertionError):
        page.run(Block(language, info, text, 1))


def test_a_wrong_example_fails(root: Path, page: Page) -> None:
    for block in blocks_of(text_of(root, "language")):
        if block.option("file") in ("frame.py", "frame.toml"):
            page.run(block)
    page.run(Block("python", ("examples",), "x = 1\n", 1))
    with pytest.raises(AssertionError, match="'for' loop"):
        page.run(Block("python", ("examples",), "for y in TILES:\n    x = y\n", 1))
    with pytest.raises(AssertionError, match="is not refused"):
        page.run(Block("python", ("refused",), "# a message\nx = 1\n", 1))

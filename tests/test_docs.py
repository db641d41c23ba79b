"""The pages of docs/ say what happens: their blocks run, and their tables list what the source does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from docs_support import Page, blocks_of

PAGES = ("language", "ir", "passes", "embedding", "cache")


@pytest.fixture
def page(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """A page about to be read, in a folder with a cache of its own."""
    folder = tmp_path / "page"
    folder.mkdir()
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
    for block in blocks_of((root / "docs" / f"{name}.md").read_text(encoding="utf-8")):
        try:
            page.run(block)
        except AssertionError as error:
            raise AssertionError(f"docs/{name}.md:{block.line}\n{error}") from None

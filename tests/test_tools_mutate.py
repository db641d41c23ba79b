"""The mutation check's list fits the sources it breaks; trying it takes minutes and is no test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from detent.tools.mutate import Stale, mutated
from detent.tools.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_mutation_stands_once_and_leaves_valid_python(mutation: Mutation, root: Path) -> None:
    text = (root / mutation.file).read_text(encoding="utf-8")
    changed = mutated(text, mutation)
    assert changed != text
    ast.parse(changed)
    assert all((root / test.partition("::")[0]).exists() for test in mutation.tests)


def test_a_text_that_is_gone_is_no_mutation() -> None:
    with pytest.raises(Stale, match="stands there 0 times"):
        mutated("x = 1", Mutation("", "x.py", "y = 1", "y = 2"))
    with pytest.raises(Stale, match="stands there 2 times"):
        mutated("x = 1; x = 1", Mutation("", "x.py", "x = 1", "x = 2"))


def test_descriptions_tell_mutations_apart() -> None:
    assert len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS) >= 25

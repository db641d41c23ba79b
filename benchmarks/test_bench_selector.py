"""Serve time: repinning, and the selector on the inputs of 10,000 decode steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("name", ["repin", "seen", "new"])
def test_selector(run_case: Callable[[str], None], name: str) -> None:
    run_case(name)

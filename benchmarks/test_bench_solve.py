"""The compile side: cold solves, and judging every candidate."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("name", ["cold-process", "cold", "judge"])
def test_solve(run_case: Callable[[str], None], name: str) -> None:
    run_case(name)

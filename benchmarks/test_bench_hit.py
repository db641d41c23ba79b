"""Cache hits: in a running process, in a new one through the runtime, and as a command."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("name", ["hit", "hit-runtime", "hit-command"])
def test_hit(run_case: Callable[[str], None], name: str) -> None:
    run_case(name)

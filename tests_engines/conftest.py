"""Counting of arms is set up before any program is imported; ``--record`` renews the golden files of the ordinary
suite."""

from __future__ import annotations

import sys

import arms  # noqa: F401 - first
import pytest
import torch

torch.set_num_threads(1)  # its tensors here are small


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write tests/golden from this run")


@pytest.fixture(autouse=True)
def stock_mode() -> None:
    """No test begins in the deterministic mode that another one left vLLM in."""
    if "vllm.envs" in sys.modules:
        sys.modules["vllm.envs"].__dict__["VLLM_BATCH_INVARIANT"] = False

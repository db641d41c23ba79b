"""The entry point of ``vllm.general_plugins``: vLLM calls it in every process. Inert without a tuple."""

from __future__ import annotations

import os


def register() -> None:
    """Serve under the tuple that ``DETENT_TUPLE`` names, if it names one."""
    path = os.environ.get("DETENT_TUPLE")
    if path:
        from detent.engines.vllm import start

        start.begin(path)

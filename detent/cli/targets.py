"""Engines under test by what a user calls them: embedded, vllm, or the URL of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.runtime.errors import BadInput

if TYPE_CHECKING:
    from detent.engines.interface import Target

ARMS = ("stock", "detent")
ENGINES_OWN = "vllm-det"
"""The arm that is vLLM's own batch-invariant mode."""
DEFAULT_MODEL = "smollm2"


def open_target(engine: str, model: str | None, arm: str | None, commitment: str | None) -> Target:
    """The target. ``commitment``: path of a commitment tuple, for the arm "detent".

    Raises DetentError for what cannot be: an arm or a tuple for a server, a tuple for Stock, missing weights.
    """
    url = engine.startswith(("http://", "https://"))
    if commitment is not None and (url or arm == "stock"):
        raise BadInput("a commitment tuple is for the arm detent of an engine that runs here",
                       "leave out --tuple" + ("" if url else ", or give --arm detent"))
    if url:
        if arm is not None:
            raise BadInput(f"the arm of {engine} is what the server was started with", "leave out --arm")
        from detent.engines.http import HttpTarget

        return HttpTarget(engine, model=model)
    if engine == "embedded":
        from detent.engines.embedded.target import EmbeddedTarget

        return EmbeddedTarget.open(model or DEFAULT_MODEL, arm=arm or "detent", commitment=commitment)
    if engine == "vllm":
        if model is None:
            raise BadInput("vllm needs a model", "give --model with a Hugging Face name or folder")
        from detent.engines.vllm.target import VllmTarget

        return VllmTarget(model, arm=arm or "stock", commitment=commitment)
    raise BadInput(f"unknown engine {engine!r}", "give embedded, vllm, or a URL such as http://127.0.0.1:8000")

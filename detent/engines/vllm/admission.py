"""Which requests are served, decided where vLLM checks sampling parameters: HTTP 400 on a server, ValueError offline.

Served is what draws a row's token from that row alone. Greedy, and temperature with a seed; top-k, top-p and min-p,
which Detent's kernel cuts by rank, of equal logits the lower token id first; and vLLM's own edits of logits, that touch
one element at a time by what a request itself asked for and wrote: penalties (whole counts of its tokens), logit bias,
allowed tokens, bad words, minimum length and structured outputs. Without a seed a request has noise of its own, but
none that anybody could name again: it is served and counted as not replayable, or refused with ``DETENT_STRICT=1``.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from typing import Any

STRICT = "DETENT_STRICT"
"""Environment variable: 1 refuses what could not be replayed."""
GREEDY_BELOW = 1e-5
"""Temperatures below take the likeliest token, in vLLM."""

counts: Counter[str] = Counter()
"""Requests of this process that were ``greedy``, ``seeded``, ``unseeded`` (served, not replayable) and ``refused``."""


def problem(params: Any, strict: bool) -> str | None:
    """Why a request with these sampling parameters is not served, in one sentence; None: it is. Of vLLM's parameters
    only the named fields are read."""
    if params.seed is not None and not -2 ** 63 <= params.seed < 2 ** 63:
        return f"seed {params.seed} has more than 64 bits: give one from -2**63 to 2**63 - 1."
    if params.logprob_token_ids:
        return ("logprob_token_ids is not served: vLLM's kernel for it was not shown to give a request the same bits "
                "beside other requests; ask for logprobs instead.")
    if params.thinking_token_budget is not None:
        return "thinking_token_budget is not served: its handling of a batch was not checked; leave it out."
    if strict and kind(params) == "unseeded":
        return (f"a request that draws without a seed cannot be replayed, and {STRICT}=1 refuses it: give a seed, or "
                "temperature 0.")
    return None


def kind(params: Any) -> str:
    """``greedy``, ``seeded`` or ``unseeded``."""
    return "greedy" if params.temperature < GREEDY_BELOW else "unseeded" if params.seed is None else "seeded"


def install() -> None:
    """Check every request's parameters after vLLM did."""
    from detent.engines.vllm import hooks

    strict = os.environ.get(STRICT, "") == "1"

    def checked(original: Any) -> Any:
        def validate(self: Any, params: Any, supported_tasks: Any) -> None:
            original(self, params, supported_tasks)
            admit(params, strict)
        return validate

    hooks.rebind(hooks.INPUTS, "InputProcessor._validate_params", checked)


def admit(params: Any, strict: bool) -> None:
    """Count a request. Raises vLLM's own error, which its server answers with HTTP 400, if it is not served."""
    from vllm.exceptions import VLLMValidationError  # type: ignore[import-not-found, unused-ignore]
    from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found, unused-ignore]

    if not isinstance(params, SamplingParams):
        return
    reason = problem(params, strict)
    if reason is not None:
        counts["refused"] += 1
        raise VLLMValidationError(f"Detent: {reason}")
    name = kind(params)
    counts[name] += 1
    if name == "unseeded" and counts[name] == 1:
        logging.getLogger("vllm.detent").warning(
            "Detent: requests that draw without a seed are served but not replayable; give a seed, or set %s=1 to "
            "refuse them. How many there were is at /detent.", STRICT)

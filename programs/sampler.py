"""``sampler``: what Detent runs in both engines to draw the next token.

It tells batches apart as the engines do, and draws with kernels whose noise is hashed from a request's seed, the
position and the token. One of them serves every row, so what a request draws does not hang on what others ask for.
What top-k and top-p leave out is found by one stable sort, whatever the number of rows.
"""

from __future__ import annotations

from detent.lang import Runtime, Unpinnable, assume, record, require, selection
from detent.programs.facts import Engine, Limits


@record
class Call:
    """One sampling step."""

    b: Unpinnable[int]  # rows of logits: sizes buffers
    any_random: Runtime[bool]  # some request draws
    any_filter: Runtime[bool]  # some request has top-k, top-p or min-p


@selection(family="sampler")
def sampler(engine: Engine, limits: Limits, call: Call) -> dict[str, object]:
    """What draws the tokens, what masks them, what noise is keyed by, and where log-probabilities come from."""
    assume(1 <= call.b <= limits.max_num_seqs)
    assume(call.any_random or not call.any_filter)
    require(engine.name in ("vllm", "sglang"), "the rules are vLLM's and SGLang's")

    draw = "argmax" if not call.any_random else "filtered" if call.any_filter else "direct"

    require(draw != "argmax" or not call.any_random, "nobody draws")
    require(draw != "direct" or not call.any_filter, "nobody narrows what is drawn from")
    return {
        "sampler": draw,
        "mask": "sort",
        "noise": "seed, position, token",
        "logprobs": "log_softmax(logits)" if engine.name == "vllm" else "log_softmax(logits / temperature)",
    }

"""``sampler-sglang-stock``: how SGLang 0.5.17 draws a request's next token, by what the rest of its batch asks for.

A greedy request is one with top-k 1, so one of them sends a whole batch down the path that filters. Seeds count in
the deterministic mode only; the path that sorts then keys its noise by rank, the one that does not by token.
"""

from __future__ import annotations

from detent.lang import Request, Runtime, assume, record, require, selection
from detent.programs.facts import Engine, Sampling


@record
class Call:
    """One request's row of one sampling step."""

    all_greedy: Runtime[bool]  # nobody draws
    any_top_k: Runtime[bool]
    any_top_p: Runtime[bool]
    any_min_p: Runtime[bool]
    greedy: Request[bool]  # this request takes the likeliest token


def filters(any_top_k: bool, any_top_p: bool, any_min_p: bool) -> bool:
    """Whether some request narrows what it draws from."""
    return any_top_k or any_top_p or any_min_p


@selection(family="sampler")
def sampler_sglang_stock(engine: Engine, sampling: Sampling, call: Call) -> dict[str, object]:
    """What draws the token, what its noise is keyed by, and where its log-probabilities come from."""
    assume(call.any_top_k or not call.greedy)
    assume(call.greedy or not call.all_greedy)
    assume(not engine.deterministic or not call.any_min_p)
    require(engine.name == "sglang", "the rules are SGLang's")
    require(sampling.backend in ("flashinfer", "pytorch"), "the backends are FlashInfer's and PyTorch's")
    require(not engine.deterministic or sampling.backend == "pytorch", "FlashInfer has no seeds")

    if call.all_greedy:
        sampler = "argmax"
    elif not filters(call.any_top_k, call.any_top_p, call.any_min_p):
        sampler = "multinomial"
    elif sampling.backend == "pytorch":
        sampler = "sorted"
    else:
        sampler = "min_p" if call.any_min_p else "top_k_top_p"

    require(sampler != "argmax" or call.all_greedy, "nobody draws")
    require(sampler != "multinomial" or not filters(call.any_top_k, call.any_top_p, call.any_min_p),
            "nobody narrows what is drawn from")
    require(sampler != "top_k_top_p" or not call.any_min_p, "the kernel of top-k and top-p has no min-p")
    seeded = "seed, position, rank" if sampler == "sorted" else "seed, position, token"
    divided = "log_softmax(logits / temperature)" if engine.deterministic else "log(softmax(logits / temperature))"
    return {
        "sampler": sampler,
        "noise": "none" if sampler == "argmax" else seeded if engine.deterministic else "batch",
        "logprobs": "log_softmax(logits)" if sampler == "argmax" else divided,
    }

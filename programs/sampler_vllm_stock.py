"""``sampler-vllm-stock``: how vLLM 0.26.0 draws a request's next token, by what the rest of its batch asks for.

Model runner V1 divides the probabilities by exponential noise, from a generator of the request's own if it has a seed
and from the device's otherwise; V2 adds Gumbel noise hashed from seed, position and token. Both leave top-k and top-p
to FlashInfer where nobody in the batch minds. Speculative decoding has samplers of its own and is none of this.
"""

from __future__ import annotations

from detent.lang import Request, Runtime, Unpinnable, assume, record, require, selection
from detent.programs.facts import Engine, Limits, Sampling

TRITON_ROWS = 8  # from which on a Triton kernel filters and not a sort


@record
class Call:
    """One request's row of one sampling step."""

    b: Unpinnable[int]  # rows of logits: sizes buffers
    any_greedy: Runtime[bool]  # some request takes the likeliest token
    any_random: Runtime[bool]  # some request draws
    any_top_k: Runtime[bool]
    any_top_p: Runtime[bool]
    any_seeded: Runtime[bool]
    greedy: Request[bool]  # this request takes the likeliest token
    seeded: Request[bool]  # this request has a seed


@selection(family="sampler")
def sampler_vllm_stock(engine: Engine, sampling: Sampling, limits: Limits, call: Call) -> dict[str, object]:
    """What draws the token, what masks it, what its noise is keyed by, and where its log-probabilities come from."""
    assume(1 <= call.b <= limits.max_num_seqs)
    assume(call.any_greedy or call.any_random)
    assume(call.b >= 2 or not (call.any_greedy and call.any_random))
    assume(call.any_random or not (call.any_top_k or call.any_top_p))
    assume(call.any_random or sampling.hashed_noise or not call.any_seeded)
    assume(call.any_greedy or not call.greedy)
    assume(call.any_random or call.greedy)
    assume(call.any_seeded or not call.seeded or (call.greedy and not sampling.hashed_noise))
    require(engine.name == "vllm", "the rules are vLLM's")

    filtered = call.any_top_k or call.any_top_p
    flashinfer = (sampling.backend == "flashinfer" and filtered and not call.any_seeded
                  and not (sampling.hashed_noise and call.any_greedy))
    mask = ("none" if not filtered or flashinfer else "triton" if call.b >= TRITON_ROWS else "sort")
    if call.greedy:
        noise = "none"
    elif flashinfer:
        noise = "batch"
    elif sampling.hashed_noise:
        noise = "seed, position, token"
    else:
        noise = "request" if call.seeded else "batch"

    require(not flashinfer or (call.any_top_k or call.any_top_p), "FlashInfer serves batches with top-k or top-p")
    require(not flashinfer or not call.any_seeded, "FlashInfer serves batches without seeds")
    require(not flashinfer or not (sampling.hashed_noise and call.any_greedy), "FlashInfer always draws")
    require(mask != "none" or flashinfer or not (call.any_top_k or call.any_top_p), "something masks")
    return {
        "sampler": ("argmax" if call.greedy else "flashinfer" if flashinfer
                    else "gumbel" if sampling.hashed_noise else "exponential"),
        "mask": "none" if call.greedy else mask,
        "noise": noise,
        "logprobs": "log_softmax(logits)",
    }

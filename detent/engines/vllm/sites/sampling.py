"""Sampling: the tokens and log-probabilities of both model runners, on Detent's kernels by row.

``Sampler.sample`` of runner V1 (``vllm/v1/sample``) and of V2 (``vllm/v1/worker/gpu/sample``) issue ``detent::argmax``
where everybody is greedy and ``detent::sample`` else. Noise is a function of a request's seed, the position its token
will have and the token's id, the embedded engine's; top-k, top-p and min-p cut by a row's own logits, of equal ones the
lower id first. Rows that nobody cuts skip the sort, which changes none of their bits, so what a row draws is what the
tuple's one sampler draws for every row, whoever its neighbours are.

Log-probabilities are those of ``detent::log_softmax`` of the raw logits. vLLM V2's own kernel for them works by row
too, but is compiled anew for the batch's largest number of them. Which tokens are the likeliest ``detent::top_tokens``
says: torch's topk breaks ties by an algorithm that it chooses from the number of rows.

vLLM's edits of single logits stay its own (``admission``): none of them adds anything up over a row.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

from detent.engines.vllm import hooks
from detent.engines.vllm.active import Active
from detent.engines.vllm.sites.operators import aligned, define
from detent.runtime.errors import DetentError

SERVED = {"sampler": "filtered", "mask": "sort", "noise": "seed, position, token", "logprobs": "log_softmax(logits)"}
"""The points that the kernels are."""
MODE = "raw_logprobs"
"""vLLM's name of what the tuple's log-probabilities are of."""
CHUNK = 64
"""Rows whose intermediate results are held at once; a row's bits do not hang on it."""


def install(active: Active) -> None:
    """Route both samplers. Raises DetentError for points that the kernels are not."""
    points = active.points["sampler"]
    for name, value in SERVED.items():
        if points[name] != value:
            raise DetentError(f"the tuple's sampler has {name} = {points[name]!r}, which is not served",
                              f"served is {value!r}: write the tuple anew with detent tuple new")
    operators = Operators()
    _first_runner(active, operators)
    _second_runner(active, operators)


class Operators:
    """``detent::argmax``, ``sample``, ``log_softmax`` and ``top_tokens``: (rows, vocabulary) of logits each."""

    def __init__(self) -> None:
        import torch

        from detent.kernels import rows

        def argmax(logits: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = rows.argmax(aligned(logits))
            return out

        def sample(logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor,
                   top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None,
                   cut: torch.Tensor | None) -> torch.Tensor:
            logits = aligned(logits if min_p is None else _at_least(logits, temperature, min_p))
            top_k = None if top_k is None else top_k.int()
            everybody = cut is not None and cut.shape[0] == logits.shape[0]
            out: torch.Tensor = rows.sample(logits, temperature, seeds, positions, top_k=top_k if everybody else None,
                                            top_p=top_p if everybody else None)
            if cut is not None and not everybody:
                out[cut] = rows.sample(
                    aligned(logits[cut]), temperature[cut], seeds[cut], positions[cut],
                    top_k=None if top_k is None else top_k[cut], top_p=None if top_p is None else top_p[cut])
            return out

        def log_softmax(logits: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = rows.log_softmax(aligned(logits))
            return out.contiguous()

        def top_tokens(scores: torch.Tensor, count: int) -> torch.Tensor:
            out = scores.new_empty((scores.shape[0], count), dtype=torch.int64)
            size = scores.shape[1]
            later = torch.arange(size - 1, -1, -1, device=scores.device)  # larger for lower ids
            for start in range(0, scores.shape[0] if count else 0, CHUNK):
                bits = (scores[start:start + CHUNK].float() + 0.0).view(torch.int32).long()
                order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # as integers, as the numbers are ordered
                keys = order * 2 ** 32 + later  # no two are equal: every algorithm finds the same
                out[start:start + CHUNK] = size - 1 - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
            return out

        def row_of(logits: torch.Tensor) -> torch.Tensor:
            return logits.new_empty((logits.shape[0],), dtype=torch.int64)

        def drawn(logits: torch.Tensor, temperature: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor,
                  top_k: torch.Tensor | None, top_p: torch.Tensor | None, min_p: torch.Tensor | None,
                  cut: torch.Tensor | None) -> torch.Tensor:
            return row_of(logits)

        def like(logits: torch.Tensor) -> torch.Tensor:
            return logits.new_empty(logits.shape, dtype=torch.float32)

        def several(scores: torch.Tensor, count: int) -> torch.Tensor:
            return scores.new_empty((scores.shape[0], count), dtype=torch.int64)

        self.argmax = define("argmax", argmax, row_of)
        self.sample = define("sample", sample, drawn)
        self.log_softmax = define("log_softmax", log_softmax, like)
        self.top_tokens = define("top_tokens", top_tokens, several)

    def with_tokens(self, scores: Any, count: int, tokens: Any, logprobs: Any) -> tuple[Any, Any, Any]:
        """Ids of ``tokens`` and of the ``count`` highest ``scores`` of each row, their log-probabilities by
        ``logprobs(rows)``, and how many tokens score at least as high as a row's own."""
        import torch

        ids = torch.cat((tokens.unsqueeze(-1), self.top_tokens(scores, count)), dim=1)
        values, ranks = torch.empty(ids.shape, dtype=torch.float32, device=ids.device), torch.empty_like(tokens)
        for start in range(0, scores.shape[0], CHUNK):
            rows = slice(start, start + CHUNK)
            values[rows] = logprobs(scores[rows]).gather(-1, ids[rows])
            ranks[rows] = (scores[rows] >= scores[rows].gather(-1, ids[rows, :1])).sum(-1)
        return ids, values, ranks


def _first_runner(active: Active, operators: Operators) -> None:
    import torch
    from vllm.utils.torch_utils import async_tensor_h2d  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.outputs import LogprobsTensors  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found, unused-ignore]
        BUILTIN_LOGITS_PROCESSORS,
        MinPLogitsProcessor,
    )

    warming = []  # not empty while memory is measured, when no request is there

    def seeds(original: Any) -> Any:
        def make(self: Any) -> Any:
            metadata = original(self)
            if not metadata.all_greedy:
                numbers = [_signed(self.generators[row].initial_seed()) if row in self.generators else unseeded(name)
                           for row, name in enumerate(self.req_ids)]
                metadata.detent_seeds = async_tensor_h2d(numbers, self.device, torch.int64)
                count = len(numbers)
                cut = ((self.top_k_cpu[:count] < self.vocab_size) | (self.top_p_cpu[:count] < 1.0)).nonzero()[0]
                metadata.detent_cut = async_tensor_h2d(cut, self.device) if len(cut) else None
            return metadata
        return make

    def positions(original: Any) -> Any:
        def sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
            if spec_decode_metadata is not None:
                raise DetentError("speculative decoding is not served", "leave out --speculative-config")
            metadata = self.input_batch.sampling_metadata
            if not metadata.all_greedy:
                last = self.query_start_loc.gpu[1:logits.shape[0] + 1] - 1
                metadata.detent_positions = self.positions[last] + 1
            return original(self, logits, spec_decode_metadata)
        return sample

    def dummy(original: Any) -> Any:
        def run(self: Any, hidden_states: Any) -> Any:
            warming.append(True)
            try:
                return original(self, hidden_states)
            finally:
                warming.pop()
        return run

    def sample(original: Any) -> Any:
        def draw(self: Any, logits: Any, sampling_metadata: Any, logprobs_mode_override: Any = None) -> Any:
            _refuse_mode(logprobs_mode_override or self.logprobs_mode)
            step, rows = sampling_metadata, logits.shape[0]
            for processor in step.logitsprocs.all:
                if type(processor) not in BUILTIN_LOGITS_PROCESSORS:
                    raise DetentError(f"logits processor {type(processor).__name__} is not served",
                                      "uninstall it: it is handed all requests' logits at once")
            least = next((each.min_p.view(-1) for each in step.logitsprocs.argmax_invariant
                          if isinstance(each, MinPLogitsProcessor) and each.min_p_count), None)
            narrow = step.top_k is not None or step.top_p is not None or least is not None
            active.check("sampler", rows, not step.all_greedy, narrow and not step.all_greedy)
            if step.all_greedy:
                return operators.argmax(logits), None
            if warming:
                step.detent_seeds = step.detent_positions = torch.zeros(rows, dtype=torch.int64, device=logits.device)
                step.detent_cut = torch.arange(rows, device=logits.device)
            return operators.sample(logits, step.temperature, step.detent_seeds, step.detent_positions, step.top_k,
                                    step.top_p, least, step.detent_cut), None
        return draw

    def gather(original: Any) -> Any:
        def gather_logprobs(logprobs: Any, num_logprobs: int, token_ids: Any) -> Any:
            ids, values, ranks = operators.with_tokens(logprobs, num_logprobs, token_ids, lambda rows: rows)
            return LogprobsTensors(ids.to(torch.int32), values, ranks)
        return staticmethod(gather_logprobs)

    hooks.rebind(hooks.BATCH_V1, "InputBatch._make_sampling_metadata", seeds)
    hooks.rebind(hooks.RUNNER_V1, "GPUModelRunner._sample", positions)
    hooks.rebind(hooks.RUNNER_V1, "GPUModelRunner._dummy_sampler_run", dummy)
    hooks.rebind(hooks.SAMPLER_V1, "Sampler.sample", sample)
    hooks.rebind(hooks.SAMPLER_V1, "Sampler.compute_logprobs", lambda original: staticmethod(operators.log_softmax))
    hooks.rebind(hooks.SAMPLER_V1, "Sampler.gather_logprobs", gather)


def _second_runner(active: Active, operators: Operators) -> None:
    from vllm.utils.torch_utils import async_tensor_h2d
    from vllm.v1.outputs import LogprobsTensors

    def sample(original: Any) -> Any:
        def draw(self: Any, logits: Any, expanded_idx_mapping: Any, idx_mapping_np: Any, pos: Any, input_ids: Any,
                 expanded_local_pos: Any, return_logprobs: bool = False) -> Any:
            _refuse_mode(self.logprobs_mode)
            rows, of, asked = logits.shape[0], idx_mapping_np, self.sampling_states
            if rows != len(of):
                raise DetentError("speculative decoding is not served", "leave out --speculative-config")
            hot = asked.temperature.np[of] != 0.0
            cut = hot & ((asked.top_k.np[of] != asked.vocab_size) | (asked.top_p.np[of] != 1.0))
            least = bool((hot & (asked.min_p.np[of] != 0.0)).any())
            active.check("sampler", rows, bool(hot.any()), bool(cut.any()) or least)
            edited = (self.logit_bias_state.use_logit_bias[of].any() or self.penalties_state.use_penalty[of].any()
                      or self.bad_words_state.num_bad_words.np[of].any())
            if edited:
                logits = logits.clone() if return_logprobs else logits  # log-probabilities are the model's
                self.logit_bias_state.apply_logit_bias(logits, expanded_idx_mapping, of, pos)
                self.penalties_state.apply_penalties(logits, expanded_idx_mapping, of, input_ids, expanded_local_pos)
                self.bad_words_state.apply_bad_words(logits, expanded_idx_mapping, of, input_ids, expanded_local_pos)
            if not hot.any():
                return operators.argmax(logits), logits
            at, any_cut = expanded_idx_mapping, cut.any()
            return operators.sample(
                logits, asked.temperature.gpu[at], asked.seeds.gpu[at], pos + 1,
                asked.top_k.gpu[at] if any_cut else None, asked.top_p.gpu[at] if any_cut else None,
                asked.min_p.gpu[at] if least else None,
                async_tensor_h2d(cut.nonzero()[0], logits.device) if any_cut else None), logits
        return draw

    def scores(original: Any) -> Any:
        def compute_topk_scores(logits: Any, num_logprobs: int, sampled_token_ids: Any, cu_num_logits: Any = None,
                                logprob_token_ids_state: Any = None, expanded_idx_mapping: Any = None,
                                max_per_req_token_ids: int = 0, logits_mode: bool = False) -> Any:
            if logits_mode or max_per_req_token_ids:
                raise DetentError("raw logits and logprob_token_ids are not served", "ask for logprobs")
            ids, values, ranks = operators.with_tokens(logits, num_logprobs, sampled_token_ids, operators.log_softmax)
            return LogprobsTensors(ids, values, ranks, cu_num_logits)
        return compute_topk_scores

    hooks.rebind(hooks.SAMPLER_V2, "Sampler.sample", sample)
    hooks.rebind(hooks.SAMPLER_V2, "compute_topk_scores", scores)
    hooks.rebind(hooks.PROMPTS_V2, "compute_topk_scores", scores)


@lru_cache(maxsize=1 << 16)
def unseeded(name: str) -> int:
    """The seed of a request that gave none: 64 bits of its id, which vLLM makes unlike any other. Every rank has the
    same, and a request that was pre-empted keeps it."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def _signed(seed: int) -> int:
    """The signed integer with the same 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _refuse_mode(mode: str) -> None:
    if mode != MODE:
        raise DetentError(f"log-probabilities of mode {mode} are not served", f"leave --logprobs-mode at {MODE}")


def _at_least(logits: Any, temperature: Any, min_p: Any) -> Any:
    """``logits`` without tokens less likely than ``min_p`` times the likeliest, in a copy. A row whose min_p is 0 keeps
    all. The largest of a row is the largest in any order; the rest is by element."""
    scaled = logits.float() / temperature.where(temperature > 0.0, 1.0).unsqueeze(1)
    floor = scaled.amax(-1, keepdim=True) + min_p.log().unsqueeze(1)
    return logits.masked_fill(scaled < floor, float("-inf"))

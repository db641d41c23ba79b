"""Which implementation draws a request's next token: the stock programs beside the engines' own samplers.

A batch of requests goes through the engine's code; only what launches a kernel is replaced, and says that it ran.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from buffers import Buffer
from compare import Draw, sampled
from engines import engine, stand

from detent.lang import report
from detent.programs import sampler_sglang_stock as sglang_program
from detent.programs import sampler_vllm_stock as vllm_program
from detent.programs.facts import Engine, Limits, Sampling
from detent.programs.sampler_sglang_stock import filters, sampler_sglang_stock
from detent.programs.sampler_vllm_stock import sampler_vllm_stock

ROWS = 16
LIMITS = Limits(max_num_seqs=ROWS, max_num_batched_tokens=8192, max_context=8192)
VOCABULARY = 4


class Noted:
    """What ran, and which rows it gave the token that stands for it."""

    ran: list[str] = []

    @classmethod
    def kernel(cls, name: str, token: int) -> Any:
        def launch(logits: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            cls.ran.append(name)
            return torch.full((len(logits),), token, dtype=torch.int64)
        return launch


def engine_of(name: str, mode: bool = False) -> Engine:
    return Engine(name=name, version="", deterministic=mode, page_size=1, kv_cache_dtype="bf16", full_graphs=True,
                  max_capture_size=512, graph_splits=0, cascade_attention=None, fused_moe_sum_all_reduce=False)


class Asked:
    """One request's sampling parameters, as both engines hold them once greedy requests are normalised."""

    def __init__(self, draw: Draw, greedy: float, narrow: float, seeded: float) -> None:
        self.greedy = draw.flag(greedy)
        self.seed = 7 if draw.flag(seeded) else None
        self.top_k = 2 if not self.greedy and draw.flag(narrow) else 0
        self.top_p = 0.5 if not self.greedy and draw.flag(narrow) else 1.0
        self.min_p = 0.1 if not self.greedy and draw.flag(narrow) else 0.0
        self.temperature = 0.0 if self.greedy else 2.0
        self.logprobs = None


def batch(draw: Draw) -> tuple[list[Asked], int]:
    """Requests and the place of the one asked about; some chances are such that whole batches agree."""
    count = draw.near(8, 1, ROWS) if draw.edge else draw.number(1, ROWS)
    chances = [draw.one_of(0.0, 0.0, 0.1, 0.5, 1.0), draw.one_of(0.0, 0.0, 0.05, 0.5), draw.one_of(0.0, 0.0, 0.1)]
    return [Asked(draw, *chances) for _ in range(count)], draw.rng.randrange(count)


# ---- vLLM ------------------------------------------------------------------------------------------------------

SAMPLE = "vllm.v1.sample"
CUDA = SimpleNamespace(is_cuda=lambda: True, is_cpu=lambda: False, is_xpu=lambda: False,
                       get_device_capability=lambda: SimpleNamespace(as_version_str=lambda: "9.0"))
stand("vllm.triton_utils", HAS_TRITON=True)
stand("vllm.v1.attention.backends.flashinfer",
      FlashInferBackend=SimpleNamespace(supports_compute_capability=lambda capability: True))
stand("vllm.v1.worker.gpu.buffer_utils", UvaBackedTensor=Buffer)
envs = engine("vllm.envs")
ops = engine(f"{SAMPLE}.ops.topk_topp_sampler", "vllm.envs")
v1 = engine(f"{SAMPLE}.sampler", f"{SAMPLE}.ops.topk_topp_sampler", "vllm.envs")
states = engine("vllm.v1.worker.gpu.sample.states", f"{SAMPLE}.ops.topk_topp_sampler", "vllm.envs")
v2 = engine("vllm.v1.worker.gpu.sample.sampler", "vllm.v1.worker.gpu.sample.states", f"{SAMPLE}.ops.topk_topp_sampler",
            "vllm.envs")
ops.current_platform = CUDA
ops.flashinfer_sample = v2.flashinfer_sample = Noted.kernel("flashinfer", 2)
ops.random_sample = Noted.kernel("exponential", 1)
v2.gumbel_sample = Noted.kernel("gumbel", 3)
ops.apply_top_k_top_p_triton = lambda logits, k, p: (Noted.ran.append("triton"), logits)[1]
ops.apply_top_k_top_p_pytorch = lambda logits, k, p: (Noted.ran.append("sort"), logits)[1]
v1.Sampler.greedy_sample = staticmethod(lambda logits: torch.zeros(len(logits), dtype=torch.int64))
KERNELS = {0: "argmax", 1: "exponential", 2: "flashinfer", 3: "gumbel"}


def vllm_samplers(flashinfer: bool) -> tuple[Any, Any]:
    """Samplers of both model runners as vLLM makes them."""
    envs.VLLM_USE_FLASHINFER_SAMPLER = flashinfer
    second = v2.Sampler.__new__(v2.Sampler)
    second.logprobs_mode, second.use_fp64_gumbel = "raw_logprobs", False
    second.use_flashinfer = ops.flashinfer_sampler_supported()
    second.apply_sampling_params = lambda logits, *args, **kwargs: logits
    return v1.Sampler(), second


def vllm_first(made: Any, requests: list[Asked], row: int) -> tuple[str, str, str]:
    """Model runner V1: a generator for each random request with a seed."""
    generators = {i: object() for i, asked in enumerate(requests) if asked.seed is not None and not asked.greedy}
    greedy = [asked.greedy for asked in requests]
    top_k = torch.ones(len(requests)) if any(asked.top_k for asked in requests) else None
    top_p = torch.ones(len(requests)) if any(asked.top_p < 1.0 for asked in requests) else None
    metadata = SimpleNamespace(
        all_greedy=all(greedy), all_random=not any(greedy), generators=generators, top_k=top_k, top_p=top_p,
        temperature=torch.tensor([asked.temperature for asked in requests]), max_num_logprobs=None,
        logprob_token_ids=None, logitsprocs=SimpleNamespace(argmax_invariant=[]))
    tokens, _ = made.sample(torch.zeros(len(requests), VOCABULARY), metadata)
    kernel = KERNELS[int(tokens[row])]
    return kernel, _mask(kernel), {"argmax": "none", "flashinfer": "batch"}.get(
        kernel, "request" if row in generators else "batch")


def vllm_second(made: Any, requests: list[Asked], row: int) -> tuple[str, str, str]:
    """Model runner V2; its kernel takes the likeliest token for a request of temperature 0."""
    made.sampling_states = states.SamplingStates(len(requests), VOCABULARY)
    for i, asked in enumerate(requests):
        made.sampling_states.add_request(i, asked)
    order = np.arange(len(requests))
    tokens, _ = made.sample(torch.zeros(len(requests), VOCABULARY), torch.from_numpy(order), order, None, None, None)
    kernel = KERNELS[int(tokens[row])]
    if kernel == "gumbel" and requests[row].greedy:
        kernel = "argmax"
    return kernel, _mask(kernel), {"argmax": "none", "flashinfer": "batch"}.get(kernel, "seed, position, token")


def _mask(kernel: str) -> str:
    masks = [name for name in Noted.ran if name in ("triton", "sort")]
    assert len(masks) <= 1
    return masks[0] if masks and kernel != "argmax" else "none"


def test_vllm() -> None:
    made = {flashinfer: vllm_samplers(flashinfer) for flashinfer in (False, True)}
    for flashinfer, (first, _) in made.items():
        assert first.topk_topp_sampler.forward.__name__ == ("forward_cuda" if flashinfer else "forward_native")

    def run(case: Any) -> tuple[Any, Any]:
        (requests, row), flashinfer, hashed = case
        Noted.ran = []
        theirs = (vllm_second if hashed else vllm_first)(made[flashinfer][hashed], requests, row)
        seeded = [asked.seed is not None and (hashed or not asked.greedy) for asked in requests]
        call = vllm_program.Call(
            b=len(requests), any_greedy=any(r.greedy for r in requests), any_random=not all(r.greedy for r in requests),
            any_top_k=any(r.top_k for r in requests), any_top_p=any(r.top_p < 1.0 for r in requests),
            any_seeded=any(seeded), greedy=requests[row].greedy, seeded=requests[row].seed is not None)
        with report() as violations:
            points = sampler_vllm_stock(engine_of("vllm"), Sampling(
                backend="flashinfer" if flashinfer else "pytorch", hashed_noise=hashed), LIMITS, call)
        assert not violations, violations
        return theirs, (points["sampler"], points["mask"], points["noise"])

    helpers = [sampler_vllm_stock]
    sampled(Draw("vllm sampler", helpers), "vllm", "v1 Sampler.sample, TopKTopPSampler; v2 Sampler.sample",
            "sampler-vllm-stock", helpers, lambda draw: (batch(draw), draw.flag(), draw.flag()), run)


# ---- SGLang ----------------------------------------------------------------------------------------------------

TOP_K_ALL = 1 << 30
mode, backend = False, "flashinfer"
get_exec = lambda: SimpleNamespace(  # noqa: E731
    deterministic=SimpleNamespace(enable_deterministic_inference=mode, rl_on_policy_target=None),
    kernel=SimpleNamespace(sampling_backend=backend),
    features=SimpleNamespace(enable_custom_logit_processor=False))
stand("sglang.srt.utils.common", is_cuda=lambda: True, is_hip=lambda: False, is_musa=lambda: False,
      is_npu=lambda: False, get_bool_env_var=lambda name: False, is_pin_memory_available=lambda device: False)
stand("sglang.srt.sampling.sampling_params", TOP_K_ALL=TOP_K_ALL)
stand("sglang.srt.layers.dp_attention", is_dp_attention_enabled=lambda: False)
info = engine("sglang.srt.sampling.sampling_batch_info")
sglang = engine("sglang.srt.layers.sampler", "sglang.srt.sampling.sampling_batch_info")
info.get_exec = sglang.get_exec = get_exec


class Watched:
    """PyTorch, with the logarithm noted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def log(self, tensor: torch.Tensor) -> torch.Tensor:
        Noted.ran.append("log")
        return torch.log(tensor)


def drawn(name: str) -> Any:
    """A sampling kernel; whether it was given seeds is noted too."""
    def launch(probs: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seeds = kwargs.get("sampling_seed", args[4] if len(args) > 4 else None)
        Noted.ran.append(name)
        if seeds is not None:
            Noted.ran.append("seeds")
        return torch.zeros(len(probs), dtype=torch.int64)
    return launch


SORTS, TAKES_ALL = sglang.top_k_top_p_min_p_sampling_from_probs_torch, sglang.sampling_from_probs_torch
sglang.torch = Watched()
sglang.sampling_from_probs_torch = drawn("multinomial")
sglang.top_k_top_p_min_p_sampling_from_probs_torch = drawn("sorted")
sglang.min_p_sampling_from_probs = drawn("min_p")
sglang.top_k_top_p_sampling_from_probs = drawn("top_k_top_p")
sglang.top_k_renorm_prob = sglang.top_p_renorm_prob = lambda probs, limits: probs
sglang.SYNC_TOKEN_IDS_ACROSS_TP = sglang.SGLANG_RETURN_ORIGINAL_LOGPROB = False
LOGITS = torch.tensor([[0.3, -1.7, 2.9, 0.1]])


class Logprobs:
    """Keeps the log-probabilities that a step returns."""

    seen = LOGITS

    def compute_logprobs(self, logprobs: torch.Tensor, *args: Any) -> Any:
        Logprobs.seen = logprobs
        return SimpleNamespace(write_output_to=lambda output: None)


def test_sglang() -> None:
    """The batch's own flags come from SGLang's ``SamplingBatchInfo.from_schedule_batch``."""
    global mode, backend
    stand("sglang.srt.sampling.penaltylib")
    made: dict[bool, Any] = {}
    for mode in (False, True):
        made[mode] = sglang.Sampler()
        made[mode].output_logprob_processor = Logprobs()
        made[mode]._preprocess_logits = lambda logits, sampling_info: logits

    def run(case: Any) -> tuple[Any, Any]:
        global mode, backend
        (requests, row), mode, backend = case
        parameters = [SimpleNamespace(
            temperature=1.0 if asked.greedy else 2.0, top_p=asked.top_p, min_p=0.0 if mode else asked.min_p,
            top_k=1 if asked.greedy else asked.top_k or TOP_K_ALL, sampling_seed=asked.seed, logit_bias=None,
            custom_params=None) for asked in requests]
        reqs = [SimpleNamespace(sampling_params=one, custom_logit_processor=None, return_sampling_mask=False)
                for one in parameters]
        flags = info.SamplingBatchInfo.from_schedule_batch(SimpleNamespace(reqs=reqs, device="cpu"), VOCABULARY)
        flags.grammars = None
        Noted.ran = []
        logits = LOGITS.repeat(len(requests), 1)
        made[mode].forward(SimpleNamespace(next_token_logits=logits), flags, True, [], [], None)
        assert torch.allclose(Logprobs.seen[row], (LOGITS[0] / parameters[row].temperature).log_softmax(-1))
        kernel = next((name for name in Noted.ran if name not in ("log", "seeds")), "argmax")
        noise = "none" if kernel == "argmax" else "seeded" if "seeds" in Noted.ran else "batch"
        logprobs = "log_softmax(logits)" if kernel == "argmax" else (
            "log(softmax(logits / temperature))" if "log" in Noted.ran else "log_softmax(logits / temperature)")
        call = sglang_program.Call(all_greedy=all(r.greedy for r in requests),
                                   any_top_k=any(p.top_k != TOP_K_ALL for p in parameters),
                                   any_top_p=any(p.top_p != 1.0 for p in parameters),
                                   any_min_p=any(p.min_p > 0 for p in parameters), greedy=requests[row].greedy)
        with report() as violations:
            points = sampler_sglang_stock(engine_of("sglang", mode),
                                          Sampling(backend=backend, hashed_noise=False), call)
        assert not violations, violations
        ours = points["noise"] if points["noise"] in ("none", "batch") else "seeded"
        return (kernel, noise, logprobs), (points["sampler"], ours, points["logprobs"])

    def case(draw: Draw) -> Any:
        deterministic = draw.flag()
        return batch(draw), deterministic, "pytorch" if deterministic else draw.one_of("flashinfer", "pytorch")

    helpers = [sampler_sglang_stock, filters]
    sampled(Draw("sglang sampler", helpers), "sglang", "Sampler.forward, SamplingBatchInfo.from_schedule_batch",
            "sampler-sglang-stock", helpers, case, run)


def test_seeded_noise_of_sglang_is_keyed_by_rank_where_it_sorts() -> None:
    """Its noise is hashed by column: those of the path that sorts are ranks, those of the other are tokens."""
    columns: list[torch.Tensor] = []

    def noted(logprobs: torch.Tensor, seed: Any, positions: Any) -> torch.Tensor:
        columns.append(logprobs)
        return torch.zeros((1, 1), dtype=torch.int64)

    kept, sglang.multinomial_with_seed = sglang.multinomial_with_seed, noted
    probs, seed = LOGITS.softmax(-1), torch.tensor([7])
    everything = torch.tensor([VOCABULARY]), torch.tensor([1.0]), torch.tensor([0.0])
    SORTS(probs.clone(), *everything, False, seed, torch.tensor([0]))
    TAKES_ALL(probs.clone(), sampling_seed=seed, positions=torch.tensor([0]))
    sglang.multinomial_with_seed = kept
    ranks, tokens = (column.exp().float() for column in columns)
    assert torch.allclose(ranks, probs.sort(dim=-1, descending=True).values)
    assert torch.allclose(tokens, probs) and not torch.allclose(tokens, ranks)

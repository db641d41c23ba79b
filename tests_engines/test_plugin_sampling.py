"""Both samplers of the real vLLM under the plug-in: which token a row gets, beside whom, and from which kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import plugin_support
import pytest
import torch
from buffers import Buffer
from plugin_support import Conditions, putting_back
from vllm import SamplingParams
from vllm.utils import torch_utils
from vllm.v1.sample import sampler as v1
from vllm.v1.sample.logits_processor import LogitsProcessors, MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.worker import gpu_input_batch, gpu_model_runner
from vllm.v1.worker.gpu.sample import prompt_logprob, states
from vllm.v1.worker.gpu.sample import sampler as v2

from detent.engines.embedded.sampler import gumbel
from detent.engines.vllm.sites import sampling
from detent.kernels import rows
from detent.runtime.errors import DetentError

VOCABULARY = 304
POINTS = {"sampler": dict(sampling.SERVED)}
MANY = (SamplingParams(temperature=0.0), SamplingParams(seed=7), SamplingParams(temperature=0.6, seed=-8),
        SamplingParams(temperature=1.3, seed=9, top_k=5), SamplingParams(seed=10, top_p=0.4),
        SamplingParams(seed=11, min_p=0.3), SamplingParams(temperature=0.5, seed=12, top_k=20, top_p=0.7, min_p=0.01))
START = 40


@pytest.fixture(autouse=True)
def tuple_in_force(monkeypatch: pytest.MonkeyPatch) -> Iterator[Conditions]:
    monkeypatch.setattr(sampling, "define", plugin_support.define)
    for module in (torch_utils, gpu_input_batch, v1):
        monkeypatch.setattr(module, "PIN_MEMORY", False)
    putting = putting_back("sites.sampling")
    next(putting)
    active = Conditions(POINTS)
    sampling.install(active)
    yield active
    next(putting, None)


@pytest.fixture(autouse=True)
def no_other_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else would draw, mask or take logarithms is an error."""
    def never(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("vLLM's own kernel ran")
    for module, name in ((v1.TopKTopPSampler, "forward_native"), (v1.TopKTopPSampler, "forward_cpu"),
                         (MinPLogitsProcessor, "apply"), (v1, "batched_count_greater_than"),
                         (v2, "apply_top_k_top_p"), (v2, "gumbel_sample"), (v2, "flashinfer_sample"),
                         (states.SamplingStates, "apply_temperature"), (states.SamplingStates, "apply_min_p")):
        monkeypatch.setattr(module, name, never)
    for name in ("argmax", "log_softmax", "topk", "sort"):
        kernel = getattr(torch, name)
        monkeypatch.setattr(torch, name, kernel if name == "sort" else never)  # rows.sample sorts
        if name in ("argmax", "log_softmax"):
            monkeypatch.setattr(torch.Tensor, name, never)


def logits_of(count: int) -> torch.Tensor:
    torch.manual_seed(count)
    return torch.randn(count, VOCABULARY) * 3


def right(logits: torch.Tensor, params: SamplingParams, position: int) -> int:
    """The rule in torch: the embedded engine's, and min-p first."""
    if params.temperature == 0.0:
        return int(np.argmax(logits.numpy()))
    scaled = logits / np.float32(params.temperature)
    if params.min_p:
        scaled[scaled < scaled.max() + math.log(params.min_p)] = -math.inf
    ranked, order = scaled.sort(descending=True, stable=True)
    if params.top_k > 0:
        ranked[params.top_k:] = -math.inf
    shares = ranked.softmax(0).double()
    if params.top_p < 1:
        ranked[shares.cumsum(0) - shares >= params.top_p] = -math.inf
    scaled = torch.empty_like(scaled).scatter_(0, order, ranked)
    return int(np.argmax((scaled.double() + gumbel(params.seed or 0, position, VOCABULARY)).numpy()))


# ---- model runner V1 -----------------------------------------------------------------------------------------------


class Minimum(MinPLogitsProcessor):
    """vLLM's, without its configuration; the built-in type to whom asks."""

    def __init__(self, values: Sequence[float]) -> None:
        self.min_p_count = sum(value > 0 for value in values)
        self.min_p = torch.tensor(values).unsqueeze(1)


def batch_of(requests: Sequence[SamplingParams], names: Sequence[str]) -> Any:
    """vLLM's batch of requests, that have reached position START + their place."""
    batch = gpu_input_batch.InputBatch(
        max_num_reqs=16, max_model_len=128, max_num_batched_tokens=128, device=torch.device("cpu"),
        vocab_size=VOCABULARY, block_sizes=[16], kernel_block_sizes=[16],
        max_num_blocks_per_req=[8])
    for name, params in zip(names, requests, strict=True):
        generator = None
        if params.seed is not None and params.temperature:
            generator = torch.Generator()
            generator.manual_seed(params.seed)
        batch.add_request(gpu_input_batch.CachedRequestState(
            req_id=name, prompt_token_ids=[1, 2], mm_features=[], sampling_params=params, pooling_params=None,
            generator=generator, block_ids=([],), num_computed_tokens=2, output_token_ids=[]))
    batch.refresh_metadata()
    least = [params.min_p for params in requests]
    if any(least):
        made = Minimum(least)
        made.__class__ = MinPLogitsProcessor
        batch.sampling_metadata.logitsprocs = LogitsProcessors([made])
    return batch


def first(requests: Sequence[SamplingParams], logits: torch.Tensor, positions: Sequence[int],
          names: Sequence[str] | None = None) -> Any:
    """A step of runner V1. A token's position is one more than its last input's; other tokens are in the step too."""
    batch = batch_of(requests, names or [f"r{i}" for i in range(len(requests))])
    batch.update_async_output_token_ids = lambda: None
    where = torch.full((3 * len(requests),), -99)
    where[2::3] = torch.tensor(positions) - 1
    runner = SimpleNamespace(
        input_batch=batch, positions=where, sampler=v1.Sampler(),
        query_start_loc=SimpleNamespace(gpu=torch.arange(0, 60, 3, dtype=torch.int32)))
    return gpu_model_runner.GPUModelRunner._sample(runner, logits, None)


# ---- model runner V2 -----------------------------------------------------------------------------------------------


class Edits:
    """vLLM's own edits: some row's first logit becomes large."""

    def __init__(self, flags: np.ndarray) -> None:
        self.use_logit_bias = self.use_penalty = flags
        self.num_bad_words = SimpleNamespace(np=flags.astype(np.int32))
        self.ran = 0

    def edit(self, logits: torch.Tensor, *others: Any) -> None:
        self.ran += 1
        logits[torch.from_numpy(self.use_penalty[: len(logits)]), 0] += 100.0

    apply_logit_bias = apply_penalties = apply_bad_words = edit


def second_sampler(requests: Sequence[SamplingParams], monkeypatch: pytest.MonkeyPatch,
                   edited: Sequence[int] = ()) -> Any:
    monkeypatch.setattr(states, "UvaBackedTensor", Buffer)
    made = v2.Sampler.__new__(v2.Sampler)
    made.logprobs_mode, made.use_fp64_gumbel, made.use_flashinfer = "raw_logprobs", False, True
    made.sampling_states = states.SamplingStates(16, VOCABULARY)
    for row, params in enumerate(requests):
        made.sampling_states.add_request(15 - row, params)  # requests' places are not rows
    flags = np.zeros(16, dtype=bool)
    flags[list(edited)] = True
    made.logit_bias_state = made.penalties_state = made.bad_words_state = Edits(flags)
    return made


def second(requests: Sequence[SamplingParams], logits: torch.Tensor, positions: Sequence[int],
           monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    made = second_sampler(requests, monkeypatch)
    at = np.arange(15, 15 - len(requests), -1)
    tokens, _ = made.sample(logits, torch.from_numpy(at), at, torch.tensor(positions) - 1, None, None)
    return tokens


# ---- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", (1, 2))
def test_tokens_are_the_rules_beside_anybody(runner: int, monkeypatch: pytest.MonkeyPatch,
                                             tuple_in_force: Conditions) -> None:
    """All together, in another order, some alone: always the same token, and every step is checked as it is."""
    logits, positions = logits_of(len(MANY)), [START + i for i in range(len(MANY))]
    expected = [right(row.clone(), params, position) for row, params, position
                in zip(logits, MANY, positions, strict=True)]
    assert len({*expected}) > 3
    groups = [list(range(len(MANY))), list(range(len(MANY)))[::-1], [0], [1], [0, 2], [1, 2], [1, 3], [4, 0], [5, 1],
              [6], [3, 4, 5, 6]]
    for rows_of in groups:
        requests = [MANY[i] for i in rows_of]
        parts = requests, logits[rows_of].clone(), [positions[i] for i in rows_of]
        tuple_in_force.checked.clear()
        tokens = (first(*parts).sampled_token_ids.view(-1) if runner == 1 else second(*parts, monkeypatch))
        assert tokens.tolist() == [expected[i] for i in rows_of], rows_of
        random = any(params.temperature for params in requests)
        cut = any(params.top_k > 0 or params.top_p < 1 or params.min_p for params in requests)
        assert tuple_in_force.checked == [("sampler", len(rows_of), random, cut)]


@pytest.mark.parametrize("runner", (1, 2))
def test_positions_and_seeds_are_the_noise(runner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    params, flat = SamplingParams(seed=3), torch.zeros(1, VOCABULARY)

    def at(position: int, asked: SamplingParams = params) -> int:
        parts = [asked], flat.clone(), [position]
        return int(first(*parts).sampled_token_ids[0, 0] if runner == 1 else second(*parts, monkeypatch)[0])
    tokens = [at(position) for position in range(5, 15)]
    assert len(set(tokens)) > 5 and tokens == [at(position) for position in range(5, 15)]
    assert tokens != [at(position, SamplingParams(seed=4)) for position in range(5, 15)]


def test_without_a_seed_the_id_is_one() -> None:
    """Runner V1: a request keeps its noise when its neighbours or its place change; another has other noise."""
    flat = torch.zeros(3, VOCABULARY)
    asked = [SamplingParams(), SamplingParams(seed=5), SamplingParams()]
    tokens = first(asked, flat, [9, 9, 9], ["a", "b", "c"]).sampled_token_ids.view(-1).tolist()
    again = first(asked[::-1], flat, [9, 9, 9], ["c", "b", "a"]).sampled_token_ids.view(-1).tolist()
    assert again == tokens[::-1] and len(set(tokens)) == 3


@pytest.mark.parametrize("seed", (0, 5, -1, -2 ** 63, 2 ** 63 - 1))
def test_a_generator_gives_its_seed_back(seed: int) -> None:
    generator = torch.Generator()
    generator.manual_seed(seed)
    assert sampling._signed(generator.initial_seed()) == seed


def test_v1_log_probabilities() -> None:
    """From the raw logits, by our kernel; of equal ones the lower ids, whatever the largest number asked for."""
    logits = logits_of(3)
    logits[1, 10:200] = 50.0
    logits[2, ::3] = -0.0
    wanted = rows.log_softmax(logits)
    for most in (0, 1, 5, 40):
        batch = batch_of([SamplingParams(temperature=0.0, logprobs=most)] * 3, "abc")
        got = v1.Sampler()(logits.clone(), batch.sampling_metadata).logprobs_tensors
        assert got.logprobs.shape == (3, most + 1) and got.logprob_token_ids.dtype == torch.int32
        ids = got.logprob_token_ids.long()
        assert torch.equal(got.logprobs, wanted.gather(1, ids))
        assert ids[1].tolist() == [10, *range(10, 10 + most)]
        for row in range(3):
            ranked = sorted(range(VOCABULARY), key=lambda token: (-float(wanted[row, token]), token))
            assert ids[row].tolist() == [ranked[0], *ranked[:most]]
        assert got.selected_token_ranks.tolist() == [1, 190, int((wanted[2] >= wanted[2].max()).sum())]


@pytest.mark.parametrize("module", (v2, prompt_logprob))
def test_v2_log_probabilities(module: Any) -> None:
    logits, tokens = logits_of(sampling.CHUNK + 3).half(), torch.arange(sampling.CHUNK + 3) % 7
    logits[1, 10:200] = 50.0
    wanted = rows.log_softmax(logits)
    got = module.compute_topk_scores(logits, 4, tokens, [0, 1])
    assert torch.equal(got.logprobs, wanted.gather(1, got.logprob_token_ids))
    assert torch.equal(got.logprob_token_ids[:, 0], tokens)
    assert got.logprob_token_ids[1].tolist()[1:] == [10, 11, 12, 13]
    assert got.selected_token_ranks[1] == (logits[1] >= logits[1, 1]).sum() and got.cu_num_generated_tokens == [0, 1]
    few = module.compute_topk_scores(logits[1:2], 2, tokens[1:2])
    assert torch.equal(few.logprobs, got.logprobs[1:2, :3])
    for named in ({"logits_mode": True}, {"max_per_req_token_ids": 1}):
        with pytest.raises(DetentError, match="logprob"):
            module.compute_topk_scores(logits, 4, tokens, **named)


def test_v2_edits_come_before_and_leave_log_probabilities_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [SamplingParams(temperature=0.0)] * 3
    at = np.arange(15, 12, -1)
    for wanted, kept in ((False, False), (True, True)):
        made = second_sampler(requests, monkeypatch, edited=[14])
        monkeypatch.setattr(made.penalties_state, "use_penalty", np.zeros(16, dtype=bool))
        made.penalties_state.use_penalty = np.zeros(16, dtype=bool)
        logits = logits_of(3)
        before = logits.clone()
        edits = made.logit_bias_state

        def edit(edited: torch.Tensor, *others: Any) -> None:
            edited[1, 0] += 100.0
        for name in ("apply_logit_bias", "apply_penalties", "apply_bad_words"):
            monkeypatch.setattr(edits, name, edit, raising=False)
        tokens, _ = made.sample(logits, torch.from_numpy(at), at, torch.zeros(3, dtype=torch.int64), None, None, wanted)
        assert tokens.tolist() == [int(np.argmax(before[0].numpy())), 0, int(np.argmax(before[2].numpy()))]
        assert torch.equal(logits, before) is kept
        assert torch.equal(logits[1, 0], before[1, 0] + (0.0 if kept else 300.0))


def test_what_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, asked = logits_of(1), [SamplingParams(seed=1)]
    with pytest.raises(DetentError, match="speculative"):
        gpu_model_runner.GPUModelRunner._sample(SimpleNamespace(), logits, object())
    made = second_sampler(asked, monkeypatch)
    with pytest.raises(DetentError, match="speculative"):
        made.sample(logits_of(2), torch.tensor([15, 15]), np.array([15]), torch.zeros(2), None, None)
    made.logprobs_mode = "processed_logprobs"
    with pytest.raises(DetentError, match="processed_logprobs"):
        made.sample(logits, torch.tensor([15]), np.array([15]), torch.zeros(1), None, None)
    with pytest.raises(DetentError, match="processed_logprobs"):
        v1.Sampler("processed_logprobs").sample(logits, batch_of(asked, "a").sampling_metadata)
    metadata = batch_of(asked, "a").sampling_metadata
    with pytest.raises(AttributeError, match="detent_positions"):  # a step that does not come from the runner
        v1.Sampler().sample(logits, metadata)

    class Mine(MinPLogitsProcessor):
        pass
    mine = Minimum([0.5])
    mine.__class__ = Mine
    with pytest.raises(DetentError, match="Mine"):
        v1.Sampler().sample(logits, replace(metadata, logitsprocs=LogitsProcessors([mine])))


def test_v1_warms_up_without_requests() -> None:
    """vLLM measures memory with a step of nobody's."""
    runner = SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(multimodal_config=None)), sampler=v1.Sampler(),
        model=SimpleNamespace(compute_logits=lambda hidden: logits_of(len(hidden))), device=torch.device("cpu"),
        speculative_config=None)
    made = gpu_model_runner.GPUModelRunner._dummy_sampler_run(runner, torch.zeros(4, 8))
    assert made.sampled_token_ids.shape == (4, 1)


@pytest.mark.parametrize("name", sampling.SERVED)
def test_points_that_the_kernels_are_not(name: str) -> None:
    with pytest.raises(DetentError, match=f"{name} = 'other'"):
        sampling.install(Conditions({"sampler": POINTS["sampler"] | {name: "other"}}))


def test_rows_that_begin_elsewhere() -> None:
    wide = torch.randn(3, VOCABULARY + 3)
    logits = wide[:, 1:VOCABULARY + 1]
    operators = sampling.Operators()
    assert torch.equal(operators.argmax(logits), operators.argmax(logits.clone()))
    assert torch.equal(operators.log_softmax(logits), operators.log_softmax(logits.clone()))


def test_operators_have_shapes() -> None:
    """What torch.compile asks: fakes that agree with what is run."""
    operators = sampling.Operators()
    logits = logits_of(2)
    numbers = torch.zeros(2, dtype=torch.int64)
    for operator, arguments in (
            (operators.argmax, (logits,)), (operators.log_softmax, (logits,)), (operators.top_tokens, (logits, 3)),
            (operators.sample, (logits, torch.ones(2), numbers, numbers, None, None, None, None))):
        torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_metadata_of_vllm_takes_our_numbers() -> None:
    """Seeds and positions travel on it."""
    assert not hasattr(SamplingMetadata, "__slots__")

"""Admission at the real vLLM's check of sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_support import putting_back
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from detent.engines.vllm import admission


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(admission.STRICT, raising=False)
    admission.counts.clear()
    putting = putting_back("admission")
    next(putting)
    yield
    next(putting, None)


def processor() -> Any:
    """vLLM's, as far as checking parameters goes."""
    made = InputProcessor.__new__(InputProcessor)
    model = SimpleNamespace(max_logprobs=20, get_vocab_size=lambda: 1000, logits_processors=None, is_diffusion=False)
    made.model_config, made.speculative_config, made.structured_outputs_config = model, None, None
    made.renderer, made.use_v2_model_runner = SimpleNamespace(tokenizer=None), False
    made.vllm_config = SimpleNamespace(reasoning_config=SimpleNamespace(enabled=True))
    return made


def ask(params: Any) -> None:
    processor()._validate_params(params, ("generate",))


SERVED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0}, "greedy with a seed": {"temperature": 0.0, "seed": 1},
    "seeded": {"temperature": 0.7, "seed": 5}, "negative seed": {"seed": -2 ** 63},
    "cuts": {"seed": 5, "top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "edits": {"seed": 5, "logit_bias": {3: 1.0}, "allowed_token_ids": [1, 2, 3], "min_tokens": 2},
    "log-probabilities": {"temperature": 0.0, "logprobs": 5, "prompt_logprobs": 2},
}
REFUSED: dict[str, dict[str, Any]] = {
    "logprob_token_ids": {"temperature": 0.0, "logprob_token_ids": [1, 2]},
    "seed": {"seed": 2 ** 63},
    "thinking_token_budget": {"temperature": 0.0, "thinking_token_budget": 5},
}


@pytest.mark.parametrize("strict", (False, True))
@pytest.mark.parametrize("name", SERVED)
def test_served(name: str, strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(admission.STRICT, str(int(strict)))
    admission.install()
    ask(SamplingParams(**SERVED[name]))
    assert dict(admission.counts) == {"greedy" if SERVED[name].get("temperature") == 0.0 else "seeded": 1}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """vLLM itself lets these through. Offline a ValueError; the server's answer is HTTP 400 with the reason."""
    ask(SamplingParams(**REFUSED[name]))
    admission.install()
    with pytest.raises(ValueError, match=f"Detent: .*{name}") as caught:
        ask(SamplingParams(**REFUSED[name]))
    assert dict(admission.counts) == {"refused": 1}

    from vllm.entrypoints.serve.utils.error_response import create_error_response

    answer = create_error_response(caught.value)
    assert answer.error.code == HTTPStatus.BAD_REQUEST.value and name in answer.error.message


def test_without_a_seed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    admission.install()
    for _ in range(3):
        ask(SamplingParams(temperature=0.7))
    ask(SamplingParams(temperature=0.7, seed=-1))  # vLLM's other way to give none
    assert dict(admission.counts) == {"unseeded": 4}


def test_without_a_seed_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(admission.STRICT, "1")
    admission.install()
    with pytest.raises(ValueError, match="cannot be replayed.*DETENT_STRICT=1"):
        ask(SamplingParams(temperature=0.7))
    assert dict(admission.counts) == {"refused": 1}


def test_vllms_own_refusals_come_first() -> None:
    admission.install()
    with pytest.raises(ValueError, match="max allowed"):
        ask(SamplingParams(temperature=0.0, logprobs=21))
    with pytest.raises(ValueError, match="pooling"):
        ask(PoolingParams(task="embed"))
    assert not admission.counts


KNOWN = frozenset("""
    n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids
    ignore_eos max_tokens min_tokens logprobs prompt_logprobs logprob_token_ids flat_logprobs detokenize
    skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind skip_clone
    output_text_buffer_length _eos_token_id _all_stop_token_ids structured_outputs logit_bias allowed_token_ids
    extra_args routed_experts_prompt_start bad_words _bad_words_token_ids skip_reading_prefix_cache
    thinking_token_budget repetition_detection""".split())


def test_no_parameter_was_overlooked() -> None:
    """A parameter that another version adds has to be judged first."""
    assert set(SamplingParams.__struct_fields__) == KNOWN

"""The plug-in's start-up against vLLM's own package: what it sets, what it refuses and with which words, the keys of
the prefix cache, and what the server tells. vLLM runs in :mod:`plugin_process`, once for all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULT = "RESULT"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each case. Needs vLLM with all that it depends on."""
    probe = [sys.executable, "-c", "import vllm.v1.worker.gpu_worker"]
    folder = tmp_path_factory.mktemp("vllm")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "DETENT_"))}
    variables |= {"PYTHONPATH": str(ROOT), "VLLM_CACHE_ROOT": str(folder), "VLLM_NO_USAGE_STATS": "1",
                  "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if subprocess.run(probe, env=variables, capture_output=True).returncode:
        pytest.skip("needs vLLM with all that it depends on")
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("plugin_process.py"))], env=variables,
                          cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    results = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    found: dict[str, Any] = json.loads(results[-1].removeprefix(RESULT))
    return found


def test_switches_are_set_before_vllm_derives_from_them(cases: dict[str, Any]) -> None:
    plain = cases["plain"]
    assert plain["backend"] == "FLASH_ATTN"
    assert plain["ranges"] == [8192]  # one
    assert {"+rms_norm", "+gemma_rms_norm"} <= set(plain["custom_ops"])
    off = {name: value for name, value in plain["set"].items() if name.startswith("compilation_config.pass_config.")}
    assert len(off) > 10 and set(off.values()) == {False}
    assert plain["set"]["model_config.disable_cascade_attn"] is True
    assert plain["set"]["kernel_config.enable_flashinfer_autotune"] is False
    assert plain["set"]["VLLM_USE_AOT_COMPILE"] == "0"


def test_the_tuple_is_in_the_identity_of_compiled_code(cases: dict[str, Any]) -> None:
    assert cases["plain"]["additional"]["detent"] == cases["server"]["told"]["hash"]


def test_limits_and_graphs_may_be_smaller(cases: dict[str, Any]) -> None:
    assert "error" not in cases["smaller limits"] and "error" not in cases["eager"]


@pytest.mark.parametrize("case, name, flag", [
    ("cascade", "model_config.disable_cascade_attn is false", "--disable-cascade-attn"),
    ("autotune", "kernel_config.enable_flashinfer_autotune is true", "--enable-flashinfer-autotune"),
    ("fusion", "pass_config.fuse_allreduce_rms is true", "--compilation-config.pass_config.fuse_allreduce_rms"),
    ("no custom norm", "compilation_config.custom_ops is ['-rms_norm']", "has '+rms_norm'"),
    ("compile sizes", "compilation_config.compile_sizes is [8]", "--compilation-config.compile_sizes"),
    ("backend", "attention_config.backend is 'FLASHINFER'", "--attention-backend"),
])
def test_a_contrary_option_is_refused_and_not_overruled(cases: dict[str, Any], case: str, name: str, flag: str) -> None:
    (line,) = cases[case]["lines"]
    assert name in line and flag in line


def test_a_contrary_variable_is_refused(cases: dict[str, Any]) -> None:
    assert "VLLM_USE_AOT_COMPILE is '1': leave out the variable VLLM_USE_AOT_COMPILE" in cases["environment"]


@pytest.mark.parametrize("case, name, flag", [
    ("fp8", "model_config.quantization is 'fp8'", "--quantization"),
    ("lora", "lora_config is 'LoRAConfig'", "--enable-lora"),
    ("ngram", "speculative_config is 'SpeculativeConfig'", "--speculative-config"),
    ("stages", "parallel_config.pipeline_parallel_size is 2", "--pipeline-parallel-size"),
    ("fa2", "attention_config.flash_attn_version is 2", "--attention-config.flash_attn_version"),
    ("logprobs", "model_config.logprobs_mode is 'processed_logprobs'", "--logprobs-mode"),
    ("larger limits", "scheduler_config.max_num_seqs is 2048", "--max-num-seqs"),
    ("two ranks", "all-reduces are not routed through Detent yet", "--tensor-parallel-size"),
    ("deterministic", "VLLM_BATCH_INVARIANT is '1'", "the variable VLLM_BATCH_INVARIANT"),
])
def test_what_is_not_covered_is_refused_with_its_flag(cases: dict[str, Any], case: str, name: str, flag: str) -> None:
    assert any(name in line and line.endswith(f"change {flag}") for line in cases[case]["lines"]), cases[case]


@pytest.mark.parametrize("case, lines", [
    ("other model", ["model.hidden_size: the tuple has 4096, the engine has 2048: serve the model",
                     "model.vocab_size: the tuple has 128256, the engine has 32000: serve the model"]),
    ("other gpu", ["gpu.name: the tuple has NVIDIA_H200, the engine has NVIDIA_H100_80GB_HBM3: use that GPU"]),
    ("half", ["engine.kv_cache_dtype: the tuple has bf16, the engine has fp16: give --kv-cache-dtype bfloat16",
              "model.dtype: the tuple has bf16, the engine has fp16: give --dtype bfloat16"]),
    ("kv fp8", ["engine.kv_cache_dtype: the tuple has bf16, the engine has e4m3: give --kv-cache-dtype bfloat16"]),
    ("pages", ["engine.page_size: the tuple has 16, the engine has 32: give --block-size 16"]),
    ("window", ["model.window_left: the tuple has -1, the engine has 4095",
                "model.window_right: the tuple has -1, the engine has 0"]),
])
def test_a_fact_that_differs_has_a_line(cases: dict[str, Any], case: str, lines: list[str]) -> None:
    found = cases[case]["lines"]
    assert len(found) == len(lines)
    assert all(line.startswith(wanted) for line, wanted in zip(found, lines, strict=True)), found


def test_flags_of_remedies_are_vllms(cases: dict[str, Any]) -> None:
    assert cases["flags"] == []


def test_the_prefix_cache_is_salted(cases: dict[str, Any]) -> None:
    first, second, again = cases["salted"]
    assert first == again != second


def test_the_server_tells_what_is_in_force(cases: dict[str, Any]) -> None:
    told, metrics, text = (cases["server"][name] for name in ("told", "metrics", "text"))
    assert told["tuple"]["hash"] == told["hash"] and told["ranks"] == 1 and "weights" in told["open"]
    assert told["families"]["attention"] == {
        "program": "attention", "pins": {"num_splits": 1}, "knobs": {}, "not_taken": ["use_one_mma_wg"],
        "points": {"num_splits": 1, "use_one_mma_wg": False}, "kernel": "unknown until a worker has its GPU"}
    assert "model_config.disable_cascade_attn = true" in told["switched_off"]
    assert "vllm.config.vllm:VllmConfig.__post_init__" in told["replaced"]
    (metric,) = metrics
    assert f'hash="{told["hash"]}"' in metric and 'deployment="llama-3.1-8b-tp1-h200"' in metric
    assert told["hash"] in text[1] and any("use_one_mma_wg" in line for line in text)


def test_random_weights_have_their_seed_as_identity(cases: dict[str, Any]) -> None:
    assert cases["dummy"] == "dummy, seed 0"


def test_a_worker_binds_the_tuple_and_prints_what_is_in_force_once(cases: dict[str, Any]) -> None:
    worker, unbound = cases["worker"], cases["server"]["told"]
    told = worker["told"]
    assert told["hash"] != unbound["hash"] and worker["exchanged"] == [told["hash"]] and worker["times"] == "times"
    assert told["tuple"]["environment"]["weights"] == "dummy, seed 0"
    assert told["families"]["attention"]["kernel"] == "sm90 0123" and told["traced"] == ["linear", "rms_norm"]
    assert worker["printed"].count("Detent ") == 1 and told["hash"] in worker["printed"]
    assert "a forward pass was traced: linear, rms_norm" in worker["printed"]


def test_a_worker_stops_on_another_tuple_page_size_or_gpu(cases: dict[str, Any]) -> None:
    tuples, page, gpu = cases["worker"]["errors"]
    assert "this worker's tuple" in tuples and "is not the engine's, 0000000000000000" in tuples
    assert "engine.page_size: the tuple has 16, the engine has 32: give --block-size 16" in page
    assert "gpu.arch: the tuple has 90, the engine has 80" in gpu

"""vLLM's own package with the plug-in's start-up, on a GPU that is pretended: what :mod:`test_plugin_start` asks of it.

A process of its own, because the tests beside it replace vLLM's modules by stand-ins. The call sites' modules are
imported and their names replaced as on a GPU; what is pretended is the platform, whose libraries do not load without
one. Prints an object: by case, what came of it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import tempfile
from argparse import Namespace
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any

import vllm  # type: ignore[import-not-found, unused-ignore]
from vllm import EngineArgs, platforms
from vllm.model_executor.models import registry  # type: ignore[import-not-found, unused-ignore]
from vllm.platforms.interface import DeviceCapability  # type: ignore[import-not-found, unused-ignore]

from detent import __version__
from detent.engines.vllm import active, identity, options, report, rules, start
from detent.runtime import deployment as deployments
from detent.runtime.errors import DetentError
from detent.runtime.tuple import CommitmentTuple

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 2, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "bos_token_id": 128000, "eos_token_id": 128001,
}
DEPLOYMENT = "llama-3.1-8b-tp1-h200"
READ = ("engine.deterministic", "engine.full_graphs", "engine.graph_splits", "engine.kv_cache_dtype",
        "engine.max_capture_size", "engine.name", "engine.page_size", "engine.version", "gpu.arch", "gpu.name",
        "limits.max_context", "limits.max_num_batched_tokens", "limits.max_num_seqs", "model.causal", "model.dtype",
        "model.head_dim", "model.head_dim_v", "model.hidden_size", "model.intermediate_size",
        "model.norm_plus_one", "model.num_attention_heads", "model.num_key_value_heads", "model.softcap",
        "model.vocab_size", "model.window_left", "model.window_right", "parallel.tensor_parallel")
"""What the programs of a dense model's tuple read; a test without this process compares it with the programs."""


class Cuda:
    """What of a platform's answers the configuration asks for."""

    NAME = "NVIDIA H200"


def pretend() -> Any:
    """The class of a platform that answers as an H200 does. The class for CUDA loads libraries when it is imported."""
    import types

    for name in ("vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"):
        sys.modules.setdefault(name, types.ModuleType(name))
    from vllm.platforms import cuda  # type: ignore[import-not-found, unused-ignore]

    class H200(cuda.CudaPlatformBase):  # type: ignore[misc, unused-ignore]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return Cuda.NAME

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 141 << 30

        @classmethod
        def is_fully_connected(cls, ids: Any) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return 8

    return H200


def plain_model(self: Any) -> Any:
    """What vLLM finds out about a model's class by importing it in a process of its own."""
    return registry._ModelInfo(
        architecture=self.class_name, is_text_generation_model=True, is_pooling_model=False, attn_type="decoder",
        default_seq_pooling_type="LAST", default_tok_pooling_type="ALL", score_type="bi-encoder",
        supports_multimodal=False, supports_multimodal_raw_input_only=False, requires_raw_input_tokens=False,
        supports_multimodal_encoder_tp_data=False, supports_pp=True, has_inner_state=False, is_attention_free=False,
        is_hybrid=False, has_noops=False, supports_mamba_prefix_caching=False, supports_transcription=False,
        supports_transcription_only=False)


def commitment() -> CommitmentTuple:
    """A tuple of one family that reads everything; no program is solved here."""
    facts = deployments.load(DEPLOYMENT).facts
    read = {name: facts[name.split(".")[0]].get(name.split(".")[1]) for name in READ}
    part = {"program": "attention", "key": "0", "facts": read, "pins": {"num_splits": 1}, "knobs": {}}
    return CommitmentTuple(DEPLOYMENT, {"attention": part}, {"detent": __version__}, "tuple.json")


def serve() -> None:
    """Begin under that tuple, without the call sites: they need a solved one."""
    found = commitment()
    points = {"attention": MappingProxyType({"num_splits": 1, "use_one_mma_wg": False})}
    active._active = active.Active(found, deployments.load(DEPLOYMENT), {}, points)
    start.sites = lambda: []  # type: ignore[assignment]
    start.begin("tuple.json")


def arguments(model: dict[str, Any] | None = None, **named: Any) -> Any:
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({**LLAMA, **(model or {})}, file)
    return EngineArgs(model=folder, skip_tokenizer_init=True, load_format="dummy",
                      **{"max_num_seqs": 256, "max_num_batched_tokens": 8192, **named})


def outcome(model: dict[str, Any] | None = None, **named: Any) -> dict[str, Any]:
    """A configuration's options, or why there is none."""
    try:
        config = arguments(model, **named).create_engine_config()
    except DetentError as error:
        return {"error": str(error), "lines": getattr(error, "lines", [])}
    except ValueError as error:  # vLLM's own
        return {"vllm": str(error)}
    found = active.get()
    assert found is not None
    facts = found.deployment.facts
    table = rules.covered(vllm.__version__)
    return {
        "additional": config.additional_config, "ranges": config.compilation_config.compile_ranges_endpoints,
        "backend": config.attention_config.backend.name, "custom_ops": config.compilation_config.custom_ops,
        "hash": config.compute_hash(),
        "set": {switch.name: options.value_of(config, facts, switch.kind, switch.name) for switch in table.switches()},
    }


@contextmanager
def environment(**variables: str) -> Any:
    old = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in old.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def configurations() -> dict[str, Any]:
    """Cases of a configuration."""
    qwen = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "norm_topk_prob": True}
    window = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096}
    cases: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
        "plain": (None, {}),
        "smaller limits": (None, {"max_num_seqs": 8, "max_num_batched_tokens": 2048, "max_model_len": 4096}),
        "eager": (None, {"enforce_eager": True}),
        "larger limits": (None, {"max_num_seqs": 2048}),
        "cascade": (None, {"disable_cascade_attn": False}),
        "autotune": (None, {"enable_flashinfer_autotune": True}),
        "fusion": (None, {"compilation_config": {"pass_config": {"fuse_allreduce_rms": True}}}),
        "no custom norm": (None, {"compilation_config": {"custom_ops": ["-rms_norm"]}}),
        "compile sizes": (None, {"compilation_config": {"compile_sizes": [8]}}),
        "fp8": (None, {"quantization": "fp8"}),
        "lora": (None, {"enable_lora": True}),
        "ngram": (None, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                                                "prompt_lookup_max": 3}}),
        "two ranks": (None, {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
        "stages": (None, {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}),
        "backend": (None, {"attention_backend": "FLASHINFER"}),
        "fa2": (None, {"attention_config": {"flash_attn_version": 2}}),
        "kv fp8": (None, {"kv_cache_dtype": "fp8"}),
        "half": (None, {"dtype": "float16"}),
        "pages": (None, {"block_size": 32}),
        "logprobs": (None, {"logprobs_mode": "processed_logprobs"}),
        "other model": ({"hidden_size": 2048, "vocab_size": 32000}, {}),
        "window": (window, {}),
        "experts": (qwen, {}),
    }
    return {name: outcome(model, **named) for name, (model, named) in cases.items()}


def salted(hashes: list[str]) -> list[str]:
    """The first key of the prefix cache under each tuple hash."""
    from vllm.utils.hashing import sha256  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.core import kv_cache_utils  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.engine import core  # type: ignore[import-not-found, unused-ignore]

    class Engine:
        class model_executor:
            told: str

            @classmethod
            def collective_rpc(cls, method: str) -> list[str]:
                assert method == report.METHOD
                return [json.dumps({"hash": cls.told})]

    keys = []
    with environment(PYTHONHASHSEED="0"):
        for each in hashes:
            Engine.model_executor.told = each
            assert core.EngineCore._initialize_kv_caches(Engine(), None) == "kv caches"
            core.init_none_hash(sha256)
            keys.append(kv_cache_utils.NONE_HASH.hex())
    return keys


def server() -> dict[str, Any]:
    """``/detent`` and ``/metrics`` of a server whose engine answers as a worker does."""
    from fastapi import FastAPI  # type: ignore[import-not-found, unused-ignore]
    from prometheus_client import generate_latest  # type: ignore[import-not-found, unused-ignore]
    from starlette.testclient import TestClient  # type: ignore[import-not-found, unused-ignore]
    from vllm.entrypoints.serve import (  # type: ignore[import-not-found, unused-ignore]
        register_vllm_serve_api_routers,
    )
    from vllm.v1.worker.gpu_worker import Worker  # type: ignore[import-not-found, unused-ignore]

    class Client:
        async def collective_rpc(self, method: str) -> list[str]:
            return [getattr(Worker, method)(None)]

    app = FastAPI()
    app.state.args = Namespace()
    register_vllm_serve_api_routers(app)
    app.state.engine_client = Client()
    with TestClient(app) as client:
        told = client.get("/detent").json()
    metrics = [line for line in generate_latest().decode().splitlines() if line.startswith(report.METRIC)]
    return {"told": told, "metrics": metrics, "text": report.lines(told)}


def worker() -> dict[str, Any]:
    """A worker's start with its GPU, its model and its fellow ranks pretended. Binds the tuple of this process."""
    from vllm import distributed  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.worker.gpu_worker import Worker  # type: ignore[import-not-found, unused-ignore]

    from detent.engines.vllm import facts, trace

    printed, exchanged = io.StringIO(), []
    log = logging.getLogger("vllm.detent")
    log.addHandler(logging.StreamHandler(printed))
    log.setLevel(logging.INFO)
    bound = {"gpu": "NVIDIA H200", "kernels": {"attention": "sm90 0123"}, "weights": "dummy, seed 0"}
    identity.environment = lambda config, found: bound  # type: ignore[assignment]
    identity.exchange = lambda *told: exchanged.append(told[1])  # type: ignore[assignment]
    distributed.get_world_group = lambda: SimpleNamespace(cpu_group=None)
    trace.check = lambda worker: ["linear", "rms_norm"]  # type: ignore[assignment]
    device = {"gpu.name": "NVIDIA_H200", "gpu.arch": 90}
    facts.of_device = lambda index=None: device  # type: ignore[assignment]
    config = arguments().create_engine_config()
    me = SimpleNamespace(vllm_config=config, device=None, rank=0)
    Worker.load_model(me)
    times = Worker.compile_or_warm_up_model(me)
    told = json.loads(getattr(Worker, report.METHOD)(me))
    errors = []
    for change in ({"additional": "0" * 64}, {"page": 32}, {"arch": 80}):
        config.additional_config[start.KEY] = change.get("additional", config.additional_config[start.KEY])
        config.cache_config.block_size = change.get("page", 16)
        device["gpu.arch"] = change.get("arch", 90)
        try:
            (Worker.compile_or_warm_up_model if "page" in change else Worker.load_model)(me)
            errors.append("")
        except DetentError as error:
            errors.append(str(error))
        config.additional_config[start.KEY] = commitment().hash
    return {"told": told, "exchanged": exchanged, "times": times, "printed": printed.getvalue(), "errors": errors}


def flags() -> list[str]:
    """Flags that remedies name and ``vllm serve`` has not."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found, unused-ignore]

    from detent.engines.vllm import facts

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    known = {text for action in parser._actions for text in action.option_strings}
    table = rules.covered(vllm.__version__)
    named = {rules.flag(each.kind, each.name) for each in (*table.switches(), *table.refusals())}
    named |= set(facts.FLAGS.values())
    return sorted(text for text in named if text.startswith("--") and text.split(".")[0] not in known)


def main() -> None:
    from vllm.v1.engine import core  # type: ignore[import-not-found, unused-ignore]
    from vllm.v1.worker import gpu_worker  # type: ignore[import-not-found, unused-ignore]

    core.EngineCore._initialize_kv_caches = lambda self, config: "kv caches"
    gpu_worker.Worker.load_model = lambda self: None
    gpu_worker.Worker.compile_or_warm_up_model = lambda self: "times"
    registry._LazyRegisteredModel.inspect_model_cls = plain_model
    before = None
    results: dict[str, Any] = {}
    with environment(VLLM_USE_AOT_COMPILE="1"):
        try:
            serve()
        except DetentError as error:
            before = str(error)
    serve()
    platforms.current_platform.__class__ = pretend()  # every module has this object
    results |= configurations()
    with environment(VLLM_BATCH_INVARIANT="1"):
        results["deterministic"] = outcome()
    Cuda.NAME = "NVIDIA H100 80GB HBM3"
    results["other gpu"] = outcome()
    results |= {"environment": before, "salted": salted(["a" * 64, "b" * 64, "a" * 64]), "server": server(),
                "flags": flags(), "dummy": identity.weights(arguments(), arguments())}
    Cuda.NAME = "NVIDIA H200"
    results["worker"] = worker()
    print("RESULT" + json.dumps(results))


if __name__ == "__main__":
    main()

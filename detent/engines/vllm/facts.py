"""The facts of a running vLLM, compared with those that the tuple's programs read.

A tuple is proved for its deployment's facts; an engine with others would run values that nobody proved. Only what the
programs of the tuple read is compared. Limits may be smaller than the deployment's: the steps of such an engine are
some of those that were proved, and no value of a tuple follows from a limit, only what is legal. The same holds of
captured graphs, which are inputs of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from detent.runtime.encoding import canonical

if TYPE_CHECKING:
    from detent.runtime.tuple import CommitmentTuple

BOUNDS = {
    "limits.max_num_seqs": "--max-num-seqs",
    "limits.max_num_batched_tokens": "--max-num-batched-tokens",
    "limits.max_context": "--max-model-len",
    "engine.max_capture_size": "--max-cudagraph-capture-size",
    "engine.full_graphs": "--compilation-config.cudagraph_mode",
}
"""Facts that an engine may stay below, with the flag that changes them."""
FLAGS = {
    **BOUNDS,
    "engine.graph_splits": "--attention-config.flash_attn_max_num_splits_for_cuda_graph",
    "engine.kv_cache_dtype": "--kv-cache-dtype",
    "engine.page_size": "--block-size",
    "model.dtype": "--dtype",
    "moe.quantization": "--quantization",
    "parallel.expert_parallel": "--enable-expert-parallel",
    "parallel.tensor_parallel": "--tensor-parallel-size",
}
"""The flag of ``vllm serve`` that changes a fact."""
VARIABLES = {"engine.deterministic": "VLLM_BATCH_INVARIANT"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
CACHE_DTYPES = {**DTYPES, "fp8": "e4m3", "fp8_e4m3": "e4m3"}
WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "e4m3": "fp8_e4m3"}
"""What vLLM's flags call a type."""


def read(commitment: CommitmentTuple) -> dict[str, Any]:
    """The facts that some program of a tuple reads, by ``section.name``; tables and lists are hashes."""
    return {name: value for part in commitment.families.values() for name, value in part["facts"].items()}


def of_config(config: Any) -> dict[str, Any]:
    """Facts of a ``VllmConfig``. A fact that is not set is None; what vLLM does not know is not among them."""
    import vllm  # type: ignore[import-not-found, unused-ignore]
    from vllm import envs

    model, text, parallel = config.model_config, config.model_config.hf_text_config, config.parallel_config
    compilation = config.compilation_config
    dtype = str(model.dtype).removeprefix("torch.")
    window = model.get_sliding_window()
    local = window is not None and window < model.max_model_len
    cache_dtype = config.cache_config.cache_dtype
    cache_dtype = dtype if cache_dtype == "auto" else cache_dtype
    capture = compilation.max_cudagraph_capture_size or 0
    graphs = compilation.cudagraph_mode is not None and compilation.cudagraph_mode.has_full_cudagraphs()
    found = {
        "model.dtype": DTYPES.get(dtype, dtype), "model.hidden_size": model.get_hidden_size(),
        "model.intermediate_size": getattr(text, "intermediate_size", None),
        "model.vocab_size": model.get_vocab_size(), "model.num_attention_heads": text.num_attention_heads,
        "model.num_key_value_heads": model.get_total_num_kv_heads(), "model.head_dim": model.get_head_size(),
        "model.head_dim_v": model.get_head_size(), "model.causal": not config.attention_config.use_non_causal,
        "model.window_left": window - 1 if local else -1, "model.window_right": 0 if local else -1,
        "model.softcap": float(getattr(text, "attn_logit_softcapping", None) or 0.0),
        "model.norm_plus_one": True if text.model_type.startswith("gemma") else None,
        "parallel.tensor_parallel": parallel.tensor_parallel_size,
        "parallel.expert_parallel": parallel.enable_expert_parallel,
        "engine.name": "vllm", "engine.version": vllm.__version__,
        "engine.deterministic": bool(envs.VLLM_BATCH_INVARIANT), "engine.page_size": config.cache_config.block_size,
        "engine.kv_cache_dtype": CACHE_DTYPES.get(cache_dtype, cache_dtype),
        "engine.full_graphs": graphs, "engine.max_capture_size": capture,
        "engine.graph_splits": config.attention_config.flash_attn_max_num_splits_for_cuda_graph,
        "sampling.hashed_noise": config.use_v2_model_runner,
        "limits.max_num_seqs": config.scheduler_config.max_num_seqs,
        "limits.max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "limits.max_context": model.max_model_len,
    }
    if hasattr(text, "num_experts"):
        found |= {f"moe.{name}": getattr(text, name, None) for name in (
            "num_experts", "num_experts_per_tok", "moe_intermediate_size", "hidden_act")}
        found["moe.quantization"] = model.quantization or "none"
    return found


def of_device(device: Any = None) -> dict[str, Any]:
    """Facts of a worker's GPU. CUDA must be initialised."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    return {"gpu.name": properties.name.replace(" ", "_"), "gpu.arch": 10 * properties.major + properties.minor,
            "gpu.num_sm": properties.multi_processor_count,
            "gpu.shared_memory": properties.shared_memory_per_block_optin}


def of_platform() -> dict[str, Any]:
    """Those that are known before CUDA is initialised, which a process that forks must not do."""
    from vllm.platforms import current_platform  # type: ignore[import-not-found, unused-ignore]

    capability = current_platform.get_device_capability()
    return {"gpu.name": current_platform.get_device_name().replace(" ", "_"),
            "gpu.arch": None if capability is None else capability.to_int()}


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], deployment: str) -> list[str]:
    """A line for each fact of the engine that is not the tuple's, with the flag that changes it."""
    lines = []
    for name in sorted(set(wanted) & set(found)):
        tuples, engines = wanted[name], found[name]
        fits = _within if name in BOUNDS else _same
        if not fits(engines, tuples):
            lines.append(f"{name}: the tuple has {_shown(tuples)}{' at most' if name in BOUNDS else ''}, the engine "
                         f"has {_shown(engines)}: {_remedy(name, tuples, deployment)}")
    return lines


def _remedy(name: str, value: Any, deployment: str) -> str:
    """What to do about a fact."""
    other = "write a deployment and a tuple for this engine (detent deployment new, detent tuple new)"
    section = name.partition(".")[0]
    if name == "engine.full_graphs":
        return f"give {FLAGS[name]} PIECEWISE, or {other}"
    if name in FLAGS:
        return f"give {FLAGS[name]} {WORDS.get(value, _shown(value))}, or {other}"
    if name in VARIABLES:
        return f"unset {VARIABLES[name]}"
    if name == "engine.version":
        return f"install vllm=={value}, or {other}"
    what = {"gpu": "use that GPU", "model": "serve the model", "moe": "serve the model"}.get(section, "use what is")
    return f"{what} of {deployment}, or {other}"


def _within(found: Any, most: Any) -> bool:
    return isinstance(found, int) and isinstance(most, int) and found <= most


_same: Callable[[Any, Any], bool] = lambda a, b: canonical(a) == canonical(b)  # noqa: E731 (1 is not 1.0 nor True)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)

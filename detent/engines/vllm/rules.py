"""What the plug-in asks of vLLM's configuration beside the coverage table, and the flag of each option.

The coverage table has what reads the batch in vLLM. The rows here are what else keeps a call site from Detent: backends
and compiler passes that would take its kernel's place, and what is not routed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from detent.runtime.coverage import Coverage, Row, load, require_known
from detent.runtime.errors import DetentError, UnknownName
from detent.runtime.settings import Check, Switch

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSES = "compilation_config.pass_config."
BACKEND = "attention_config.backend"
FLAGS = {
    "cache_config.block_size": "--block-size",
    "cache_config.cache_dtype": "--kv-cache-dtype",
    "attention_config.backend": "--attention-backend",
    "kernel_config.enable_flashinfer_autotune": "--enable-flashinfer-autotune",
    "kernel_config.moe_backend": "--moe-backend",
    "kv_transfer_config": "--kv-transfer-config",
    "lora_config": "--enable-lora",
    "speculative_config": "--speculative-config",
    "model_config.runner_type": "--runner",
    "parallel_config.enable_dbo": "--enable-dbo",
}
"""Flags of ``vllm serve`` that are not what their option's name says."""
OF_THE_MODEL = ("hf_text_config.model_type", "is_attention_free", "is_encoder_decoder", "is_hybrid",
                "is_multimodal_model", "use_mla")
"""Options of ``model_config`` that no flag changes."""


def installed() -> str:
    """The version of vLLM here, without what its build adds. Raises DetentError if there is none."""
    try:
        return version("vllm").partition("+")[0]
    except PackageNotFoundError:
        raise DetentError("vLLM is not installed here", "run: pip install 'detent[vllm]'") from None


def covered(engine_version: str) -> Coverage:
    """The coverage table of an installed vLLM, with the rows of this module. Raises DetentError for a version that
    nobody has read."""
    try:
        require_known("vllm", engine_version)
    except UnknownName as error:
        raise DetentError(f"vLLM {engine_version} is installed, whose selections nobody has read",
                          f"install vllm=={error.known[-1]}") from error
    table = load("vllm", engine_version)
    return Coverage(table.engine, table.version, table.path, (*table.rows, *_rows()))


def flag(kind: str, name: str) -> str:
    """What a user changes to change a setting, as a remedy says it."""
    if kind == "env":
        return f"the variable {name}"
    if kind == "fact":
        return "the deployment (detent deployment new)"
    section, _, leaf = name.partition(".")
    if name in FLAGS:
        return FLAGS[name]
    if leaf in OF_THE_MODEL:
        return "the model"
    if section in ("attention_config", "compilation_config", "kernel_config"):
        return f"--{section.replace('_', '-')}.{leaf}"
    return f"--{leaf.replace('_', '-')}"


def _rows() -> Iterator[Row]:
    off = [f"{PASSES}{name}" for name in (
        "fuse_norm_quant", "fuse_act_quant", "fuse_attn_quant", "fuse_rope_kvcache", "fuse_qk_norm_rope_kvcache",
        "fuse_rope_kvcache_cat_mla", "fuse_mla_dual_rms_norm", "fuse_act_padding")]
    yield _switched("P-01", "compiler passes that take a norm or an attention call into another kernel",
                    [(name, False) for name in off], "they run before Detent's kernel is put in")
    yield _switched("P-02", "attention backend left to vLLM", [(BACKEND, "FLASH_ATTN")],
                    "Detent's attention takes the place of this backend's")
    yield _refused("P-03", "attention backend of single layers", "attention_config.backend_per_kind", ({},),
                   "Detent's attention takes the place of FLASH_ATTN alone")
    yield _refused("P-04", "tensor parallelism", "parallel_config.tensor_parallel_size", (1,),
                   "all-reduces are not routed through Detent yet, so one GPU is served")
    yield _refused("P-05", "pipeline parallelism", "parallel_config.pipeline_parallel_size", (1,),
                   "one GPU is served")
    yield _refused("P-06", "whole experts on each rank", "parallel_config.enable_expert_parallel", (False,),
                   "no program has the rules of experts behind an all-to-all")
    yield _refused("P-07", "log-probabilities other than those of the raw logits", "model_config.logprobs_mode",
                   ("raw_logprobs",), "Detent's sampler computes the log-softmax of the raw logits")
    for number, (name, value, why) in enumerate((
            ("model.dtype", "bf16", "the kernels are those of bfloat16"),
            ("engine.kv_cache_dtype", "bf16", "the kernels read bfloat16 keys and values"),
            ("model.window_left", -1, "attention has no sliding window here"),
            ("model.softcap", 0.0, "attention has no soft cap here"),
            ("model.norm_plus_one", None, "norms that multiply by 1 + weight are not served")), 8):
        allowed = () if value is None else (value,)
        check = Check("fact", name, allowed, value is None, None, f"P-{number:02}", why)
        yield _row(f"P-{number:02}", name, "refused", why, checks=(check,))


def _switched(id: str, what: str, values: Sequence[tuple[str, Any]], why: str) -> Row:
    return _row(id, what, "switched-off", why,
                switches=tuple(Switch("option", name, value, False, id, why) for name, value in values))


def _refused(id: str, what: str, name: str, allowed: tuple[Any, ...], why: str) -> Row:
    return _row(id, what, "refused", why, checks=(Check("option", name, allowed, False, None, id, why),))


def _row(id: str, what: str, status: str, why: str, switches: tuple[Switch, ...] = (),
         checks: tuple[Check, ...] = ()) -> Row:
    return Row(id, what, (), (), status, why, (), switches, checks)

"""What of vLLM the plug-in replaces: one table, and the two things that are done with it.

Every name that is replaced stands in :data:`HOOKS`, with the versions in which it was found. A name that is not there
is an error at start-up: a call site would be left to vLLM.
"""

from __future__ import annotations

import ast
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detent.runtime.errors import DetentError

VERSIONS = ("0.26.0",)
"""Versions of vLLM that the plug-in serves."""


@dataclass(frozen=True)
class Hook:
    """A name that is replaced: ``module`` and ``name`` in it (``function`` or ``Class.attribute``), and the call
    site whose module in :mod:`detent.engines.vllm` does it."""

    module: str
    name: str
    site: str


FLASH_ATTN = "vllm.v1.attention.backends.flash_attn"
UTILS = "vllm.model_executor.layers.utils"
FUSED_MOE = "vllm.model_executor.layers.fused_moe.fused_moe"
TRITON_MOE = "vllm.model_executor.layers.fused_moe.experts.triton_moe"
KERNEL_CONFIG = "vllm.config.kernel"
INPUTS = "vllm.v1.engine.input_processor"
BATCH_V1 = "vllm.v1.worker.gpu_input_batch"
RUNNER_V1 = "vllm.v1.worker.gpu_model_runner"
SAMPLER_V1 = "vllm.v1.sample.sampler"
SAMPLER_V2 = "vllm.v1.worker.gpu.sample.sampler"
PROMPTS_V2 = "vllm.v1.worker.gpu.sample.prompt_logprob"

CONFIG = "vllm.config.vllm"
WORKER = "vllm.v1.worker.gpu_worker"
ENGINE_CORE = "vllm.v1.engine.core"
SERVER = "vllm.entrypoints.serve"

HOOKS: tuple[Hook, ...] = (
    Hook(CONFIG, "VllmConfig.__post_init__", "start"),
    Hook(WORKER, "Worker.load_model", "start"),
    Hook(WORKER, "Worker.compile_or_warm_up_model", "start"),
    Hook(ENGINE_CORE, "EngineCore._initialize_kv_caches", "identity"),
    Hook(ENGINE_CORE, "init_none_hash", "identity"),
    Hook(SERVER, "register_vllm_serve_api_routers", "report"),
    Hook(FLASH_ATTN, "FlashAttentionImpl.__init__", "sites.attention"),
    Hook(FLASH_ATTN, "FlashAttentionImpl.forward", "sites.attention"),
    Hook(FLASH_ATTN, "FlashAttentionMetadataBuilder.__init__", "sites.attention"),
    Hook(FLASH_ATTN, "FlashAttentionMetadataBuilder.build", "sites.attention"),
    Hook(UTILS, "default_unquantized_gemm", "sites.linear"),
    Hook(FUSED_MOE, "try_get_optimal_moe_config", "sites.moe"),
    Hook(TRITON_MOE, "try_get_optimal_moe_config", "sites.moe"),
    Hook(TRITON_MOE, "TritonExperts.apply", "sites.moe"),
    Hook(KERNEL_CONFIG, "KernelConfig.set_platform_defaults", "sites.norm"),
    Hook(BATCH_V1, "InputBatch._make_sampling_metadata", "sites.sampling"),
    Hook(RUNNER_V1, "GPUModelRunner._sample", "sites.sampling"),
    Hook(RUNNER_V1, "GPUModelRunner._dummy_sampler_run", "sites.sampling"),
    Hook(SAMPLER_V1, "Sampler.sample", "sites.sampling"),
    Hook(SAMPLER_V1, "Sampler.compute_logprobs", "sites.sampling"),
    Hook(SAMPLER_V1, "Sampler.gather_logprobs", "sites.sampling"),
    Hook(SAMPLER_V2, "Sampler.sample", "sites.sampling"),
    Hook(SAMPLER_V2, "compute_topk_scores", "sites.sampling"),
    Hook(PROMPTS_V2, "compute_topk_scores", "sites.sampling"),
    Hook(INPUTS, "InputProcessor._validate_params", "admission"),
)

_replaced: dict[tuple[str, str], Any] = {}


def rebind(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a name of the table by what ``make`` makes of it, once a process.

    Raises DetentError for a name that is not there, KeyError for one that is not in the table.
    """
    if not any((hook.module, hook.name) == (module, name) for hook in HOOKS):
        raise KeyError(f"{module}:{name} is not in HOOKS")
    if (module, name) in _replaced:
        return
    try:
        owner, last = find(module, name)
        original = getattr(owner, last)
    except (AttributeError, ModuleNotFoundError) as error:
        raise DetentError(f"this vLLM has no {module}:{name}, which Detent has to replace",
                          f"install vllm=={VERSIONS[-1]}") from error
    _replaced[module, name] = original
    setattr(owner, last, make(original))


def find(module: str, name: str) -> tuple[Any, str]:
    """The module or class that a name of the table is an attribute of, and which."""
    *path, last = name.split(".")
    owner = importlib.import_module(module)
    for part in path:
        owner = getattr(owner, part)
    return owner, last


def replaced() -> tuple[tuple[str, str], ...]:
    """Module and name of everything that is replaced in this process."""
    return tuple(_replaced)


def missing(folder: str) -> list[str]:
    """Names of the table that a source tree of vLLM lacks; ``folder`` holds ``vllm``. Nothing of it is run."""
    lacking = []
    for hook in HOOKS:
        path = os.path.join(folder, *hook.module.split("."))
        path = f"{path}.py" if os.path.isfile(f"{path}.py") else os.path.join(path, "__init__.py")
        if not os.path.isfile(path):
            lacking.append(f"{hook.module}: no such module")
            continue
        with open(path, encoding="utf-8") as file:
            body: list[ast.stmt] = ast.parse(file.read()).body
        for part in hook.name.split("."):
            found = [each for each in body if part in _named(each)]
            if not found:
                lacking.append(f"{hook.module}:{hook.name}")
                break
            body = getattr(found[-1], "body", [])
    return lacking


def _named(statement: ast.stmt) -> set[str]:
    """Names that a statement binds; those of both arms of a condition."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    if isinstance(statement, ast.If | ast.Try):
        inner = [*statement.body, *statement.orelse, *getattr(statement, "finalbody", ())]
        return set().union(*(_named(each) for each in inner)) if inner else set()
    return set()

"""What a tuple's environment is in a worker: kernels, libraries, GPU, engine, model and weights.

A worker binds the tuple once it has its device and its model. All ranks must have bound it alike.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detent.engines.sources import code
from detent.engines.vllm import active, hooks, report
from detent.runtime.encoding import canonical, digest
from detent.runtime.errors import DetentError, Refused

if TYPE_CHECKING:
    from detent.engines.vllm.active import Active

KERNELS = {"attention": "attention", "gemm": "gemm", "moe": "moe", "norm": "rows", "sampler": "rows",
           "allreduce": "all_reduce"}
"""By family: what the files of its kernel in ``detent/kernels`` are called."""
SAMPLE = 4096
"""Bytes of a tensor that its identity reads."""
UNNAMED = ("_name_or_path", "transformers_version")
"""Keys of a model's config.json that are the same model's under another name or by another tool."""


def environment(config: Any, found: Active) -> dict[str, Any]:
    """The parts of a tuple's environment in a worker of vLLM with this configuration. Needs a GPU."""
    import torch
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import vllm  # type: ignore[import-not-found, unused-ignore]

    build = _commit()
    return {
        "kernels": {family: kernel(family, points) for family, points in found.points.items()},
        "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda or "none",
        "gpu": torch.cuda.get_device_name(), "engine": f"vllm {vllm.__version__}{f' {build}' if build else ''}",
        "model": model(config.model_config), "weights": weights(config.model_config, config.load_config),
    }


def kernel(family: str, points: Mapping[str, Any]) -> str:
    """The implementation that serves a family here, and a digest of its sources."""
    from detent.engines.vllm.sites import linear

    return code(KERNELS[family], linear.KERNELS[points["kernel"]] if family == "gemm" else None)


def model(config: Any) -> str:
    """A ``ModelConfig``'s model: its architecture, and a digest of its config.json and what overrides it."""
    from vllm.transformers_utils.config import (  # type: ignore[import-not-found, unused-ignore]
        get_hf_file_to_dict,
    )

    content = get_hf_file_to_dict("config.json", config.model, config.revision) or config.hf_config.to_dict()
    content = {key: value for key, value in content.items() if key not in UNNAMED}
    overrides = config.hf_overrides
    overrides = overrides if isinstance(overrides, dict) else getattr(overrides, "__qualname__", str(overrides))
    text = json.dumps([content, overrides], sort_keys=True, default=str)
    return f"{config.architectures[0]} {digest(text)[:16]}"


def weights(config: Any, load: Any) -> str:
    """The weights of a ``ModelConfig``, loaded as a ``LoadConfig`` says: a digest, or that they are random.

    Not every byte is read: names, shapes and types of all tensors, and some bytes from the middle of each. Weights
    that were trained or merged differ there; a changed byte elsewhere is not found.
    """
    if load.load_format == "dummy":
        return f"dummy, seed {config.seed}"
    folder = config.model if os.path.isdir(config.model) else _snapshot(config, load)
    names = sorted(name for name in os.listdir(folder) if name.endswith((".safetensors", ".bin", ".pt", ".pth")))
    tensors = [name for name in names if name.endswith(".safetensors")] or names
    if not tensors:
        raise DetentError(f"{folder} has no files of weights that Detent can tell from others",
                          "serve safetensors files, or --load-format dummy")
    return f"{len(tensors)} files {digest(*(part for name in tensors for part in _sampled(folder, name)))[:16]}"


def bind(config: Any) -> Active:
    """In a worker that has loaded its model: bind the tuple, and stop unless all ranks bound it alike."""
    from vllm.distributed import get_world_group  # type: ignore[import-not-found, unused-ignore]

    found = active.get()
    assert found is not None
    here = environment(config, found)
    bound = active.bind(here)
    exchange(here, bound.hash, get_world_group().cpu_group)
    return bound


def exchange(bound: Mapping[str, Any], hash: str, group: Any) -> None:
    """Compare the hash of a bound tuple over the ranks of a process group. Raises Refused on every rank if one
    differs; ``bound`` is the environment that says in what."""
    import torch.distributed as dist

    everyone: list[tuple[str, str]] = [("", "")] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (hash, canonical(dict(bound))), group=group)
    if all(other == hash for other, _ in everyone):
        return
    first = json.loads(everyone[0][1])
    lines = []
    for rank, (other, text) in enumerate(everyone):
        there = json.loads(text)
        parts = [f"{name} is {there[name]}, on rank 0 {first[name]}" for name in there if there[name] != first[name]]
        if other != everyone[0][0]:
            lines.append(f"rank {rank}: {other[:16]} and not {everyone[0][0][:16]}; "
                         f"{'; '.join(parts) or 'the tuple file itself differs'}")
    raise Refused("the ranks do not serve under the same tuple: give all of them the same file and software", lines)


def install() -> None:
    """Salt the keys of the prefix cache with the bound tuple's hash: what another tuple computed is another prefix,
    wherever its blocks are kept."""
    hashes: list[str] = []

    def initialized(original: Any) -> Any:
        def initialize_kv_caches(self: Any, *arguments: Any, **named: Any) -> Any:
            result = original(self, *arguments, **named)
            hashes[:] = [json.loads(text)["hash"] for text in self.model_executor.collective_rpc(report.METHOD)]
            return result
        return initialize_kv_caches

    def salted(original: Any) -> Any:
        def init_none_hash(hash_fn: Any) -> None:
            from vllm.v1.core import kv_cache_utils  # type: ignore[import-not-found, unused-ignore]

            original(hash_fn)
            kv_cache_utils.NONE_HASH = kv_cache_utils.BlockHash(hash_fn((kv_cache_utils.NONE_HASH, hashes[0])))
        return init_none_hash

    hooks.rebind(hooks.ENGINE_CORE, "EngineCore._initialize_kv_caches", initialized)
    hooks.rebind(hooks.ENGINE_CORE, "init_none_hash", salted)


def _sampled(folder: str, name: str) -> list[str | bytes]:
    """A file's name, size, header, and some bytes of each tensor; of another format than safetensors its ends."""
    path = os.path.join(folder, name)
    size = os.path.getsize(path)
    parts: list[str | bytes] = [name, str(size)]
    with open(path, "rb") as file:
        if not name.endswith(".safetensors"):
            parts.append(file.read(SAMPLE))
            file.seek(max(0, size - SAMPLE))
            return [*parts, file.read(SAMPLE)]
        (length,) = struct.unpack("<Q", file.read(8))
        header = file.read(length)
        parts.append(header)
        for tensor, entry in sorted(json.loads(header).items()):
            if tensor != "__metadata__":
                start, end = entry["data_offsets"]
                file.seek(8 + length + max(start, (start + end - SAMPLE) // 2))
                parts.append(file.read(min(SAMPLE, end - start)))
    return parts


def _snapshot(config: Any, load: Any) -> str:
    """The folder of a model that was downloaded from a hub."""
    from huggingface_hub import snapshot_download  # type: ignore[import-not-found, unused-ignore]

    return str(snapshot_download(config.model, revision=config.revision, cache_dir=load.download_dir,
                                 local_files_only=True))


def _commit() -> str:
    """The commit that a wheel of vLLM was built from, as it says itself."""
    from vllm import _version

    return str(getattr(_version, "commit_id", None) or "")

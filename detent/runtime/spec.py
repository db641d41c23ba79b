"""A deployment written from a model's ``config.json``, a GPU and an engine's defaults.

What it cannot know it refuses; what contradicts itself it refuses too. The names of the configuration's keys are
Hugging Face's, the sections those that the programs read.
"""

from __future__ import annotations

import os

from detent.runtime import tables
from detent.runtime.consistent import contradictions
from detent.runtime.deployment import PROGRAMS
from detent.runtime.errors import BadFile, BadInput, UnknownName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Sections = dict[str, dict[str, Any]]

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "phi3", "gemma")
"""Model types whose attention is the same in every layer; SmolLM2 is a llama."""
DERIVES_HEADS = ("llama", "phi3")
"""Types whose configuration has as many KV heads as query heads where it names no number; others have a number of their
own then."""
DERIVES_HEAD_DIM = ("llama", "mistral", "qwen2", "phi3")
"""Types whose head dim is the hidden size over the heads where it is not named."""
OWN_HEAD_DIM = {"gemma": 256, "qwen3": 128}
LONG_ROPE = {"longrope", "su"}
WINDOWED = ("mistral", "qwen2", "qwen3", "qwen3_moe", "phi3")
WORDS = {1: "one", 2: "two", 4: "four", 8: "eight"}
COMMENTS = {"all_reduce.fused_rms_norm": "on by default, to be switched off: its limit is a choice by the token count"}


def defaults() -> dict[str, Any]:
    """``programs/defaults.toml``: GPUs under ``gpu``, and a table an engine."""
    import tomllib

    with open(os.path.join(PROGRAMS, "defaults.toml"), "rb") as file:
        return tomllib.load(file)


class Spec:
    """What a deployment is written from.

    ``config`` is the parsed ``config.json`` and ``source`` where it stands. ``table``: how the deployment refers to its
    MoE table, empty where the engine ships none, or None for the one that comes with Detent.
    """

    def __init__(self, config: Mapping[str, Any], source: str, *, gpu: str, tensor_parallel: int, engine: str,
                 model: str = "", name: str = "", max_context: int | None = None, max_num_seqs: int | None = None,
                 max_num_batched_tokens: int | None = None, table: Mapping[str, Any] | None = None) -> None:
        known = defaults()
        gpus = known.pop("gpu")
        if gpu not in gpus:
            raise UnknownName("GPU", gpu, gpus)
        if engine not in known:
            raise UnknownName("engine", engine, known)
        self._config, self._source, self._table = config, source, table
        self._gpu, self._engine, self._ranks = gpus[gpu], known[engine], tensor_parallel
        self.model = model or os.path.basename(str(config.get("_name_or_path", ""))) or os.path.basename(
            os.path.dirname(os.path.abspath(source)))
        suffix = "" if engine == "vllm" else f"-{engine}"
        self.name = name or f"{self.model.lower()}-tp{tensor_parallel}-{gpu.lower()}{suffix}"
        limits = self._engine["limits"]
        self._limits = {
            "max_num_seqs": max_num_seqs or limits["max_num_seqs"],
            "max_num_batched_tokens": max_num_batched_tokens or limits["max_num_batched_tokens"],
            "max_context": max_context or self._int("max_position_embeddings"),
        }

    def sections(self) -> Sections:
        """The deployment's sections in the order of a file. Raises a DetentError that names the key."""
        self._refuse_unread()
        model, limits = self._model(), self._limits
        if limits["max_context"] > self._int("max_position_embeddings"):
            raise BadInput(f"--max-context {limits['max_context']}: {self._source} has max_position_embeddings "
                           f"{self._int('max_position_embeddings')}", "give no longer context than the model has")
        gpu = {key: value for key, value in self._gpu.items() if key != "label"}
        parallel = {"tensor_parallel": self._ranks, "expert_parallel": False}
        engine = dict(self._engine["engine"])
        if engine["graph_splits"]:
            engine["max_capture_size"] = min(engine["max_capture_size"], 2 * limits["max_num_seqs"],
                                             limits["max_num_batched_tokens"])
        found: Sections = {"deployment": {"name": self.name, "description": self._description()}, "model": model}
        if self._is_moe:
            found["moe"] = self._moe()
        found["parallel"] = parallel
        self._refuse_contradictions({**found, "limits": limits})
        if self._is_moe:
            found["moe"] |= self._reference(found["moe"], parallel, gpu)
        if self._ranks > 1:
            found["all_reduce"] = dict(self._engine["all_reduce"])
        # vLLM's model runner V2, which hashes its noise, is the default of models without experts.
        found["sampling"] = {"backend": "flashinfer",
                             "hashed_noise": engine["name"] == "vllm" and not self._is_moe}
        return {**found, "gpu": gpu, "engine": engine, "limits": dict(limits)}

    @property
    def _is_moe(self) -> bool:
        return bool(self._config["model_type"] == "qwen3_moe")

    def _description(self) -> str:
        label, version = self._engine["label"], self._engine["engine"]["version"]
        count = WORDS.get(self._ranks, str(self._ranks))
        return (f"{self.model} on {count} {self._gpu['label']}{', tensor parallel' if self._ranks > 1 else ''}, "
                f"{label} {version}")

    def _refuse_unread(self) -> None:
        """What would make another model of it: types, quantised weights, other numbers, layers that differ."""
        config = self._config
        kind = self._value("model_type", str)
        if kind not in MODEL_TYPES:
            raise UnknownName("model_type", kind, MODEL_TYPES, self._source)
        if config.get("quantization_config"):
            raise BadFile(self._source, "has a quantization_config", "no program selects quantised linear layers")
        dtype = config.get("dtype", config.get("torch_dtype"))
        if dtype is None:
            raise BadFile(self._source, "has no torch_dtype", "the engines disagree about what that means")
        if dtype != "bfloat16":
            raise BadFile(self._source, f"torch_dtype is {dtype!r}", "the kernels are those of bfloat16")
        if self._engine["engine"]["name"] == "sglang" and self._long_rope():
            raise BadFile(self._source, "has rotary factors for long contexts (longrope)",
                          "SGLang takes them for a whole batch where one request is long, so it is not served")
        if config.get("attn_logit_softcapping"):
            raise BadFile(self._source, "attn_logit_softcapping is set", f"it has no meaning for {kind}")

    def _long_rope(self) -> bool:
        """Whether factors change beyond the original context. Phi-3's configurations say so in either of two places."""
        scaling = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        if isinstance(scaling, dict) and LONG_ROPE & {scaling.get("rope_type"), scaling.get("type")}:
            return True
        if self._config["model_type"] != "phi3":
            return False
        longest = self._int("max_position_embeddings")
        return self._int("original_max_position_embeddings", longest) < longest

    def _refuse_contradictions(self, found: Sections) -> None:
        for names, problem, remedy in contradictions(found):
            degree = f"--tp {self._ranks}: " if "parallel.tensor_parallel" in names else ""
            raise BadFile(f"{degree}{self._source}", problem, remedy)

    def _model(self) -> dict[str, Any]:
        hidden, heads, kind = self._int("hidden_size"), self._int("num_attention_heads"), self._config["model_type"]
        kv_heads = self._int("num_key_value_heads", heads if kind in DERIVES_HEADS else None)
        if self._config.get("head_dim") is None and kind in DERIVES_HEAD_DIM and hidden % heads:
            raise BadFile(self._source, f"has no head_dim, and hidden_size {hidden} is no multiple of "
                          f"num_attention_heads {heads}")
        head_dim = self._int("head_dim", hidden // heads if kind in DERIVES_HEAD_DIM else OWN_HEAD_DIM.get(kind))
        intermediate, vocab = self._int("intermediate_size"), self._int("vocab_size")
        left = self._window()
        return {
            "name": self.model, "dtype": "bf16", "hidden_size": hidden, "intermediate_size": intermediate,
            "vocab_size": vocab, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "head_dim_v": head_dim, "causal": True, "window_left": left, "window_right": -1 if left < 0 else 0,
            "softcap": 0.0, **({"norm_plus_one": True} if kind == "gemma" else {}),
        }

    def _window(self) -> int:
        """Tokens a query sees before its own, -1 for all. SGLang attends to all of them in these models."""
        config = self._config
        kind, layers = config["model_type"], self._int("num_hidden_layers")
        if kind == "mistral" and "sliding_window" not in config:
            raise BadFile(self._source, "has no sliding_window", "write null for none: a mistral has 4096 by itself")
        window = config.get("sliding_window")
        used = (window is not None and kind in WINDOWED
                and config.get("use_sliding_window", not kind.startswith("qwen")))
        if not used or self._engine["engine"]["name"] == "sglang":
            return -1
        window = self._int("sliding_window")
        types = config.get("layer_types")
        if types is None and kind.startswith("qwen"):
            full = min(self._int("max_window_layers", least=0), layers)
            types = ["full_attention"] * full + ["sliding_attention"] * (layers - full)
        if types is not None and len(set(types)) > 1:
            raise BadFile(self._source, "some layers have a sliding window and some do not",
                          "a deployment describes one kind of attention layer")
        if (types is not None and types[0] != "sliding_attention") or window >= self._limits["max_context"]:
            return -1
        return window - 1

    def _moe(self) -> dict[str, Any]:
        return {
            "num_experts": self._int("num_experts"), "num_experts_per_tok": self._int("num_experts_per_tok"),
            "moe_intermediate_size": self._int("moe_intermediate_size"), "hidden_act": self._value("hidden_act", str),
            "quantization": "none", "apply_router_weight_on_input": False,
        }

    def _reference(self, moe: Mapping[str, Any], parallel: Mapping[str, Any],
                   gpu: Mapping[str, Any]) -> dict[str, Any]:
        """The fact that names the experts' table, if there is one."""
        reference = self._table
        if reference is None:
            engine, file = self._engine["engine"], tables.name(moe, parallel, gpu)
            found = tables.find(engine["name"], engine["version"], file)
            if found is None:
                raise BadInput(f"Detent has no {file} of {self._engine['label']} {engine['version']}",
                               "give the engine's with --moe-table FILE, or --moe-table none if it has none either")
            reference = {"json": found}
        return {"table": dict(reference)} if reference else {}

    def _value(self, key: str, kind: type) -> Any:
        value = self._config.get(key)
        if value is None:
            raise BadFile(self._source, f"has no {key}", "give a model's config.json as Hugging Face has it")
        if type(value) is not kind:
            raise BadFile(self._source, f"{key} is {value!r}, not {kind.__name__}")
        return value

    def _int(self, key: str, otherwise: int | None = None, least: int = 1) -> int:
        """An integer; ``otherwise``, if there is one, where the key is missing or null."""
        if otherwise is not None and self._config.get(key) is None:
            return otherwise
        value: int = self._value(key, int)
        if value < least:
            raise BadFile(self._source, f"{key} is {value}", f"it is at least {least}")
        return value


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of a deployment's file."""
    blocks = []
    for section, values in sections.items():
        lines = [f"[{section}]"]
        for key, value in values.items():
            comment = COMMENTS.get(f"{section}.{key}")
            lines.append(f"{key} = {_toml(value)}{f' # {comment}' if comment else ''}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        import json

        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)

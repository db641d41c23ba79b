"""What an engine must know of a model and of itself: shapes of the one, limits of the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detent.runtime.errors import BadFile, DetentError, UnknownName, brief_repr, shorten

LLAMA, QWEN3, QWEN3_MOE = "llama", "qwen3", "qwen3-moe"
ARCHITECTURES = {
    "LlamaForCausalLM": LLAMA, "Qwen3ForCausalLM": QWEN3, "Qwen3MoeForCausalLM": QWEN3_MOE,
    "llama": LLAMA, "qwen3": QWEN3, "qwen3moe": QWEN3_MOE,
}
"""Names in ``config.json`` (``architectures``) and in GGUF (``general.architecture``)."""
LARGEST_SPLIT = 512
"""Keys of the largest split that ``attention-cpu`` can pin; the smaller ones, down to 64, are halves of it and of one
another."""
LARGEST = 1e30
"""More than any number of a configuration, and far from what overflows."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding. ``scaling``: Llama 3.1's ``factor, low_freq_factor, high_freq_factor,
    original_max_position_embeddings``; None for none. ``factors``: what GGUF has in its place, a divisor of each
    frequency; empty for none."""

    base: float = 10000.0
    scaling: tuple[float, float, float, float] | None = None
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Config:
    """Shapes of a Llama-type or Qwen3-MoE-type model, per layer; all layers are alike.

    ``intermediate``: width of the dense MLP, or of one expert where ``experts`` > 0. ``norm_topk``: whether the
    weights of a token's experts are divided by their sum. ``special``: ids that stand for no text; ``eos`` those that
    end an answer.
    """

    name: str
    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    context: int
    norm_eps: float = 1e-5
    rope: Rope = Rope()
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    norm_topk: bool = True
    eos: tuple[int, ...] = ()
    special: tuple[int, ...] = ()

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised per head before they are rotated."""
        return self.architecture in (QWEN3, QWEN3_MOE)

    @property
    def qkv_width(self) -> int:
        """Rows of the joint projection to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """``(N, K)`` of every weight ``[N, K]`` that goes through ``ops.linear``, by what it is."""
        shapes = {"qkv": (self.qkv_width, self.hidden), "output": (self.hidden, self.heads * self.head_dim)}
        if self.experts:
            shapes["router"] = (self.experts, self.hidden)
        else:
            shapes |= {"gate_up": (2 * self.intermediate, self.hidden), "down": (self.hidden, self.intermediate)}
        return shapes | {"logits": (self.vocabulary, self.hidden)}


@dataclass(frozen=True)
class Limits:
    """What an engine accepts: ``max_seqs`` requests and ``budget`` tokens a step, ``context`` tokens a request,
    ``pages`` KV pages of ``page`` tokens. Raises DetentError for limits that no engine can keep."""

    max_seqs: int = 512
    budget: int = 1024
    context: int = 8192
    page: int = 16
    pages: int = 2048

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 2 if name == "context" else 1  # a prompt and an answer
            if type(value) is not int:
                raise DetentError(f"{name} is {brief_repr(value)}", f"give a whole number, at least {least}")
            if value < least:
                raise DetentError(f"{name} is {value}", f"give at least {least}")
        if self.budget < self.max_seqs:
            raise DetentError(f"a step has a budget of {self.budget} tokens and max_seqs of {self.max_seqs} "
                              "requests, each of which computes at least one", "lower max_seqs or raise the budget")

    @classmethod
    def of(cls, config: Config, **chosen: int) -> Limits:
        """The limits for a model: the defaults, what is chosen, and no longer a context than the model has. Where
        ``max_seqs`` is not chosen, no more than the budget.

        Raises DetentError for limits that no engine can keep.
        """
        # A budget below the least is told of as such, and not as one of fewer tokens than requests.
        most = min(cls.max_seqs, cls(budget=chosen.get("budget", cls.budget), max_seqs=1).budget)
        limits = cls(**{"context": min(cls.context, config.context), "max_seqs": most, **chosen})
        if limits.context > config.context:
            raise DetentError(f"context {limits.context} is longer than the {config.context} tokens of {config.name}",
                              "give a shorter one")
        return limits


def architecture(name: str, where: str) -> str:
    """One of :data:`ARCHITECTURES`' values. Raises UnknownName."""
    if name not in ARCHITECTURES:
        raise UnknownName("architecture", name, list(ARCHITECTURES), where)
    return ARCHITECTURES[name]


def whole(value: Any, key: str, where: str, least: int = 1) -> int:
    """A count that a file states. Raises BadFile."""
    if type(value) is not int or value < least:
        raise BadFile(where, f"{key} is {brief_repr(value)}", f"it must be a whole number, at least {least}")
    return value


def positive(value: Any, key: str, where: str) -> float:
    """A number above 0 that a file states. Raises BadFile."""
    if type(value) not in (int, float) or not 0 < value <= LARGEST:
        raise BadFile(where, f"{key} is {brief_repr(value)}", "it must be a number above 0")
    return float(value)


def consistent(config: Config, where: str) -> Config:
    """The configuration, if its numbers fit each other. Raises BadFile."""
    if config.heads % config.kv_heads:
        raise BadFile(where, f"{config.heads} heads do not share {config.kv_heads} KV heads evenly",
                      "give a complete checkpoint")
    if config.head_dim % 2:
        raise BadFile(where, f"head_dim is {config.head_dim}", "a head is turned by pairs, so it must be even")
    outside = [token for token in config.eos if token >= config.vocabulary]
    if outside:
        raise BadFile(where, f"the end-of-text token {shorten(outside)} is outside the vocabulary of "
                      f"{config.vocabulary} tokens", "give a complete checkpoint: no answer would end")
    if config.experts_per_token > config.experts:
        raise BadFile(where, f"a token has {config.experts_per_token} of {config.experts} experts",
                      "give a complete checkpoint")
    return config


def from_hugging_face(content: Any, where: str, name: str, special: tuple[int, ...]) -> Config:
    """The configuration that a ``config.json`` states. Raises BadFile for what this engine does not compute and for
    what is no configuration."""
    if not isinstance(content, Mapping):
        raise BadFile(where, f"is {brief_repr(content)}, no configuration", "give a complete checkpoint")
    names = content.get("architectures") or ["none"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise BadFile(where, f"architectures is {brief_repr(names)}", "it must be a list of names")
    kind = architecture(names[0], where)

    def count(key: str, default: int | None = None) -> int:
        if content.get(key) is None:
            if default is None:
                raise BadFile(where, f"lacks {key}", "give a complete checkpoint")
            return default
        return whole(content[key], key, where)

    def flag(key: str) -> bool:
        value = content.get(key) or False
        if not isinstance(value, bool):
            raise BadFile(where, f"{key} is {brief_repr(value)}", "it must be true or false")
        return value

    refused = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "decoder_sparse_step": 1,
               "mlp_only_layers": [], "use_sliding_window": False, "partial_rotary_factor": 1,
               "quantization_config": None}
    for key, only in refused.items():
        value = content.get(key)
        if value is not None and value != only:
            raise BadFile(where, f"{key} is {brief_repr(value)}", f"this engine computes models with {key} {only!r}")
    heads, hidden = count("num_attention_heads"), count("hidden_size")
    moe = kind == QWEN3_MOE
    eos = content.get("eos_token_id")
    ends = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if content.get("rms_norm_eps") is None:
        raise BadFile(where, "lacks rms_norm_eps", "give a complete checkpoint")
    return consistent(Config(
        name=name, architecture=kind, vocabulary=count("vocab_size"), hidden=hidden,
        layers=count("num_hidden_layers"), heads=heads, kv_heads=count("num_key_value_heads", heads),
        head_dim=count("head_dim", hidden // heads),
        intermediate=count("moe_intermediate_size" if moe else "intermediate_size"),
        context=count("max_position_embeddings"), norm_eps=positive(content["rms_norm_eps"], "rms_norm_eps", where),
        rope=_rope(content, where), tied=flag("tie_word_embeddings"),
        experts=count("num_local_experts" if content.get("num_experts") is None else "num_experts") if moe else 0,
        experts_per_token=count("num_experts_per_tok") if moe else 0,
        norm_topk=not moe or flag("norm_topk_prob"),
        eos=tuple(whole(token, "eos_token_id", where, 0) for token in ends), special=special), where)


def _rope(content: Mapping[str, Any], where: str) -> Rope:
    key = "rope_parameters" if content.get("rope_parameters") else "rope_scaling"  # since and before transformers 5
    stated = content.get(key) or {}
    if not isinstance(stated, Mapping):
        raise BadFile(where, f"{key} is {brief_repr(stated)}", "it must be an object")
    theta = stated.get("rope_theta", content.get("rope_theta"))
    base = Rope.base if theta is None else positive(theta, "rope_theta", where)
    if stated.get("partial_rotary_factor", 1) != 1:
        raise BadFile(where, f"partial_rotary_factor is {brief_repr(stated['partial_rotary_factor'])}",
                      "this engine computes models with partial_rotary_factor 1")
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind == "default":
        return Rope(base)
    if kind != "llama3":
        raise BadFile(where, f"rope type {kind!r}", "this engine knows default and llama3")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if any(key not in stated for key in keys):
        raise BadFile(where, f"rope type llama3 without {', '.join(k for k in keys if k not in stated)}",
                      "give a complete checkpoint")
    factor, low, high, original = (positive(stated[key], key, where) for key in keys)
    if low >= high:
        raise BadFile(where, f"low_freq_factor is {low}, high_freq_factor {high}", "the first must be lower")
    return Rope(base, (factor, low, high, original))

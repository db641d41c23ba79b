"""Whether a deployment's facts fit each other and what Detent knows, one line for what does not.

Asked of every deployment that a program which comes with Detent is solved for, however it was written. Only what a
deployment states is compared: what a program misses in it, the program asks for.
"""

from __future__ import annotations

from detent.runtime import known_facts, tables
from detent.runtime.coverage import known as known_engines
from detent.runtime.coverage import require_known
from detent.runtime.errors import BadFile, UnknownName, brief_repr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from detent.runtime.deployment import Deployment

    Facts = Mapping[str, Mapping[str, Any]]

VALUES = {
    "model.dtype": ("bf16", "fp16", "fp32"),
    "moe.quantization": ("none", "fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16"),
}
"""Texts that the programs tell apart: they take any other for one of these."""
ENGINE_VALUES = {"engine.kv_cache_dtype": ("bf16", "e4m3"), "sampling.backend": ("flashinfer", "pytorch")}
"""The same where the engine is one whose selections were read."""
LEAST = {
    "model.hidden_size": 1, "model.intermediate_size": 1, "model.vocab_size": 1, "model.num_attention_heads": 1,
    "model.num_key_value_heads": 1, "model.head_dim": 1, "model.head_dim_v": 1, "model.window_left": -1,
    "model.window_right": -1, "model.softcap": 0,
    "moe.num_experts": 1, "moe.num_experts_per_tok": 1, "moe.moe_intermediate_size": 1, "moe.block_n": 1,
    "moe.block_k": 1,
    "parallel.tensor_parallel": 1,
    "gpu.arch": 1, "gpu.num_sm": 1, "gpu.shared_memory": 1,
    "engine.page_size": 1, "engine.max_capture_size": 0, "engine.graph_splits": 0,
    "all_reduce.max_bytes": 0, "all_reduce.workspace_bytes": 1,
    "limits.max_num_seqs": 1, "limits.max_num_batched_tokens": 1, "limits.max_context": 1,
}
TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("an int", (int,)), "bool": ("a bool (true or false)", (bool,)), "str": ("a string", (str,)),
    "float": ("a number", (int, float)), "Table": ("a table", (dict,)),
}


def require_consistent(deployment: Deployment) -> None:
    """Raises UnknownName for a fact, a value, an engine or a version of one that nobody knows, BadFile for a fact of
    another type and for facts that contradict each other or the tables beside them."""
    where = deployment.path or f"deployment {deployment.name}"
    facts = deployment.facts
    _require_names(facts, where)
    _require_types(facts, where)
    _require_engine(facts, where)
    _require_values(facts, where)
    for _, problem, remedy in contradictions(facts):
        raise BadFile(where, problem, remedy)
    tables.require_tables(deployment, where)


def contradictions(facts: Facts) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Numbers that cannot be, by themselves or together: the facts' names, the problem, what to do."""
    for name, least in LEAST.items():
        value = _fact(facts, name)
        if value is not None and value < least:
            yield (name,), f"{name.partition('.')[2]} is {value}", f"it is at least {least}"
    heads, kv_heads = _both(facts, "model.num_attention_heads", "model.num_key_value_heads")
    if kv_heads and heads % kv_heads:
        yield (("model.num_attention_heads", "model.num_key_value_heads"),
               f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}", "")
    spread = _fact(facts, "parallel.expert_parallel")
    shares = ["model.num_attention_heads", "model.intermediate_size"]
    if spread is not None:
        shares.append("moe.num_experts" if spread else "moe.moe_intermediate_size")
    for name in shares:
        value, ranks = _both(facts, name, "parallel.tensor_parallel")
        if ranks and value % ranks:
            yield _unshared(name, value, ranks, "ranks have equal shares")
    kv_heads, ranks = _both(facts, "model.num_key_value_heads", "parallel.tensor_parallel")
    if ranks and kv_heads % ranks and ranks % kv_heads:
        yield _unshared("model.num_key_value_heads", kv_heads, ranks, "neither divides the other")
    chosen, experts = _both(facts, "moe.num_experts_per_tok", "moe.num_experts")
    if chosen > experts:
        yield (("moe.num_experts_per_tok", "moe.num_experts"),
               f"num_experts_per_tok {chosen} is more than num_experts {experts}", "")
    sequences, tokens = _both(facts, "limits.max_num_seqs", "limits.max_num_batched_tokens")
    if sequences > tokens:
        yield (("limits.max_num_seqs", "limits.max_num_batched_tokens"),
               f"{sequences} sequences do not fit in a step of {tokens} tokens",
               "raise max_num_batched_tokens or lower max_num_seqs")


def _unshared(name: str, value: int, ranks: int, why: str) -> tuple[tuple[str, ...], str, str]:
    return ((name, "parallel.tensor_parallel"), f"{name.partition('.')[2]} {value} and tensor_parallel {ranks}: {why}",
            "give another degree")


def _fact(facts: Facts, name: str) -> Any:
    section, _, key = name.partition(".")
    return facts.get(section, {}).get(key)


def _both(facts: Facts, first: str, second: str) -> tuple[int, int]:
    """Two facts, or zeros where one is missing."""
    a, b = _fact(facts, first), _fact(facts, second)
    return (0, 0) if a is None or b is None else (a, b)


def _require_names(facts: Facts, where: str) -> None:
    """A section that some program reads has no other facts: one that nobody reads is a name written wrong."""
    for section, values in facts.items():
        if values.keys() <= known_facts.declared(section).keys():
            continue
        known = known_facts.names(section)
        for name in values:
            if known and name not in known:
                raise UnknownName("fact", name, known, f"{where}: [{section}]")


def _require_types(facts: Facts, where: str) -> None:
    for section, values in facts.items():
        declared = known_facts.declared(section)
        for name, value in values.items():
            kind = declared.get(name, "").removesuffix(" | None")
            if kind in TYPES and type(value) not in TYPES[kind][1]:
                shown = "a table" if isinstance(value, dict) else _shown(value)
                raise BadFile(where, f"{section}.{name} is {shown}, not {TYPES[kind][0]}")


def _require_engine(facts: Facts, where: str) -> None:
    engine = facts.get("engine")
    if engine is None or "name" not in engine:
        return
    name = engine["name"]
    if "version" not in engine and name in known_engines():
        raise BadFile(where, "[engine] has no version", f"give the one that is served, of {name} "
                      f"{' or '.join(known_engines()[name])}: another selects otherwise")
    require_known(name, engine.get("version", ""), where)


def _require_values(facts: Facts, where: str) -> None:
    read = _fact(facts, "engine.name") in known_engines()
    for name, known in (VALUES | ENGINE_VALUES if read else VALUES).items():
        value = _fact(facts, name)
        if value is not None and value not in known:
            raise UnknownName(name, value, known, where)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else brief_repr(value)

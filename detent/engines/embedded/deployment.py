"""The facts of the embedded engine on this machine, for any model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from detent.runtime import deployment as deployments
from detent.runtime.cache import Store
from detent.runtime.deployment import Deployment
from detent.runtime.encoding import digest, write_atomic
from detent.runtime.errors import BadFile
from detent.runtime.spec import to_toml

if TYPE_CHECKING:
    from detent.engines.embedded.config import Config, Limits

TABLES = "tables/embedded"
SHIPPED = ("smollm2-135m-cpu", "tiny-moe-cpu")
"""Deployments with these facts that come with Detent: their names are what ``detent tuple new`` takes."""


def deployment(config: Config, limits: Limits, cores: int, *, dtype: str = "fp32", packed: bool = True) -> Deployment:
    """The deployment of a model under an engine's limits, on ``cores`` threads.

    ``packed``: whether oneDNN takes the weights (:func:`detent.kernels.embedded_linear.can_pack`); otherwise every
    product is plain. The one that comes with Detent if its facts are the same, else one that is written to the cache's
    folder, so that its programs can be solved. Raises BadFile where that cannot be written.
    """
    sections = _sections(config, limits, cores, dtype, packed)
    text = to_toml(sections)
    here = os.path.join(deployments.FOLDER, "any.toml")
    wanted = deployments.loads(text.encode(), here).facts
    for name in SHIPPED:
        shipped = deployments.load(name)
        if _unnamed(shipped.facts) == _unnamed(wanted):
            return shipped
    name = f"{config.name.lower()}-cpu-{digest(text)[:8]}"
    folder = os.path.join(Store().directory, "deployments")
    path = os.path.join(folder, f"{name}.toml")
    content = (to_toml({"deployment": {"name": name}}) + "\n" + text).encode()
    if not os.path.isfile(path):
        try:
            os.makedirs(folder, exist_ok=True)
            write_atomic(path, content, mode=0o644)
        except OSError as error:
            raise BadFile(path, error.strerror or "cannot be written", "set DETENT_CACHE_DIR to a folder you may "
                          "write to") from None
    return deployments.load(path)


def _sections(config: Config, limits: Limits, cores: int, dtype: str, packed: bool) -> dict[str, dict[str, Any]]:
    kind = "" if packed else "_plain"
    tables = {name: {"json": f"{TABLES}/{name}{kind if name == 'gemm' else ''}.json"}
              for name in ("gemm", "attention", "moe", "norm")}
    sections: dict[str, dict[str, Any]] = {
        "model": {
            "name": config.name, "dtype": dtype, "hidden_size": config.hidden,
            "intermediate_size": config.intermediate, "vocab_size": config.vocabulary,
            "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads, "head_dim": config.head_dim,
            "head_dim_v": config.head_dim, "causal": True, "window_left": -1, "window_right": -1, "softcap": 0.0,
        },
        "machine": {"name": "cpu", "cores": cores},
        "embedded": {"page_size": limits.page, **tables},
        "limits": {"max_num_seqs": limits.max_seqs, "max_num_batched_tokens": limits.budget,
                   "max_context": limits.context},
    }
    if config.experts:
        sections["moe"] = {"num_experts": config.experts, "num_experts_per_tok": config.experts_per_token,
                           "moe_intermediate_size": config.intermediate, "hidden_act": "silu", "quantization": "none",
                           "apply_router_weight_on_input": False}
    return sections


def _unnamed(facts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {section: {key: value for key, value in values.items() if (section, key) != ("model", "name")}
            for section, values in facts.items()}

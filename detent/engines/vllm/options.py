"""Reading and setting options of a ``VllmConfig``: the coverage table's switches are made, the rest is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from detent.engines.vllm import rules
from detent.runtime.errors import Refused
from detent.runtime.settings import text

if TYPE_CHECKING:
    from detent.runtime.coverage import Coverage
    from detent.runtime.settings import Check, Switch

    Facts = Mapping[str, Mapping[str, Any]]

RANGES = "compilation_config.compile_ranges_endpoints"


def set_environment(coverage: Coverage) -> None:
    """Make the table's environment variables. Raises Refused for one that the user has set to something else."""
    contrary = []
    for switch in coverage.switches():
        if switch.kind == "env":
            found = os.environ.setdefault(switch.name, switch.value)
            if not switch.is_set(found):
                contrary.append(_contrary(switch, found))
    if contrary:
        raise Refused("vLLM cannot be served under a tuple in this environment", contrary)


def set_options(config: Any, coverage: Coverage, facts: Facts) -> None:
    """Make the table's options before vLLM derives others from them. Raises Refused where a user has set one to
    something else: what a user asks for is not silently overruled."""
    contrary = []
    for switch in (each.of(lambda name: _fact(facts, name)) for each in coverage.switches()):
        if switch.kind != "option":
            continue
        owner, leaf = _owner(config, switch.name)
        found = value_of(config, facts, "option", switch.name)
        if switch.is_set(found):
            continue
        if switch.has and not (isinstance(found, list) and _opposite(switch.value) in found):
            getattr(owner, leaf).append(switch.value)
        elif not switch.has and (found is None or found == _default(owner, leaf)):
            setattr(owner, leaf, _stored(switch))
        else:
            contrary.append(_contrary(switch, found))
    if contrary:
        raise Refused("vLLM cannot be served under the tuple with these options", contrary)


def problems(config: Any, coverage: Coverage, facts: Facts) -> list[str]:
    """What of a whole configuration is not as the table asks, a line each, with what to change."""
    kinds = {each.name: each.kind for each in coverage.switches()}
    kinds |= {each.name: each.kind for each in coverage.refusals()}
    lines = coverage.problems(lambda kind, name: value_of(config, facts, kind, name))
    return [f"{line}: change {rules.flag(kinds[name], name)}"
            for line in lines for name in (line.partition(" is ")[0],)]


def value_of(config: Any, facts: Facts, kind: str, name: str) -> Any:
    """A setting's value as tables write it, None for what is not set."""
    if kind == "env":
        return os.environ.get(name)
    if kind == "fact":
        return _fact(facts, name)
    owner, leaf = _owner(config, name)
    found = getattr(owner, leaf)
    if name == RANGES and found == [config.scheduler_config.max_num_batched_tokens]:
        return []  # the end of the one range, which vLLM adds
    if is_dataclass(found):
        return type(found).__name__  # a whole feature's, which is refused by its name
    return found.name if isinstance(found, Enum) else found


def _owner(config: Any, name: str) -> tuple[Any, str]:
    *path, leaf = name.split(".")
    for part in path:
        config = getattr(config, part)
    return config, leaf


def _default(owner: Any, leaf: str) -> Any:
    """What an option is where nobody has set it."""
    for field in fields(owner) if is_dataclass(owner) else ():
        if field.name == leaf:
            if field.default_factory is not MISSING:
                return field.default_factory()
            return getattr(field.default, "default", field.default)  # pydantic wraps some
    return None


def _stored(switch: Switch) -> Any:
    """A switch's value as vLLM keeps it."""
    if switch.name != rules.BACKEND:
        return list(switch.value) if isinstance(switch.value, list | tuple) else switch.value
    from vllm.v1.attention.backends.registry import (  # type: ignore[import-not-found, unused-ignore]
        AttentionBackendEnum,
    )

    return AttentionBackendEnum[switch.value]


def _opposite(operator: str) -> str:
    """``-rms_norm`` of ``+rms_norm``."""
    return f"-{operator[1:]}"


def _contrary(switch: Switch, found: Any) -> str:
    named = rules.flag(switch.kind, switch.name)
    change = f"set {switch}" if switch.has else f"leave out {named}, or set it to {text(switch.value)}"
    return f"{switch.name} is {text(found)}: {change}; {switch.why} ({', '.join(switch.rows)})"


def _fact(facts: Facts, name: str) -> Any:
    section, _, key = name.partition(".")
    return facts.get(section, {}).get(key)


def switched(coverage: Coverage, facts: Facts) -> Iterator[str]:
    """What is set, for people."""
    for switch in coverage.switches():
        yield str(switch.of(lambda name: _fact(facts, name)))


def checks(coverage: Coverage, facts: Facts) -> Iterator[Check]:
    """What is refused elsewhere, with the deployment's numbers."""
    for check in coverage.refusals():
        yield check.of(lambda name: _fact(facts, name))

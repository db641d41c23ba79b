"""The plug-in's call sites on the real vLLM, without a GPU: Detent's kernels run in Triton's interpreter.

vLLM's own Triton kernels are not there then (it finds no driver). Operators are for CUDA; here they are also for the
CPU. What a test replaces of vLLM is put back after it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import pytest
import torch

pytest.importorskip("vllm.v1.worker.gpu_model_runner", reason="needs vLLM and what it depends on", exc_type=ImportError)

from detent.engines.vllm import hooks
from detent.engines.vllm.sites import operators

_on_cpu = torch.library.Library(operators.NAMESPACE, "IMPL")
_defined: dict[str, Any] = {}
LIMIT = 64


def define(name: str, run: Any, shape: Any, mutates: tuple[str, ...] = ()) -> Any:
    """As :func:`operators.define`, also for the CPU; what it runs is what was installed last."""
    operator = operators.define(name, run, shape, mutates)
    if name not in _defined:
        _on_cpu.impl(name, lambda *arguments: _defined[name](*arguments), "CPU")
    _defined[name] = run
    return operator


class Conditions:
    """A tuple in force: its points, and the steps that were checked."""

    def __init__(self, points: dict[str, dict[str, Any]], hidden: int = 64) -> None:
        self.points = points
        self.deployment = SimpleNamespace(facts={"model": {"hidden_size": hidden}})
        self.checked: list[tuple[Any, ...]] = []

    def check(self, family: str, *inputs: Any) -> None:
        self.checked.append((family, *inputs))


def putting_back(site: str) -> Iterator[None]:
    """What the hooks of a site replace inside is vLLM's again afterwards."""
    before = []
    for hook in hooks.HOOKS:
        if hook.site == site:
            *path, last = hook.name.split(".")
            owner: Any = importlib.import_module(hook.module)
            for part in path:
                owner = getattr(owner, part)
            before.append((owner, last, vars(owner)[last]))
    yield
    for owner, last, value in before:
        setattr(owner, last, value)
    for hook in hooks.HOOKS:
        if hook.site == site:
            hooks._replaced.pop((hook.module, hook.name), None)

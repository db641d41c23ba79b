"""The selectors of the embedded engine's programs, with and without a commitment tuple."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from detent import kernels
from detent.engines.embedded.config import LARGEST_SPLIT
from detent.runtime.encoding import digest
from detent.runtime.errors import DetentError
from detent.runtime.load import load_selector
from detent.runtime.tuple import CommitmentTuple
from detent.runtime.unpinned import STOCK_KNOBS, load_unpinned, solution

if TYPE_CHECKING:
    from detent.runtime.deployment import Deployment

    Select = Callable[..., Mapping[str, Any]]

PROGRAMS = {"attention": "attention-cpu", "gemm": "gemm-cpu", "moe": "moe-cpu", "norm": "norm-cpu"}
"""By family. ``moe`` is for models with experts."""
BY_TOKENS = ("gemm", "moe", "norm")
"""Families whose programs read one number of rows."""


@dataclass
class Selectors:
    """``select``: by family, from the program's inputs to its points. ``constant``: points that no call changes.

    ``hash``: the tuple's, or "stock"; ``commitment``: the bound tuple, None in stock.
    """

    deployment: Deployment
    hash: str
    select: dict[str, Select]
    constant: dict[str, Mapping[str, Any]]
    commitment: CommitmentTuple | None = None

    @classmethod
    def stock(cls, deployment: Deployment) -> Selectors:
        """The programs as they are. What they leave out, they leave out here: no tile is filled up."""
        return cls(deployment, "stock", _unpinned(deployment), {})

    @classmethod
    def pinned(cls, deployment: Deployment, commitment: CommitmentTuple | None,
               identity: Mapping[str, str]) -> Selectors:
        """The programs under a tuple, or the default assignment; see :meth:`detent.engines.embedded.ops.Ops.pinned`."""
        page = deployment.facts["embedded"]["page_size"]
        if LARGEST_SPLIT % page:
            sizes = [str(1 << power) for power in range(LARGEST_SPLIT.bit_length())]
            raise DetentError(
                f"page is {page}, and under a tuple a page has to divide a split of 64 to {LARGEST_SPLIT} keys",
                f"give a page of {', '.join(sizes[:-1])} or {sizes[-1]} tokens, or take the arm stock")
        families = _families(deployment)
        if commitment is None:
            commitment = CommitmentTuple.new(deployment.name, {
                family: solution(PROGRAMS[family], deployment).document for family in families})
        bound = commitment.bind({**environment(), **identity})
        select: dict[str, Select] = {}
        constant: dict[str, Mapping[str, Any]] = {}
        for family in families:
            selector = load_selector(PROGRAMS[family], deployment, bound)
            select[family] = selector
            ones = [1] * len(selector.inputs)
            constant[family] = MappingProxyType(dict(selector(*ones)))
        return cls(deployment, bound.hash, select, constant, bound)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """``(N, K)`` of the weights of each layer that ``gemm-cpu`` knows."""
        model = self.deployment.facts["model"]
        hidden, inner, head = model["hidden_size"], model["intermediate_size"], model["head_dim"]
        heads, kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        return {"qkv": ((heads + 2 * kv_heads) * head, hidden), "output": (hidden, heads * head),
                "gate_up": (2 * inner, hidden), "down": (hidden, inner), "logits": (model["vocab_size"], hidden)}

    @cached_property
    def router(self) -> tuple[int, int]:
        """``(N, K)`` of the routers' weights, which are ``moe-cpu``'s."""
        return self.deployment.facts["moe"]["num_experts"], self.deployment.facts["model"]["hidden_size"]

    def boundaries(self, max_tokens: int) -> tuple[int, ...]:
        """Token counts up to ``max_tokens`` at which an unpinned selection changes."""
        found: set[int] = set()
        for family in BY_TOKENS:
            if family in self._unpinned:
                select = self._unpinned[family]
                points = [select(count) for count in range(1, max_tokens + 1)]
                found |= {count + 1 for count in range(1, max_tokens) if points[count] != points[count - 1]}
        return tuple(sorted(found))

    @cached_property
    def _unpinned(self) -> dict[str, Select]:
        return self.select if self.commitment is None else _unpinned(self.deployment)


def environment() -> dict[str, str]:
    """The parts of a tuple's environment that hold for every model on this machine."""
    folder = next(iter(kernels.__path__))
    texts: list[str | bytes] = []
    for name in sorted(name for name in os.listdir(folder) if name.startswith("embedded_")):
        with open(os.path.join(folder, name), "rb") as file:
            texts += [name, file.read()]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else (
        f"none: {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")
    return {"kernels": digest(*texts), "torch": torch.__version__, "triton": "none",
            "cuda": torch.version.cuda or "none", "gpu": device, "engine": "embedded"}


def _families(deployment: Deployment) -> list[str]:
    return [family for family in PROGRAMS if family != "moe" or "moe" in deployment.facts]


def _unpinned(deployment: Deployment) -> dict[str, Select]:
    def select_with(program: str) -> Select:
        selector = load_unpinned(program, deployment, STOCK_KNOBS.get(program))
        return lambda *inputs: selector(*inputs)[0]

    return {family: select_with(PROGRAMS[family]) for family in _families(deployment)}



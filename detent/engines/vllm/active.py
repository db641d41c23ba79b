"""The tuple that this process serves under: its selectors, and what they say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from detent.runtime import deployment as deployments
from detent.runtime.errors import DetentError
from detent.runtime.load import load_selector
from detent.runtime.tuple import CommitmentTuple

if TYPE_CHECKING:
    from detent.runtime.deployment import Deployment

VARIABLE = "DETENT_TUPLE"
DEPLOYMENT = "DETENT_DEPLOYMENT"
"""Environment variables: files of the tuple, and of its deployment where that is not one of Detent's own."""
PROGRAMS = {"attention": "attention", "gemm": "gemm", "moe": "moe", "norm": "norm", "sampler": "sampler",
            "allreduce": "allreduce"}
"""By family: the program that its call sites run. ``moe`` is for models with experts, ``allreduce`` for more ranks
than one."""
SMALLEST: Mapping[str, tuple[Any, ...]] = {
    "attention": (1, 1, 1, 1, 1, False), "gemm": (1,), "moe": (1,), "norm": (1,), "sampler": (1, False, False)}
"""Inputs of a call that every deployment allows. Under a tuple the points are the same for any other."""


@dataclass(frozen=True)
class Active:
    """``points``: of each family, the same for every call. ``select``: its compiled selector."""

    commitment: CommitmentTuple
    deployment: Deployment
    select: Mapping[str, Callable[..., Mapping[str, Any]]]
    points: Mapping[str, Mapping[str, Any]]

    @property
    def hash(self) -> str:
        """The tuple's, as far as it is bound."""
        return self.commitment.hash

    def check(self, family: str, *inputs: Any) -> None:
        """Compare a call's inputs with the conditions that the tuple's values were proved under.

        Raises DetentError, which must stop the engine, with the condition and its source line.
        """
        self.select[family](*inputs)


_active: Active | None = None


def get() -> Active | None:
    """What this process serves under; None: vLLM as shipped."""
    return _active


def activate(path: str) -> Active:
    """Serve under the tuple of a file from now on. Raises DetentError for a tuple that cannot be served here."""
    global _active
    if _active is not None:
        if os.path.realpath(_active.commitment.where) != os.path.realpath(path):
            raise DetentError(f"{path}: this process already serves under {_active.commitment.where}",
                              "start another process")
        return _active
    commitment = CommitmentTuple.load(path)
    deployment = deployment_of(commitment)
    engine = deployment.facts.get("engine", {})
    if engine.get("name") != "vllm":
        raise DetentError(f"{path}: the tuple is for {engine.get('name', 'no engine')}, not for vLLM",
                          "write one for a deployment of vllm: detent tuple new --deployment D FILE")
    families = [family for family in PROGRAMS if family in commitment.families]
    needed = {family for family in PROGRAMS if family not in ("moe", "allreduce")}
    needed |= {"moe"} if "moe" in deployment.facts else set()
    needed |= {"allreduce"} if deployment.facts["parallel"]["tensor_parallel"] > 1 else set()
    lacking = sorted(needed - set(families))
    if lacking:
        raise DetentError(f"{path}: the tuple has nothing for {', '.join(lacking)}",
                          f"write a whole one: detent tuple new --deployment {deployment.name} FILE")
    select = {family: load_selector(PROGRAMS[family], deployment, commitment) for family in families}
    points = {family: MappingProxyType(dict(selector(*SMALLEST[family]))) for family, selector in select.items()
              if family in SMALLEST}
    _active = Active(commitment, deployment, select, points)
    return _active


def bind(environment: Mapping[str, Any]) -> Active:
    """The same under a tuple whose open parts are this environment's. Raises TupleMismatch."""
    global _active
    assert _active is not None
    _active = Active(_active.commitment.bind(environment), _active.deployment, _active.select, _active.points)
    return _active


def deployment_of(commitment: CommitmentTuple) -> Deployment:
    """A tuple's deployment: the file that is named, one of its name beside the tuple, or Detent's own."""
    named = os.environ.get(DEPLOYMENT)
    beside = os.path.join(os.path.dirname(os.path.realpath(commitment.where)), f"{commitment.deployment}.toml")
    found = deployments.load(named or (beside if os.path.isfile(beside) else commitment.deployment))
    if found.name != commitment.deployment:
        raise DetentError(f"{named or beside} is deployment {found.name}, the tuple's is {commitment.deployment}",
                          f"set {DEPLOYMENT} to the file that the tuple was written with")
    return found

"""The embedded engine as a target of the battery and the bench."""

from __future__ import annotations

import os
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

import torch

from detent.engines.embedded.config import Limits
from detent.engines.embedded.engine import ARMS, DETENT, STOCK, Engine
from detent.engines.embedded.model import load
from detent.engines.embedded.weights import SMOLLM2
from detent.engines.interface import Output, Submission, Target, Traits
from detent.engines.remote import RemoteTarget
from detent.runtime.errors import DetentError, UnknownName
from detent.runtime.tuple import CommitmentTuple

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FACTORY = "detent.engines.embedded.target:EmbeddedTarget.open"
CACHES = ("DETENT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Environment variables that say where compiled things are kept."""
EVIDENCE = frozenset(("batch", "row", "tokens", "graph", "selections", "cached", "chunks", "preemptions"))


class EmbeddedTarget:
    """An engine in this process. ``options``: what :meth:`open` was called with."""

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        self.engine, self.options = engine, options
        self._traits: Traits | None = None
        self._begun = engine.ops.hash
        self._folder: TemporaryDirectory[str] | None = None  # of tuples that new processes are to serve under

    @property
    def arm(self) -> str:
        """That of the engine now: one that began without a tuple may have been given one."""
        return STOCK if self.engine.ops.hash == STOCK else DETENT

    @property
    def deployment(self) -> str:
        """What names the engine's deployment on a command line."""
        assert self.engine.facts is not None
        return self.engine.facts.id

    @classmethod
    def open(cls, model: str = SMOLLM2, *, arm: str = DETENT, commitment: str | None = None, dtype: str = "float32",
             device: str = "cpu", limits: dict[str, int] | None = None) -> EmbeddedTarget:
        """Start an engine.

        ``model``: as :func:`detent.engines.embedded.model.load` takes it. ``commitment``: path of a commitment tuple;
        without one, the default assignment. ``limits``: of :class:`Limits` what is not at its default. Raises
        DetentError.
        """
        if arm not in ARMS:
            raise UnknownName("arm", arm, ARMS)
        if dtype not in DTYPES:
            raise UnknownName("dtype", dtype, DTYPES)
        if commitment is not None and arm == STOCK:
            raise DetentError("arm stock takes no tuple", "leave out the tuple or take arm detent")
        chosen = None if commitment is None else CommitmentTuple.load(commitment)
        loaded = load(model, DTYPES[dtype], device)
        engine = Engine.start(loaded, Limits.of(loaded.config, **(limits or {})), arm, chosen)
        return cls(engine, {"model": model, "arm": arm, "commitment": commitment, "dtype": dtype,
                            "device": device, "limits": limits})

    @property
    def traits(self) -> Traits:
        model, limits, ops = self.engine.model, self.engine.limits, self.engine.ops
        if self._traits is not None and self._traits.environment["tuple"] == ops.hash:
            return self._traits
        self._traits = Traits(
            name=f"embedded {self.arm}", engine="embedded", arm=self.arm, model=model.config.name,
            vocabulary=model.config.vocabulary, context=limits.context, page=limits.page, budget=limits.budget,
            max_seqs=limits.max_seqs, boundaries=ops.boundaries(limits.budget), special=model.config.special,
            evidence=EVIDENCE, can_preempt=True, can_flush=True,
            environment={"torch": torch.__version__, "threads": torch.get_num_threads(), "device": str(model.device),
                         "cpu": torch.backends.cpu.get_cpu_capability(),
                         "dtype": str(model.dtype).removeprefix("torch."), "weights": model.identity,
                         "tuple": ops.hash})
        return self._traits

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        return self.engine.run(submissions)

    def flush(self) -> None:
        self.engine.flush()

    def fresh(self) -> Target:
        ops, options = self.engine.ops, self.options
        if ops.hash != self._begun:  # it was given another tuple since
            commitment = ops.selectors.commitment
            assert commitment is not None
            self._folder = self._folder or TemporaryDirectory(prefix="detent-")
            path = os.path.join(self._folder.name, f"{ops.hash}.json")
            commitment.write(path)
            options = {**options, "arm": DETENT, "commitment": path}
        return RemoteTarget(FACTORY, options, CACHES)

    def encode(self, text: str) -> tuple[int, ...]:
        return self.engine.model.tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.engine.model.tokenizer.decode(tokens)

    def close(self) -> None:
        """Remove the tuples that were written for new processes; the rest goes with the object."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

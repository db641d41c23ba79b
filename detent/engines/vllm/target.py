"""vLLM in this process as a target of the battery."""

from __future__ import annotations

import inspect
import os
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detent.engines.interface import Output, Request, Step, Submission, Traits, Unsupported
from detent.engines.remote import RemoteTarget
from detent.engines.vllm.evidence import Seen, Watch
from detent.runtime.errors import DetentError, UnknownName

ARMS = ("stock", "detent", "vllm-det")
"""As shipped, under a commitment tuple, and vLLM's own batch-invariant mode."""
EVIDENCE = frozenset(("batch", "row", "tokens", "graph", "cached", "chunks", "preemptions"))
SETTINGS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NO_USAGE_STATS": "1"}
"""vLLM's environment variables: the scheduler in this process, and nothing on standard output."""
AS_SHIPPED = {"DETENT_TUPLE": "", "VLLM_BATCH_INVARIANT": "0"}
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass
class Job:
    """A request and what came of it so far. ``name``: its id outside, ``inside``: vLLM's own."""

    name: str
    submission: Submission
    inside: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    cached: int | None = None
    preemptions: int = 0
    arrival: float = 0.0
    finish: str = ""
    error: str = ""
    interrupted: bool = False

    def output(self) -> Output:
        return Output(tuple(self.tokens), tuple(self.logprobs), tuple(self.steps), self.cached, tuple(self.chunks),
                      self.preemptions, self.finish, self.error, self.arrival, tuple(self.times))


class VllmTarget:
    """An engine of vLLM. ``commitment``: the tuple's file, for the arm "detent". ``engine``: arguments of vLLM's own
    that change its defaults.

    Raises DetentError where vLLM is missing or cannot start with the model.
    """

    def __init__(self, model: str, *, arm: str = "stock", commitment: str | None = None, **engine: Any) -> None:
        if arm not in ARMS:
            raise UnknownName("arm of vllm", arm, ARMS)
        if (commitment is not None) != (arm == "detent"):
            raise DetentError("the arm detent of vLLM takes a tuple, the others none",
                              "give both --arm detent and --tuple FILE, or neither")
        enter(arm, commitment)
        try:
            import vllm  # type: ignore[import-not-found, unused-ignore]
        except ModuleNotFoundError as error:
            if error.name != "vllm":
                raise
            raise DetentError("vLLM is not installed here", "run: pip install 'detent[vllm]'") from error
        self._options = {"model": model, "arm": arm, "commitment": commitment, **engine}
        self._arm = arm
        try:
            self._engine = vllm.LLMEngine.from_engine_args(
                vllm.EngineArgs(model=model, **{"async_scheduling": False, "disable_log_stats": True, **engine}))
        except Exception as error:  # of many kinds, by model and machine
            raise DetentError(f"vLLM does not start with {model}: {_brief(error)}",
                              "check the model, or run vllm serve to see more") from error
        self._core = self._engine.engine_core.engine_core
        self._watch = Watch(self._core, not self._engine.vllm_config.model_config.enforce_eager, _selections())
        self._count = 0
        self._traits = self._describe(vllm)

    @property
    def traits(self) -> Traits:
        return self._traits

    def run(self, submissions: Sequence[Submission]) -> list[Output]:
        """Serve the requests. Those that vLLM does not take come back as refused."""
        jobs = []
        for submission in submissions:
            self._count += 1
            jobs.append(Job(f"detent{self._count}", submission))
        waiting = list(jobs)
        while waiting or self._engine.has_unfinished_requests():
            for job in list(waiting):
                due = job is jobs[0] or len(jobs[0].tokens) >= job.submission.start or bool(jobs[0].finish)
                if due:
                    waiting.remove(job)
                    self._add(job)
            if self._engine.has_unfinished_requests():
                self._step(jobs)
        return [job.output() for job in jobs]

    def flush(self) -> None:
        self._engine.reset_prefix_cache()

    def fresh(self) -> RemoteTarget:
        return RemoteTarget("detent.engines.vllm.target:VllmTarget", self._options, CACHES)

    def encode(self, text: str) -> tuple[int, ...]:
        if self._engine.vllm_config.model_config.skip_tokenizer_init:
            raise Unsupported("vLLM runs without a tokenizer", "serve a model that has one")
        return tuple(self._engine.get_tokenizer().encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        if self._engine.vllm_config.model_config.skip_tokenizer_init:
            raise Unsupported("vLLM runs without a tokenizer", "serve a model that has one")
        return str(self._engine.get_tokenizer().decode(list(tokens)))

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def _describe(self, vllm: Any) -> Traits:
        import torch

        config = self._engine.vllm_config
        tokenizer = None if config.model_config.skip_tokenizer_init else self._engine.get_tokenizer()
        graphs = torch.cuda.is_available() and not config.model_config.enforce_eager
        return Traits(
            name=f"vllm {self._arm}", engine=f"vllm {vllm.__version__}", arm=self._arm, model=config.model_config.model,
            vocabulary=config.model_config.get_vocab_size(), context=config.model_config.max_model_len,
            page=config.cache_config.block_size, budget=config.scheduler_config.max_num_batched_tokens,
            max_seqs=config.scheduler_config.max_num_seqs,
            captures=tuple(sorted(config.compilation_config.cudagraph_capture_sizes or ())) if graphs else (),
            special=tuple(sorted(tokenizer.all_special_ids)) if tokenizer else (),
            evidence=EVIDENCE | ({"selections"} if self._arm == "detent" else set()), can_flush=True,
            can_preempt="reset_running_requests" in inspect.signature(self._engine.reset_prefix_cache).parameters,
            environment={"vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(),
                         "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
                         "dtype": str(config.model_config.dtype).removeprefix("torch."),
                         "eager": config.model_config.enforce_eager})

    def _add(self, job: Job) -> None:
        job.arrival = time.monotonic()
        try:
            self._engine.add_request(job.name, {"prompt_token_ids": list(job.submission.request.prompt)},
                                     _sampling(job.submission.request))
        except Exception as error:  # too long, or ids that are none; its class changes with the version
            job.finish, job.error = "refused", _brief(error)
            return
        job.inside = next(name for name in self._core.scheduler.requests
                          if name == job.name or name.startswith(f"{job.name}-"))

    def _step(self, jobs: Sequence[Job]) -> None:
        """One step of the engine, and its tokens and evidence into the jobs."""
        for job in jobs:
            due = job.submission.preempt
            if due is not None and not job.interrupted and not job.finish and len(job.tokens) >= max(due, 1):
                job.interrupted = True
                self._engine.reset_prefix_cache(reset_running_requests=True)  # pre-empts every running request
        self._watch.begin()
        try:
            outputs = self._engine.step()
        except Exception as error:  # whatever a kernel or a worker raises
            raise DetentError(f"vLLM failed while serving: {_brief(error)}", "start it anew") from error
        seen, now = self._watch.end(), time.monotonic()
        for job in jobs:
            job.preemptions = seen.preemptions.get(job.inside, job.preemptions)
            if not job.tokens and job.inside in seen.tokens:
                job.chunks.append(seen.tokens[job.inside])
        by_name = {job.name: job for job in jobs}
        for output in outputs:
            _take(by_name[output.request_id], output, seen, now)


def enter(arm: str, commitment: str | None) -> None:
    """Set this process up for an arm, before vLLM is imported: its plug-in reads the tuple from the environment.

    Raises DetentError where the process has been set up for another arm.
    """
    wanted = {"DETENT_TUPLE": os.path.abspath(commitment) if commitment else "",
              "VLLM_BATCH_INVARIANT": "1" if arm == "vllm-det" else "0"}
    if sys.modules.get("vllm") is not None and any(
            os.environ.get(name, value) != wanted[name] for name, value in AS_SHIPPED.items()):
        raise DetentError("vLLM already runs as another arm in this process", "start another process")
    os.environ.update({**{name: os.environ.get(name, value) for name, value in SETTINGS.items()}, **wanted})


def _selections() -> Mapping[str, Any] | None:
    """The points in force, by ``program.point``; None without a tuple."""
    from detent.engines.vllm import active

    found = active.get()
    return None if found is None else {f"{active.PROGRAMS[family]}.{name}": value
                                       for family, points in found.points.items() for name, value in points.items()}


def _take(job: Job, output: Any, seen: Seen, now: float) -> None:
    """Add what a step made of a request."""
    completion = output.outputs[0]
    if job.cached is None:
        job.cached = output.num_cached_tokens
    for token, logprobs in zip(completion.token_ids, completion.logprobs or (), strict=True):
        job.tokens.append(token)
        job.logprobs.append(struct.pack(">d", logprobs[token].logprob))
        job.steps.append(seen.step(job.inside))
        job.times.append(now)
    if completion.finish_reason is not None:
        job.finish = completion.finish_reason


def _sampling(request: Request) -> Any:
    """vLLM's parameters: neither the model's defaults nor its end-of-text token decide anything."""
    from vllm.sampling_params import (  # type: ignore[import-not-found, unused-ignore]
        RequestOutputKind,
        SamplingParams,
    )

    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k or -1, seed=sampling.seed,
        max_tokens=request.max_tokens, stop=list(request.stop) or None, stop_token_ids=list(request.stop_tokens),
        ignore_eos=True, logprobs=0, detokenize=bool(request.stop), output_kind=RequestOutputKind.DELTA)


def _brief(error: BaseException) -> str:
    """The line of an error that says most: the last one of a long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__

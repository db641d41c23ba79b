"""The vLLM target where vLLM cannot be had; ``make test-vllm-cpu`` runs it on the engine."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from detent.engines.vllm.evidence import Watch, attach, replayed
from detent.engines.vllm.target import VllmTarget
from detent.runtime.errors import DetentError


def test_without_vllm_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(DetentError, match=r"vLLM is not installed here; run: pip install 'detent\[vllm\]'"):
        VllmTarget("model")


def test_arms_and_tuples_that_do_not_exist() -> None:
    with pytest.raises(DetentError, match="unknown arm of vllm 'fast'"):
        VllmTarget("model", arm="fast")
    for settings in ({"arm": "detent"}, {"commitment": "tuple.json"}, {"arm": "vllm-det", "commitment": "tuple.json"}):
        with pytest.raises(DetentError, match="the arm detent of vLLM takes a tuple, the others none"):
            VllmTarget("model", **settings)


def test_a_process_has_one_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM was imported with stays in force."""
    fake = SimpleNamespace(EngineArgs=dict, LLMEngine=SimpleNamespace(from_engine_args=lambda arguments: 1 / 0))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setenv("DETENT_TUPLE", "")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    with pytest.raises(DetentError, match="does not start"):
        VllmTarget("m")
    for settings in ({"arm": "vllm-det"}, {"arm": "detent", "commitment": "tuple.json"}):
        with pytest.raises(DetentError, match="already runs as another arm"):
            VllmTarget("m", **settings)


def test_an_engine_that_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: Any) -> None:
        raise RuntimeError("many lines\n  of it\nno such model")

    fake = SimpleNamespace(EngineArgs=dict, LLMEngine=SimpleNamespace(from_engine_args=fail))
    monkeypatch.setitem(sys.modules, "vllm", fake)
    with pytest.raises(DetentError, match="vLLM does not start with m: no such model"):
        VllmTarget("m")


class Core:
    """An engine core with one worker whose batch order is not the scheduler's."""

    def __init__(self) -> None:
        self.mode = "NONE"
        self.dispatcher = SimpleNamespace(dispatch=lambda tokens: (SimpleNamespace(name=self.mode), tokens))
        self.worker = SimpleNamespace(model_runner=SimpleNamespace(cudagraph_dispatcher=self.dispatcher))
        self.model_executor = SimpleNamespace(collective_rpc=lambda call: [call(self.worker)])
        self.scheduler = SimpleNamespace(
            requests={"a-1": SimpleNamespace(num_preemptions=0), "b-2": SimpleNamespace(num_preemptions=2)},
            schedule=lambda: SimpleNamespace(num_scheduled_tokens={"a-1": 5, "b-2": 1}),
            update_from_output=lambda scheduled, output: "updated")

    def step(self, mode: str) -> None:
        self.mode = mode
        scheduled = self.scheduler.schedule()
        self.dispatcher.dispatch(6)
        assert self.scheduler.update_from_output(
            scheduled, SimpleNamespace(req_id_to_index={"b-2": 0, "a-1": 1})) == "updated"


class SecondRunner(Core):
    """A core with vLLM's second model runner, whose graphs have a manager."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = SimpleNamespace(
            dispatch=lambda tokens: SimpleNamespace(cg_mode=SimpleNamespace(name=self.mode)))
        self.worker.model_runner = SimpleNamespace(cudagraph_manager=self.dispatcher)


@pytest.mark.parametrize("kind", [Core, SecondRunner])
@pytest.mark.parametrize(("mode", "graph"), [("NONE", False), ("FULL", True), ("PIECEWISE", True)])
def test_the_watch_tells_batch_row_tokens_and_graph(mode: str, graph: bool, kind: type[Core]) -> None:
    core = kind()
    watch = Watch(core, True, {"norm.block": 256})
    watch.begin()
    core.step(mode)
    seen = watch.end()
    step = seen.step("a-1")
    assert (step.batch, step.row, step.tokens, step.graph, step.selections) == (2, 1, 6, graph, {"norm.block": 256})
    assert seen.preemptions == {"a-1": 0, "b-2": 2}
    watch.begin()
    assert watch.end().step("a-1").row is None


def test_without_graphs_no_worker_is_asked() -> None:
    core = Core()
    watch = Watch(core, graphs=False)
    core.step("NONE")
    assert watch.end().graph is False and replayed(core.worker) is None
    core.worker.model_runner.cudagraph_dispatcher = None
    attach(core.worker)
    assert replayed(core.worker) is None

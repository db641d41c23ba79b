"""What vLLM did in a step, read from its scheduler and its workers.

The scheduler runs in this process and is watched: what it schedules, and what comes back from the model runner. Whether
a worker, which may be another process, replayed a captured graph is asked through the executor's own calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detent.engines.interface import Step


def attach(worker: Any) -> None:
    """In a worker: remember whether the last step replayed a captured graph. Either of vLLM's model runners."""
    dispatcher = getattr(worker.model_runner, "cudagraph_dispatcher", None) or getattr(
        worker.model_runner, "cudagraph_manager", None)
    if dispatcher is None:
        return
    dispatch = dispatcher.dispatch

    def seen(*arguments: Any, **named: Any) -> Any:
        chosen = dispatch(*arguments, **named)
        mode = chosen[0] if isinstance(chosen, tuple) else chosen.cg_mode
        worker.detent_graph = mode.name != "NONE"
        return chosen

    dispatcher.dispatch = seen


def replayed(worker: Any) -> bool | None:
    """In a worker: whether the last step replayed a graph; None: not to be seen."""
    graph: bool | None = getattr(worker, "detent_graph", None)
    return graph


@dataclass
class Seen:
    """One engine step. ``tokens``: scheduled for each request, by vLLM's id. ``rows``: of each request in the model
    runner's batch. ``preemptions``: of each request so far."""

    tokens: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    preemptions: Mapping[str, int] = field(default_factory=dict)
    graph: bool | None = None
    selections: Mapping[str, Any] | None = None

    def step(self, request: str) -> Step:
        """Evidence for the token that this step made of a request."""
        return Step(batch=len(self.tokens), row=self.rows.get(request), tokens=sum(self.tokens.values()),
                    graph=self.graph, selections=self.selections)


class Watch:
    """Sees the steps of an engine core whose scheduler does not run ahead of its workers. ``graphs``: whether any can
    be captured. ``selections``: the points that every step is computed with, None where they are vLLM's."""

    def __init__(self, core: Any, graphs: bool, selections: Mapping[str, Any] | None = None) -> None:
        self._selections = selections
        self._executor, self._scheduler, self._graphs = core.model_executor, core.scheduler, graphs
        self._schedule, self._update = core.scheduler.schedule, core.scheduler.update_from_output
        self._tokens: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._preempted: dict[str, int] = {}
        core.scheduler.schedule, core.scheduler.update_from_output = self._scheduled, self._updated
        if graphs:
            self._executor.collective_rpc(attach)

    def _scheduled(self, *arguments: Any, **named: Any) -> Any:
        output = self._schedule(*arguments, **named)
        self._tokens = dict(output.num_scheduled_tokens)
        # Requests that end in this step are gone after it.
        self._preempted = {name: request.num_preemptions for name, request in self._scheduler.requests.items()}
        return output

    def _updated(self, scheduled: Any, output: Any, *arguments: Any, **named: Any) -> Any:
        self._rows = dict(output.req_id_to_index)
        return self._update(scheduled, output, *arguments, **named)

    def begin(self) -> None:
        """Forget the last step."""
        self._tokens, self._rows = {}, {}

    def end(self) -> Seen:
        """The step since :meth:`begin`."""
        graph = self._executor.collective_rpc(replayed)[0] if self._graphs else False
        return Seen(self._tokens, self._rows, self._preempted, graph, self._selections)

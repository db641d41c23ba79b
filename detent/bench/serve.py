"""``detent bench serve``: every arm under every load, several times, and the document of what was measured.

The arms take turns run by run, so that a machine that grows slower does so for all of them. First each arm's offline
maximum; a load's rate is a fraction of Stock's, or of the arm's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from detent.bench.arms import BASE, Arm
from detent.bench.environment import differences, environment
from detent.bench.load import Progress, Server, drive
from detent.bench.metrics import measured
from detent.bench.traces import Row, fitting, rows
from detent.bench.workloads import RECORDED, Load, Traffic, replay, traffic
from detent.engines.interface import Traits
from detent.runtime.errors import BadFile, DetentError

FORMAT = 1
WARM_UP = 2
"""Requests that each engine serves before anything is measured."""

SCALES = 8
"""Scales that are tried to name one at which a workload fits."""

Document = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to measure. ``engine`` and ``model`` are for the document; ``traces``: files of recorded workloads."""

    engine: str
    model: str
    arms: Sequence[Arm]
    loads: Sequence[Load]
    runs: int = 3
    scale: float = 1.0
    seed: int = 0
    traces: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """What must be equal for a document to be continued."""
        return {"engine": self.engine, "model": self.model, "scale": self.scale, "seed": self.seed}

    def offline(self) -> list[Load]:
        """A load for each workload that is driven at fractions of a maximum."""
        names = dict.fromkeys(load.workload for load in self.loads if load.fraction is not None)
        return [Load(f"offline {name}", name, offline=True) for name in names]

    def count(self) -> int:
        """Runs in all."""
        return len(self.arms) * self.runs * (len(self.loads) + len(self.offline()))


def serve(plan: Plan, save: Callable[[Document], None], say: Say, earlier: Document | None = None) -> Document:
    """Measure what is not yet in ``earlier``; ``save`` is called with the document after each run.

    Raises DetentError: for a document of another measurement, arms that serve different models, a request that does
    not fit, and what the engines raise.
    """
    document = continued(plan, earlier)
    known = {(run["arm"], run["load"], run["run"]): run for run in document["runs"]}
    if any(load.fraction is not None and not load.own for load in plan.loads) and not any(a.base for a in plan.arms):
        raise DetentError("no arm is Stock, and loads are fractions of its maximum",
                          f"add {BASE} to the arms, or name loads of the arms' own maximum (A67, B100)")
    traces = _traces(plan)
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        for arm in plan.arms:
            say(f"start {arm.name}")
            servers[arm.name] = server = arm.open()
            stack.callback(server.close)
        traits = [server.traits for server in servers.values()]
        for other in traits[1:]:
            if (other.vocabulary, other.special) != (traits[0].vocabulary, traits[0].special):
                raise DetentError(f"arms serve models of different vocabularies: {traits[0].model} and {other.model}",
                                  "compare arms of one model")
        document["arms"] = _arms(document["arms"], [_told(arm, servers[arm.name]) for arm in plan.arms])
        salted = not all(trait.can_flush for trait in traits)
        document["salted"] = salted
        asked = _traffic(plan, traces, min(traits, key=lambda trait: trait.context))
        document["workloads"] = {**document["workloads"], **{name: _shape(source) for name, source in asked.items()}}
        warm: set[str] = set()

        def run(arm: Arm, load: Load, number: int) -> None:
            key = (arm.name, load.name, number)
            rate = None if load.fraction is None else load.fraction * maximum(
                document, arm.name if load.own else BASE, load.workload)
            if key in known:
                return
            server = servers[arm.name]

            source, salt = asked[load.workload], f"{load.name}/{number}" if salted else ""
            make = partial(replay, seed=plan.seed, vocabulary=server.traits.vocabulary, special=server.traits.special)
            if arm.name not in warm:
                say(f"warm up {arm.name}")
                first = Load("warm-up", load.workload, offline=True)
                drive(server, make(source.first(WARM_UP, "warm-up"), first, rate=None, salt="warm-up"))
                warm.add(arm.name)
            if server.traits.can_flush:
                server.flush()
            sent = make(source, load, rate=rate, salt=salt)
            label = f"run {len(known) + 1} of {plan.count()}: {load.name}, {arm.name}"
            outputs = drive(server, sent, _tenths(label, say))
            found = {"arm": arm.name, "load": load.name, "workload": load.workload, "run": number, "rate": rate,
                     "replay": sent.digest, **measured(sent, outputs).as_json()}
            known[key] = found
            document["runs"].append(found)
            save(document)

        for load, number, arm in _order(plan):
            run(arm, load, number)
    _check_replays(document["runs"])
    return document


def _tenths(label: str, say: Say) -> Progress:
    """Says how far a run is, whenever another tenth of its requests has ended."""
    told = -1

    def progress(done: int, count: int) -> None:
        nonlocal told
        if 10 * done // count > told:
            told = 10 * done // count
            say(f"{label}, request {done} of {count}")

    return progress


def _order(plan: Plan) -> Iterator[tuple[Load, int, Arm]]:
    """Offline first; within a load run by run, in which the arms take turns, every other time backwards."""
    for load in (*plan.offline(), *plan.loads):
        for number in range(plan.runs):
            for arm in plan.arms if number % 2 == 0 else reversed(plan.arms):
                yield load, number, arm


def maximum(document: Document, arm: str, workload: str) -> float:
    """Requests a second that the arm finished when all came at once: the median of its runs."""
    rates: list[float] = [run["requests_per_s"] for run in document["runs"]
             if run["arm"] == arm and run["load"] == f"offline {workload}"]
    return statistics.median(rates)


def continued(plan: Plan, earlier: Document | None) -> Document:
    """A document to add to: the earlier one if it is of the same measurement. Raises DetentError."""
    here = environment()
    if earlier is None:
        return {"format": FORMAT, "kind": "bench serve", "settings": plan.settings(), "environment": here, "arms": [],
                "workloads": {}, "runs": []}
    problems = [f"{name} was {earlier['settings'].get(name)} and is {value}"
                for name, value in plan.settings().items() if earlier["settings"].get(name) != value]
    problems += differences(earlier["environment"], here)
    if problems:
        raise DetentError(f"the file holds another measurement: {'; '.join(problems)}",
                          "name another file, or remove it")
    return {**earlier, "runs": list(earlier["runs"])}


def checked(path: str, content: Any) -> Document:
    """A document that was read from a file. Raises BadFile unless it is one of this format."""
    if not isinstance(content, dict) or content.get("kind") != "bench serve":
        raise BadFile(path, "is no document of detent bench serve", "name another file")
    if content.get("format") != FORMAT:
        raise BadFile(path, f"format {content.get('format')!r}", f"this Detent reads format {FORMAT}: measure again")
    return content


def _traces(plan: Plan) -> dict[str, list[Row]]:
    """The requests of the recorded workloads: read before an engine starts. Raises DetentError."""
    found = {}
    for name in dict.fromkeys(load.workload for load in plan.loads if load.workload in RECORDED):
        if name not in plan.traces:
            raise DetentError(f"workload {name} is a recorded one", f"give its file: --trace {name}=FILE")
        found[name] = rows(name, plan.traces[name], plan.scale)
    return found


def _traffic(plan: Plan, traces: Mapping[str, list[Row]], least: Traits) -> dict[str, Traffic]:
    """The requests of each workload. ``least``: of the engine with the shortest context. Raises DetentError for a
    request that does not fit that."""
    found = {}
    for name in dict.fromkeys(load.workload for load in plan.loads):
        if name in traces:
            found[name] = fitting(name, plan.traces[name], traces[name], least.context)
            continue
        source = traffic(name, plan.scale, plan.seed)
        if source.longest > least.context:
            raise DetentError(f"{name} has a request of {source.longest} tokens and the engine's context is "
                              f"{least.context}", _shorter(name, plan, source.longest, least))
        found[name] = source
    return found


def _shorter(name: str, plan: Plan, longest: int, least: Traits) -> str:
    """What to do about a workload with a request of ``longest`` tokens. Lengths shrink by the scale's root."""
    scale = plan.scale
    for _ in range(SCALES):
        scale *= 0.95 * (least.context / longest) ** 2
        scale = float(f"{scale:.2g}")
        if not scale:
            break
        longest = traffic(name, scale, plan.seed).longest
        if longest <= least.context:
            other = f", or start {least.name} with a longer context" if least.engine == "http" else ""
            return f"give a smaller --scale, such as {scale:g}{other}"
    return "measure a model with a longer context"


def _shape(source: Traffic) -> dict[str, Any]:
    """What was asked, in numbers."""
    prompts = [shape.tokens for shape in source.shapes]
    outputs = [shape.output for shape in source.shapes]
    return {"requests": len(prompts), "prompt_tokens": sum(prompts), "prompt_median": statistics.median(prompts),
            "output_tokens": sum(outputs), "output_median": statistics.median(outputs), "longest": source.longest,
            "shared": sum(source.shared()) / sum(prompts), "context": source.context, "left_out": source.left_out}


def _told(arm: Arm, server: Server) -> dict[str, Any]:
    traits = server.traits
    return {"name": arm.name, "what": arm.what, "identity": dict(arm.identity), "engine": traits.engine,
            "model": traits.model, "context": traits.context, "page": traits.page, "budget": traits.budget,
            "max_seqs": traits.max_seqs, "can_flush": traits.can_flush, "resolution": traits.resolution,
            "environment": dict(traits.environment)}


def _arms(earlier: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both, each arm once. Raises DetentError for an arm that is not what it was when its runs were measured."""
    known = {arm["name"]: arm for arm in earlier}
    for arm in now:
        old = known.setdefault(arm["name"], arm)
        problems = [f"{part} was {old.get(part)} and is {value}" for part, value in arm.items()
                    if part not in ("what", "environment") and old.get(part) != value]
        problems += [f"{part} was {old['environment'].get(part)} and is {value}"
                     for part, value in arm["environment"].items() if old["environment"].get(part) != value]
        if problems:
            raise DetentError(f"the file holds another measurement, of arm {arm['name']}: {'; '.join(problems)}",
                              "name another file, or remove it")
    return list(known.values())


def _check_replays(runs: Sequence[Mapping[str, Any]]) -> None:
    """Raise DetentError where the arms of a run were sent different requests."""
    sent: dict[tuple[str, int], str] = {}
    for run in runs:
        if sent.setdefault((run["load"], run["run"]), run["replay"]) != run["replay"]:
            raise DetentError(f"run {run['run'] + 1} of {run['load']} was not the same for {run['arm']} as for others",
                              "measure again into another file")

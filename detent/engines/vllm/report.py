"""What is in force: printed once at start, as JSON at ``/detent`` on the server, and as labels for Prometheus."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from detent.engines.vllm import active, admission, hooks, options
from detent.engines.vllm.sites import attention, moe

if TYPE_CHECKING:
    from detent.engines.vllm.active import Active
    from detent.runtime.coverage import Coverage

METHOD = "detent_report"
"""Of a worker: :func:`content` as JSON, which ``collective_rpc`` asks for by name."""
ROUTE = "/detent"
METRIC = "detent_info"

traced: list[str] = []
"""Operators that the start-up's forward pass issued through Detent, in a worker."""


def content(coverage: Coverage) -> dict[str, Any]:
    """What this process serves under. ``tuple`` can be written to a file: it is the tuple, bound as far as known."""
    found = active.get()
    assert found is not None
    commitment, facts = found.commitment, found.deployment.facts
    environment = commitment.environment
    kernels = environment["kernels"] or {}
    families = {}
    for family, part in commitment.families.items():
        families[family] = {
            "program": part["program"], "pins": part["pins"], "knobs": part["knobs"],
            "points": dict(found.points.get(family, {})), "not_taken": not_taken(family, found),
            "kernel": kernels.get(family, "unknown until a worker has its GPU"),
        }
    return {
        "detent": environment["detent"], "engine": environment["engine"] or f"vllm {coverage.version}",
        "deployment": found.deployment.name, "hash": found.hash, "open": commitment.open_parts(),
        "tuple": {**commitment.content(), "hash": found.hash}, "families": families,
        "switched_off": list(options.switched(coverage, facts)),
        "refused": [str(check) for check in options.checks(coverage, facts)],
        "replaced": [f"{module}:{name}" for module, name in hooks.replaced()],
        "traced": list(traced), "strict": os.environ.get(admission.STRICT, "") == "1",
    }


def not_taken(family: str, found: Active) -> list[str]:
    """Points of the tuple that a family's kernel decides for itself, which stored runs on a GPU showed to change no
    bit. Of expert layers only a worker knows."""
    names: tuple[str, ...] = ()
    if family == "attention":
        names = attention.OWN
    elif family == "moe" and found.commitment.environment["kernels"] is not None and moe.take_turns(found):
        names = moe.ROW
    return [name for name in names if name in found.points.get(family, {})]


def _not_taken(family: str, found: Active) -> tuple[str, ...]:
    """Points that a family's kernel decides for itself, which tests on a GPU showed to change no bit."""
    if family == "attention":
        return attention.OWN
    return moe.ROW if family == "moe" and moe.take_turns(found) else ()


def lines(told: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    text = [f"Detent {told['detent']} serves {told['engine']} under the tuple for {told['deployment']}",
            f"  hash {told['hash']}" + (f" (open: {', '.join(told['open'])})" if told["open"] else "")]
    for family, part in told["families"].items():
        values = ", ".join(f"{name} {_value(value)}" for name, value in {**part["pins"], **part["knobs"]}.items())
        text.append(f"  {family}: program {part['program']}; {values or 'nothing to pin'}; kernel {part['kernel']}")
        if part["not_taken"]:
            text.append(f"    left to the kernel, which stored runs on a GPU showed to change no bit: "
                        f"{', '.join(part['not_taken'])}")
    text.append(f"  set: {', '.join(told['switched_off'])}")
    text.append(f"  {len(told['refused'])} conditions of the start hold; {ROUTE} lists them")
    text.append(f"  a forward pass was traced: {', '.join(told['traced']) or 'not in this process'}")
    text.append("  requests that draw without a seed are " +
                ("refused" if told["strict"] else f"served but not replayable ({admission.STRICT}=1 refuses them)"))
    return text


def show(coverage: Coverage) -> None:
    """Print what is in force, in the log of vLLM."""
    logging.getLogger("vllm.detent").info("%s", "\n".join(lines(content(coverage))))


def install(coverage: Coverage) -> None:
    """Let workers be asked for their report, and serve it."""

    def routed(original: Any) -> Any:
        def register(app: Any) -> None:
            original(app)
            attach(app)
        return register

    from vllm.v1.worker.gpu_worker import Worker  # type: ignore[import-not-found, unused-ignore]

    setattr(Worker, METHOD, lambda worker: json.dumps(content(coverage)))
    hooks.rebind(hooks.SERVER, "register_vllm_serve_api_routers", routed)


def attach(app: Any) -> None:
    """Add the route to a server's FastAPI application, and the metric once its engine runs."""
    from starlette.responses import JSONResponse  # type: ignore[import-not-found, unused-ignore]

    known: dict[str, Any] = {}

    async def ask() -> dict[str, Any]:
        if not known:
            ranks = await app.state.engine_client.collective_rpc(METHOD)
            known.update(json.loads(ranks[0]), ranks=len(ranks))
        return known

    async def in_force(request: Any) -> Any:
        return JSONResponse({**await ask(), "requests": dict(admission.counts)})

    started = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncIterator[Any]:
        async with started(application) as state:
            if getattr(app.state, "engine_client", None) is not None:
                publish(await ask())
            yield state

    app.router.lifespan_context = lifespan
    app.add_route(ROUTE, in_force, methods=["GET"])


def publish(told: Mapping[str, Any]) -> None:
    """Set the metric: 1, with what is in force as its labels."""
    labels = {"hash": told["hash"], "deployment": told["deployment"], "version": told["detent"]}
    _metric(tuple(labels)).labels(**labels).set(1)


@cache
def _metric(labels: tuple[str, ...]) -> Any:
    from prometheus_client import Gauge  # type: ignore[import-not-found, unused-ignore]

    return Gauge(METRIC, "The commitment tuple that this engine serves under.", labels,
                 multiprocess_mode="mostrecent")


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

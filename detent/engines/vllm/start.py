"""What the plug-in does in every process of vLLM, in order: environment, tuple, call sites, and the start-up's own
checks where vLLM makes its configuration, loads its model and opens its server."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from detent.engines.vllm import active, admission, facts, hooks, identity, options, report, rules, trace
from detent.runtime.errors import DetentError, Refused

if TYPE_CHECKING:
    from detent.engines.vllm.active import Active
    from detent.runtime.coverage import Coverage

KEY = "detent"
"""Under ``VllmConfig.additional_config``: the tuple's hash. vLLM's cache of compiled code hangs on it too."""

_begun = False


def begin(path: str) -> Active:
    """Serve under the tuple of a file from here on. Idempotent. Raises DetentError for what cannot be served."""
    global _begun
    coverage = rules.covered(rules.installed())
    options.set_environment(coverage)
    found = active.activate(path)
    if _begun:
        return found
    wanted = found.deployment.facts["engine"]["version"]
    if wanted != coverage.version:
        raise DetentError(f"{path}: the tuple is for vLLM {wanted}, installed is {coverage.version}",
                          f"install vllm=={wanted}, or write a deployment and a tuple for {coverage.version}")
    for site in sites():
        site.install(found)
    _install(found, coverage)
    _begun = True
    return found


def sites() -> list[Any]:
    """The modules of call sites, which have an ``install``."""
    from detent.engines.vllm import sites as package

    modules = [import_module(f"{package.__name__}.{each.name}") for each in pkgutil.iter_modules(package.__path__)]
    return [module for module in modules if hasattr(module, "install")]


def configure(config: Any, found: Active, coverage: Coverage) -> None:
    """Before vLLM derives the rest of a configuration: make the switches, and have the tuple in its identity."""
    options.set_options(config, coverage, found.deployment.facts)
    if not isinstance(config.additional_config, dict):
        raise DetentError("additional_config is an object, in which Detent cannot write", "give a dictionary")
    config.additional_config[KEY] = found.hash


def require(config: Any, found: Active, coverage: Coverage, known: dict[str, Any]) -> None:
    """Once it is whole: refuse what is not covered, and facts that are not the tuple's. ``known``: facts of the
    GPU. Raises Refused with a line for each."""
    facts_of = found.deployment.facts
    lines = options.problems(config, coverage, facts_of)
    bounded = {name for each in coverage.refusals() for name in (getattr(each.at_most, "name", None),) if name}
    wanted = {name: value for name, value in facts.read(found.commitment).items() if name not in bounded}
    lines += facts.differences(wanted, {**facts.of_config(config), **known}, found.deployment.name)
    if lines:
        raise Refused(f"{found.commitment.where} does not hold for this vLLM", lines)


def _verify(worker: Any) -> None:
    """In a worker that has its model: bind the tuple, build what kernels need, and trace a forward pass."""
    from vllm.config import set_current_vllm_config  # type: ignore[import-not-found, unused-ignore]

    bound = identity.bind(worker.vllm_config)
    for site in sites():
        if hasattr(site, "prepare"):
            site.prepare(bound)
    with set_current_vllm_config(worker.vllm_config):
        report.traced[:] = trace.check(worker)


def _install(found: Active, coverage: Coverage) -> None:
    """Replace what start-up goes through."""

    def configured(original: Any) -> Any:
        def post_init(self: Any) -> None:
            if self.model_config is None:  # a stand-in of vLLM's own, which serves nothing
                original(self)
                return
            configure(self, found, coverage)
            original(self)
            require(self, found, coverage, facts.of_platform())
        return post_init

    def loaded(original: Any) -> Any:
        def load_model(self: Any, *arguments: Any, **named: Any) -> None:
            told = self.vllm_config.additional_config.get(KEY)
            if told != found.hash:
                raise DetentError(f"this worker's tuple {found.hash[:16]} is not the engine's, {str(told)[:16]}",
                                  f"give every process the same file in {active.VARIABLE}")
            require(self.vllm_config, found, coverage, facts.of_device(self.device))
            original(self, *arguments, **named)
            _verify(self)
        return load_model

    def warmed(original: Any) -> Any:
        def compile_or_warm_up_model(self: Any) -> Any:
            # Page size and context are settled when the KV cache is made.
            require(self.vllm_config, found, coverage, facts.of_device(self.device))
            times = original(self)
            if self.rank == 0:
                report.show(coverage)
            return times
        return compile_or_warm_up_model

    hooks.rebind(hooks.CONFIG, "VllmConfig.__post_init__", configured)
    hooks.rebind(hooks.WORKER, "Worker.load_model", loaded)
    hooks.rebind(hooks.WORKER, "Worker.compile_or_warm_up_model", warmed)
    admission.install()
    report.install(coverage)
    identity.install()

"""``detent vllm``: serve with vLLM under a commitment tuple, and compare a model with one beforehand."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import json_option
from detent.cli.output import show_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detent.runtime.deployment import Deployment
    from detent.runtime.tuple import CommitmentTuple

PLUGIN = "detent"
GROUP = "vllm.general_plugins"

_tuple = click.option("--tuple", "path", metavar="FILE", required=True, type=click.Path(dir_okay=False),
                      help="Commitment tuple to serve under; see detent tuple new.")
_deployment = click.option("--deployment", metavar="FILE", type=click.Path(dir_okay=False),
                           help="TOML file of the tuple's deployment, if it neither comes with Detent nor lies beside "
                                "the tuple under its name.")


@click.group("vllm")
def vllm_command() -> None:
    """Serve with vLLM under a commitment tuple."""


@vllm_command.command("serve", context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
                      epilog="""\b
Example:
  detent tuple new -d llama-3.1-8b-tp1-h200 tuple.json
  detent vllm serve --tuple tuple.json meta-llama/Llama-3.1-8B --port 8000""")
@_tuple
@_deployment
@click.argument("arguments", metavar="MODEL [ARGUMENT OF vllm serve]...", nargs=-1, required=True,
                type=click.UNPROCESSED)
def serve(path: str, deployment: str | None, arguments: Sequence[str]) -> None:
    """Run vLLM's own server under a tuple.

    Everything but --tuple and --deployment is handed to vllm serve as it is. What the tuple does not hold for is
    refused, with the flag to change. What is in force is in the log, and at /detent on the server.
    """
    from detent.runtime.errors import DetentError

    commitment = _set(path, deployment)
    _require_plugin(commitment)
    sys.argv = ["vllm", "serve", *arguments]
    from vllm.entrypoints.cli.main import main  # type: ignore[import-not-found, unused-ignore]

    try:
        main()
    except DetentError:
        raise
    except Exception as error:  # vLLM's own, of any kind; its log has the rest
        text = str(error).strip().splitlines()
        raise DetentError(f"vLLM stopped: {text[0] if text else type(error).__name__}",
                          "its log above says why") from error


@vllm_command.command("check", epilog="""\b
Example:
  detent vllm check --tuple tuple.json path/of/the/model""")
@_tuple
@_deployment
@click.argument("model", metavar="MODEL", type=click.Path(exists=True))
@json_option
def check(path: str, deployment: str | None, model: str, as_json: bool) -> int:
    """Compare a model with a tuple, without a GPU and without vLLM. Exit code 1 if it does not fit.

    MODEL is a folder with a config.json, or that file. GPU, flags of vLLM and weights are compared when it starts.
    """
    from detent.engines.vllm import facts

    commitment = _set(path, deployment)
    found = _facts_of(model, _deployment_of(commitment))
    wanted = facts.read(commitment)
    lines = facts.differences(wanted, found, commitment.deployment)
    compared = sorted(set(wanted) & set(found))
    if as_json:
        show_json({"matches": not lines, "differences": lines, "compared": compared})
    elif lines:
        click.echo("\n".join([f"{path} does not hold for {model}:", *(f"  {line}" for line in lines)]))
    else:
        click.echo(f"{path} holds for {model}: {len(compared)} facts of the model are those of "
                   f"{commitment.deployment}, hash {commitment.hash}")
    return 1 if lines else 0


def _set(path: str, deployment: str | None) -> CommitmentTuple:
    """The tuple of a file, which processes of vLLM find in the environment from now on."""
    from detent.engines.vllm import active
    from detent.runtime.tuple import CommitmentTuple

    commitment = CommitmentTuple.load(path)
    os.environ[active.VARIABLE] = os.path.abspath(path)
    if deployment is not None:
        os.environ[active.DEPLOYMENT] = os.path.abspath(deployment)
    return commitment


def _deployment_of(commitment: CommitmentTuple) -> Deployment:
    """The tuple's deployment, which must be one of vLLM's. Raises BadInput."""
    from detent.engines.vllm import active
    from detent.runtime.errors import BadInput

    found = active.deployment_of(commitment)
    engine = found.facts.get("engine", {}).get("name", "no engine")
    if engine != "vllm":
        raise BadInput(f"{commitment.where}: the tuple is for {engine}, not for vLLM",
                       "write one for a deployment of vllm: detent tuple new")
    return found


def _require_plugin(commitment: CommitmentTuple) -> None:
    """vLLM is here in a version that is served, and will load the plug-in. Raises DetentError: without it vLLM would
    serve as shipped."""
    from importlib.metadata import entry_points

    from detent.engines.vllm import rules
    from detent.runtime.errors import BadInput, DetentError

    rules.covered(rules.installed())
    _deployment_of(commitment)
    if PLUGIN not in {each.name for each in entry_points(group=GROUP)}:
        raise DetentError("vLLM does not find Detent's plug-in", "install Detent with pip beside vLLM; a folder on "
                          "PYTHONPATH has no entry points")
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        raise BadInput(f"VLLM_PLUGINS is {allowed!r}, so vLLM would not load Detent's plug-in",
                       f"add {PLUGIN} to it, or unset it")


def _facts_of(model: str, deployment: Deployment) -> dict[str, Any]:
    """Facts of a model's config.json as its deployment would have them. Raises BadFile for what is not served."""
    from detent.cli.deployment import json_object
    from detent.runtime.spec import Spec

    path = os.path.join(model, "config.json") if os.path.isdir(model) else model
    content = json_object(path, "give a folder with a model's config.json, or that file",
                      "give a model's config.json as Hugging Face has it")
    limits, longest = deployment.facts["limits"], content.get("max_position_embeddings")
    context = limits["max_context"]
    spec = Spec(content, path, gpu="H200", tensor_parallel=deployment.facts["parallel"]["tensor_parallel"],
                engine="vllm", max_context=min(context, longest) if isinstance(longest, int) else context, table={})
    sections = spec.sections()
    found = {f"{section}.{name}": value for section in ("model", "moe") for name, value in
             sections.get(section, {}).items() if name != "name"}
    found.setdefault("model.norm_plus_one", None)
    return found

"""``detent deployment``: list and show deployments, and write one from a model's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from detent.cli.lists import deployments_command
from detent.cli.options import json_option
from detent.cli.output import show, show_json

if TYPE_CHECKING:
    from detent.runtime.spec import Spec
    from detent.solver.views.sections import Section


@click.group("deployment")
def deployment_command() -> None:
    """List and show deployments, and write one from a model's config.json.

    A deployment is the facts known before serving: model, GPU, parallel degrees, engine and limits.
    """


deployment_command.add_command(deployments_command, "list")


@deployment_command.command("show")
@click.argument("deployment", metavar="NAME")
@json_option
def show_(deployment: str, as_json: bool) -> None:
    """Show the facts of a deployment: a name (see detent deployment list) or the path of a TOML file."""
    from detent.runtime.deployment import load

    found = load(deployment)
    if as_json:
        show_json({"name": found.name, "description": found.description, "path": found.path,
                   "files": list(found.files), "facts": found.facts})
        return
    from detent.solver.views.sections import Paragraph, Table

    sections: list[Section] = [Paragraph((found.description or found.name, found.path), found.name)]
    for section, values in found.facts.items():
        rows = tuple((key, _fact(value)) for key, value in values.items())
        sections.append(Table(f"[{section}]", ("fact", "value"), rows, whole=("fact",)))
    show(sections)


def _fact(value: Any) -> str:
    """A value; of a table its number of rows and their keys."""
    if isinstance(value, Mapping):
        return f"{len(value)} rows: {', '.join(map(str, value))}"
    return str(value).lower() if isinstance(value, bool) else str(value)


@deployment_command.command("new", epilog="""\b
Examples:
  detent deployment new --model-config config.json --gpu H200 --tp 2 --engine vllm -o mine.toml
  detent solve attention -d mine.toml""")
@click.option("--model-config", "config", required=True, metavar="FILE", help="The model's config.json.")
@click.option("--gpu", required=True, metavar="GPU", help="H100 or H200.")
@click.option("--tp", type=click.IntRange(1), required=True, metavar="N", help="Tensor-parallel degree.")
@click.option("--engine", required=True, metavar="ENGINE", help="vllm or sglang.")
@click.option("--max-context", type=click.IntRange(1), metavar="N",
              help="Tokens of the longest request; without it what the model allows.")
@click.option("--max-num-seqs", type=click.IntRange(1), metavar="N",
              help="Sequences of a step, 1024 without it: Detent's limit, which the plug-in keeps the engine to.")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="N",
              help="Tokens of a step, 8192 without it; likewise.")
@click.option("--moe-table", metavar="FILE",
              help="The engine's tuned table of this shape, or none; without it one that comes with Detent.")
@click.option("--name", default="", metavar="NAME", help="Name of the deployment.")
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead of standard output.")
def new(config: str, gpu: str, tp: int, engine: str, max_context: int | None, max_num_seqs: int | None,
        max_num_batched_tokens: int | None, moe_table: str | None, name: str, output: str | None) -> None:
    """Write a deployment from a model's config.json, a GPU and an engine's defaults."""
    from detent.runtime.spec import Spec

    path = os.path.abspath(output) if output else ""
    content = json_object(config, "give the path of a model's config.json",
                      "give a model's config.json as Hugging Face has it")
    spec = Spec(content, config, gpu=gpu, tensor_parallel=tp, engine=engine, name=name,
                max_context=max_context, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
                table=_reference(moe_table, os.path.dirname(path)))
    text = _checked(spec, path or f"{spec.name}.toml")
    if output is None:
        click.echo(text, nl=False)
        return
    from detent.runtime.encoding import new_file_mode, write_atomic

    write_atomic(path, text, mode=new_file_mode())
    click.echo(f"wrote {output}: {spec.name}")


def json_object(path: str, where: str, what: str) -> dict[str, Any]:
    """The JSON object in a file; ``where`` and ``what`` say which file to give, and what it should hold."""
    from detent.runtime.encoding import strict_json
    from detent.runtime.errors import BadFile

    try:
        with open(path, encoding="utf-8") as file:
            content = strict_json(file.read())
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be read", where) from None
    except ValueError as error:
        raise BadFile(path, f"is not JSON: {error}", what) from None
    if not isinstance(content, dict):
        raise BadFile(path, f"holds a {type(content).__name__}, not an object", what)
    return content


def _reference(table: str | None, folder: str) -> dict[str, Any] | None:
    """How the file refers to a MoE table: relative to its own folder, or in full where it has none yet."""
    if table is None:
        return None
    if table == "none":
        return {}
    path = os.path.abspath(table)
    content = json_object(path, "give the path of the engine's tuned table with --moe-table, or none",
                      "give a tuned table as the engine ships it")
    reference: dict[str, Any] = {"json": os.path.relpath(path, folder).replace(os.sep, "/") if folder else path}
    if "triton_version" in content:  # what a table was tuned with, beside its rows
        reference["drop"] = ["triton_version"]
    return reference


def _checked(spec: Spec, path: str) -> bytes:
    """The text of the file at ``path``, read back as a deployment before it is written."""
    from detent.runtime.consistent import require_consistent
    from detent.runtime.deployment import loads
    from detent.runtime.spec import to_toml

    text = to_toml(spec.sections()).encode()
    require_consistent(loads(text, path))
    return text

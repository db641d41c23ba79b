"""``detent programs`` and ``detent deployments``: what comes with Detent."""

from __future__ import annotations

import click

from detent.cli.options import json_option
from detent.cli.output import show, show_json


@click.command("programs")
@json_option
def programs_command(as_json: bool) -> None:
    """List the programs that come with Detent."""
    from detent.cli.families import is_stock
    from detent.runtime.sources import registry, resolve, tag

    rows = []
    for name in sorted(registry()):
        program = resolve(name)
        rows.append((name, "stock" if is_stock(name) else "adapted",
                     f"{tag(program.path, program.path).removeprefix('detent:')}:{program.function}"))
    if as_json:
        show_json([{"name": name, "kind": kind, "source": source} for name, kind, source in rows])
        return
    from detent.solver.views.sections import Paragraph, Table

    show([Table("Programs", ("program", "kind", "source"), tuple(rows), whole=("program", "source")),
          Paragraph(("adapted: what Detent runs; stock: an engine's own selection, for conformance.",
                     "Your own: path/to/file.py:function"))])


@click.command("deployments")
@json_option
def deployments_command(as_json: bool) -> None:
    """List the deployments that come with Detent."""
    from detent.runtime.deployment import known, load

    rows = [(name, load(name).description) for name in known()]
    if as_json:
        show_json([{"name": name, "description": description} for name, description in rows])
        return
    from detent.solver.views.sections import Paragraph, Table

    show([Table("Deployments", ("deployment", "description"), tuple(rows), whole=("deployment",)),
          Paragraph(("Your own: path/to/file.toml",))])

"""``detent explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli.options import deployment_option, named_program
from detent.cli.output import check_places, show
from detent.cli.progress import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command("explain", epilog="""\b
Examples:
  detent explain attention -d qwen3-30b-a3b-tp4-h200
  detent explain attention -d qwen3-30b-a3b-tp4-h200 --point num_splits
  detent explain moe -d qwen3-30b-a3b-tp4-h200 --html moe.html
  detent explain --in-force -d smollm2-135m-cpu --tuple tuple.json""")
@click.argument("program", metavar="PROGRAM", required=False, callback=named_program)
@deployment_option
@click.option("--point", metavar="P", help="One selection point: its values, and why it follows the batch.")
@click.option("--pin", metavar="P", help="One pin: candidates, what rules them out and where, and what it cuts.")
@click.option("--html", metavar="FILE", type=click.Path(dir_okay=False), help="Write the whole graph as one page.")
@click.option("--dot", is_flag=True, help="Print the cut for Graphviz.")
@click.option("--mermaid", is_flag=True, help="Print the cut as a Mermaid flowchart.")
@click.option("--in-force", is_flag=True, help="In place of one program: every selection point of the deployment.")
@click.option("--tuple", "tuple_path", metavar="FILE", type=click.Path(dir_okay=False),
              help="With --in-force: under this commitment tuple; without it as shipped.")
@click.pass_context
def explain_command(ctx: click.Context, program: str | None, deployment: str, point: str | None, pin: str | None,
                    html: str | None, dot: bool, mermaid: bool, in_force: bool, tuple_path: str | None) -> None:
    """Show the cut: what is pinned, what hangs on it, and why."""
    given = [name for name, value in (("--point", point), ("--pin", pin), ("--html", html), ("--dot", dot),
                                      ("--mermaid", mermaid), ("--in-force", in_force)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other; give one")
    if tuple_path is not None and not in_force:
        raise click.UsageError("--tuple needs --in-force", ctx)
    if in_force:
        from detent.cli.in_force import in_force as points

        if program is not None:
            raise click.UsageError(f"{program} and --in-force exclude each other", ctx)
        show(points(deployment, tuple_path))
        return
    if program is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    from detent.solver.solve import solve

    check_places(html)
    with Steps(f"{program} for {deployment}") as step:
        solution = solve(program, deployment, progress=step)
    document, graph = solution.document, solution.graph
    if html is not None:
        from detent.solver.views.page import page

        data = page(document, graph).encode()
        _write(html, data)
        click.echo(f"wrote {html} ({len(data) / 1e3:,.0f} kB): open it in a browser")
    elif dot:
        from detent.solver.views.dot import dot as written

        click.echo(written(document, graph), nl=False)
    elif mermaid:
        from detent.solver.views.mermaid import mermaid as flowchart

        click.echo(flowchart(document, graph), nl=False)
    elif point is not None:
        from detent.solver.views.one import point_table

        _check("point", point, document)
        show(point_table(document, graph, point))
    elif pin is not None:
        from detent.solver.views.one import pin_table

        _check("pin", pin, document)
        show(pin_table(document, graph, pin))
    else:
        from detent.solver.views.table import cut_table

        show(cut_table(document, graph))


def _write(path: str, data: bytes) -> None:
    from detent.runtime.encoding import write_atomic
    from detent.runtime.errors import BadFile

    try:
        write_atomic(path, data, mode=0o644)
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be written", "name a file in a folder you may write to") from None


def _check(kind: str, name: str, document: Mapping[str, Any]) -> None:
    from detent.runtime.errors import UnknownName

    known = [entry["name"] for entry in document[f"{kind}s"]]
    if name not in known:
        raise UnknownName(kind, name, known, document["program"])

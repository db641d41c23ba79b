"""The ``detent`` command group: which commands there are, and how every one of them ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from detent import __version__
from detent.cli.errors import guarded

COMMANDS = {
    "run": "run",
    "demo": "demo",
    "solve": "solve",
    "explain": "explain",
    "ablate": "ablate",
    "lint": "lint",
    "select": "select",
    "conform": "conform",
    "tuple": "tuple",
    "cache": "cache",
    "generate": "generate",
    "verify": "verify",
    "vllm": "vllm",
    "bench": "bench",
    "coverage": "coverage",
    "deployment": "deployment",
    "programs": "lists",
    "deployments": "lists",
}
"""Commands in the order of the help text, with the module in ``detent.cli`` that has each as ``<name>_command``."""


SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def debug_option() -> click.Option:
    """``--debug``, accepted before and after a command's name. :func:`guarded` looks for it itself."""
    return click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an error.")


class Commands(click.Group):
    """A group that imports a command when it is used, and turns what a user can act on into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"detent.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
            if not any(parameter.name == "debug" for parameter in each.params):
                each.params.append(debug_option())
        return command

    def resolve_command(self, ctx: click.Context,
                        args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from detent.runtime.errors import suggest

            ctx.fail(f"unknown command {args[0]!r}; {suggest(args[0], list(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, complete_var: str | None = None,
             standalone_mode: bool = True, **extra: Any) -> Any:
        """Run with ``args``. The exit code, with which the process ends if ``standalone_mode``."""
        arguments = list(sys.argv[1:] if args is None else args)

        def call() -> object:
            return super(Commands, self).main(arguments, prog_name or "detent", complete_var, standalone_mode=False,
                                              **extra)

        code = guarded(call, debug="--debug" in arguments)
        if standalone_mode:
            sys.exit(code)
        return code


@click.group(cls=Commands, params=[debug_option()], context_settings=SETTINGS,
             epilog="Programs are names (detent programs) or path.py:function; deployments are names "
                    "(detent deployments) or paths of TOML files.")
@click.version_option(__version__, prog_name="detent", message="%(prog)s %(version)s")
def detent() -> None:
    """Batch-invariant kernel selection: find what to pin, prove what it may be, and run the compiled selector."""

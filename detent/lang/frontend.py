"""Python programs as input of ``detent-opt`` and of xDSL's own ``xdsl-opt``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.frontend import Frontend

from detent.lang.builder import ModuleBuilder
from detent.lang.load import one_selection, selections
from detent.lang.run import run_text


@dataclass(frozen=True)
class PythonFrontend(Frontend):
    """Reads a Python file: every selection in it, or the one that ``function`` names, with the helpers they reach.

    Raises LanguageError, as :func:`detent.lang.builder.build_module` does.
    """

    name: ClassVar[str] = "py"  # the extension by which the driver finds it
    function: str | None = None

    def parse(self, ctx: Context, input: IO[bytes], input_name: str = "input") -> ModuleOp:
        """The module for a stream whose name is ``input_name``, a path or not."""
        path = os.path.realpath(input_name) if os.path.exists(input_name) else f"<{input_name}>"
        module = run_text(input.read(), path)
        found = selections(module)
        if self.function is not None or not found:
            one = one_selection(module, input_name, self.function)
            found = {one.__name__: one}
        builder = ModuleBuilder()
        for selection in found.values():
            builder.program(selection)
        if "selir" in ctx.registered_dialect_names:
            ctx.load_registered_dialect("selir")
        return builder.finish()

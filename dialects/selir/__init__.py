"""The ``selir`` dialect: selections as dependence graphs with Python's semantics.

An *unbound* program is what the front end reads off the Python text: structured, with collections,
calls and facts of type ``!selir.any``. Binding a deployment's facts (``selir-partial-eval``) leaves
scalars, branches and conditions; ``selir-control-dependence`` leaves one straight line.

| file | what is in it |
|---|---|
| ``semantics`` | the one table of what scalar operations mean (no xDSL in it) |
| ``types`` | ``int float f32 bool str none any``, the input-source and constant attributes |
| ``scalar`` | ``constant``, one operation a row of the table, ``lookup`` |
| ``structure`` | ``program points input knob if yield assume require pin`` |
| ``unbound`` | ``func return facts record field item tuple dict unpack call builtin lambda ...`` |
| ``dialect`` | the xDSL ``Dialect`` object and constant materialisation |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detent.dialects.selir.dialect import SELIR

__all__ = ["SELIR"]


def __getattr__(name: str) -> object:
    # The semantics table is used without xDSL; importing it must not import the operations.
    if name == "SELIR":
        from detent.dialects.selir.dialect import SELIR

        return SELIR
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What a program's author imports. The front end is ``detent.lang.frontend`` and is not imported from here."""

from __future__ import annotations

from detent.lang.shim import (
    F32,
    Request,
    Runtime,
    Table,
    Unpinnable,
    Violation,
    assume,
    ceil,
    f32,
    floor,
    knob,
    knobs,
    record,
    report,
    require,
    selection,
)

__all__ = [
    "F32",
    "Request",
    "Runtime",
    "Table",
    "Unpinnable",
    "Violation",
    "assume",
    "ceil",
    "f32",
    "floor",
    "knob",
    "knobs",
    "record",
    "report",
    "require",
    "selection",
]

"""Colours of the views: red batch-dependent Runtime inputs, purple Unpinnable ones, green pins."""

from __future__ import annotations

from collections.abc import Mapping

COLOURS: Mapping[str, tuple[str, str]] = {
    "runtime": ("#fee2e2", "#dc2626"),
    "unpinnable": ("#f3e8ff", "#9333ea"),
    "request": ("#cffafe", "#0891b2"),
    "knob": ("#fef3c7", "#b45309"),
    "pin": ("#bbf7d0", "#15803d"),
    "points": ("#dbeafe", "#1d4ed8"),
    "moving": ("#fecaca", "#b91c1c"),
    "constant": ("#f1f5f9", "#94a3b8"),
}
"""Fill and outline of a box; text on them is black."""

TINTS = ("#ea580c", "#0d9488", "#db2777", "#4f46e5", "#ca8a04", "#0284c7", "#c026d3", "#65a30d", "#92400e", "#be185d",
         "#155e75", "#a21caf")
"""Hues for the sets of inputs a value derives from, most frequent set first; none is the colour of a box above."""

FIXED_TINT = "#10b981"
"""Values that pins and knobs alone decide: related to a pin's green, but not the same."""
OTHER_TINT = "#78716c"
"""Sets behind the last hue."""

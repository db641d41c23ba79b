"""One thing that a rule has to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WARNING = "warning"
NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """``subject`` is what it is about (``knob padding``), ``place`` where that stands (``file:line``, or "" where no
    text does), ``explanation`` what holds and why it matters. ``details`` are the values behind it, JSON-ready."""

    rule: str
    severity: str
    subject: str
    place: str
    explanation: str
    details: dict[str, Any] = field(default_factory=dict)

"""What is compared: arms by name, and how each is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detent.bench.load import Server
from detent.runtime.errors import BadInput

STOCK, DETENT, TUPLE, URL = "stock", "detent", "tuple", "url"
BASE = STOCK
"""Name of the arm that the others are divided by."""


@dataclass(frozen=True)
class Spec:
    """An arm as named on a command line. ``kind``: stock, detent (the default tuple), tuple (``what`` is a file) or
    url (``what`` is an address)."""

    name: str
    kind: str
    what: str


@dataclass(frozen=True)
class Arm:
    """An arm that can be opened. ``identity``: what must be equal for its runs to be continued (a tuple's hash)."""

    name: str
    what: str
    open: Callable[[], Server]
    identity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> bool:
        """Whether the others are divided by it."""
        return self.name == BASE


def specs(texts: Sequence[str]) -> list[Spec]:
    """Arms from ``[name=]what``; ``what`` is ``stock``, ``detent``, a tuple file or a URL.

    A tuple's name is that of its file, unless given. Raises BadInput.
    """
    found: dict[str, Spec] = {}
    for text in texts:
        named = re.fullmatch(r"([\w.@+-]+)=(.+)", text)
        name, what = (named[1], named[2]) if named else ("", text)
        if what in (STOCK, DETENT):
            spec = Spec(name or what, what, what)
        elif re.match(r"https?://", what):
            if not name:
                raise BadInput(f"arm {what!r} has no name", f"name it: stock={what}")
            spec = Spec(name, URL, what)
        elif what.endswith(".json"):
            spec = Spec(name or os.path.basename(what).removesuffix(".json"), TUPLE, what)
        else:
            raise BadInput(f"unknown arm {text!r}", "an arm is stock, detent, FILE.json of a commitment tuple or "
                           "name=URL, each also as name=...")
        if spec.name in found:
            raise BadInput(f"two arms are called {spec.name}", "name them: name=FILE.json")
        if (spec.name == STOCK) != (spec.kind == STOCK) and spec.kind != URL:
            raise BadInput(f"arm {text!r}: stock is the name of the arm that the others are divided by",
                           "give it to no other arm")
        found[spec.name] = spec
    if not found:
        raise BadInput("no arm is named", "give --arms stock,detent")
    return list(found.values())

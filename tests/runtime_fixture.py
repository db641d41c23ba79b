"""A small family as the solver would store it: program texts, deployment, solution document, graph document.

Written by hand, so that the runtime is tested without the compiler.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from detent import __version__
from detent.runtime.cache import Store
from detent.runtime.deployment import Deployment, load
from detent.runtime.entry import Entry
from detent.runtime.sources import Program, SourceFile, resolve

PROGRAM = '''\
"""Tiles of rows, in splits."""

from helper import LIMIT


def tile(call, limits):
    """One selection."""
    assume(1 <= call.rows <= limits.rows)
    small = call.rows <= LIMIT  # the short kernel
    splits = 1 if small else 2 if call.rows <= 512 else 4
    stride = knob("stride", (128, 256), default=256)
    require(call.rows <= splits * stride, "splits cover the rows")
    return {"kernel": "short" if small else "long", "splits": splits, "stride": stride, "mask": call.masked}
'''
HELPER = '''\
LIMIT = 64


def unused(x):
    return x + 1
'''
DEPLOYMENT = '''\
[deployment]
name = "toy-h100"

[limits]
rows = 1024
scale = 0.5

[engine]
name = "toyengine"
version = "1.0"

[gpu]
num_sm = 132

[moe]
table = { 1 = { warps = 4, stages = 2 }, 64 = { warps = 8, stages = 3 } }
'''
READ = ("limits.rows", "moe.table", "moe.extra")


def at(line: int, column: int, text: str) -> dict[str, Any]:
    return {"file": "tile.py", "line": line, "column": column, "text": text}


COVER = "call.rows <= splits * stride"
TEMPLATE = '''\
def select(rows, masked):
    # assume 1 <= call.rows <= limits.rows (tile.py:8)
    if not (1 <= rows <= 1024):
        raise Violation("assume", "", "tile.py:8")
    # require call.rows <= splits * stride (tile.py:12)
    if not (rows <= ⟦splits⟧ * ⟦stride⟧):
        raise Violation("require", "splits cover the rows", "tile.py:12")
    return {"kernel": "short" if ⟦small⟧ else "long", "splits": ⟦splits⟧, "stride": ⟦stride⟧, "mask": masked}
'''
UNPINNED = '''\
def select(rows, masked, stride=256):
    if not (1 <= rows <= 1024):
        raise Violation("assume", "", "tile.py:8")
    small = rows <= 64
    splits = 1 if small else 2 if rows <= 512 else 4
    broken = []
    # tile.py:12
    if not (rows <= splits * stride):
        broken.append(1)
    return {"kernel": "short" if small else "long", "splits": splits, "stride": stride, "mask": masked}, broken
'''
DOCUMENT: dict[str, Any] = {
    "format": 1, "detent": __version__, "program": "tile", "family": "tile", "deployment": "toy-h100", "values": 12,
    "inputs": [
        {"name": "rows", "kind": "unpinnable", "type": "int", "domain": {"range": [1, 1024, 1]},
         "source": at(8, 16, "call.rows")},
        {"name": "masked", "kind": "request", "type": "bool", "domain": {"values": [False, True]},
         "source": at(13, 99, "call.masked")},
    ],
    "points": [
        {"name": "kernel", "type": "str", "batch_dependent": True, "constant": None, "is_constant": False,
         "pins": ["small"], "knobs": [], "requests": [], "source": at(13, 22, '"short" if small else "long"')},
        {"name": "splits", "type": "int", "batch_dependent": True, "constant": None, "is_constant": False,
         "pins": ["splits"], "knobs": [], "requests": [], "source": at(13, 62, "splits")},
        {"name": "stride", "type": "int", "batch_dependent": False, "constant": None, "is_constant": False,
         "pins": [], "knobs": ["stride"], "requests": [], "source": at(13, 80, "stride")},
        {"name": "mask", "type": "bool", "batch_dependent": False, "constant": None, "is_constant": False,
         "pins": [], "knobs": [], "requests": ["masked"], "source": at(13, 96, "call.masked")},
    ],
    "pins": [
        {"name": "small", "type": "bool", "candidates": [False, True], "exact": True,
         "replaces": "call.rows <= LIMIT", "source": at(9, 4, "small = call.rows <= LIMIT")},
        {"name": "splits", "type": "int", "candidates": [1, 2, 4], "exact": True,
         "replaces": "1 if small else 2", "source": at(10, 4, "splits = 1 if small else 2 if call.rows <= 512 else 4")},
    ],
    "knobs": [{"name": "stride", "type": "int", "values": [128, 256], "default": 256,
               "source": at(11, 13, 'knob("stride", (128, 256), default=256)')}],
    "conditions": [
        {"kind": "assume", "message": "", "text": "1 <= call.rows <= limits.rows", "pins": [], "knobs": [],
         "inputs": ["rows"], "verdict": "domain", "fails": 0,
         "source": at(8, 4, "assume(1 <= call.rows <= limits.rows)")},
        {"kind": "require", "message": "splits cover the rows", "text": COVER, "pins": ["splits"], "knobs": ["stride"],
         "inputs": ["rows"], "verdict": "sampled", "fails": 2,
         "source": at(12, 4, f'require({COVER}, "splits cover the rows")')},
    ],
    "candidates": 12, "legal": 8, "legality": {"proved": 0, "sampled": 12},
    "components": [{"names": ["small"], "legal": [[False], [True]]},
                   {"names": ["splits", "stride"], "legal": [[1, 256], [2, 256], [4, 128], [4, 256]]}],
    "refutations": [{"condition": 1, "names": ["splits", "stride"], "cases": [[[1, 128], 0], [[2, 128], 1]]}],
    "witnesses": [{"rows": 129, "masked": False}, {"rows": 257, "masked": True}],
    "default": {"small": False, "splits": 4, "stride": 256},
    "template": TEMPLATE, "key": "", "seconds": 0.1,
}
GRAPH: dict[str, Any] = {
    "strings": ["tile.py", "call.rows", "LIMIT"], "places": [[0, 8, 16, 1], [0, 9, 25, 2]], "kinds": []}
DEFAULT = DOCUMENT["default"]


def document() -> dict[str, Any]:
    """A copy, with what the cache adds to a stored one."""
    return {**copy.deepcopy(DOCUMENT), "program_key": "a" * 64, "facts": {"limits.rows": 1024}}


class Project:
    """Program, helper and deployment as files in a folder, and a cache of its own."""

    def __init__(self, folder: Path, write: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.main, self.helper = folder, folder / "tile.py", folder / "helper.py"
        self.toml, self.cache = folder / "toy.toml", folder / "cache"
        if write:
            self.main.write_text(PROGRAM)
            self.helper.write_text(HELPER)
            self.toml.write_text(DEPLOYMENT)

    def program(self) -> Program:
        return resolve(f"{self.main}:tile")

    def deployment(self) -> Deployment:
        return load(str(self.toml))

    def store(self) -> Store:
        return Store(str(self.cache))

    def put(self, store: Store | None = None, parts: tuple[tuple[str, Any], ...] = ()) -> Entry:
        files = [SourceFile("tile.py", str(self.main)), SourceFile("helper.py", str(self.helper))]
        return (store or self.store()).put_solution(
            self.program(), self.deployment(), parts, READ, files, DOCUMENT, graph=GRAPH, unpinned=UNPINNED)

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

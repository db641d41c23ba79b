"""Which rows of a table may take turns in an expert layer: those that a run on a GPU showed to give the same bits.

Every configuration of ``moe`` adds an output's products in ascending order, sixteen an instruction, into one fp32
accumulator; its row says which tile a program has and how it is fed. ``moe_agreement.json``, which
``benchmarks/moe_agreement.py`` makes of a stored run, holds the rows whose outputs were compared; it counts only for
the kernels, GPU and versions that ran.
"""

from __future__ import annotations

import functools
import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.kernels.moe import Row, row_of

DATA = "moe_agreement.json"
CODE = ("moe.py", "moe_triton.py")


@functools.cache
def data() -> dict[str, Any]:
    """``versions``: of what ran. ``code``: :func:`digest` of the kernels. ``rows``: by ``HIDDENxWIDTH`` of the layer,
    as ``BLOCK_M/BLOCK_N/BLOCK_K/GROUP_M/warps/stages``."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / DATA).read_text(encoding="utf-8"))
    return found


@functools.cache
def digest() -> str:
    """Of the kernels' code."""
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in CODE)).hexdigest()


def agreeing(hidden: int, width: int, versions: Mapping[str, str]) -> frozenset[Row]:
    """Rows that give the same bits in a layer of these widths under ``gpu``, ``torch`` and ``triton`` of ``versions``;
    none where nothing was compared."""
    if dict(versions) != data()["versions"] or digest() != data()["code"]:
        return frozenset()
    return frozenset(Row(*map(int, row.split("/"))) for row in data()["rows"].get(f"{hidden}x{width}", ()))


class ByTokens:
    """The row of a table for a number of tokens, as engines look it up: the nearest key's, the lower of two."""

    def __init__(self, table: Mapping[int, Mapping[str, Any]]) -> None:
        keys = sorted(table)
        self._ends = [(a + b) // 2 for a, b in zip(keys, keys[1:], strict=False)]
        self._rows = [table[key] for key in keys]

    def __call__(self, tokens: int) -> Mapping[str, Any]:
        return self._rows[bisect_left(self._ends, tokens)]


def may_take_turns(table: Mapping[int, Mapping[str, Any]], pinned: Mapping[str, Any], hidden: int, width: int,
                   versions: Mapping[str, str]) -> bool:
    """Whether all rows of a table, and the pinned one, were shown to give the same bits."""
    known = agreeing(hidden, width, versions)
    return all(row_of({name: value for name, value in row.items() if value is not None}) in known
               for row in (pinned, *table.values()))

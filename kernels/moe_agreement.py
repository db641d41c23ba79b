"""Which rows of a table may take turns in an expert layer: those that a run on a GPU showed to give the same bits.

Every configuration of ``moe`` adds an output's products in ascending order, sixteen an instruction, into one fp32
accumulator; its row says which tile a program has and how it is fed. ``moe_agreement.json``, which
``benchmarks/moe_agreement.py`` makes of a stored run, holds the rows whose outputs were compared; it counts only for
the kernels, GPU and versions that ran.

The kernels are ``moe_triton`` whole, and of ``moe`` what decides bits: the functions that launch and all that they use.
What the host checks before is not among them: the stored run stays evidence, because checks were rewritten since but no
launching function was.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detent.kernels.moe import Row, row_of

DATA = "moe_agreement.json"
LAUNCHING = ("moe", "align", "grouped_gemm", "activate", "combine")
CHECKS = ("_rows", "_check")
"""What ``moe`` calls to refuse arguments. The row that they make decides bits, but is compared by its values."""


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
    launches = deciding((here / "moe.py").read_text(encoding="utf-8"))
    return hashlib.sha256(launches.encode() + (here / "moe_triton.py").read_bytes()).hexdigest()


def deciding(source: str) -> str:
    """Of ``moe``'s code the launching functions, and what of the module they use, as they are parsed."""
    named = {name: node for node in ast.parse(source).body for name in _names(node)}
    found: dict[str, str] = {}
    ahead = list(LAUNCHING)
    while ahead:
        name = ahead.pop()
        if name in named and name not in found and name not in CHECKS:
            found[name] = _parsed(named[name])
            ahead += [each.id for each in ast.walk(named[name]) if isinstance(each, ast.Name)]
    return "\n".join(f"{name} {code}" for name, code in sorted(found.items()))


def _names(node: ast.stmt) -> list[str]:
    """What a statement of a module defines; imports are left out."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def _parsed(node: object) -> str:
    """As ``ast.dump`` has it, without docstrings, and alike in every Python: later ones have more fields, empty here,
    and leave empty ones out."""
    if isinstance(node, list):
        return f"[{', '.join(map(_parsed, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        fields["body"] = node.body[1:]
    return f"{type(node).__name__}({', '.join(f'{k}={_parsed(v)}' for k, v in fields.items() if v not in (None, []))})"


def agreeing(hidden: int, width: int, versions: Mapping[str, str]) -> frozenset[Row]:
    """Rows that give the same bits in a layer of these widths under ``gpu``, ``torch`` and ``triton`` of ``versions``;
    none where nothing was compared."""
    if dict(versions) != data()["versions"] or digest() != data()["code"]:
        return frozenset()
    return frozenset(Row(*map(int, row.split("/"))) for row in data()["rows"].get(f"{hidden}x{width}", ()))


class ByTokens:
    """The row of a table for a number of tokens, as engines look it up: the nearest key's, the lower of two. Rows are
    checked when it is made."""

    def __init__(self, table: Mapping[int, Mapping[str, Any]]) -> None:
        keys = sorted(table)
        self._ends = [(a + b) // 2 for a, b in zip(keys, keys[1:], strict=False)]
        self._rows = [_row(table[key]) for key in keys]

    def __call__(self, tokens: int) -> Row:
        return self._rows[bisect_left(self._ends, tokens)]


def may_take_turns(table: Mapping[int, Mapping[str, Any]], pinned: Mapping[str, Any], hidden: int, width: int,
                   versions: Mapping[str, str]) -> bool:
    """Whether all rows of a table, and the pinned one, were shown to give the same bits."""
    known = agreeing(hidden, width, versions)
    return all(_row(row) in known for row in (pinned, *table.values()))


def _row(row: Mapping[str, Any]) -> Row:
    return row_of({name: value for name, value in row.items() if value is not None})

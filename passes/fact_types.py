"""Whether a fact has the type that a program's record declares for it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

SCALARS: dict[str, type] = {"int": int, "bool": bool, "str": str, "float": float}
TABLE = "dict[int, dict[str, int]]"
"""What ``Table`` of the language stands for."""


def mismatch(value: Any, declared: str) -> str:
    """What is wrong with a value (tuples for lists), naming the place inside it; empty if it fits.

    Declared types are ``int bool str float None Table``, ``dict[K, V]``, ``tuple[T, ...]``, ``tuple[A, B]``,
    ``list[T]``, the bare collections, and unions of these. An int fits ``float``; a bool fits only ``bool``.
    """
    return _check(value, _parsed(declared.replace("Table", TABLE)))


def allows_none(declared: str) -> bool:
    """Whether the fact may be left out."""
    return mismatch(None, declared) == ""


@lru_cache(maxsize=256)
def _parsed(declared: str) -> ast.expr:
    return ast.parse(declared, mode="eval").body


def _check(value: Any, kind: ast.expr) -> str:
    if isinstance(kind, ast.BinOp):
        problems = [_check(value, kind.left), _check(value, kind.right)]
        # Of "T | None" what is wrong with T is what helps.
        return "" if "" in problems else next((p for p in problems if not p.endswith("is not None")), problems[0])
    if isinstance(kind, ast.Constant):
        return "" if value is kind.value else f"{_shown(value)} is not {kind.value!r}"
    if isinstance(kind, ast.Name):
        return _check_name(value, kind.id)
    if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name):
        parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        return _check_name(value, kind.value.id) or _check_parts(value, kind.value.id, parts)
    return f"the declared type {ast.unparse(kind)} is not one a fact can have"


def _check_name(value: Any, name: str) -> str:
    expected = SCALARS.get(name)
    if expected is not None:
        fits = type(value) is expected or (expected is float and type(value) is int)
        return "" if fits else f"{_shown(value)} is not {_article(name)}"
    if name == "dict":
        return "" if isinstance(value, Mapping) else f"{_shown(value)} is not a table"
    if name in ("tuple", "list"):
        return "" if isinstance(value, tuple) else f"{_shown(value)} is not a list"
    return f"the declared type {name} is not one a fact can have"


def _check_parts(value: Any, name: str, parts: list[ast.expr]) -> str:
    if name == "dict" and len(parts) == 2:
        for key, item in value.items():
            problem = _check(key, parts[0])
            if problem:
                return f"key {problem}"
            problem = _check(item, parts[1])
            if problem:
                return f"[{key}] {problem}"
        return ""
    if name == "list" or (len(parts) == 2 and isinstance(parts[1], ast.Constant) and parts[1].value is ...):
        parts = [parts[0]] * len(value)
    if len(parts) != len(value):
        return f"{len(value)} elements, not {len(parts)}"
    for index, (item, kind) in enumerate(zip(value, parts, strict=True)):
        problem = _check(item, kind)
        if problem:
            return f"[{index}] {problem}"
    return ""


def _article(name: str) -> str:
    return {"int": "an int", "bool": "a bool (true or false)", "str": "a string", "float": "a number"}[name]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Values of inputs as they are written on a command line: ``--inputs b=8,in_graph=true``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detent.runtime.errors import BadInput, UnknownName, shorten

FORMS = {"int": "an integer", "float": "a number", "f32": "a number", "bool": "true or false", "str": "text"}

LONGEST = 60
"""Characters of a wrong value that a message repeats."""


def parse_inputs(texts: Iterable[str], inputs: Sequence[Mapping[str, Any]], program: str) -> dict[str, Any]:
    """Values for all of a document's inputs, in their order.

    ``texts``: ``name=value`` pairs, several joined by commas. Raises UnknownName, or BadInput for an input that is
    missing, given twice, or not of its type. Domains are not checked: conditions report on them.
    """
    types = {entry["name"]: str(entry["type"]) for entry in inputs}
    values: dict[str, Any] = {}
    for pair in (pair.strip() for text in texts for pair in text.split(",") if pair.strip()):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise BadInput(f"{program}: {pair!r} gives no input a value", f"write name=value: {example(inputs)}")
        if name not in types:
            raise UnknownName("input", name, list(types), program)
        if name in values:
            raise BadInput(f"{program}: input {name} is given twice", "give each input one value")
        values[name] = _value(name, types[name], value, program)
    missing = [name for name in types if name not in values]
    if missing:
        raise BadInput(f"{program}: no value for {shorten(missing)}", f"for example: {example(inputs)}")
    return {name: values[name] for name in types}


def example(inputs: Sequence[Mapping[str, Any]]) -> str:
    """An ``--inputs`` argument with the first value of every domain."""
    pairs = [f"{entry['name']}={_first(entry['domain'])}" for entry in inputs]
    return f"--inputs {','.join(pairs)}"


def _first(domain: Mapping[str, Any]) -> str:
    value = domain["range"][0] if "range" in domain else domain["values"][0]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, kind: str, text: str, program: str) -> Any:
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind == "int":
            return int(text)
        if kind in ("float", "f32"):
            number = float(text)
            if not math.isfinite(number):
                raise ValueError
            if kind == "f32":
                from detent.runtime.selector import round32

                return round32(number)
            return number
    except (KeyError, ValueError):
        shown = repr(text) if len(text) <= LONGEST else f"{text[:LONGEST]!r}… ({len(text):,} characters)"
        raise BadInput(f"{program}: input {name} is {shown}", f"write {FORMS[kind]}") from None
    return text

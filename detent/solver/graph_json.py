"""A graph as a flat JSON document and back, for the cache.

Texts and locations are stored once and referred to by index. Values keep their types: JSON tells bool
from int and int from float, Python writes a finite float so that it reads back to the same bits, and
what JSON has no spelling for (tuples, non-finite floats) is a list that starts with its tag.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from detent.passes.graph import Condition, Graph, Input, Knob, Location

FORMAT = 1
_DOUBLE = struct.Struct(">d")


class _Interned:
    """Distinct items in order of first use, and their indices."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def __call__(self, item: Any) -> int:
        return self.index.setdefault(item, len(self.index))

    def items(self) -> list[Any]:
        return list(self.index)


def graph_document(graph: Graph) -> dict[str, Any]:
    """The graph as dicts, lists and JSON scalars only.

    Raises TypeError for node data that is not a scalar, a tuple of scalars, an input, a knob or lookup rows.
    """
    strings, places = _Interned(), _Interned()

    def at(location: Location | None) -> int:
        if location is None:
            return -1
        return places((strings(location.file), location.line, location.column, strings(location.text)))

    nodes = {
        "kinds": [strings(kind) for kind in graph.kinds],
        "args": [list(args) for args in graph.args],
        "types": [strings(type) for type in graph.types],
        "names": [strings(name) for name in graph.names],
        "locations": [at(location) for location in graph.locations],
        "scopes": list(graph.scopes),
    }
    conditions = [[c.kind, c.message, c.root, at(c.location)] for c in graph.conditions]
    data = [[i, _pack(kind, value)] for i, (kind, value) in enumerate(zip(graph.kinds, graph.data, strict=True))
            if kind == "constant" or value is not None]
    return {
        "format": FORMAT, "name": graph.name, "family": graph.family, **nodes, "data": data,
        "guards": [[node, guard] for node, guard in graph.guards.items()],
        "points": [[name, node] for name, node in graph.points],
        "conditions": conditions, "strings": strings.items(), "places": [list(p) for p in places.items()],
    }


def graph_from_document(document: Mapping[str, Any]) -> Graph:
    """The graph that :func:`graph_document` wrote. Raises ValueError for another format or a damaged document."""
    if document.get("format") != FORMAT:
        raise ValueError(f"graph document of format {document.get('format')!r}, not {FORMAT}")
    try:
        return _read(document)
    except (KeyError, IndexError, TypeError, struct.error) as error:
        raise ValueError(f"damaged graph document: {error!r}") from error


def _read(document: Mapping[str, Any]) -> Graph:
    strings = document["strings"]
    places = [Location(strings[file], line, column, strings[text]) for file, line, column, text in document["places"]]

    def at(index: int) -> Location | None:
        return None if index < 0 else places[index]

    kinds = [strings[i] for i in document["kinds"]]
    data: list[Any] = [None] * len(kinds)
    for node, packed in document["data"]:
        data[node] = _unpack(kinds[node], packed)
    graph = Graph(
        name=document["name"], family=document["family"], kinds=kinds,
        args=[tuple(args) for args in document["args"]], data=data,
        types=[strings[i] for i in document["types"]], names=[strings[i] for i in document["names"]],
        locations=[at(i) for i in document["locations"]], scopes=list(document["scopes"]),
        guards={node: guard for node, guard in document["guards"]},
        points=[(name, node) for name, node in document["points"]],
        conditions=[Condition(kind, message, root, at(place)) for kind, message, root, place in document["conditions"]],
    )
    lengths = {len(column) for column in (graph.args, graph.types, graph.names, graph.locations, graph.scopes)}
    if lengths - {len(kinds)}:
        raise ValueError(f"damaged graph document: columns of {sorted(lengths)} entries for {len(kinds)} nodes")
    return graph


def _pack(kind: str, value: Any) -> Any:
    if kind == "input":
        return [value.name, value.source]
    if kind == "knob":
        return [value.name, _pack_all(value.values), _pack_value(value.default)]
    if kind == "lookup":
        return [_pack_all(key for key, _ in value), _pack_all(result for _, result in value)]
    return _pack_value(value)


def _unpack(kind: str, packed: Any) -> Any:
    if kind == "input":
        return Input(*packed)
    if kind == "knob":
        name, values, default = packed
        return Knob(name, _unpack_all(values), _unpack_value(default))
    if kind == "lookup":
        return tuple(zip(*map(_unpack_all, packed), strict=True))
    return _unpack_value(packed)


def _pack_all(values: Iterable[Any]) -> list[Any]:
    return [_pack_value(value) for value in values]


def _unpack_all(packed: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(_unpack_value(value) for value in packed)


def _pack_value(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return ["double", _DOUBLE.pack(value).hex()]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return ["tuple", *_pack_all(value)]
    raise TypeError(f"{type(value).__name__} is no value of a graph")


def _unpack_value(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed
    tag, *rest = packed
    return _unpack_all(rest) if tag == "tuple" else _DOUBLE.unpack(bytes.fromhex(rest[0]))[0]

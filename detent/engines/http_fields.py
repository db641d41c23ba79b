"""The fields of a server's replies, each checked to be what it must be before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.runtime.errors import DetentError, brief_repr

LARGEST_ID, LARGEST_COUNT = (1 << 24) - 1, (1 << 40)
"""No vocabulary has larger token ids, and no reply counts or context has so many tokens."""


class Malformed(DetentError):
    """A reply in which a field is not what it must be."""

    def __init__(self, name: str, value: Any, kind: str, where: str = "") -> None:
        super().__init__(f"{where}{name} in the reply is {brief_repr(value)}, which is no {kind}",
                         "check that an OpenAI-compatible server runs there")
        self.args = name, value, kind, where

    def of(self, where: str) -> Malformed:
        """The same, with where the reply came from."""
        name, value, kind, _ = self.args
        return Malformed(name, value, kind, f"{where}: ")


def field(reply: Any, name: str, *path: str) -> tuple[str, Any]:
    """A field of a reply that consists of objects, by its full name, and its value; None where it is not told."""
    whole = name
    for part in path:
        if reply is None:
            return ".".join((whole, *path[path.index(part):])), None
        if not isinstance(reply, Mapping):
            raise Malformed(whole, reply, "JSON object")
        reply, whole = reply.get(part), f"{whole}.{part}"
    return whole, reply


def count(name: str, value: Any, most: int = LARGEST_COUNT) -> int | None:
    """A whole number from 0 on, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Malformed(name, value, "whole number of tokens")
    return value


def text(name: str, value: Any) -> str:
    """A text; none is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(name, value, "text")
    return value


def entries(name: str, value: Any) -> list[Any]:
    """A list; none is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(name, value, "list")
    return value


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """A list of token ids; none is an empty one."""
    found = entries(name, value)
    for place, token in enumerate(found):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= LARGEST_ID:
            raise Malformed(f"{name}[{place}]", token, "token id")
    return tuple(found)


def models(reply: Mapping[str, Any]) -> list[tuple[str, int | None]]:
    """Names and contexts that ``/v1/models`` lists; a context that is not told, or 0, is None."""
    found = []
    for place, entry in enumerate(entries("data", reply.get("data"))):
        whole = f"data[{place}]"
        if not isinstance(entry, Mapping):
            raise Malformed(whole, entry, "JSON object")
        if not isinstance(entry.get("id"), str):
            raise Malformed(f"{whole}.id", entry.get("id"), "text")
        contexts = [count(f"{whole}.{key}", entry.get(key)) for key in ("max_model_len", "max_context_length")]
        found.append((entry["id"], next(filter(None, contexts), None)))
    return found


def posts(reply: Mapping[str, Any], path: str) -> bool:
    """Whether ``/openapi.json`` lists a path for POST."""
    return field(reply, "/openapi.json", "paths", path, "post")[1] is not None


def cached_tokens(piece: Mapping[str, Any]) -> int | None:
    """Prompt tokens from the prefix cache, as the usage of a reply tells."""
    return count(*field(piece.get("usage"), "usage", "prompt_tokens_details", "cached_tokens"))


def choices(piece: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The choices of a piece. Raises DetentError for a piece that has none, not even an empty list."""
    found = piece.get("choices")
    if not isinstance(found, list) or not all(isinstance(choice, Mapping) for choice in found):
        raise DetentError("a reply that is no completion: its choices are not a list of JSON objects",
                          "check that an OpenAI-compatible server runs there")
    return found

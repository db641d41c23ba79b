"""Deployments: the facts known before serving, one TOML file each.

A section of the file is what one record of a program reads (``class Gpu`` reads ``[gpu]``). A value is a
finite number, a bool, a string, a list of those, or a table with integer keys whose rows are objects;
a table may stand in a JSON file: ``table = { json = "path", drop = ["triton_version"] }``.
"""

from __future__ import annotations

import os

from detent.runtime.encoding import strict_json, strict_toml
from detent.runtime.errors import BadFile, UnknownName, brief_repr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs")
FOLDER = os.path.join(PROGRAMS, "deployments")
"""Where the deployments that come with Detent stand, in a checkout and in an installed package alike."""


KEY_DIGITS = 18
"""Digits of a row's key in a table; every such number has 64 bits."""


class Deployment:
    """``name``, ``description``, ``facts`` (``{section: {name: value}}``), ``path`` of the TOML file, ``files`` read.

    Tables are dicts with int keys in the order of their file; lists are tuples. ``sources``: ``section.name`` of each
    fact that stands in a file of its own, and that file.
    """

    __slots__ = ("description", "facts", "files", "name", "path", "sources")

    def __init__(self, name: str, facts: dict[str, dict[str, Any]], path: str = "", files: tuple[str, ...] = (),
                 description: str = "", sources: dict[str, str] | None = None) -> None:
        self.name, self.facts, self.path, self.files, self.description = name, facts, path, files, description
        self.sources = sources or {}

    @property
    def id(self) -> str:
        """What names this deployment on a command line: its name if it comes with Detent, else its path."""
        return self.name if os.path.dirname(self.path) == FOLDER or not self.path else self.path

    def __repr__(self) -> str:
        return f"Deployment({self.name!r}, path={self.path!r})"


def known() -> list[str]:
    """Names of the deployments that come with Detent, sorted."""
    if not os.path.isdir(FOLDER):
        return []
    return sorted(name[:-5] for name in os.listdir(FOLDER) if name.endswith(".toml"))


def load(name_or_path: str, parse: Callable[[bytes], dict[str, Any]] = strict_toml) -> Deployment:
    """The deployment of that name, or of a file if the argument ends in ``.toml``.

    ``parse``: :meth:`detent.runtime.cache.Store.toml` where a parsed file may be remembered.
    Raises UnknownName for an unknown name, BadFile for a file that is missing or wrong.
    """
    if name_or_path.endswith(".toml"):
        path, expected = os.path.abspath(name_or_path), None
    else:
        path, expected = os.path.join(FOLDER, f"{name_or_path}.toml"), name_or_path
        if os.path.basename(name_or_path) != name_or_path or not os.path.isfile(path):
            raise UnknownName("deployment", name_or_path, known())
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be read", "give the path of a deployment's TOML file") from None
    return loads(text, path, expected, parse)


def loads(text: bytes, path: str, expected: str | None = None,
          parse: Callable[[bytes], dict[str, Any]] = strict_toml) -> Deployment:
    """The deployment that a file at ``path`` with this text is; its name must be ``expected`` where that is given."""
    sections = _sections(text, path, parse)
    header = sections.pop("deployment", {})
    name = header.get("name", os.path.basename(path)[:-5])
    if expected is not None and name != expected:
        raise BadFile(path, f"[deployment] name is {name!r}", f"name it {expected!r}, as its file")
    sources: dict[str, str] = {}
    facts = {section: {key: _value(path, f"{section}.{key}", value, sources) for key, value in table.items()}
             for section, table in sections.items()}
    return Deployment(name, facts, path, (path, *sources.values()), header.get("description", ""), sources)


def _sections(text: bytes, path: str, parse: Callable[[bytes], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    try:
        sections = parse(text)
    except ValueError as error:
        raise BadFile(path, f"is not TOML: {error}", "correct the file there") from None
    for section, table in sections.items():
        if not isinstance(table, dict):
            raise BadFile(path, f"{section} stands outside of a section", "move it below the [section] it belongs to")
    for key, value in sections.get("deployment", {}).items():
        if key not in ("name", "description"):
            raise UnknownName("key", key, ("name", "description"), f"{path}: deployment")
        if not isinstance(value, str):
            raise BadFile(path, f"deployment.{key} is {brief_repr(value)}", "write a string")
    return sections


def _value(path: str, place: str, value: Any, sources: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if "json" not in value:
            return _table(path, place, value)
        return _json_table(path, place, value, sources)
    if isinstance(value, list):
        return tuple(_scalar(path, f"{place}[{i}]", item) for i, item in enumerate(value))
    return _scalar(path, place, value)


def _scalar(path: str, place: str, value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise BadFile(path, f"{place} is of type {type(value).__name__}",
                      "a fact is a number, a bool, a string, a list of those, or a table with integer keys")
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        raise BadFile(path, f"{place} is {value}", "a fact is a finite number")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise BadFile(path, f"{place} is an integer of {value.bit_length()} bits", "an integer fact has at most 64")
    return value


def _json_table(path: str, place: str, reference: dict[str, Any], sources: dict[str, str]) -> dict[int, Any]:
    for key in reference:
        if key not in ("json", "drop"):
            raise UnknownName("key", key, ("json", "drop"), f"{path}: {place}")
    name, drop = reference["json"], reference.get("drop", [])
    if not isinstance(name, str) or not isinstance(drop, list) or not all(isinstance(d, str) for d in drop):
        raise BadFile(path, f"{place}: json is a path and drop a list of keys")
    source = _find(path, place, name)
    sources[place] = source
    try:
        with open(source, encoding="utf-8") as file:
            content = strict_json(file.read())
    except OSError as error:
        raise BadFile(source, error.strerror or "cannot be read", f"{path}: {place} names it") from None
    except ValueError as error:
        raise BadFile(source, f"is not a JSON table: {error}", f"{path}: {place} names it") from None
    if not isinstance(content, dict):
        raise BadFile(source, f"holds a {type(content).__name__}, not an object", f"{path}: {place} names it")
    for key in drop:
        if key not in content:
            raise UnknownName("key to drop", key, list(content), f"{path}: {place}: {source}")
        del content[key]
    return _table(source, "", content)


def _find(path: str, place: str, name: str) -> str:
    candidates = [os.path.normpath(os.path.join(base, name)) for base in (os.path.dirname(path), PROGRAMS)]
    for candidate in candidates:
        if os.path.isfile(candidate):
            return candidate
    raise BadFile(path, f"{place}: there is no file {candidates[0]}",
                  "give a path relative to this file or to the installed detent/programs")


def _table(path: str, place: str, content: dict[str, Any]) -> dict[int, Any]:
    """Rows under integer keys, in order. The keys come as strings from JSON and TOML alike."""
    prefix = f"{place}: " if place else ""
    table: dict[int, Any] = {}
    for key, row in content.items():
        digits = key.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()):
            raise BadFile(path, f"{prefix}key {brief_repr(key)} is not an integer",
                          "a table of facts has integer keys; name others in drop = [...] of a json table")
        if len(digits) > KEY_DIGITS:
            raise BadFile(path, f"{prefix}a key has {len(digits)} digits", f"a row's key has at most {KEY_DIGITS}")
        number = int(key)
        if number in table:
            raise BadFile(path, f"{prefix}key {number} appears twice")
        if not isinstance(row, dict):
            raise BadFile(path, f"{prefix}key {key!r} holds {brief_repr(row)}, not an object")
        table[number] = {name: _scalar(path, f"{prefix}{key}.{name}", value) for name, value in row.items()}
    if not table:
        raise BadFile(path, f"{prefix}has no rows", "leave the fact out where there is no table")
    return table

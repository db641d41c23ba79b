"""What becomes of each of an engine's batch-dependent selections: ``programs/coverage/<engine>-<version>.toml``.

A row is *covered* by programs, *switched-off* by settings made before the engine starts, or *refused* by checks at its
start. The plug-ins set what :meth:`Coverage.switches` says and stop on what :meth:`Coverage.refusals` says;
:meth:`Coverage.problems` compares both with a configuration as it is.
"""

from __future__ import annotations

import os
import re

from detent.runtime.deployment import PROGRAMS
from detent.runtime.encoding import strict_toml
from detent.runtime.errors import BadFile, UnknownName
from detent.runtime.settings import FactValue, check_of, switch_of, text
from detent.runtime.sources import registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from detent.runtime.settings import Check, Switch

FOLDER = os.path.join(PROGRAMS, "coverage")
STATUSES = ("covered", "switched-off", "refused")
KEYS = ("id", "what", "where", "reads", "status", "by", "why")
ID = re.compile(r"(E[123]|X)-\d\d[a-z]?")


class Row:
    """One selection: ``id``, ``what``, ``where`` (files of the engine), ``reads`` (of the batch), ``status``, ``why``,
    and by what: ``programs`` (covered), ``switches`` (switched-off) or ``checks`` (refused)."""

    __slots__ = ("checks", "id", "programs", "reads", "status", "switches", "what", "where", "why")

    def __init__(self, id: str, what: str, where: tuple[str, ...], reads: tuple[str, ...], status: str, why: str,
                 programs: tuple[str, ...], switches: tuple[Switch, ...], checks: tuple[Check, ...]) -> None:
        self.id, self.what, self.where, self.reads, self.status, self.why = id, what, where, reads, status, why
        self.programs, self.switches, self.checks = programs, switches, checks

    @property
    def by(self) -> list[str]:
        """What covers it, switches it off or refuses it, as text."""
        return [str(each) for each in (*self.programs, *self.switches, *self.checks)]

    def __repr__(self) -> str:
        return f"Row({self.id!r}, {self.status!r})"


class Coverage:
    """The rows of one engine version, in the order of the file at ``path``."""

    __slots__ = ("engine", "path", "rows", "version")

    def __init__(self, engine: str, version: str, path: str, rows: tuple[Row, ...]) -> None:
        self.engine, self.version, self.path, self.rows = engine, version, path, rows

    def row(self, id: str) -> Row:
        """The row of an id. Raises UnknownName."""
        for row in self.rows:
            if row.id == id:
                return row
        raise UnknownName("row", id, [row.id for row in self.rows], f"coverage of {self.engine} {self.version}")

    def programs(self) -> set[str]:
        """Names of the programs that cover a row."""
        return {name for row in self.rows for name in row.programs}

    def switches(self) -> list[Switch]:
        """Settings to make before the engine starts, each once; ``Switch.of`` fills in what is a fact's."""
        return list(dict.fromkeys(switch for row in self.rows for switch in row.switches))

    def refusals(self) -> list[Check]:
        """Conditions without which the engine must not start, each once."""
        return list(dict.fromkeys(check for row in self.rows for check in row.checks))

    def problems(self, value_of: Callable[[str, str], Any]) -> list[str]:
        """What keeps a configuration from being served, a line each; empty if nothing does.

        ``value_of(kind, name)`` reads an option, a variable or a fact; None is what is not set.
        """
        lines = []

        def fact(name: str) -> Any:
            return value_of("fact", name)

        for switch in (each.of(fact) for each in self.switches()):
            found = value_of(switch.kind, switch.name)
            if not switch.is_set(found):
                lines.append(f"{switch.name} is {text(found)}: set {switch}; {switch.why} ({', '.join(switch.rows)})")
        for check in (each.of(fact) for each in self.refusals()):
            found = value_of(check.kind, check.name)
            if not check.allows(found):
                lines.append(f"{check.name} is {text(found)}, served where {check}; {check.why} "
                             f"({', '.join(check.rows)})")
        return lines


def known() -> dict[str, list[str]]:
    """The engines with their versions that have a table, both sorted."""
    found: dict[str, list[str]] = {}
    if os.path.isdir(FOLDER):
        for name in sorted(os.listdir(FOLDER)):
            engine, dash, version = name.removesuffix(".toml").partition("-")
            if name.endswith(".toml") and dash:
                found.setdefault(engine, []).append(version)
    return found


def require_known(engine: str, version: str, where: str = "") -> None:
    """Raises UnknownName for an engine, or a version of it, whose selections nobody has read."""
    versions = known()
    if engine not in versions:
        raise UnknownName("engine", engine, versions, where)
    if version not in versions[engine]:
        raise UnknownName(f"version of {engine}", version, versions[engine], where)


def load(engine: str, version: str | None = None) -> Coverage:
    """The table of an engine; without ``version`` that of the last one in :func:`known`.

    Raises UnknownName for an engine or version without a table, BadFile for a table that is wrong.
    """
    if version is None:
        versions = known().get(engine)
        if not versions:
            raise UnknownName("engine", engine, known())
        version = versions[-1]
    require_known(engine, version)
    return read(os.path.join(FOLDER, f"{engine}-{version}.toml"), engine, version)


def read(path: str, engine: str, version: str) -> Coverage:
    """The table in a file. Raises BadFile, which names the row."""
    try:
        with open(path, "rb") as file:
            content = strict_toml(file.read())
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be read") from None
    except ValueError as error:
        raise BadFile(path, f"is not TOML: {error}") from None
    if (content.get("engine"), content.get("version")) != (engine, version):
        raise BadFile(path, f"is for {content.get('engine')} {content.get('version')}, not {engine} {version}")
    entries = content.get("row")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadFile(path, "has no [[row]]")
    rows = tuple(_row(path, number, entry) for number, entry in enumerate(entries, 1))
    _share(rows)
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise BadFile(path, f"row {row.id} appears twice")
        seen.add(row.id)
    coverage = Coverage(engine, version, path, rows)
    _refuse_conflicts(coverage)
    return coverage


def _row(path: str, number: int, entry: Mapping[str, Any]) -> Row:
    place = f"row {entry.get('id', number)}"
    for key in entry:
        if key not in KEYS:
            raise UnknownName("key", key, KEYS, f"{path}: {place}")
    for key in KEYS:
        if key not in entry:
            raise BadFile(path, f"{place} has no {key}")
        kind = list if key in ("where", "reads", "by") else str
        if not isinstance(entry[key], kind):
            raise BadFile(path, f"{place}: {key} is {entry[key]!r}", f"write a {'list' if kind is list else 'string'}")
    for key in ("where", "reads"):
        if not all(isinstance(item, str) for item in entry[key]):
            raise BadFile(path, f"{place}: {key} is a list of strings")
    if not ID.fullmatch(entry["id"]):
        raise BadFile(path, f"{place}: an id reads E1-03, E1-03a or X-03")
    if not (entry["what"] and entry["why"] and entry["where"] and entry["by"]):
        raise BadFile(path, f"{place}: what, why, where or by is empty")
    status, by, why = entry["status"], entry["by"], entry["why"]
    if status not in STATUSES:
        raise UnknownName("status", status, STATUSES, f"{path}: {place}")
    programs: tuple[str, ...] = ()
    switches: tuple[Switch, ...] = ()
    checks: tuple[Check, ...] = ()
    if status == "covered":
        programs = tuple(_program(path, place, name) for name in by)
    elif status == "switched-off":
        switches = tuple(switch_of(path, place, each, entry["id"], why) for each in by)
    else:
        checks = tuple(check_of(path, place, each, entry["id"], why) for each in by)
    return Row(entry["id"], entry["what"], tuple(entry["where"]), tuple(entry["reads"]), status, why, programs,
               switches, checks)


def _program(path: str, place: str, name: Any) -> str:
    if not isinstance(name, str) or name not in registry():
        raise UnknownName("program", str(name), sorted(registry()), f"{path}: {place}")
    return name


def _refuse_conflicts(coverage: Coverage) -> None:
    """A setting has one value, and no check stops the engine for a value that the plug-in sets."""
    switches = coverage.switches()
    for i, switch in enumerate(switches):
        for other in switches[:i]:
            if (switch.kind, switch.name) == (other.kind, other.name) and not (switch.has and other.has):
                raise BadFile(coverage.path, f"rows {other.rows[0]} and {switch.rows[0]} set {switch.name} differently")
        for check in coverage.refusals():
            if (switch.kind, switch.name) == (check.kind, check.name) and _refuses(check, switch):
                raise BadFile(coverage.path, f"row {check.rows[0]} refuses what row {switch.rows[0]} sets: {switch}")


def _refuses(check: Check, switch: Switch) -> bool:
    """Whether a check stops the engine for what a switch sets, whatever the deployment's facts are."""
    if isinstance(switch.value, FactValue):
        return switch.value != check.at_most
    return not check.allows(switch.value)


def _share(rows: Iterable[Row]) -> None:
    """Make equal settings of several rows one setting, with the ids of all of them."""
    found: dict[tuple[str, str], Any] = {}

    def shared(one: Any) -> Any:
        first = found.setdefault((one.kind, str(one)), one)
        if first is not one:
            first.rows += one.rows
        return first

    for row in rows:
        row.switches, row.checks = tuple(map(shared, row.switches)), tuple(map(shared, row.checks))

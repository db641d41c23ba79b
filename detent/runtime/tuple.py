"""The commitment tuple: one legal value for every pin and knob of all families, and what it holds for.

A JSON file. Outputs are the same only under the same tuple, so its hash covers everything that could change
a bit: program texts, the facts they read, the values, and the environment. Parts that are unknown where the
tuple is written are open (``null``); the first start on the target machine binds them, and the bound tuple's
hash is the one that counts::

    {"format": 1, "deployment": "...", "hash": "...",
     "families": {"attention": {"program": "attention", "key": "...", "facts": {"gpu.num_sm": 132, ...},
                                "pins": {"num_splits": 4, ...}, "knobs": {"split_stride": 256}}},
     "environment": {"detent": "0.1.0", "kernels": null, "torch": null, ...}}
"""

from __future__ import annotations

import json

from detent.runtime.encoding import canonical, new_file_mode, sha256, strict_json, write_atomic
from detent.runtime.errors import BadFile, DetentError, TupleMismatch, UnknownName, brief_repr, shorten
from detent.runtime.repin import Repin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

FORMAT = 1
ENVIRONMENT = ("detent", "kernels", "torch", "triton", "cuda", "gpu", "engine", "model", "weights")
"""Environment parts: Detent's version, identity of kernel sources or binaries (a string, or one for each kernel),
library versions, GPU, engine build, model, identity of its weights."""
FAMILY = ("program", "key", "facts", "pins", "knobs")
REMEDY = "give a file that detent tuple new wrote"


def here() -> dict[str, Any]:
    """The environment parts that every process knows of itself."""
    from detent import __version__

    return {"detent": __version__}


def new_command(program_id: str, deployment_id: str) -> str:
    """The command that writes a tuple with this program (an ``id`` of each, as on a command line)."""
    import shlex

    from detent.runtime.sources import registry

    program = [] if program_id in registry() else ["--program", program_id]
    return shlex.join(["detent", "tuple", "new", "--deployment", deployment_id, *program, "FILE"])


class Difference:
    """One part in which a tuple does not match: ``expected`` is the tuple's, ``found`` what is there."""

    __slots__ = ("expected", "found", "part")

    def __init__(self, part: str, expected: Any, found: Any) -> None:
        self.part, self.expected, self.found = part, expected, found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Difference) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{self.part}: the tuple has {_shown(self.expected)}, found {_shown(self.found)}"

    def __repr__(self) -> str:
        return f"Difference({str(self)!r})"


class CommitmentTuple:
    """One tuple; ``families`` and ``environment`` as in the file. Not changed once it is made.

    ``where`` is what messages call it: the file it was loaded from.
    """

    def __init__(self, deployment: str, families: Mapping[str, Mapping[str, Any]],
                 environment: Mapping[str, Any], where: str = "commitment tuple") -> None:
        self.deployment, self.where = deployment, where
        self.families = {name: dict(part) for name, part in families.items()}
        self.environment = {name: environment.get(name) for name in ENVIRONMENT}

    @classmethod
    def new(cls, deployment: str, solutions: Mapping[str, Mapping[str, Any]], choices: Mapping[str, Any] | None = None,
            environment: Mapping[str, Any] | None = None) -> CommitmentTuple:
        """The whole tuple for a deployment's solutions (``{family: document}``), defaults where nothing is chosen.

        ``choices``: ``{"family.name": value}``; a string is read as the pin's type, as from a command line. Raises
        UnknownName or NotLegal. Environment parts that are not given stay open.
        """
        repins = {family: Repin(document) for family, document in solutions.items()}
        chosen: dict[str, dict[str, Any]] = {family: {} for family in repins}
        for place, value in (choices or {}).items():
            family, dot, name = place.partition(".")
            if not dot or family not in repins:
                raise UnknownName("family", family, list(repins), place)
            chosen[family][name] = repins[family].parse(name, value) if isinstance(value, str) else value
        families = {}
        for family, repin in repins.items():
            assignment = repin.complete(chosen[family])
            repin.check(assignment)
            document = repin.document
            families[family] = {
                "program": document["program"], "key": document["program_key"], "facts": dict(document["facts"]),
                "pins": {pin["name"]: assignment[pin["name"]] for pin in document["pins"]},
                "knobs": {knob["name"]: assignment[knob["name"]] for knob in document["knobs"]},
            }
        versions = {document["detent"] for document in solutions.values()}
        _check_environment(environment or {}, "environment")
        return cls(deployment, families, {"detent": max(versions, default=None), **(environment or {})})

    @classmethod
    def load(cls, path: str) -> CommitmentTuple:
        """The tuple of a file. Raises BadFile, UnknownName for an unknown key, TupleMismatch for a wrong hash."""
        try:
            with open(path, encoding="utf-8") as file:
                content = strict_json(file.read())
        except OSError as error:
            import shlex

            raise BadFile(path or "''", error.strerror or "cannot be read",
                          f"write one: detent tuple new --deployment D {shlex.quote(path or 'FILE')}") from None
        except ValueError as error:
            raise BadFile(path, f"is not JSON: {error}", REMEDY) from None
        result, stored = _read(path, content)
        if stored != result.hash:
            raise TupleMismatch(path, [Difference("hash", stored, result.hash)],
                                "it was edited after it was written: write a new one with detent tuple new --set")
        return result

    def content(self) -> dict[str, Any]:
        """Everything the hash covers."""
        return {"format": FORMAT, "deployment": self.deployment, "families": self.families,
                "environment": self.environment}

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON of all parts, open ones included."""
        return sha256(canonical(self.content()).encode())

    def write(self, path: str) -> None:
        """Write the file, in one step where it is an ordinary one. Raises BadFile."""
        text = json.dumps({**self.content(), "hash": self.hash}, sort_keys=True, indent=2, allow_nan=False)
        try:
            write_atomic(path, f"{text}\n".encode(), mode=new_file_mode(), sync=True)
        except OSError as error:
            raise BadFile(path or "''", error.strerror or "cannot be written",
                          "name a file in a folder you may write to") from None

    def open_parts(self) -> list[str]:
        """Environment parts that are still unknown."""
        return [name for name in ENVIRONMENT if self.environment[name] is None]

    def bind(self, environment: Mapping[str, Any]) -> CommitmentTuple:
        """The tuple with open parts taken from the environment. Raises TupleMismatch where a known part differs.

        Detent's version counts as known.
        """
        _check_environment(environment, "environment")
        environment = {**here(), **environment}
        differences = self._environment_differences(environment)
        if differences:
            raise TupleMismatch(self.where, differences,
                                "start in the environment it was bound in, or write a new tuple")
        bound = {name: environment.get(name) if value is None else value for name, value in self.environment.items()}
        return CommitmentTuple(self.deployment, self.families, bound, self.where)

    def assignment(self, family: str) -> dict[str, Any]:
        """Pins and knobs of one family. Raises UnknownName."""
        if family not in self.families:
            raise UnknownName("family", family, list(self.families), self.where)
        part = self.families[family]
        return {**part["pins"], **part["knobs"]}

    def assignment_for(self, solution: Mapping[str, Any], program_id: str, deployment_id: str) -> dict[str, Any]:
        """Pins and knobs for a solution; does not check that they are legal.

        ``solution``: a document, or its ``family``, ``program``, ``program_key``, ``deployment`` and ``facts``. The
        ids are for the remedy. Raises TupleMismatch if the tuple is for something else, DetentError if it lacks
        the family.
        """
        command = new_command(program_id, deployment_id)
        differences = [*self._family_differences(solution), *self._environment_differences(here())]
        if differences:
            raise TupleMismatch(self.where, differences, f"use this deployment's tuple or write one: {command}")
        family = solution["family"]
        if family not in self.families:
            raise DetentError(f"{self.where}: families lacks {family}, it has {shorten(list(self.families))}",
                              f"write one with it: {command}")
        return self.assignment(family)

    def _family_differences(self, solution: Mapping[str, Any]) -> list[Difference]:
        """How one family's solution differs from what the tuple was written for; its deployment if that has none."""
        family, deployment = solution["family"], solution["deployment"]
        differences = [] if deployment == self.deployment else [Difference("deployment", self.deployment, deployment)]
        part = self.families.get(family)
        if part is None:
            return differences
        if part["program"] != solution["program"]:
            differences.append(Difference(f"{family}.program", part["program"], solution["program"]))
        if part["key"] != solution["program_key"]:
            differences.append(Difference(f"{family}.program ({part['program']})", part["key"],
                                          solution["program_key"]))
        facts = solution["facts"]
        for name in sorted({*part["facts"], *facts}):
            old, new = (side.get(name, "not read") for side in (part["facts"], facts))
            if canonical(old) != canonical(new):
                differences.append(Difference(f"{family}.facts.{name}", old, new))
        return differences

    def _environment_differences(self, environment: Mapping[str, Any]) -> list[Difference]:
        known = [(name, expected, environment[name]) for name, expected in self.environment.items()
                 if expected is not None and environment.get(name) is not None]
        return [Difference(f"environment.{name}", expected, found) for name, expected, found in known
                if canonical(expected) != canonical(found)]


def check(commitment: CommitmentTuple, solutions: Mapping[str, Mapping[str, Any]],
          environment: Mapping[str, Any] | None = None, *, whole: bool = True) -> list[Difference]:
    """Which parts differ from the solutions (``{family: document}``) and, where known on both sides, the environment.

    Detent's version counts as known. With ``whole`` False, families that are not among the solutions are left out.
    A family whose program and facts match must also have a legal assignment: a name, value or family too many
    or missing raises (UnknownName, DetentError, NotLegal). Where they differ, or the tuple is for another
    deployment, that difference is the answer.
    """
    where = commitment.where
    _check_environment(environment or {}, "environment")
    differences: dict[Difference, None] = {}
    for document in solutions.values():
        differences.update(dict.fromkeys(commitment._family_differences(document)))
    elsewhere = any(document["deployment"] != commitment.deployment for document in solutions.values())
    missing = [family for family in commitment.families if whole and family not in solutions]
    for family in missing:
        program = commitment.families[family]["program"]
        if not elsewhere:
            raise DetentError(f"{where}: nothing to compare family {family} with, which is of program {program}; "
                              f"there is {shorten(list(solutions))}", "name every program of the tuple with --program")
        differences[Difference(f"families.{family}", program, None)] = None
    for family, document in solutions.items():
        if family in commitment.families:
            if not commitment._family_differences(document):
                _check_assignment(commitment, document)
        elif elsewhere:
            differences[Difference(f"families.{family}", None, document["program"])] = None
        else:
            raise DetentError(f"{where}: families lacks {family}",
                              "write one for all families with detent tuple new, or name with --program what it has")
    known = {**here(), **(environment or {})}
    differences.update(dict.fromkeys(commitment._environment_differences(known)))
    return list(differences)


def _check_assignment(commitment: CommitmentTuple, document: Mapping[str, Any]) -> None:
    """Raise unless the names and values of a family are legal ones of its solution."""
    family = document["family"]
    for kind in ("pins", "knobs"):
        names = [item["name"] for item in document[kind]]
        for name in commitment.families[family][kind]:
            if name not in names:
                raise UnknownName(kind[:-1], name, names, f"{commitment.where}: families.{family}.{kind}")
    Repin(document).check(commitment.assignment(family))


def _read(path: str, content: Any) -> tuple[CommitmentTuple, Any]:
    """A tuple and its stored hash from parsed JSON; every key is checked."""
    _check_keys(path, "", content, ("format", "deployment", "families", "environment", "hash"))
    if type(content["format"]) is not int or content["format"] != FORMAT:
        raise BadFile(path, f"format {brief_repr(content['format'])}",
                      f"this Detent reads format {FORMAT}: write a new tuple")
    if not isinstance(content["deployment"], str) or not isinstance(content["families"], dict):
        raise BadFile(path, "deployment is not a string or families not an object", REMEDY)
    if not isinstance(content["hash"], str):
        raise BadFile(path, "hash is not a string", REMEDY)
    for family, part in content["families"].items():
        _check_keys(path, f"families.{family}", part, FAMILY)
        for name in ("program", "key"):
            if not isinstance(part[name], str):
                raise BadFile(path, f"families.{family}.{name} is not a string", REMEDY)
        for name in ("facts", "pins", "knobs"):
            for key, value in _object(path, f"families.{family}.{name}", part[name]).items():
                if not isinstance(value, bool | int | float | str | None):
                    raise BadFile(path, f"families.{family}.{name}.{key} is no scalar", REMEDY)
    environment = content["environment"]
    _check_keys(path, "environment", environment, ENVIRONMENT)
    _check_environment(environment, f"{path}: environment")
    return CommitmentTuple(content["deployment"], content["families"], environment, path), content["hash"]


def _object(path: str, place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadFile(path, f"{place or 'the content'} is not an object", REMEDY)
    return value


def _check_keys(path: str, place: str, value: Any, keys: Iterable[str]) -> None:
    known = list(keys)
    for key in _object(path, place, value):
        if key not in known:
            raise UnknownName("key", key, known, f"{path}: {place}" if place else path)
    missing = [key for key in known if key not in value]
    if missing:
        raise BadFile(path, f"{place + ' ' if place else ''}lacks {shorten(missing)}", REMEDY)


def _check_environment(environment: Mapping[str, Any], place: str) -> None:
    for name, value in environment.items():
        if name not in ENVIRONMENT:
            raise UnknownName("part", name, ENVIRONMENT, place)
        texts = value.values() if isinstance(value, dict) else [value]
        if value is not None and not all(isinstance(text, str) for text in texts):
            raise DetentError(f"{place}.{name} is {brief_repr(value)}",
                              "an environment part is a string or an object of strings")


def _shown(value: Any) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 or " " in text else f"{text[:20]}..."

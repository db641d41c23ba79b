"""What came of the cells: verdicts, a JSON document, and a file that an interrupted battery goes on from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detent.battery.compare import Difference
from detent.battery.workload import Sizes
from detent.engines.interface import Traits
from detent.runtime.encoding import strict_json, write_atomic
from detent.runtime.errors import BadFile

FORMAT = 1
SAME, CHANGED, NOT_APPLICABLE, NOT_EXERCISED, COULD_NOT_RUN = (
    "same", "changed", "not applicable", "not exercised", "could not run")
VERDICTS = (SAME, CHANGED, NOT_APPLICABLE, NOT_EXERCISED, COULD_NOT_RUN)
UNCHANGED_BATCH = ("rerun", "restart")
"""Kinds of cells whose batch is the reference's: that they pass says nothing about batches."""


@dataclass(frozen=True)
class Result:
    """One cell's outcome. ``reason``: the evidence seen, or why there is no verdict. ``reference`` and
    ``perturbed``: what was told of the request (``evidence.observed``). ``differences``: one for each copy of the
    request that changed. ``seconds``: time it took, shared references with the first cell that needs them."""

    name: str
    group: str
    kind: str
    what: str
    verdict: str
    reason: str
    reference: Mapping[str, Any] | None = None
    perturbed: Mapping[str, Any] | None = None
    differences: tuple[Difference, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds, 3),
                "differences": [difference.as_json() for difference in self.differences]}


def result_of(entry: Mapping[str, Any]) -> Result:
    """The result of a document's cell. Raises KeyError, TypeError or ValueError for anything else."""
    differences = tuple(
        Difference(**{**each, "tokens": tuple(each["tokens"]),
                      "points": {name: tuple(values) for name, values in each["points"].items()}})
        for each in entry["differences"])
    if entry["verdict"] not in VERDICTS:
        raise ValueError(f"verdict {entry['verdict']!r}")
    return Result(**{**entry, "differences": differences})


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many cells have each verdict."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in VERDICTS}


@dataclass(frozen=True)
class Report:
    """A battery's results and what they hold for."""

    traits: Traits
    sizes: Sizes
    seed: int
    salt: str
    results: tuple[Result, ...]

    @property
    def without_batch(self) -> tuple[str, ...]:
        """The sets in which no batch of several requests was exercised: they say nothing about batches."""
        with_batch = {result.group for result in self.results if _in_batch(result)}
        return tuple(group for group in dict.fromkeys(r.group for r in self.results) if group not in with_batch)

    @property
    def exit_code(self) -> int:
        """1: a cell changed. 2: none did, but a cell could not run, or in a set no batch was exercised. 0: the rest."""
        found = counts(self.results)
        if found[CHANGED]:
            return 1
        return 2 if found[COULD_NOT_RUN] or self.without_batch else 0

    def as_json(self) -> dict[str, Any]:
        groups = dict.fromkeys(result.group for result in self.results)
        return document(self.traits, self.sizes, self.seed, self.salt, self.results) | {
            "summary": {group: counts(r for r in self.results if r.group == group) for group in groups},
            "without_batch": list(self.without_batch),
            "exit_code": self.exit_code}


def _in_batch(result: Result) -> bool:
    """Whether a cell was exercised, and the compared request was served together with others for it."""
    sizes = (result.perturbed or {}).get("batch") or [0]
    return result.verdict in (SAME, CHANGED) and result.kind not in UNCHANGED_BATCH and max(sizes) > 1


def identity(traits: Traits, sizes: Sizes, seed: int) -> dict[str, Any]:
    """What results hold for, as JSON would give it back."""
    target = {**vars(traits), "evidence": sorted(traits.evidence), "environment": dict(traits.environment)}
    plain: dict[str, Any] = json.loads(json.dumps({"target": target, "seed": seed, "sizes": asdict(sizes)},
                                                  default=str))
    return plain


def document(traits: Traits, sizes: Sizes, seed: int, salt: str, results: Iterable[Result]) -> dict[str, Any]:
    from detent import __version__

    return {"format": FORMAT, "detent": __version__, **identity(traits, sizes, seed), "salt": salt,
            "cells": [result.as_json() for result in results]}


class Progress:
    """The results so far, in a file if there is one: a battery that is started again with it runs the rest.

    Raises BadFile for a file that is no such report, or one of another target, seed or lengths.
    """

    def __init__(self, path: str | None, traits: Traits, sizes: Sizes, seed: int, salt: str) -> None:
        self.path, self.salt, self.results = path, salt, dict[str, Result]()
        self._of = traits, sizes, seed
        if path is None:
            return
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            self._write()  # a path that cannot be written is told before anything is served
            return
        except UnicodeDecodeError:
            raise BadFile(path, "is no text", "give a file that detent verify --resume wrote") from None
        self._read(path, text)

    def _read(self, path: str, text: str) -> None:
        try:
            content = strict_json(text)
            found = {key: content[key] for key in ("target", "seed", "sizes")}
            results = [result_of(entry) for entry in content["cells"]]
            self.salt = str(content["salt"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFile(path, f"is no report of the battery ({type(error).__name__}: {error})",
                          "give a file that detent verify --resume wrote, or a new name") from None
        expected = identity(*self._of)
        different = [key for key in ("seed", "sizes") if found[key] != expected[key]]
        target = found["target"] if isinstance(found["target"], dict) else {}
        different += sorted(key for key in {*target, *expected["target"]}
                            if target.get(key) != expected["target"].get(key))
        if different:
            raise BadFile(path, f"its results hold for another {', '.join(different)}", "give a new name")
        # What could not run may run now.
        self.results = {result.name: result for result in results if result.verdict != COULD_NOT_RUN}

    def add(self, result: Result) -> None:
        self.results[result.name] = result
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            content = document(*self._of, self.salt, self.results.values())
            write_atomic(self.path, (json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n").encode(),
                         mode=0o666)

    def report(self, names: Sequence[str]) -> Report:
        """The report on these cells, all of which have a result."""
        return Report(*self._of, self.salt, tuple(self.results[name] for name in names))

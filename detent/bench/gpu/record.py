"""Times of several runs in one JSON file, and how they stand to the stock kernels'."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from detent.bench.gpu import Case
from detent.runtime.encoding import new_file_mode, strict_json, write_atomic
from detent.runtime.errors import BadFile, BadInput, shorten

FORMAT = 2
SAME = ("gpu", "torch", "triton", "cuda")
"""Parts of the environment that must be equal for runs to be accumulated; a kernel's code must be as well."""


@dataclass
class Row:
    """A case's times. ``us``: by arm, the microseconds of each run; ``code``: the kernel's code that ran."""

    kernel: str
    group: str
    name: str
    floor_us: float
    floor: str
    stock: tuple[str, ...]
    ours: tuple[str, ...]
    code: str
    us: dict[str, list[float]]

    @property
    def runs(self) -> int:
        return min(map(len, self.us.values()), default=0)

    def median(self, arm: str) -> float:
        return statistics.median(self.us[arm])

    @property
    def best_stock(self) -> tuple[str, float] | None:
        """The fastest stock arm and its time; None where no stock kernel was there to be timed."""
        return min(((arm, self.median(arm)) for arm in self.stock), key=lambda each: each[1], default=None)

    @property
    def best(self) -> tuple[str, float]:
        """Detent's fastest arm and its time."""
        return min(((arm, self.median(arm)) for arm in self.ours), key=lambda each: each[1])

    def ratio(self, arm: str | None = None) -> float | None:
        """Time of an arm (None: Detent's fastest) over the fastest stock arm's, as the median of the runs' ratios."""
        if not self.stock:
            return None
        chosen = self.us[self.best[0] if arm is None else arm]
        stock = [min(self.us[each][run] for each in self.stock) for run in range(self.runs)]
        return statistics.median(a / b for a, b in zip(chosen, stock, strict=False))


class Record:
    """The file at ``path`` (None: kept in memory only)."""

    def __init__(self, path: str | None, environment: Mapping[str, Any]) -> None:
        self.path, self.environment = path, dict(environment)
        self.rows: dict[str, Row] = {}
        if path is not None and os.path.exists(path):
            old = read(path)
            other = [f"{name} was {old.environment.get(name)}, is {environment.get(name)}" for name in SAME
                     if old.environment.get(name) != environment.get(name)]
            if other:
                raise BadInput(f"{path} has times of another environment: {shorten(other)}", "give another --out")
            self.rows = old.rows
            self.environment["code"] = old.environment["code"] | self.environment["code"]

    def runs(self, case: Case) -> int:
        """How often the case was timed with the code and the arms that it has now."""
        row = self.rows.get(case.key)
        return row.runs if row is not None and self._same(row, case) else 0

    def add(self, case: Case, times: Mapping[str, float]) -> Row:
        """Keep one more run of a case; a row of other code or other arms begins anew."""
        row = self.rows.get(case.key)
        if row is None or not self._same(row, case):
            least = float(f"{case.floor_us:.4g}")  # as many digits for one row as for a thousand
            row = Row(case.kernel, case.group, case.name, least, case.floor, case.stock, case.ours,
                      self.environment["code"][case.kernel], {arm: [] for arm in case.arms})
            self.rows[case.key] = row
        for arm, took in times.items():
            row.us[arm].append(took)
        self.save()
        return row

    def _same(self, row: Row, case: Case) -> bool:
        return set(row.us) == set(case.arms) and row.code == self.environment["code"][case.kernel]

    def earlier(self, kernel: str) -> int:
        """How many of a kernel's rows were timed with other code than the last run's."""
        return sum(row.code != self.environment["code"][kernel] for row in self.of(kernel))

    def save(self) -> None:
        if self.path is not None:
            write_atomic(self.path, (json.dumps(self.as_json(), indent=1) + "\n").encode(), new_file_mode())

    def of(self, kernel: str, group: str | None = None) -> list[Row]:
        """The rows of a kernel, or of one of its groups."""
        return [row for row in self.rows.values() if row.kernel == kernel and group in (None, row.group)]

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "environment": self.environment, "rows": [
            {**vars(row), "ratio": None if row.ratio() is None else round(row.ratio() or 0.0, 4)}
            for row in self.rows.values()]}


def read(path: str) -> Record:
    """The record in a file. Raises BadFile."""
    try:
        with open(path, encoding="utf-8") as file:
            content = strict_json(file.read())
        record = Record(None, content["environment"])
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, not {FORMAT}")
        for row in content["rows"]:
            fields = {name: row[name] for name in Row.__annotations__}
            made = Row(**{**fields, "stock": tuple(row["stock"]), "ours": tuple(row["ours"])})
            if not made.ours or not made.runs or not {*made.ours, *made.stock} <= set(made.us):
                raise ValueError(f"{made.name} has no times")
            if not all(took > 0 for times in made.us.values() for took in times):
                raise ValueError(f"{made.name} has a time that is not above 0")
            if made.kernel not in record.environment["code"]:
                raise ValueError(f"its environment does not say {made.kernel}'s code")
            record.rows[f"{made.kernel}/{made.group}/{made.name}"] = made
    except OSError as error:
        raise BadFile(path, error.strerror or "cannot be read", "give a file that detent bench kernels wrote") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise BadFile(path, f"is no record of kernels' times: {what}",
                      "give a file that detent bench kernels wrote") from None
    return record


def geometric_mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))

"""Intervals and tests, from scipy and statsmodels. They are imported when they are first needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from detent.runtime.errors import DetentError

RESAMPLES, BATCH = 2000, 200
LEVEL = 0.95
"""Of every interval."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def load(name: str) -> Any:
    """A module of scipy or statsmodels. Raises DetentError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DetentError(f"the bench needs {name.split('.')[0]}: {error}",
                          "install it: pip install 'detent[bench]'") from None


def wilson(successes: int, count: int) -> Interval:
    """A share with Wilson's interval. ``count`` at least 1."""
    proportion = load("statsmodels.stats.proportion")
    low, high = proportion.proportion_confint(successes, count, alpha=1 - LEVEL, method="wilson")
    # Rounding puts the ends of 0 and 1 a last place beside them.
    least, most = 0.0 if successes == 0 else float(low), 1.0 if successes == count else float(high)
    return Interval(successes / count, least, most)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """The exact two-sided p-value that two yes-or-no outcomes of the same cases differ in rate."""
    tables = load("statsmodels.stats.contingency_tables")
    pairs = list(zip(first, second, strict=True))
    table = [[pairs.count((a, b)) for b in (True, False)] for a in (True, False)]
    return min(1.0, float(tables.mcnemar(table, exact=True).pvalue))


def ratio_of_medians(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Interval:
    """Median of ``first`` over median of ``second`` with its bootstrap interval (percentiles).

    The two are of the same requests, in the same order, and are drawn together.
    """
    numpy, stats = load("numpy"), load("scipy.stats")

    def ratio(a: Any, b: Any, axis: int = -1) -> Any:
        return numpy.median(a, axis=axis) / numpy.median(b, axis=axis)

    value = float(ratio(numpy.asarray(first), numpy.asarray(second)))
    if len(set(zip(first, second, strict=True))) < 2:
        return Interval(value, value, value)
    found = stats.bootstrap((first, second), ratio, paired=True, vectorized=True, n_resamples=RESAMPLES, batch=BATCH,
                            confidence_level=LEVEL, method="percentile", rng=numpy.random.default_rng(seed))
    return Interval(value, float(found.confidence_interval.low), float(found.confidence_interval.high))

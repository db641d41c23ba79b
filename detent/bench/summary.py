"""A document's runs as the numbers that are reported: medians with spread, ratios over Stock, means, the matrix.

The summary is plain data, part of the document.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from detent.bench.arms import BASE
from detent.bench.statistics import mcnemar, ratio_of_medians, wilson
from detent.bench.workloads import LOADS, Load

Cell = dict[str, Any]
QUANTITIES = {
    "p50": ("latency", "p50"), "p90": ("latency", "p90"), "p99": ("latency", "p99"), "ttft": ("ttft", "p50"),
    "step": ("step", "p50"),
}
"""Names of the reported times and where a run has them."""
RATIOS = ("p50", "p90", "p99")


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything reported of a document.

    ``cells``: by load and arm, each quantity as median, least and greatest of the runs, its ratio over Stock, and
    marks. ``means``: by arm and workload (``all``: every load), geometric means of the ratios. ``offline``: by
    workload and arm. ``matrix``: see :func:`matrix`. ``changed``: see :func:`changed`.
    """
    runs = document["runs"]
    names = list(dict.fromkeys(run["load"] for run in runs if run["load"] in LOADS))
    names.sort(key=list(LOADS).index)
    arms = [arm["name"] for arm in document["arms"]]
    cells = {name: {arm: cell(found) for arm in arms if (found := of(runs, arm, name))} for name in names}
    for by_arm in cells.values():
        _divide(by_arm, runs)
    kept: dict[str, Any] = {"cells": cells, "means": means(cells, arms), "offline": offline(runs, arms)}
    kept["matrix"] = matrix(cells, [arm for arm in document["arms"] if arm["name"] != BASE])
    kept["changed"] = {} if document.get("salted") else changed(runs, arms)
    return kept


def of(runs: Iterable[Mapping[str, Any]], arm: str, load: str) -> list[Mapping[str, Any]]:
    """The runs of an arm under a load, in order."""
    return sorted((run for run in runs if run["arm"] == arm and run["load"] == load), key=lambda run: run["run"])


def cell(runs: Sequence[Mapping[str, Any]]) -> Cell:
    """Medians of the runs of one arm under one load; each quantity is ``[median, least, greatest]``."""
    found: Cell = {name: spread(run[part][key] for run in runs) for name, (part, key) in QUANTITIES.items()}
    found["tokens_per_s"] = spread(run["tokens_per_s"] for run in runs)
    cached = [run["cached"] for run in runs]
    return found | {
        "load": runs[0]["load"], "arm": runs[0]["arm"], "workload": runs[0]["workload"], "runs": len(runs),
        "rate": runs[0]["rate"], "growing": sum(run["growing"] for run in runs),
        "cached": None if None in cached else statistics.median(cached),
        "beyond": None if None in cached else max(run["beyond"] for run in runs),
    }


def spread(values: Iterable[float]) -> list[float]:
    """Median, least and greatest."""
    ranked = sorted(values)
    return [statistics.median(ranked), ranked[0], ranked[-1]]


def means(cells: Mapping[str, Mapping[str, Cell]], arms: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Geometric means of the ratios over Stock, by arm, workload and percentile; ``all`` is over all loads.

    Loads at the arms' own maxima are left out: there the arms are not driven alike.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for arm in arms:
        own: dict[str, list[Cell]] = {}
        for name, by_arm in cells.items():
            if arm != BASE and not LOADS[name].own and by_arm.get(arm, {}).get("ratio"):
                for group in (by_arm[arm]["workload"], "all"):
                    own.setdefault(group, []).append(by_arm[arm]["ratio"])
        if own:
            found[arm] = {group: {p: statistics.geometric_mean(r[p] for r in ratios) for p in RATIOS}
                          for group, ratios in own.items()}
    return found


def offline(runs: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> dict[str, dict[str, Cell]]:
    """By workload and arm: requests and output tokens a second when all came at once, and the ratio over Stock."""
    found: dict[str, dict[str, Cell]] = {}
    speeds = ("requests_per_s", "tokens_per_s")
    for load in dict.fromkeys(run["load"] for run in runs if run["load"].startswith("offline ")):
        by_arm: dict[str, Cell] = {arm: {key: spread(run[key] for run in own) for key in speeds}
                                   for arm in arms if (own := of(runs, arm, load))}
        for figures in by_arm.values():
            if BASE in by_arm:
                figures["ratio"] = figures["tokens_per_s"][0] / by_arm[BASE]["tokens_per_s"][0]
        found[load.removeprefix("offline ")] = by_arm
    return found


def matrix(cells: Mapping[str, Mapping[str, Cell]], arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What it costs to serve one load with a tuple of another: the paper's Figure 8.

    A row an arm other than Stock, a column a load: the row's p50 over that of the arm named like the load (its tuned
    tuple), or where there is none of the column's fastest. ``own``: whether the row is named after the column's
    workload (W-A for A1) or the load.
    """
    rows = [arm["name"] for arm in arms]
    columns = [name for name, by_arm in cells.items()
               if not LOADS[name].own and sum(row in by_arm for row in rows) > 1]
    over, values = {}, {}
    for column in columns:
        by_arm = {row: cells[column][row]["p50"][0] for row in rows if row in cells[column]}
        over[column] = column if column in by_arm else min(by_arm, key=lambda row: by_arm[row])
        values[column] = {row: value / by_arm[over[column]] for row, value in by_arm.items()}
    shown = [row for row in rows if any(row in values[column] for column in columns)]
    return {"rows": shown, "columns": columns, "over": over,
            "values": [[values[column].get(row) for column in columns] for row in shown],
            "own": [[row in (LOADS[column].workload, column) for column in columns] for row in shown]}


def changed(runs: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By workload and arm: how many requests gave other tokens or logprob bits in one run than in another.

    All runs of a workload send the same token ids, at other loads and so in other batches. With Wilson's interval,
    and McNemar's exact p-value against Stock over the same requests.
    """
    found: dict[str, dict[str, Any]] = {}
    for workload in dict.fromkeys(run["workload"] for run in runs):
        flags: dict[str, list[bool]] = {}
        counts: dict[str, int] = {}
        bits: dict[str, bool] = {}
        loads = [{run["load"] for run in runs if run["workload"] == workload and run["arm"] == arm} for arm in arms]
        for arm in arms:
            own = [run for run in runs if run["workload"] == workload and run["arm"] == arm]
            if len(own) > 1 and all(all(run["digests"]) for run in own):
                flags[arm] = [len(set(digests)) > 1 for digests in zip(*(run["digests"] for run in own), strict=True)]
                counts[arm] = len(own)
                bits[arm] = not any(run["bare"] for run in own)
        if flags:
            alike = all(seen == loads[0] for seen in loads)
            found[workload] = {arm: {
                "changed": sum(own), "requests": len(own), "runs": counts[arm],
                "compared": "tokens and logprob bits" if bits[arm] else "tokens",
                "wilson": asdict(wilson(sum(own), len(own))),
                "mcnemar": mcnemar(flags[BASE], own) if alike and arm != BASE and BASE in flags else None,
            } for arm, own in flags.items()}
    return found


def milliseconds(seconds: float) -> str:
    """To three digits."""
    return f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"


def described(name: str) -> str:
    """A load in words."""
    load: Load = LOADS[name]
    return f"{load.workload}, {load.what}"


def _divide(by_arm: Mapping[str, Cell], runs: Sequence[Mapping[str, Any]]) -> None:
    """Add to each cell of a load its ratios over Stock, with the interval of that of p50."""
    base = by_arm.get(BASE)
    for arm, found in by_arm.items():
        found["ratio"] = found["interval"] = None
        if base is None or arm == BASE:
            continue
        found["ratio"] = {p: found[p][0] / base[p][0] for p in RATIOS}
        own, stock = (_requests(of(runs, name, found["load"])) for name in (arm, BASE))
        found["interval"] = asdict(ratio_of_medians(own, stock))


def _requests(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """The latency of each request: the median of the runs."""
    return [statistics.median(values) for values in zip(*(run["latencies"] for run in runs), strict=True)]

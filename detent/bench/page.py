"""A measurement as one HTML file that needs no network and no script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from detent.bench import plots
from detent.bench.arms import BASE
from detent.bench.summary import described, milliseconds
from detent.bench.workloads import LOADS

Document = Mapping[str, Any]


def page(document: Document) -> str:
    """The page's text, of a document with its summary."""
    settings, found = document["settings"], document["summary"]
    arms = [arm["name"] for arm in document["arms"]]
    title = f"Detent bench: {settings['model']} in {settings['engine']}"
    cells = {load: by_arm for load, by_arm in found["cells"].items() if not LOADS[load].own}
    own = {load: by_arm for load, by_arm in found["cells"].items() if LOADS[load].own}
    body = [f"<p>{escape(headline(document))}</p>", f"<p>{plots.legend(arms)}</p>"]
    body += _section("Latency per output token over Stock, p50", plots.ratios(cells, arms, "p50"),
                     "Whiskers: 95 % bootstrap interval over the requests. * a queue that kept growing.")
    body += _section("Latency per output token over Stock, p99", plots.ratios(cells, arms, "p99"), "")
    body += _section("Percentiles", plots.percentiles(cells, arms),
                     "Latency per output token: circle p50, square p90, triangle p99; medians of the runs, whiskers "
                     "from the least to the greatest.")
    body += _section("One tuple at every load", plots.matrix(found["matrix"]),
                     "The row’s p50 over that of the load’s own tuple, or of the fastest of these where none is named "
                     "after the load. Outlined: a tuple at its own workload’s loads.")
    body += _section("Loads", _cells(cells), "Milliseconds, median of the runs (least – greatest).")
    body += _section("Geometric means of the ratios over Stock", _means(found["means"]), "")
    body += _section("Everything at once", _offline(found["offline"]), "Offline throughput.")
    body += _section("Each arm at a share of its own maximum", plots.percentiles(own, arms) + _cells(own), "")
    body += _section("Requests whose bits changed between runs", _changed(found["changed"]),
                     "The same token ids at other loads and in other batches. Wilson’s 95 % interval; McNemar’s exact "
                     "p against Stock.")
    body += _section("Workloads", _workloads(document["workloads"]), "")
    body += _section("Environment", _environment(document), "")
    values = {"title": escape(title), "body": "\n".join(body)}
    template = files("detent.bench").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(title|body)\}\}", lambda mark: values[mark[1]], template)


def headline(document: Document) -> str:
    """What was found, in a sentence an arm."""
    told = []
    for arm, groups in document["summary"]["means"].items():
        mean = groups["all"]
        told.append(f"{arm}: {mean['p50']:.2f}× Stock’s latency per output token at p50, {mean['p90']:.2f}× at p90, "
                    f"{mean['p99']:.2f}× at p99 (geometric means)")
    settings = document["settings"]
    return ". ".join([*told, f"Scale {settings['scale']:g}, seed {settings['seed']}"]) + "."


def notes(cell: Mapping[str, Any]) -> list[str]:
    """What must be said beside a load's numbers."""
    found = []
    if cell["growing"]:
        found.append(f"queue grows in {cell['growing']} of {cell['runs']} runs")
    if cell["beyond"]:
        found.append(f"{cell['beyond']} prompt tokens cached beyond the workload's own")
    return found


def _section(title: str, content: str, note: str) -> list[str]:
    if not content:
        return []
    return [f"<h2>{escape(title)}</h2>", content, *([f'<p class="quiet">{escape(note)}</p>'] if note else [])]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Cells are HTML. A row whose first cell is not empty begins a group."""
    if not rows:
        return ""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr{' class=first' if row[0] else ''}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
                    for row in rows)
    return f'<div class="wide"><table class="{kind}"><tr>{top}</tr>{lines}</table></div>'


def _cells(cells: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for load, by_arm in cells.items():
        for index, (arm, cell) in enumerate(by_arm.items()):
            ratio, interval = cell["ratio"], cell["interval"]
            over = f"{ratio['p50']:.3f}<small>{interval['low']:.3f} – {interval['high']:.3f}</small>" if ratio else ""
            cached = "" if cell["cached"] is None else f"{100 * cell['cached']:.0f} %"
            rate = "" if cell["rate"] is None else f"{cell['rate']:.3g}"
            title = f'<span title="{escape(described(load))}">{escape(load)}</span>'
            rows.append(["" if index else title, escape(arm), *(_spread(cell[name]) for name in ("p50", "p90", "p99")),
                         over, _spread(cell["ttft"]), _spread(cell["step"]), f"{cell['tokens_per_s'][0]:.4g}", rate,
                         cached, f'<span class="mark">{escape("; ".join(notes(cell)))}</span>'])
    return _table(("load", "arm", "p50", "p90", "p99", "p50 over Stock", "first token", "decode step", "tokens/s",
                   "requests/s", "cached", ""), rows)


def _spread(value: Sequence[float]) -> str:
    median, least, greatest = (milliseconds(part) for part in value)
    return f"{median}<small>{least} – {greatest}</small>"


def _means(means: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    rows = [["" if index else escape(arm), escape("all loads" if group == "all" else group),
             *(f"{mean[p]:.3f}" for p in ("p50", "p90", "p99"))]
            for arm, groups in means.items() for index, (group, mean) in enumerate(groups.items())]
    return _table(("arm", "workload", "p50", "p90", "p99"), rows)


def _offline(offline: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [["" if index else escape(workload), escape(arm), f"{found['requests_per_s'][0]:.4g}",
             f"{found['tokens_per_s'][0]:.4g}<small>{found['tokens_per_s'][1]:.4g} – {found['tokens_per_s'][2]:.4g}"
             "</small>", "" if arm == BASE or "ratio" not in found else f"{found['ratio']:.3f}"]
            for workload, by_arm in offline.items() for index, (arm, found) in enumerate(by_arm.items())]
    return _table(("workload", "arm", "requests/s", "output tokens/s", "over Stock"), rows)


def _changed(changed: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for workload, by_arm in changed.items():
        for index, (arm, found) in enumerate(by_arm.items()):
            interval, p = found["wilson"], found["mcnemar"]
            rows.append(["" if index else escape(workload), escape(arm),
                         f"{found['changed']} of {found['requests']}", str(found["runs"]), escape(found["compared"]),
                         f"{100 * interval['low']:.1f} – {100 * interval['high']:.1f} %",
                         "" if p is None else f"{p:.2g}"])
    return _table(("workload", "arm", "changed", "runs", "compared", "interval", "p"), rows)


def _workloads(workloads: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[escape(name), "", str(shape["requests"]), f"{shape['prompt_median']:g}", f"{shape['output_median']:g}",
             f"{100 * shape['shared']:.0f} %", str(shape["longest"]), str(shape["left_out"] or "")]
            for name, shape in workloads.items()]
    return _table(("workload", "", "requests", "prompt p50", "output p50", "prompt tokens shared", "longest",
                   "left out"), rows)


def _environment(document: Document) -> str:
    rows = [[escape(name), escape(value if isinstance(value, str) else json.dumps(value))]
            for name, value in document["environment"].items()]
    rows += [[f"arm {escape(arm['name'])}", escape(json.dumps({k: v for k, v in arm.items() if k != "name"}))]
             for arm in document["arms"]]
    return _table(("", ""), rows, "left")

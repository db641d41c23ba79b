"""The report as one HTML file that needs no network, no script and no library."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any

from detent.battery.compare import Difference
from detent.battery.report import CHANGED, COULD_NOT_RUN, NOT_APPLICABLE, NOT_EXERCISED, SAME, Report, Result, counts
from detent.battery.wording import conditions, difference_lines, headline

COLOURS = {SAME: "#16a34a", CHANGED: "#dc2626", NOT_APPLICABLE: "#cbd5e1", NOT_EXERCISED: "#d97706",
           COULD_NOT_RUN: "#7c3aed"}
STYLE = """
  body { margin: 0 auto; padding: 16px 20px; max-width: 1200px; font: 13px/1.45 system-ui, sans-serif; color: #0f172a; }
  h1 { font-size: 18px; margin: 0 0 6px; } h2 { font-size: 14px; margin: 22px 0 6px; }
  small, .quiet { color: #64748b; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 8px 0; }
  dt { color: #64748b; } dd { margin: 0; overflow-wrap: anywhere; }
  .grid { display: flex; flex-wrap: wrap; gap: 3px; margin: 6px 0; }
  .grid a { width: 14px; height: 14px; border-radius: 3px; }
  .grid a:focus-visible { outline: 2px solid #2563eb; }
  i { display: inline-block; width: 10px; height: 10px; border-radius: 5px; margin-right: 6px; }
  table { border-collapse: collapse; width: 100%; margin: 4px 0; }
  th { text-align: left; font-weight: 600; background: #f8fafc; border-bottom: 1px solid #cbd5e1; padding: 3px 8px; }
  td { vertical-align: top; border-bottom: 1px solid #e2e8f0; padding: 3px 8px; overflow-wrap: anywhere; }
  td:first-child, td.verdict { white-space: nowrap; }
  tr:target { background: #fef9c3; }
  code { font: 12px/1.5 ui-monospace, monospace; } td code { display: block; }
"""


def page(report: Report) -> str:
    """The page's text."""
    title = html.escape(headline(report))
    groups = dict.fromkeys(result.group for result in report.results)
    body = [f"<h1>{title}</h1>", _pairs(conditions(report)), _legend(report)]
    for group in groups:
        results = [result for result in report.results if result.group == group]
        body += [f"<h2>{html.escape(group)}: {_sums(counts(results))}</h2>", _grid(results), _table(results)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
{"".join(body)}
</body>
</html>
"""


def _pairs(values: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in values.items())
    return f"<dl>{rows}</dl>"


def _legend(report: Report) -> str:
    found = counts(report.results)
    return " &nbsp; ".join(f'<span>{_dot(verdict)}{verdict} {found[verdict]}</span>' for verdict in COLOURS)


def _dot(verdict: str) -> str:
    return f'<i style="background:{COLOURS[verdict]}"></i>'


def _sums(found: Mapping[str, int]) -> str:
    return html.escape(", ".join(f"{number} {verdict}" for verdict, number in found.items() if number))


def _grid(results: Iterable[Result]) -> str:
    marks = "".join(f'<a href="#{html.escape(r.name)}" style="background:{COLOURS[r.verdict]}" '
                    f'title="{html.escape(f"{r.name}: {r.verdict}")}"></a>' for r in results)
    return f'<div class="grid">{marks}</div>'


def _table(results: Iterable[Result]) -> str:
    rows = "".join(f'<tr id="{html.escape(r.name)}"><td>{html.escape(r.name)}<br><small>{html.escape(r.kind)}</small>'
                   f'</td><td class="verdict">{_dot(r.verdict)}{r.verdict}</td><td>{html.escape(r.what)}</td>'
                   f"<td>{_found(r)}</td></tr>" for r in results)
    return f"<table><tr><th>cell</th><th>verdict</th><th>perturbation</th><th>evidence</th></tr>{rows}</table>"


def _found(result: Result) -> str:
    parts = [html.escape(result.reason), *(_difference(each) for each in result.differences)]
    told = [f"{name}: {_told(values)}" for name, values in (("reference", result.reference),
                                                            ("perturbed", result.perturbed)) if values]
    if told:
        parts.append(f"<small>{html.escape('; '.join(told))}</small>")
    return "<br>".join(parts)


def _told(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items() if value is not None)


def _difference(difference: Difference) -> str:
    return "".join(f"<code>{html.escape(line)}</code>" for line in difference_lines(difference))

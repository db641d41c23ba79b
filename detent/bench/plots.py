"""Plots as SVG text: no library, nothing to load. Each mark has a title, which browsers show under the pointer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from detent.bench.arms import BASE, DETENT
from detent.bench.summary import milliseconds

GREY, GREEN, INK, FAINT = "#94a3b8", "#15803d", "#0f172a", "#e2e8f0"
TINTS = ("#2563eb", "#ea580c", "#9333ea", "#0891b2", "#db2777", "#ca8a04", "#65a30d", "#4f46e5")
WIDTH = 960
LEFT, TOP, BOTTOM = 62, 14, 46
BAND = 900 - LEFT


def colours(arms: Sequence[str]) -> dict[str, str]:
    """A colour for each arm: Stock grey, Detent's default green, the others in order."""
    others = [arm for arm in arms if arm not in (BASE, DETENT)]
    return {BASE: GREY, DETENT: GREEN} | {arm: TINTS[i % len(TINTS)] for i, arm in enumerate(others)}


def ticks(low: float, high: float) -> list[float]:
    """Values 1, 2, 5 times powers of ten from ``low`` to ``high``; finer ones where those are few."""
    steps = (1, 2, 5) if high / low > 5 else (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    found = [step * 10.0 ** exponent for exponent in exponents for step in steps]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def ratios(cells: Mapping[str, Mapping[str, Any]], arms: Sequence[str], percent: str) -> str:
    """Latency over Stock's, a group of bars a load, with the bootstrap interval where ``percent`` is p50."""
    shown = [arm for arm in arms if any(by.get(arm, {}).get("ratio") for by in cells.values())]
    loads = [load for load, by in cells.items() if any(by.get(arm, {}).get("ratio") for arm in shown)]
    found = [by[arm] for by in cells.values() for arm in shown if by.get(arm, {}).get("ratio")]
    if not found:
        return ""
    values = [value for cell in found for value in (cell["ratio"][percent], *_ends(cell, percent))]
    low, high = min(0.8, *values) / 1.05, max(1.5, *values) * 1.1
    y = _logarithmic(low, high, 260)
    paint = colours(arms)
    parts = _axis(ticks(low, high), y, "{:g}×", f"{percent} over Stock")
    wide, bar = _widths(len(loads), len(shown))
    for i, load in enumerate(loads):
        for k, arm in enumerate(shown):
            cell = cells[load].get(arm)
            if not cell or not cell.get("ratio"):
                continue
            value = cell["ratio"][percent]
            x = LEFT + i * wide + (wide - bar * len(shown)) / 2 + k * bar
            top, bottom = sorted((y(value), y(1.0)))
            parts.append(_rect(x + 1, top, bar - 2, max(bottom - top, 1), paint[arm],
                               f"{load}, {arm}: {percent} {value:.3f}× Stock’s"))
            ends = [y(end) for end in _ends(cell, percent)]
            if ends:
                parts.append(_whisker(x + bar / 2, *ends))
            parts.append(_text(x + bar / 2, min([top, *ends]) - 4, f"{value:.2f}", "middle", 10))
        parts.append(_label(LEFT + (i + 0.5) * wide, 260, load, _growing(cells[load], shown)))
    parts.append(_line(LEFT, y(1.0), LEFT + BAND, y(1.0), INK, 1))
    return _svg(parts, f"{percent} latency per output token over Stock by load and arm", 260)


def _ends(cell: Mapping[str, Any], percent: str) -> list[float]:
    """Of the interval, which only p50 has."""
    return [cell["interval"]["low"], cell["interval"]["high"]] if percent == "p50" else []


def percentiles(cells: Mapping[str, Mapping[str, Any]], arms: Sequence[str]) -> str:
    """Milliseconds per output token: p50 (circle), p90 (square) and p99 (triangle), least to greatest of the runs."""
    times = [value * 1000 for by in cells.values() for cell in by.values() for p in ("p50", "p90", "p99")
             for value in cell[p]]
    if not times:
        return ""
    low, high = min(times) / 1.15, max(times) * 1.15
    y = _logarithmic(low, high, 300)
    paint = colours(arms)
    parts = _axis(ticks(low, high), y, "{:g}", "ms per output token")
    wide, bar = _widths(len(cells), len(arms))
    for i, (load, by_arm) in enumerate(cells.items()):
        for k, arm in enumerate(arms):
            if arm not in by_arm:
                continue
            x = LEFT + i * wide + (wide - bar * len(arms)) / 2 + (k + 0.5) * bar
            cell = by_arm[arm]
            parts.append(_line(x, y(cell["p50"][0] * 1000), x, y(cell["p99"][0] * 1000), paint[arm], 1))
            for p in ("p50", "p90", "p99"):
                median, least, greatest = (1000 * value for value in cell[p])
                parts.append(_whisker(x, y(least), y(greatest)))
                told = " – ".join(milliseconds(value) for value in cell[p][1:])
                parts.append(_mark(p, x, y(median), paint[arm],
                                   f"{load}, {arm}: {p} {milliseconds(cell[p][0])} ms ({told})"))
        parts.append(_label(LEFT + (i + 0.5) * wide, 300, load, _growing(by_arm, arms)))
        if i:
            parts.append(_line(LEFT + i * wide, TOP, LEFT + i * wide, 300, FAINT, 1))
    return _svg(parts, "latency per output token: percentiles by load and arm", 300)


def matrix(content: Mapping[str, Any]) -> str:
    """A row a tuple, a column a load, darker where the tuple takes longer than the column's; own loads outlined."""
    rows, columns = content["rows"], content["columns"]
    if len(rows) < 2 or not columns:
        return ""
    left, high, wide = 150, 34, min(92.0, (WIDTH - 160) / len(columns))
    values = [value for row in content["values"] for value in row if value is not None]
    top = max(2.0, *values)
    parts = []
    for k, column in enumerate(columns):
        parts.append(_text(left + (k + 0.5) * wide, 20, column, "middle", 12))
    for i, row in enumerate(rows):
        parts.append(_text(left - 8, 28 + i * high + 21, row[:20], "end", 12))
        for k, column in enumerate(columns):
            value = content["values"][i][k]
            x, at = left + k * wide, 28 + i * high
            if value is None:
                parts.append(_text(x + wide / 2, at + 21, "–", "middle", 12))
                continue
            share = max(0.0, math.log(max(value, 1.0)) / math.log(top))
            fill = f"rgb({255 - round(21 * share)},{255 - round(167 * share)},{255 - round(243 * share)})"
            parts.append(_rect(x + 2, at + 2, wide - 4, high - 4, fill,
                               f"{row} at {column}: {value:.3f}× the p50 of {content['over'][column]}",
                               INK if content["own"][i][k] else "none"))
            parts.append(_text(x + wide / 2, at + 21, f"{value:.2f}", "middle", 12))
    return _svg(parts, "p50 of each tuple at each load over the load’s own tuple", 28 + high * len(rows) - BOTTOM + 8)


def legend(arms: Sequence[str]) -> str:
    """The arms with their colours, as HTML."""
    paint = colours(arms)
    return "".join(f'<span class="key"><i style="background:{paint[arm]}"></i>{escape(arm)}</span>' for arm in arms)


def _logarithmic(low: float, high: float, bottom: float) -> Callable[[float], float]:
    """Where a value stands between ``bottom`` and TOP."""
    span = math.log(high / low)
    return lambda value: bottom - (bottom - TOP) * math.log(max(value, low) / low) / span


def _widths(groups: int, bars: int) -> tuple[float, float]:
    """Of a group, and of a bar in it."""
    wide = BAND / groups
    return wide, min(wide * 0.85 / bars, 46.0)


def _growing(by_arm: Mapping[str, Any], arms: Sequence[str]) -> str:
    names = [arm for arm in (BASE, *arms) if by_arm.get(arm, {}).get("growing")]
    return f"queue grows: {', '.join(dict.fromkeys(names))}" if names else ""


def _axis(values: Sequence[float], y: Callable[[float], float], form: str, title: str) -> list[str]:
    parts = [_line(LEFT, y(value), LEFT + BAND, y(value), FAINT, 1) for value in values]
    parts += [_text(LEFT - 6, y(value) + 4, form.format(value), "end", 11) for value in values]
    parts.append(f'<text transform="translate(13 150) rotate(-90)" text-anchor="middle" font-size="11">'
                 f"{escape(title)}</text>")
    return parts


def _label(x: float, bottom: float, name: str, note: str) -> str:
    marked = f'<tspan fill="#b91c1c">*<title>{escape(note)}</title></tspan>' if note else ""
    return f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle" font-size="12">{escape(name)}{marked}</text>'


def _mark(kind: str, x: float, y: float, colour: str, title: str) -> str:
    shape = {"p50": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"',
             "p90": f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"',
             "p99": f'<path d="M{x:.1f} {y - 6:.1f}l6 10h-12z"'}[kind]
    element = shape[1:].split(" ", 1)[0]
    return f'{shape} fill="{colour}" stroke="#fff"><title>{escape(title)}</title></{element}>'


def _whisker(x: float, a: float, b: float) -> str:
    return f'<path d="M{x:.1f} {a:.1f}V{b:.1f}M{x - 3:.1f} {a:.1f}h6M{x - 3:.1f} {b:.1f}h6" stroke="{INK}"/>'


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str, stroke: str = "none") -> str:
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="1.5"><title>{escape(title)}</title></rect>')


def _line(x: float, y: float, x2: float, y2: float, colour: str, width: float) -> str:
    return (f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width:g}"/>')


def _text(x: float, y: float, text: str, anchor: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _svg(parts: Sequence[str], title: str, bottom: float) -> str:
    return (f'<svg viewBox="0 0 {WIDTH} {bottom + BOTTOM:.0f}" role="img" aria-label="{escape(title)}" fill="{INK}">'
            f"{''.join(parts)}</svg>")

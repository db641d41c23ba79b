"""Writes the tables in docs/conformance.md from results: ``python -m detent.tools.conformance``.

The results are written by ``make test-engines``, which calls this too; tests/test_docs_conformance.py checks that the
page has the tables as this writes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "conformance.md"
RESULTS = ROOT / "results" / "conformance.json"
PLACE = re.compile(r"(<!-- begin (\w+): [^\n]* -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown; numbers with thousands apart."""
    cells: list[Sequence[str]] = [header, tuple("---" if name[0] != ">" else "---:" for name in header),
             *(tuple(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.lstrip('>') for cell in row)} |" for row in cells)


def tables(results: dict[str, Any]) -> dict[str, str]:
    """The tables by name: what was compared, and how often each helper's rarest arm was taken."""
    compared = [(entry["engine"], f"`{entry['function']}`", f"`{entry['program']}`", entry["inputs"], entry["at_edges"],
                 entry["points"], entry["mismatches"]) for entry in results["comparisons"]]
    arms = [(f"`{entry['function']}`", entry["arms"], entry["taken"], entry["fewest"]) for entry in results["arms"]]
    return {
        "comparisons": table(("engine", "its function", "program", ">inputs", ">at an edge", ">points", ">mismatches"),
                             compared),
        "arms": table(("helper", ">arms", ">taken", ">rarest arm taken"), arms),
    }


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its tables as they should be. Raises ValueError for a page without a place for each of them."""
    written = tables(results)
    places = [found[1] for found in PLACE.findall(page)]
    if sorted(places) != sorted(written):
        raise ValueError(f"the page has places for {', '.join(places) or 'nothing'}; give it {', '.join(written)}")
    return PLACE.sub(lambda found: f"{found[1]}{written[found[2]]}\n{found[3]}", page)


def main() -> None:
    """Rewrite the page in place."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()

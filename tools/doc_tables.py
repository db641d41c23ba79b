"""Writes the table of refusals in docs/language.md from the front end's own: ``python -m detent.tools.doc_tables``.

tests/test_docs.py checks that the page has it as this writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

from detent.lang.refusals import FUNCTIONS, REFUSALS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "language.md"
PLACE = re.compile(r"(<!-- begin refusals: [^\n]* -->\n).*?(<!-- end refusals -->)", re.DOTALL)


def refusals() -> str:
    """Everything that the front end refuses, with what to write instead; what reads alike is one row."""
    rows = dict.fromkeys((refusal.what.rstrip(","), refusal.instead) for refusal in REFUSALS.values())
    functions = [(f"`{name}(...)`", instead) for name, instead in FUNCTIONS.items()]
    cells = [("refused", "write instead"), ("---", "---"), *rows, *functions]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def filled(page: str) -> str:
    """A page's text with the table as it should be. Raises ValueError for a page without one place for it."""
    text, count = PLACE.subn(lambda found: f"{found[1]}{refusals()}\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"the page has {count} places for the table of refusals")
    return text


def main() -> None:
    """Rewrite the table in place."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

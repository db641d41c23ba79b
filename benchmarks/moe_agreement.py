"""Makes ``kernels/moe_agreement.json``: ``python benchmarks/moe_agreement.py ROWS > FILE``.

ROWS is a file of ``gpu_moe_rows.py``, or one that holds it under ``rows``. Rows get in by the widths of the layer
that they were compared on, if their outputs had the bits of the deterministic modes' row, if none of that table's rows
failed, and if the control (the same products, added backwards) had other ones.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from detent.kernels.moe_agreement import digest

HIDDEN = 2048
"""Of the layers that ``gpu_moe_rows.py`` compares."""
VERSIONS = ("gpu", "torch", "triton")
REFERENCE = "deterministic"


def made(stored: dict[str, Any]) -> dict[str, Any]:
    rows: dict[str, set[str]] = {}
    for table in stored["rows"].values():
        if table["failed"] or not table["control_backwards"]:
            continue
        width = re.search(r",N=(\d+),", table["table"]).group(1)  # type: ignore[union-attr]
        agreeing = {table["rows"][key] for key, own in table["classes"].items() if own == table["classes"][REFERENCE]}
        rows.setdefault(f"{HIDDEN}x{width}", set()).update(agreeing)
    return {"versions": {name: stored["environment"][name] for name in VERSIONS}, "code": digest(),
            "rows": {shape: sorted(found) for shape, found in sorted(rows.items())}}


if __name__ == "__main__":
    print(json.dumps(made(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), indent=1))

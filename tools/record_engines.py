"""Renews the golden files that come from the installed engines: ``python -m detent.tools.record_engines``.

Runs the comparisons of ``make test-engines``, in its environment, and lets them write what they found.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """The exit code of the comparisons; nothing is written of a run with a mismatch."""
    return subprocess.call([sys.executable, "-m", "pytest", "-q", "-x", "-W", "default", "--record", "tests_engines"],
                           cwd=ROOT)


if __name__ == "__main__":
    raise SystemExit(main())

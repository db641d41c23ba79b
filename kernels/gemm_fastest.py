"""Which implementation of ``gemm`` is the faster one for a weight shape, where both were shown to give the same bits.

A row must not have other bits among other numbers of rows, so the two may take turns only for shapes of which a run on
a GPU has compared them: those in ``gemm_fastest.json``, which ``benchmarks/gemm_fastest.py`` makes of two stored runs,
and only with the versions that ran there.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

DATA = "gemm_fastest.json"


@functools.cache
def data() -> dict[str, Any]:
    """``from``: the runs. ``versions``: of what ran. ``shapes``: by ``NxK`` and number of rows, the faster one at each
    padding that was timed."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / DATA).read_text(encoding="utf-8"))
    return found


@functools.cache
def choice(rows: int, n: int, k: int, padding: int) -> str | None:
    """``"deep_gemm"`` or ``"triton"``; None for a shape whose bits were not compared.

    As the nearest number of rows that was timed has it, the lower of two, at the widest timed padding that is not wider
    than ``padding`` (0, whose steps grow, pads little: as 1).
    """
    timed = data()["shapes"].get(f"{n}x{k}")
    if timed is None:
        return None
    faster = timed[min(timed, key=lambda count: (abs(int(count) - rows), int(count)))]
    found: str = faster[max((each for each in faster if int(each) <= max(1, padding)), key=int)]
    return found


def comparable(versions: dict[str, Any]) -> bool:
    """Whether these are the versions whose bits were compared."""
    return bool(versions == data()["versions"])

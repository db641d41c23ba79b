"""Makes ``kernels/gemm_fastest.json`` of two runs on a GPU: ``python benchmarks/gemm_fastest.py BITS TIMES > FILE``.

BITS is a file of ``gpu_gemm.py``, which compares rows; TIMES one of ``detent bench kernels``. A shape gets in only if
no row had other bits under either implementation, alone or among others, nor under one than under the other.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from detent.kernels.gemm import padded

BOTH = {"deep_gemm", "triton"}
VERSIONS = ("torch", "triton", "cuda", "deep_gemm")


def same_bits(layer: dict[str, Any]) -> bool:
    """Whether both implementations ran, agreed with their own rows alone, and with each other."""
    differ = [name for name, rows in layer["differ_from_own_rows_alone"].items() if rows]
    return set(layer["implementations"]) >= BOTH and all(name.startswith("cublas") for name in differ) and (
        layer["rows_alone_that_differ_between"].get("deep_gemm,triton") == 0)


def faster(m: int, us: dict[str, list[float]], timed: list[int]) -> dict[str, str]:
    """By padding; paddings that lead to one count were timed once, under the least of them."""
    least: dict[int, int] = {}
    for padding in timed:
        least.setdefault(padded(m, padding), padding)
    triton = sorted(us["triton"])[len(us["triton"]) // 2]
    found = {}
    for padding in timed:
        deep = us[f"deep {least[padded(m, padding)]}"]
        found[str(padding)] = "triton" if triton < sorted(deep)[len(deep) // 2] else "deep_gemm"
    return found


def made(bits: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in times["rows"] if row["kernel"] == "gemm"]
    timed = sorted({int(arm.split()[1]) for row in rows for arm in row["us"] if arm.startswith("deep ")})
    shapes: dict[str, dict[str, dict[str, str]]] = {}
    for layer in bits["bits"]:
        shape = layer["layer"].split()[-1]
        if same_bits(layer):
            shapes[shape] = {}
            for row in rows:
                m = re.fullmatch(rf"m(\d+) {shape}", row["name"])
                if m is not None:
                    shapes[shape][m[1]] = faster(int(m[1]), row["us"], timed)
    told = {name: {part: source["environment"][part] for part in ("gpu", "date", "command")}
            for name, source in (("bits", bits), ("times", times))}
    return {"from": told, "versions": {part: bits["environment"][part] for part in VERSIONS},
            "shapes": {shape: found for shape, found in shapes.items() if found}}


if __name__ == "__main__":
    sources = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3]]
    text = json.dumps(made(*sources), indent=1)
    sys.stdout.write(re.sub(r"\{[^{}]*\}", lambda inner: " ".join(inner[0].split()), text) + "\n")

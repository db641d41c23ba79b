"""Makes ``kernels/gemm_fastest.json``: ``python benchmarks/gemm_fastest.py BITS TESTS TIMES > FILE``.

BITS is a file of ``gpu_gemm.py``, which compares rows at every padding; TESTS what pytest said on that GPU, which
compares rows of early launches; TIMES a file of ``detent bench kernels``. A shape gets in only if no row had other bits
under either implementation, alone or among others, nor under one than under the other. Early launches get in only if
their test ran and no test failed or was left out.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from detent.kernels.gemm import padded

BOTH = {"deep_gemm", "triton"}
VERSIONS = ("torch", "triton", "cuda", "deep_gemm")
TEST_OF_EARLY = "tests_kernels/test_gemm_fastest.py"


def same_bits(layer: dict[str, Any]) -> bool:
    """Whether both implementations ran, agreed with their own rows alone, and with each other."""
    differ = [name for name, rows in layer["differ_from_own_rows_alone"].items() if rows]
    return set(layer["implementations"]) >= BOTH and all(name.startswith("cublas") for name in differ) and (
        layer["rows_alone_that_differ_between"].get("deep_gemm,triton") == 0)


def early_compared(tests: str) -> bool:
    ended = re.search(r"^\d+ passed\b(?!.*(?:failed|error|skipped)).*$", tests, re.MULTILINE)
    return ended is not None and TEST_OF_EARLY in tests


def fastest(m: int, us: dict[str, list[float]], timed: list[int], early: bool) -> dict[str, list[str]]:
    """By padding asked for: the fastest arm and, if that one pads further, the fastest that does not.

    Paddings that lead to one count were timed once, under the least of them. A padding may stand for another that
    divides it: its counts are counts of that one too, whose kernels are compiled.
    """
    least: dict[int, int] = {}
    for padding in timed:
        least.setdefault(padded(m, padding), padding)
    took = {arm: statistics.median(runs) for arm, runs in us.items() if arm == "triton" or early and arm[:5] == "early"}
    took |= {f"deep {padding}": statistics.median(us[f"deep {least[padded(m, padding)]}"]) for padding in timed}
    found = {}
    for padding in timed:
        plain = [arm for arm in ("triton", f"deep {padding}", f"early {padding}") if arm in took]
        further = [arm for arm in took if arm != "triton" and int(arm.split()[1]) % padding == 0]
        arms = (min([*plain, *further], key=took.__getitem__), min(plain, key=took.__getitem__))  # the first of equals
        found[str(padding)] = list(dict.fromkeys(arms))
    return found


def made(bits: dict[str, Any], tests: str, times: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in times["rows"] if row["kernel"] == "gemm"]
    timed = sorted({int(arm.split()[1]) for row in rows for arm in row["us"] if arm.startswith("deep ")})
    early = early_compared(tests)
    shapes: dict[str, dict[str, dict[str, list[str]]]] = {}
    for layer in bits["bits"]:
        shape = layer["layer"].split()[-1]
        if same_bits(layer):
            shapes[shape] = {}
            for row in rows:
                m = re.fullmatch(rf"m(\d+) {shape}", row["name"])
                if m is not None:
                    shapes[shape][m[1]] = fastest(int(m[1]), row["us"], timed, early)
    told: dict[str, Any] = {name: {part: source["environment"][part] for part in ("gpu", "date", "command")}
            for name, source in (("bits", bits), ("times", times))}
    return {"from": told | {"early": early}, "versions": {part: bits["environment"][part] for part in VERSIONS},
            "shapes": {shape: found for shape, found in shapes.items() if found}}


if __name__ == "__main__":
    bits, tests, times = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:4])
    text = json.dumps(made(json.loads(bits), tests, json.loads(times)), indent=1)
    sys.stdout.write(re.sub(r"\{[^{}]*\}", lambda inner: " ".join(inner[0].split()), text) + "\n")

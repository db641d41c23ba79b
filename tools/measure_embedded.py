"""Times of the embedded engine's kernels on this machine, and the tables that follow from them.

    python -m detent.tools.measure_embedded --write     measure; write results/embedded_kernels.json and the tables
    python -m detent.tools.measure_embedded --check     measure; compare with the tables as they are

Every shape is visited in several passes. On a visit its candidates take turns; the least time of each counts, so that
whatever else the machine does touches all alike. Where a kernel whose bits are a row's own is less than ``MARGIN``
slower than another, the table has it. From ``LARGE`` rows on the kernels of one shape differ by less than the noise, so
one decision is taken for all of those sizes and layers, by the median ratio of what a layer takes in all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from detent.kernels import embedded_attention, embedded_experts, embedded_linear, embedded_norm

HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
TABLES = os.path.join(HERE, "programs", "tables", "embedded")
RESULT = os.path.join(HERE, "results", "embedded_kernels.json")
HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
LAYERS = {"qkv": (960, 576), "output": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "logits": (49152, 576)}
"""``(N, K)`` of SmolLM2-135M's weights."""
EXPERTS, CHOSEN, WIDTH = 8, 2, 128
"""The tiny model's expert layer; hidden and inner width are the same."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
WITHIN = tuple(f"{layer} " for layer in LAYERS if layer != "logits")
LARGE = 64
MOST = {"logits": 32}
"""Rows up to which a layer is measured; more do as these."""
REQUESTS, LENGTHS, NEVER = (1, 2, 4, 8, 16), (32, 128, 512), 1024
STRIDE, TILE, CORES = 128, 2, 2
MARGIN, NEAR_BEST, NEAR_TORCH = 0.05, 1.05, 1.10
TURNS, WORTH = 3, 0.02
"""Turns on a visit, and seconds that a visit should last at least."""

Run = Callable[[], object]
Times = dict[str, float]
Shape = tuple[str, str, dict[str, Run]]


def gemm() -> Iterator[Shape]:
    for layer, (size, width) in LAYERS.items():
        weight = torch.randn(size, width)
        packed = embedded_linear.pack(weight)
        for rows in ROWS:
            if rows <= MOST.get(layer, rows):
                x = torch.randn(rows, width)
                yield "gemm", f"{layer} {rows}", {
                    "torch": partial(torch.nn.functional.linear, x, weight),
                    "plain": partial(embedded_linear.tiled, embedded_linear.plain, x, weight, rows, False),
                    "packed": partial(embedded_linear.tiled, embedded_linear.packed, x, packed, rows, False)}


def attention() -> Iterator[Shape]:
    for length in LENGTHS:
        for b in REQUESTS:
            yield "attention", f"decode {b} x {length}", _attention([(1, length)] * b)
        yield "attention", f"prefill {length}", _attention([(length, length)])


def _attention(requests: list[tuple[int, int]]) -> dict[str, Run]:
    starts, lengths = [0], [length for _, length in requests]
    for rows, _ in requests:
        starts.append(starts[-1] + rows)
    width = -(-max(lengths) // PAGE)
    tables = torch.randperm(len(requests) * width).view(len(requests), width)
    keys, values = (torch.randn(tables.numel(), PAGE, KV_HEADS, DIM) for _ in range(2))
    q = torch.randn(starts[-1], HEADS, DIM)
    plan = embedded_attention.plan(starts, lengths, tables, PAGE, TILE, STRIDE, HEADS // KV_HEADS, q.dtype)
    return {"torch": partial(_reference, q, keys[tables].flatten(1, 2), values[tables].flatten(1, 2), starts, lengths),
            "whole": partial(embedded_attention.whole, q, keys, values, starts, lengths, tables, PAGE),
            "split": partial(embedded_attention.attention, q, keys, values, plan, TILE)}


def _reference(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, starts: list[int],
               lengths: list[int]) -> torch.Tensor:
    """Plain torch, spared the search for pages: keys ``[B, length, kv_heads, hd]``, all requests of one length."""
    own = q.view(len(lengths), -1, HEADS, DIM).transpose(1, 2)
    rows, length = starts[1], lengths[0]
    keys, values = (x[:, :length].transpose(1, 2) for x in (keys, values))
    return torch.nn.functional.scaled_dot_product_attention(own, keys, values, is_causal=rows == length > 1,
                                                            enable_gqa=True)


def moe() -> Iterator[Shape]:
    gate_up, down = torch.randn(EXPERTS, 2 * WIDTH, WIDTH), torch.randn(EXPERTS, WIDTH, WIDTH)
    packed = {weight.data_ptr(): embedded_linear.pack(weight) for weight in (*gate_up, *down)}
    products = {"plain": embedded_linear.plain,
                "packed": lambda rows, weight: embedded_linear.packed(rows, packed[weight.data_ptr()])}
    for tokens in ROWS:
        x, shares = torch.randn(tokens, WIDTH), torch.rand(tokens, CHOSEN)
        ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(tokens)])
        yield "moe", str(tokens), {name: partial(embedded_experts.experts, x, gate_up, down, ids, shares, product)
                                   for name, product in products.items()}


def norm() -> Iterator[Shape]:
    weight = torch.randn(576)
    for rows in ROWS:
        x = torch.randn(rows, 576)
        yield "norm", str(rows), {
            "torch": partial(torch.nn.functional.rms_norm, x, (576,), weight, 1e-5),
            "own": partial(embedded_norm.rms_norm, x, weight, 1e-5, True),
            "composed": partial(embedded_norm.rms_norm, x, weight, 1e-5, False)}


def measure(passes: int) -> dict[str, dict[str, Times]]:
    """Least times in microseconds, by family, shape and candidate."""
    with torch.inference_mode():
        shapes = [*gemm(), *attention(), *moe(), *norm()]
        found: dict[str, dict[str, Times]] = {}
        for number in range(passes):
            for family, name, candidates in shapes:
                best = found.setdefault(family, {}).setdefault(name, dict.fromkeys(candidates, float("inf")))
                started, turns = time.perf_counter(), 0
                while turns < TURNS or time.perf_counter() - started < WORTH:
                    turns += 1
                    for candidate, run in candidates.items():
                        begin = time.perf_counter()
                        run()
                        took = round((time.perf_counter() - begin) * 1e6, 1)
                        best[candidate] = min(best[candidate], took)
            print(f"pass {number + 1} of {passes}", flush=True)
    return found


def tables(times: Mapping[str, Mapping[str, Times]]) -> dict[str, dict[int, dict[str, int]]]:
    """The tables that times lead to, by family."""
    found: dict[str, dict[int, dict[str, int]]] = {"gemm": {}, "attention": {}, "moe": {}, "norm": {}}
    for rows in ROWS:
        found["gemm"][rows] = {layer: _packed(times["gemm"], [f"{layer} "], min(rows, MOST.get(layer, rows)))
                               if rows < LARGE else _packed(times["gemm"], WITHIN, rows) for layer in LAYERS}
        found["moe"][rows] = {"packed": _packed(times["moe"], [""], rows)}
        found["norm"][rows] = {"own": int(_taken(times["norm"][str(rows)], "own", "composed"))}
    for length in LENGTHS:
        requests = NEVER
        for b in reversed(REQUESTS):
            if not _taken(times["attention"][f"decode {b} x {length}"], "split", "whole"):
                break
            requests = -(-b // CORES)
        found["attention"][length] = {"requests": requests}
    return found


def _packed(times: Mapping[str, Times], prefixes: Sequence[str], rows: int) -> int:
    """1 if packed weights are taken for a number of rows of the shapes with these prefixes, else 0."""
    def ratio(size: int) -> float:
        packed, plain = (sum(times[f"{prefix}{size}"][name] for prefix in prefixes) for name in ("packed", "plain"))
        return packed / plain

    sizes = [rows] if rows < LARGE else [size for size in ROWS if size >= LARGE]
    return int(median(map(ratio, sizes)) <= 1 + MARGIN)


def _taken(times: Times, ours: str, other: str) -> bool:
    return times[ours] <= times[other] * (1 + MARGIN)


def choice(family: str, shape: str, found: Mapping[str, Mapping[int, Mapping[str, int]]]) -> str:
    """The candidate that Stock takes for a measured shape under tables."""
    table = found[family]
    if family == "gemm":
        layer, rows = shape.split()
        return "packed" if table[int(rows)][layer] else "plain"
    if family == "attention":
        kind, *rest = shape.split()
        if kind == "prefill":
            return "whole"
        return "split" if int(rest[0]) >= table[int(rest[2])]["requests"] * CORES else "whole"
    if family == "moe":
        return "packed" if table[int(shape)]["packed"] else "plain"
    return "own" if table[int(shape)]["own"] else "composed"


def shortfalls(times: Mapping[str, Mapping[str, Times]], found: Mapping[str, Any]) -> list[str]:
    """Shapes at which the choice is not near the best candidate, and layers that are not near plain torch."""
    lines = []
    for family, shapes in times.items():
        for shape, candidates in shapes.items():
            took = candidates[choice(family, shape, found)]
            best = min(seconds for name, seconds in candidates.items() if name != "torch")
            if took > best * NEAR_BEST:
                lines.append(f"{family} {shape}: {took:.0f} us, the best candidate {best:.0f} us")
    for shape in times["attention"]:
        rows = shape.split()[1]
        parts = [("attention", shape), ("norm", rows), ("norm", rows),
                 *(("gemm", f"{layer} {rows}") for layer in LAYERS if layer != "logits")]
        took = sum(times[family][part][choice(family, part, found)] for family, part in parts)
        plain = sum(times[family][part]["torch"] for family, part in parts)
        if took > plain * NEAR_TORCH:
            lines.append(f"a layer of {shape}: {took:.0f} us, of plain torch {plain:.0f} us")
    return lines


def stored() -> dict[str, dict[int, dict[str, int]]]:
    """The tables as they are."""
    found = {}
    for family in ("gemm", "attention", "moe", "norm"):
        with open(os.path.join(TABLES, f"{family}.json"), encoding="utf-8") as file:
            found[family] = {int(key): row for key, row in json.load(file).items()}
    return found


def _write(times: Mapping[str, Mapping[str, Times]], passes: int) -> None:
    found = tables(times)
    plain = {rows: dict.fromkeys(LAYERS, 0) for rows in ROWS}
    for name, table in {**found, "gemm_plain": plain}.items():
        rows = ",\n".join(f'  "{key}": {json.dumps(row)}' for key, row in table.items())
        with open(os.path.join(TABLES, f"{name}.json"), "w", encoding="utf-8") as file:
            file.write(f"{{\n{rows}\n}}\n")
    environment = {"torch": torch.__version__, "python": platform.python_version(), "threads": CORES, "passes": passes,
                   "cpu": torch.backends.cpu.get_cpu_capability(), "machine": platform.machine(),
                   "load": [round(each, 1) for each in os.getloadavg()]}
    with open(RESULT, "w", encoding="utf-8") as file:
        json.dump({"environment": environment, "unit": "us", "times": times, "shortfalls": shortfalls(times, found)},
                  file, indent=1)
        file.write("\n")


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 if, with --check, a choice of the tables is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=12, help="visits of every shape")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the result and the tables")
    what.add_argument("--check", action="store_true", help="compare with the tables")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(CORES)
    times = measure(options.passes)
    if options.write:
        _write(times, options.passes)
    lines = shortfalls(times, stored())
    print("\n".join(lines) if lines else "every choice is near the best candidate and plain torch")
    return 1 if options.check and lines else 0


if __name__ == "__main__":
    raise SystemExit(main())

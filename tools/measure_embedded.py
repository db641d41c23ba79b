"""Times of the embedded engine's kernels on this machine, and the tables that follow from them.

    python -m detent.tools.measure_embedded --write     measure; write results/embedded_kernels.json and the tables
    python -m detent.tools.measure_embedded --check     measure; compare with the tables as they are

Every shape is visited in several passes. On a visit its candidates take turns and the least time of each counts. The
same product takes a half more or less from one visit to the next here, so kernels are compared within a visit: one is
as many times as slow as another as the median of the visits' ratios says. Where a kernel whose bits are a row's own is
less than ``MARGIN`` slower than another, the table has it.
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

from detent.engines.embedded.cache import Cache
from detent.engines.embedded.config import Config, Limits
from detent.engines.embedded.scheduler import Scheduler
from detent.engines.embedded.scheduler import Sequence as Running
from detent.engines.interface import Request
from detent.kernels import embedded_attention, embedded_experts, embedded_linear, embedded_norm, embedded_whole

HERE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
TABLES = os.path.join(HERE, "programs", "tables", "embedded")
RESULT = os.path.join(HERE, "results", "embedded_kernels.json")
HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
LAYERS = {"qkv": (960, 576), "output": (576, 576), "gate_up": (3072, 576), "down": (576, 1536), "logits": (49152, 576)}
"""``(N, K)`` of SmolLM2-135M's weights."""
EXPERTS, CHOSEN, WIDTH = 8, 2, 128
"""The tiny model's expert layer; hidden and inner width are the same."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MOST = {"logits": 32}
"""Rows up to which a layer is measured; more do as these."""
REQUESTS, LENGTHS, NEVER = (1, 2, 4, 8, 16), (32, 128, 512), 1024
STRIDE, TILE, CORES = 256, 2, 2
OUTPUTS, ANSWER = 8, 64
"""Output tokens of a request that decodes, and those that it asked for."""
MARGIN, NEAR_BEST, NEAR_TORCH = 0.03, 1.05, 1.10
TURNS, WORTH = 4, 0.02
"""Turns on a visit, and seconds that a visit should last at least."""

PLAIN = ("torch", "dense", "whole, pages apart")
"""Beside the candidates: what they are compared with, and "whole" where no page of a request lies behind another."""

Run = Callable[[], object]
Times = dict[str, list[float]]
"""By candidate: the least microseconds of each visit."""
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
    cache, tables = _laid_out(lengths, OUTPUTS if starts[1] < lengths[0] else 0)
    keys, values = (pages[0].normal_() for pages in cache.pages)
    q = torch.randn(starts[-1], HEADS, DIM)
    plan = embedded_attention.plan(starts, lengths, tables, PAGE, TILE, STRIDE, HEADS // KV_HEADS, q.dtype)
    dense = [pages[tables].flatten(1, 2)[:, :max(lengths)].transpose(1, 2) for pages in (keys, values)]
    own = q.view(len(lengths), -1, HEADS, DIM).transpose(1, 2)
    causal = 1 < starts[1] == lengths[0]
    found = {"torch": partial(_paged, own, keys, values, tables.flatten(), max(lengths), causal),
             "dense": partial(_sdpa, own, dense[0], dense[1], causal)}
    apart = torch.randperm(len(keys))[:tables.numel()].view(tables.shape)
    for name, where in (("whole", tables), ("whole, pages apart", apart)):
        parts = embedded_whole.plan(starts, lengths, where, PAGE)
        found[name] = partial(embedded_whole.attention, q, keys, values, parts)
    return {**found, "split": partial(embedded_attention.attention, q, keys, values, plan, TILE)}


def _laid_out(lengths: list[int], outputs: int) -> tuple[Cache, torch.Tensor]:
    """Page tables as the engine makes them for requests that begin together, none of which has a stored prefix, once
    each has ``outputs`` output tokens."""
    config = Config("measured", "llama", 8, DIM * HEADS, 1, HEADS, KV_HEADS, DIM, 8, 1 << 20)
    limits = Limits(max_seqs=len(lengths), budget=sum(lengths), context=1 << 20, page=PAGE)
    cache, scheduler = Cache(config, limits, torch.device("cpu"), torch.float32, ""), Scheduler(limits)
    for number, length in enumerate(lengths):
        prompt = tuple(number * 4096 + place for place in range(length - outputs))
        scheduler.waiting.append(Running(number, Request(prompt, ANSWER), 0.0, 0))
    for step in range(outputs + 1):
        for piece in scheduler.plan(cache, "measured"):
            scheduler.advance(piece, cache)
            piece.sequence.tokens += [step] if step < outputs else []
    assert [running.computed for running in scheduler.running] == lengths
    return cache, torch.tensor([running.pages for running in scheduler.running])


def _sdpa(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool) -> torch.Tensor:
    """``[B, heads, rows, hd]`` over ``[B, kv_heads, length, hd]``: plain torch where keys need not be looked for."""
    return torch.nn.functional.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=True)


def _paged(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, where: torch.Tensor, length: int,
           causal: bool) -> torch.Tensor:
    """Plain torch on a paged cache, of requests of one length: pages are gathered, then all are attended to."""
    gathered = [pages.index_select(0, where).view(len(q), -1, KV_HEADS, DIM)[:, :length].transpose(1, 2)
                for pages in (keys, values)]
    return _sdpa(q, gathered[0], gathered[1], causal)


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
    """Times by family and shape."""
    with torch.inference_mode():
        shapes = [*gemm(), *attention(), *moe(), *norm()]
        found: dict[str, dict[str, Times]] = {}
        for number in range(passes):
            for family, name, candidates in shapes:
                best = dict.fromkeys(candidates, float("inf"))
                started, turns = time.perf_counter(), 0
                while turns < TURNS or time.perf_counter() - started < WORTH:
                    turns += 1
                    order = list(candidates.items())[::1 if turns % 2 else -1]  # who comes second finds caches filled
                    for candidate, run in order:
                        begin = time.perf_counter()
                        run()
                        best[candidate] = min(best[candidate], time.perf_counter() - begin)
                visits = found.setdefault(family, {}).setdefault(name, {candidate: [] for candidate in candidates})
                for candidate, took in best.items():
                    visits[candidate].append(round(took * 1e6, 1))
            print(f"pass {number + 1} of {passes}", flush=True)
    return found


def tables(times: Mapping[str, Mapping[str, Times]]) -> dict[str, dict[int, dict[str, int]]]:
    """The tables that times lead to, by family."""
    found: dict[str, dict[int, dict[str, int]]] = {"gemm": {}, "attention": {}, "moe": {}, "norm": {}}
    for rows in ROWS:
        found["gemm"][rows] = {layer: _packed(times["gemm"][f"{layer} {min(rows, MOST.get(layer, rows))}"])
                               for layer in LAYERS}
        found["moe"][rows] = {"packed": _packed(times["moe"][str(rows)])}
        found["norm"][rows] = {"own": int(_taken(times["norm"][str(rows)], "own", "composed"))}
    for length in LENGTHS:
        requests = NEVER
        for b in reversed(REQUESTS):
            if not _taken(times["attention"][f"decode {b} x {length}"], "split", "whole"):
                break
            requests = -(-b // CORES)
        found["attention"][length] = {"requests": requests}
    return found


def _packed(times: Times) -> int:
    return int(_taken(times, "packed", "plain"))


def _taken(times: Times, ours: str, other: str) -> bool:
    return ratio(times[ours], times[other]) <= 1 + MARGIN


def ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """How many times as slow ours is, visit by visit."""
    return median(a / b for a, b in zip(ours, others, strict=True))


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
            chosen = choice(family, shape, found)
            for name, took in candidates.items():
                slower = ratio(candidates[chosen], took)
                if name not in PLAIN and slower > NEAR_BEST:
                    lines.append(f"{family} {shape}: {chosen} takes {slower:.2f} times as long as {name}")
    for shape in times["attention"]:
        rows = shape.split()[1]
        parts = [("attention", shape), ("norm", rows), ("norm", rows),
                 *(("gemm", f"{layer} {rows}") for layer in LAYERS if layer != "logits")]
        took, plain = ([sum(visit) for visit in zip(*each, strict=True)] for each in (
            [times[family][part][choice(family, part, found)] for family, part in parts],
            [times[family][part]["dense" if family == "attention" else "torch"] for family, part in parts]))
        if ratio(took, plain) > NEAR_TORCH:
            lines.append(f"a layer of {shape} takes {ratio(took, plain):.2f} times as long as plain torch")
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
        lines = [f'  "{family}": {{\n' + ",\n".join(
            f'   "{shape}": {json.dumps(visits)}' for shape, visits in shapes.items()) + "\n  }"
            for family, shapes in times.items()]
        file.write(f'{{\n "environment": {json.dumps(environment)},\n "unit": "us",\n'
                   f' "shortfalls": {json.dumps(shortfalls(times, found))},\n "times": {{\n')
        file.write(",\n".join(lines) + "\n }\n}\n")


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

"""Accuracy and times of ``detent.kernels.rows`` beside PyTorch's own on one GPU: ``python benchmarks/gpu_rows.py``.

Errors are relative, in the 2-norm, against float64, of both. A time is the median over replays of a CUDA graph of 20
calls that take turns over several sets of arrays, divided by the calls. PyTorch's norm with a residual is an addition
and a norm, its activation two operations; its softmax, argmax and sort choose their launches from the number of rows.
Prints a table and writes JSON to ``$OUT/rows_h200.json`` (or the folder given with --out) as it goes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from detent.bench.gpu.environment import environment
from detent.bench.gpu.timing import microseconds
from detent.kernels import rows

CALLS = 20  # of a graph: ``timing.microseconds`` makes as many where a call takes no time
COLD = 128 << 20  # bytes of all sets together, above the second-level cache
VOCABULARY = 128256
Arm = Callable[[int], Any]


def sets(count: int, columns: int, dtype: torch.dtype, scale: float = 1.0) -> list[torch.Tensor]:
    bytes_each = count * columns * (4 if dtype == torch.float32 else 2)
    number = max(1, min(CALLS, COLD // bytes_each))
    return [torch.randn(count, columns, device="cuda").mul_(scale).to(dtype) for _ in range(number)]


def arms_of(name: str, count: int, width: int) -> dict[str, Arm]:
    """Ours and PyTorch's; each takes the number of a turn."""
    bf16 = torch.bfloat16
    weight = torch.randn(width, device="cuda").to(bf16)
    if name in ("rms_norm", "rms_norm + residual"):
        xs = sets(count, width, bf16)
        residuals = sets(count, width, bf16)
        n = len(xs)
        if name == "rms_norm":
            return {"ours": lambda i: rows.rms_norm(xs[i % n], weight, 1e-5),
                    "torch": lambda i: functional.rms_norm(xs[i % n], (width,), weight, 1e-5)}
        return {"ours": lambda i: rows.rms_norm(xs[i % n], weight, 1e-5, residual=residuals[i % n]),
                "torch": lambda i: functional.rms_norm(residuals[i % n].add_(xs[i % n]), (width,), weight, 1e-5)}
    if name == "head_norm":  # width is heads x 128
        xs = [x.view(count, -1, 128) for x in sets(count, width, bf16)]
        n = len(xs)
        return {"ours": lambda i: rows.head_norm(xs[i % n], weight[:128], 1e-6),
                "torch": lambda i: functional.rms_norm(xs[i % n], (128,), weight[:128], 1e-6)}
    if name in ("silu_and_mul", "gelu_and_mul"):
        xs = sets(count, 2 * width, bf16)
        n = len(xs)
        ours = rows.silu_and_mul if name == "silu_and_mul" else rows.gelu_and_mul
        gate = functional.silu if name == "silu_and_mul" else lambda x: functional.gelu(x, approximate="tanh")
        return {"ours": lambda i: ours(xs[i % n]),
                "torch": lambda i: gate(xs[i % n][:, :width]) * xs[i % n][:, width:]}
    if name == "rotary":  # width is heads x 128, of which a fifth is k's
        xs = [x.view(count, -1, 128) for x in sets(count, width, bf16)]
        n, heads = len(xs), width // 128 * 4 // 5
        table = torch.randn(8192, 128, device="cuda").to(bf16)
        positions = torch.arange(count, device="cuda") % 8192

        def plain(i: int) -> None:
            cos, sin = (part[:, None] for part in table[positions].split(64, 1))
            a, b = xs[i % n].split(64, 2)
            xs[i % n].copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], 2))

        return {"ours": lambda i: rows.rotary(positions, xs[i % n][:, :heads], xs[i % n][:, heads:], table),
                "torch": plain}
    logits = sets(count, width, torch.float32, 3.0)
    n = len(logits)
    if name in ("softmax", "log_softmax"):
        ours, stock = (rows.softmax, torch.softmax) if name == "softmax" else (rows.log_softmax, torch.log_softmax)
        return {"ours": lambda i: ours(logits[i % n]), "torch": lambda i: stock(logits[i % n], -1)}
    if name == "argmax":
        return {"ours": lambda i: rows.argmax(logits[i % n]), "torch": lambda i: logits[i % n].argmax(-1)}
    temperature = torch.full((count,), 0.8, device="cuda")
    seeds = torch.arange(count, device="cuda")
    cuts = {"top_k": torch.full((count,), 50, device="cuda", dtype=torch.int32),
            "top_p": torch.full((count,), 0.9, device="cuda")} if "top" in name else {}

    def stock(i: int) -> torch.Tensor:
        scaled = logits[i % n] / 0.8
        if cuts:
            ranked, order = scaled.sort(descending=True)
            ranked[:, 50:] = -torch.inf
            shares = ranked.softmax(-1)
            ranked[shares.cumsum(-1) - shares >= 0.9] = -torch.inf
            scaled = torch.empty_like(scaled).scatter_(1, order, ranked)
        return (scaled.softmax(-1) / torch.empty_like(scaled).exponential_()).argmax(-1)

    return {"ours": lambda i: rows.sample(logits[i % n], temperature, seeds, seeds, **cuts), "torch": stock}


def errors() -> dict[str, dict[str, float]]:
    """Relative errors against float64, ours and PyTorch's."""
    x, weight = torch.randn(512, 4096, device="cuda").bfloat16(), torch.randn(4096, device="cuda").bfloat16()
    logits = torch.randn(64, VOCABULARY, device="cuda") * 3
    wide, double = x.double(), logits.double()
    norm = wide / (wide.square().mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    gate, up = wide.split(2048, 1)
    half, other = x.split(2048, 1)
    heads = x.view(512, 32, 128)
    of_heads = wide.view(512, 32, 128)
    of_heads = of_heads / (of_heads.square().mean(2, keepdim=True) + 1e-6).sqrt() * weight[:128].double()
    table = torch.randn(512, 128, device="cuda")
    positions = torch.arange(512, device="cuda")
    turned = []
    for kind in (torch.float64, torch.bfloat16):
        cos, sin = (part[:, None] for part in table.to(kind).split(64, 1))
        a, b = heads.to(kind).split(64, 2)
        turned.append(torch.cat([a * cos - b * sin, b * cos + a * sin], 2))
    ours = heads.clone()
    rows.rotary(positions, ours, ours[:, :0], table)
    cases = {
        "rms_norm": (rows.rms_norm(x, weight, 1e-5), functional.rms_norm(x, (4096,), weight, 1e-5), norm),
        "head_norm": (rows.head_norm(heads, weight[:128], 1e-6), functional.rms_norm(heads, (128,), weight[:128], 1e-6),
                      of_heads),
        "silu_and_mul": (rows.silu_and_mul(x), functional.silu(half) * other, functional.silu(gate) * up),
        "gelu_and_mul": (rows.gelu_and_mul(x), functional.gelu(half, approximate="tanh") * other,
                         functional.gelu(gate, approximate="tanh") * up),
        "rotary": (ours, turned[1], turned[0]),
        "softmax": (rows.softmax(logits), logits.softmax(-1), double.softmax(-1)),
        "log_softmax": (rows.log_softmax(logits), logits.log_softmax(-1), double.log_softmax(-1)),
    }
    found = {}
    for name, (got, stock, want) in cases.items():
        off = [float((part.double() - want).norm() / want.norm()) for part in (got, stock)]
        found[name] = {"ours": float(f"{off[0]:.3e}"), "torch": float(f"{off[1]:.3e}"),
                       "ratio": round(off[0] / off[1], 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    parser.add_argument("--quick", action="store_true", help="fewer numbers of rows")
    arguments = parser.parse_args()
    path = Path(arguments.out) / "rows_h200.json"
    result: dict[str, Any] = {"environment": environment(["python", *sys.argv])}
    result["relative_error_against_float64"] = errors()
    for name, row in result["relative_error_against_float64"].items():
        print(f"error {name:14} {row}", flush=True)
    result["microseconds"] = []
    wide = ("rms_norm", "rms_norm + residual", "head_norm", "silu_and_mul", "gelu_and_mul", "rotary")
    long = ("softmax", "log_softmax", "argmax", "sample", "sample top_k top_p")
    counts = (1, 64, 8192) if arguments.quick else (1, 8, 64, 256, 1024, 2048, 8192)
    cases = [(name, count, width) for name in wide for width in ((4096, 2048) if name != "rotary" else (5120,))
             for count in counts]
    cases += [(name, count, VOCABULARY) for name in long for count in ((1, 64) if arguments.quick else (1, 8, 64, 256))]
    for name, count, width in cases:
        try:
            times = microseconds(arms_of(name, count, width), 0.0)
        except Exception as error:  # one case must not cost the others
            times = {"error": repr(error)[:300]}  # type: ignore[dict-item]
        result["microseconds"].append({"operation": name, "rows": count, "width": width, **times})
        ratio = f"{times['ours'] / times['torch']:.2f}" if "ours" in times else ""
        print(f"{name:20} {count:5} x {width:6} {times} {ratio}", flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

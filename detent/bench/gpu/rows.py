"""``rows`` beside PyTorch's own operations.

PyTorch's norm with a residual is an addition and a norm, its gates are two operations; its softmax, argmax and sort
choose their launches from the number of rows. Consecutive calls take other arrays, so that caches serve what they would
serve a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from detent.bench.gpu import Bound, Case, Options
from detent.bench.gpu.record import Record, geometric_mean
from detent.bench.gpu.timing import floor

COLD = 128 << 20
"""Bytes of all arrays of a case together, above the second-level cache."""
SETS = 20
HEAD = 128
WIDE = {"rms_norm": (4096, 2048), "rms_norm + residual": (4096, 2048), "head_norm": (4096, 2048),
        "silu_and_mul": (4096, 2048), "gelu_and_mul": (4096, 2048), "rotary": (5120,)}
"""Operations on activations, and columns; of ``head_norm`` and ``rotary`` those of all heads."""
LONG = ("softmax", "log_softmax", "argmax", "sample", "sample top_k top_p")
"""Operations on logits."""
VOCABULARY = 128256
COUNTS, FEW_COUNTS = (1, 8, 64, 256, 1024, 2048, 8192), (1, 64, 8192)
LONG_COUNTS, FEW_LONG_COUNTS = (1, 8, 64, 256), (1, 64)
BYTES = {"rms_norm": 4, "rms_norm + residual": 8, "head_norm": 4, "silu_and_mul": 6, "gelu_and_mul": 6, "rotary": 4,
         "softmax": 8, "log_softmax": 8, "argmax": 4, "sample": 4, "sample top_k top_p": 4}
"""Read and written at least, an element of the result or of the logits; activations are bf16, logits fp32."""
Arm = Callable[[int], Any]


def cases(options: Options) -> Iterator[Case]:
    import torch

    counts, few = (FEW_COUNTS, FEW_LONG_COUNTS) if options.quick else (COUNTS, LONG_COUNTS)
    shapes = [(name, count, width) for name, widths in WIDE.items() for width in widths for count in counts]
    shapes += [(name, count, VOCABULARY) for name in LONG for count in few]
    for name, count, width in shapes:
        ours, stock = arms(name, count, width, torch.bfloat16, "cuda")
        least, what = floor(BYTES[name] * count * width, 0.0)
        yield Case("rows", name, f"{count} x {width}", {"torch": stock, "detent": ours}, ("torch",), ("detent",),
                   least, what)


def arms(name: str, count: int, width: int, kind: Any, device: str) -> tuple[Arm, Arm]:
    """Ours and PyTorch's, of a turn's number: the same result for the same turn, except for noise of their own."""
    if name in LONG:
        return _of_logits(name, count, width, device)
    import torch
    from torch.nn import functional

    from detent.kernels import rows

    weight = torch.randn(width, device=device).to(kind)
    xs = _sets(count, 2 * width if name.endswith("and_mul") else width, kind, device)
    n = len(xs)
    if name == "rms_norm":
        return (lambda i: rows.rms_norm(xs[i % n], weight, 1e-5),
                lambda i: functional.rms_norm(xs[i % n], (width,), weight, 1e-5))
    if name == "rms_norm + residual":
        ours, stock = _sets(count, width, kind, device), _sets(count, width, kind, device)
        for mine, other in zip(ours, stock, strict=True):
            other.copy_(mine)
        return (lambda i: rows.rms_norm(xs[i % n], weight, 1e-5, residual=ours[i % n]),
                lambda i: functional.rms_norm(stock[i % n].add_(xs[i % n]), (width,), weight, 1e-5))
    if name == "silu_and_mul":
        return (lambda i: rows.silu_and_mul(xs[i % n]),
                lambda i: functional.silu(xs[i % n][:, :width]) * xs[i % n][:, width:])
    if name == "gelu_and_mul":
        return (lambda i: rows.gelu_and_mul(xs[i % n]),
                lambda i: functional.gelu(xs[i % n][:, :width], approximate="tanh") * xs[i % n][:, width:])
    heads = [x.view(count, -1, HEAD) for x in xs]
    if name == "head_norm":
        return (lambda i: rows.head_norm(heads[i % n], weight[:HEAD], 1e-6),
                lambda i: functional.rms_norm(heads[i % n], (HEAD,), weight[:HEAD], 1e-6))
    others = [x.clone() for x in heads]  # both turn theirs in place
    table = torch.randn(8192, HEAD, device=device).to(kind)
    positions = torch.arange(count, device=device) % len(table)
    first = width // HEAD * 4 // 5  # heads of q; k has the rest

    def turn(i: int) -> Any:
        rows.rotary(positions, heads[i % n][:, :first], heads[i % n][:, first:], table)
        return heads[i % n]

    def plain(i: int) -> Any:
        cos, sin = (part[:, None] for part in table[positions].split(HEAD // 2, 1))
        a, b = others[i % n].split(HEAD // 2, 2)
        return others[i % n].copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], 2))

    return turn, plain


def _of_logits(name: str, count: int, width: int, device: str) -> tuple[Arm, Arm]:
    import torch

    from detent.kernels import rows

    xs = [x.mul_(3.0) for x in _sets(count, width, torch.float32, device)]
    n = len(xs)
    if name == "softmax":
        return lambda i: rows.softmax(xs[i % n]), lambda i: torch.softmax(xs[i % n], -1)
    if name == "log_softmax":
        return lambda i: rows.log_softmax(xs[i % n]), lambda i: torch.log_softmax(xs[i % n], -1)
    if name == "argmax":
        return lambda i: rows.argmax(xs[i % n]), lambda i: xs[i % n].argmax(-1)
    temperature = torch.full((count,), 0.8, device=device)
    seeds = torch.arange(count, device=device)
    cuts = {"top_k": torch.full((count,), 50, device=device, dtype=torch.int32),
            "top_p": torch.full((count,), 0.9, device=device)} if "top" in name else {}

    def stock(i: int) -> Any:
        scaled = xs[i % n] / 0.8
        if cuts:
            ranked, order = scaled.sort(descending=True)
            ranked[:, 50:] = -torch.inf
            shares = ranked.softmax(-1)
            ranked[shares.cumsum(-1) - shares >= 0.9] = -torch.inf
            scaled = torch.empty_like(scaled).scatter_(1, order, ranked)
        return (scaled.softmax(-1) / torch.empty_like(scaled).exponential_()).argmax(-1)

    return lambda i: rows.sample(xs[i % n], temperature, seeds, seeds, **cuts), stock


def _sets(count: int, columns: int, kind: Any, device: str) -> list[Any]:
    import torch

    number = max(1, min(SETS, COLD // (count * columns * kind.itemsize)))
    return [torch.randn(count, columns, device=device).to(kind) for _ in range(number)]


def bounds(record: Record) -> Iterator[Bound]:
    """No bound is set: each operation over PyTorch's."""
    for name in (*WIDE, *LONG):
        rows = [row for row in record.of("rows", name) if row.stock]
        if rows:
            worst = max(rows, key=lambda row: row.ratio() or 0.0)
            mean = geometric_mean(row.ratio() or 0.0 for row in rows)
            yield Bound(f"{name} over PyTorch, geometric mean", mean, None, None,
                        f"worst {worst.ratio():.3f}, {worst.name}")

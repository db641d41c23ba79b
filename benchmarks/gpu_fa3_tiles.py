"""Which of FlashAttention-3's tiles agree bit for bit: ``python benchmarks/gpu_fa3_tiles.py --library FA3.so``.

FA3 as vLLM ships it takes another tile for a step whose longest request has few query tokens (one group of warps up to
64 rows), and drops the causal mask for decoding at some head dims; both are read off ``max_seqlen_q``, which may be
declared larger than it is. One request is decoded, and the same row computed again under every declared maximum and
within a chunk, all unsplit. Declarations are of one class if the row has the same bits under both at every context.

Expected (``predicted``): a class is a width of the KV block. At head dim 128 every tile's is 128 with pages of 16, so
all agree; at head dim 64 one group of warps has 192 and two have 128, so decoding differs from everything that is
declared above 64 / g rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from detent.bench.gpu.environment import environment

LAYOUTS = {"Llama-3.2-1B": (32, 8, 64), "Llama-3.1-8B": (32, 8, 128), "Qwen3-30B-A3B TP=4": (8, 1, 128)}
"""Query heads, KV heads and head dim."""
CONTEXTS = (100, 192, 193, 1024, 1500, 8192)
DECLARED = (1, 2, 4, 8, 9, 16, 17, 32, 64, 128)
CHUNK = 40
"""Query tokens of a chunk that ends with the row."""
PAGE = 16
BLOCKS = {64: (192, 128), 128: (128, 128)}
"""KV block of one group of warps and of two, gathered pages, by head dim."""


def row(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int, queries: int, declared: int) -> torch.Tensor:
    """The last query token's output, of the last ``queries`` ones of a request of ``context`` tokens."""
    ops = torch.ops._vllm_fa3_C
    heads, dim = q.shape[1:]
    own = q[context - queries:context].contiguous()
    cu = torch.tensor([0, queries], device="cuda", dtype=torch.int32)
    used = torch.tensor([context], device="cuda", dtype=torch.int32)
    table = torch.arange(-(-context // PAGE), device="cuda", dtype=torch.int32).view(1, -1)
    out = torch.full_like(own, float("nan"))
    ready = ops.get_scheduler_metadata(1, declared, context, heads, k.shape[2], dim, dim, torch.bfloat16, used, cu,
                                       None, None, None, None, PAGE, 0, True, -1, -1, False, 1, None, 0)
    ops.fwd(own, k, v, None, None, None, out, cu, None, None, None, used, declared, context, table, None, None, None,
            None, None, None, None, None, dim ** -0.5, True, -1, -1, 0.0, True, ready, 1, None, 0, None, 1, 0, None)
    return out[-1]


def compared(heads: int, kv_heads: int, dim: int) -> dict[str, Any]:
    """Classes of declarations, by the first one of each."""
    torch.manual_seed(0)
    pages = -(-max(CONTEXTS) // PAGE)
    k, v = (torch.randn(pages, PAGE, kv_heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    q = torch.randn(max(CONTEXTS), heads, dim, device="cuda", dtype=torch.bfloat16)
    ways = {f"decode, {declared} declared": (1, declared) for declared in DECLARED}
    ways |= {f"chunk of {CHUNK}": (CHUNK, CHUNK)}
    bits = {name: [row(q, k, v, context, *way).view(torch.int16) for context in CONTEXTS] for name, way in ways.items()}
    assert all(bool(torch.isfinite(each.view(torch.bfloat16)).all()) for rows in bits.values() for each in rows)
    classes: dict[str, list[str]] = {}
    for name, rows in bits.items():
        first = next((other for other in classes if all(map(torch.equal, bits[other], rows))), name)
        classes.setdefault(first, []).append(name)
    group, (one, two) = heads // kv_heads, BLOCKS[dim]
    wide = {name: one if max(queries, declared) * group <= 64 else two for name, (queries, declared) in ways.items()}
    return {"classes": classes, "predicted_block": wide,
            "as_predicted": len(classes) == len(set(wide.values())) and all(
                len({wide[name] for name in members}) == 1 for members in classes.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--library", required=True, help="vLLM's _vllm_fa3_C.abi3.so")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the JSON (default $OUT)")
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.library)
    result: dict[str, Any] = {"environment": environment(["python", *sys.argv]), "contexts": CONTEXTS, "models": {}}
    for name, layout in LAYOUTS.items():
        result["models"][name] = compared(*layout)
        print(name, json.dumps(result["models"][name]["classes"]), "as predicted:",
              result["models"][name]["as_predicted"], flush=True)
    Path(arguments.out, "fa3_tiles_h200.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

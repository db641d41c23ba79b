"""Small calls of every kernel for compute-sanitizer, which knows the bounds of tensors only without PyTorch's cache:
``PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python tests_kernels/small.py``, and racecheck.

Names of parts may follow (``attention``, ``gemm``, ``experts``, ``rows``, ``all_reduce``); racecheck is slow.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from all_reduce_cases import KINDS, ascending, messages, wrong
from attention_cases import DEVICE, DTYPE, Batch, stream
from moe_cases import Layer, row_dict, run

from detent.kernels import all_reduce, gemm_triton, rows
from detent.kernels.gemm import gemm
from detent.kernels.moe import topk_softmax


def attention(dims: tuple[int, ...] = (64, 96, 128, 256), longest: int = 700) -> None:
    """Decoded, short and prefilled queries beside one another; pages of 1 and 2 tokens are gathered by other code."""
    for dim in dims:
        request = stream(longest, 2, 4, dim, seed=dim)
        for page in (1, 2, 16):
            for queries in (1, 3, 200):
                mixed = [(request, longest, min(queries, longest)), (request, 257, 1), (request, 257, min(queries, 3))]
                for stride in (256, 512):
                    Batch(mixed, page).run(stride)


def linear(counts: tuple[int, ...] = (1, 17, 65, 130), n: int = 80, k: int = 200) -> None:
    """In Triton, every tile; DeepGEMM is not ours."""
    weight = torch.randn(n, k, device=DEVICE).to(DTYPE)
    for count in counts:
        x = torch.randn(count, k, device=DEVICE).to(DTYPE)
        gemm(x, weight, padding=1, implementation="triton")
        for tile in gemm_triton.TILES:
            out = torch.empty(count, n, device=DEVICE, dtype=DTYPE)
            gemm_triton.launch(x, weight, out, tile, 3, DEVICE == "cpu")


def experts(tokens: tuple[int, ...] = (1, 5, 130)) -> None:
    """A row of few and one of many warps, and the router."""
    for count in tokens:
        layer = Layer(count, seed=count, sizes=(6, 64, 48, 3))
        for row in ("16/64/64/1/4/3", "64/128/64/16/8/3"):
            run(layer, row_dict(row))
        topk_softmax(torch.randn(count, 6, device=DEVICE), 3, renormalize=True)


def every_row() -> None:
    for count, size in ((1, 96), (5, 4096)):
        x = torch.randn(count, size, device="cuda").bfloat16()
        weight = torch.randn(size, device="cuda").bfloat16()
        rows.rms_norm(x, weight, 1e-5)
        rows.rms_norm(x, weight, 1e-5, residual=x.clone(), out=x)
        rows.silu_and_mul(x)
        rows.gelu_and_mul(x)
        heads = x.view(count, -1, 32)
        rows.head_norm(heads, weight[:32], 1e-6)
        table = torch.randn(7, 32, device="cuda").bfloat16()
        rows.rotary(torch.arange(count, device="cuda"), heads, heads[:, :1].clone(), table)
    logits = torch.randn(3, 9000, device="cuda")
    rows.softmax(logits)
    rows.log_softmax(logits)
    rows.argmax(logits)
    some = torch.arange(3, device="cuda")
    for cuts in ({}, {"top_k": some.int() + 5, "top_p": torch.full((3,), 0.9, device="cuda")}):
        rows.sample(logits, torch.tensor([0.0, 1.0, 2.0], device="cuda"), some, some, **cuts)
    torch.cuda.synchronize()


def every_rank() -> None:
    for ranks in (2, 3, 8):
        simulated = all_reduce.SimulatedAllReduce(ranks, "cuda", workspace=1 << 14, channels=4, timeout=500.0)
        for kind in KINDS:
            inputs = messages(ranks, 5003, kind, seed=ranks)
            for algorithm in all_reduce.ALGORITHMS:
                found = wrong(simulated(inputs, algorithm), ascending(inputs))
                assert found == 0, f"{ranks} ranks, {algorithm}, {kind}: {found} elements"
    torch.cuda.synchronize()


PARTS = {"attention": attention, "gemm": linear, "experts": experts, "rows": every_row, "all_reduce": every_rank}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
        torch.cuda.synchronize()
    print("all calls ended")

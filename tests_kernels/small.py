"""Small calls of ``rows`` and ``all_reduce`` for compute-sanitizer, which knows the bounds of tensors only without
PyTorch's cache: ``PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer python tests_kernels/small.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from all_reduce_cases import KINDS, ascending, messages, wrong

from detent.kernels import all_reduce, rows


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


if __name__ == "__main__":
    every_row()
    every_rank()
    print("all calls ended")

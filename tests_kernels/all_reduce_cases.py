"""Messages for the all-reduce's tests, and their sums in ascending order of rank by numpy."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

KINDS = (torch.bfloat16, torch.float16, torch.float32)

OWNER_FIRST = """#define DETENT_RANK_AT(i, owner, ranks) (((owner) + (i)) % (ranks))
#include "all_reduce_sm90.cu"
"""


def messages(ranks: int, elements: int, kind: torch.dtype, seed: int, device: str = "cuda") -> list[torch.Tensor]:
    """One message a rank, of values whose magnitudes differ, so that the order of a sum shows in its bits."""
    at = torch.Generator(device).manual_seed(seed)
    made = []
    for _ in range(ranks):
        power = torch.randint(-6, 7, (elements,), generator=at, device=device).float()
        made.append((torch.randn(elements, generator=at, device=device) * power.exp2()).to(kind))
    return made


def raw(x: torch.Tensor) -> numpy.ndarray:
    return x.cpu().view(torch.int16 if x.element_size() == 2 else torch.int32).numpy()


def ascending(inputs: list[torch.Tensor]) -> numpy.ndarray:
    """Raw bits of the sum over ranks 0, 1, ... in fp32, rounded once to nearest, ties to even."""
    total = inputs[0].cpu().float().numpy().copy()
    for x in inputs[1:]:
        total += x.cpu().float().numpy()
    if inputs[0].dtype == torch.float32:
        return total.view(numpy.int32)
    if inputs[0].dtype == torch.float16:
        return total.astype(numpy.float16).view(numpy.int16)
    word = total.view(numpy.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(numpy.uint16).view(numpy.int16)


def wrong(outs: list[torch.Tensor], want: numpy.ndarray) -> int:
    """How many elements of any rank's output have other bits."""
    return sum(int((raw(out) != want).sum()) for out in outs)


def owner_first(folder: Path) -> Path:
    """A source whose sums start at the rank that owns a shard."""
    path = folder / "owner_first.cu"
    path.write_text(OWNER_FIRST, encoding="utf-8")
    return path

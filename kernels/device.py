"""What launches are sized by."""

from __future__ import annotations

import functools
from typing import Any

INTERPRETED = 4
"""Multiprocessors that Triton's interpreter stands for."""


@functools.cache
def multiprocessors(device: Any, interpreted: bool) -> int:
    """Of a CUDA device."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    return INTERPRETED if interpreted else int(torch.cuda.get_device_properties(device).multi_processor_count)

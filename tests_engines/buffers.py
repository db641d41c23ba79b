"""A stand-in that the tests of both samplers share."""

from __future__ import annotations

import torch


class Buffer:
    """vLLM's host buffer, seen from the device too."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.gpu = torch.zeros(size, dtype=dtype)
        self.np = self.gpu.numpy()

    def copy_to_uva(self) -> None:
        return None

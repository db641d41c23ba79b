"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)  # the interpreter's arrays are small

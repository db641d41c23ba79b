"""The GPU that a measurement was made on, and what it ran."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any

SHARED = ("build_cuda", "device")
"""Files of ``kernels/`` that several kernels use."""


def environment(command: Sequence[str]) -> dict[str, Any]:
    """Of this process; ``command`` is what was typed, of whose paths only the last part is kept. Needs a GPU, PyTorch
    and Triton."""
    import torch
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
            "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d"), "command": typed(command)}


def code(kernel: str) -> str:
    """The implementation that runs here and a digest of the kernel's files: rows of other code are other rows."""
    from detent import kernels
    from detent.kernels import attention_split, gemm
    from detent.runtime.encoding import digest

    folder = next(iter(kernels.__path__))
    texts: list[str | bytes] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith((kernel, *SHARED)) and name.endswith((".py", ".cu", ".cuh", ".json")):
            with open(os.path.join(folder, name), "rb") as file:
                texts += [name, file.read()]
    named = {"attention": attention_split.implementation, "gemm": gemm.implementation}
    chosen = named[kernel]() if kernel in named else "cuda" if kernel == "all_reduce" else "triton"
    return f"{chosen} {digest(*texts)[:16]}"


def typed(command: Sequence[str]) -> str:
    """A command line without this machine's folders: of ``--out /home/me/x.json`` and ``fa3=/lib/y.so`` the files."""
    return " ".join(re.sub(r"(^|=)[^=]*/", r"\1", os.path.normpath(word)) if "/" in word else word for word in command)

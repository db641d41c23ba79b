"""The code of a kernel as measurements and commitment tuples name it."""

from __future__ import annotations

import os

SHARED = ("build_cuda", "device")
"""Files of ``kernels/`` that several kernels use."""


def code(kernel: str, implementation: str | None = None) -> str:
    """The implementation that runs here, unless one is named, and a digest of the kernel's files: other code, other
    bits or times."""
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
    if implementation is None:
        implementation = named[kernel]() if kernel in named else "cuda" if kernel == "all_reduce" else "triton"
    return f"{implementation} {digest(*texts)[:16]}"

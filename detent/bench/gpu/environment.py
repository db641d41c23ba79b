"""The GPU that a measurement was made on, and what it ran."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any

from detent.engines.sources import code as code  # what a row of measurements names its kernel by


def environment(command: Sequence[str]) -> dict[str, Any]:
    """Of this process; ``command`` is what was typed, of whose paths only the last part is kept. Needs a GPU, PyTorch
    and Triton."""
    import torch
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
            "cuda": torch.version.cuda, "date": time.strftime("%Y-%m-%d"), "command": typed(command)}


def typed(command: Sequence[str]) -> str:
    """A command line without this machine's folders: of ``--out /home/me/x.json`` and ``fa3=/lib/y.so`` the files."""
    return " ".join(re.sub(r"(^|=)[^=]*/", r"\1", os.path.normpath(word)) if "/" in word else word for word in command)

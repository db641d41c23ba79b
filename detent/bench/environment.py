"""Where a measurement was made."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

SAME = ("detent", "python", "system", "processor", "cpus")
"""Parts that must be equal for a measurement to be continued."""
PACKAGES = ("torch", "numpy", "vllm", "sglang", "triton", "scipy", "statsmodels")


def environment() -> dict[str, Any]:
    """This machine and what is installed, without names of hosts or folders."""
    from detent import __version__

    packages = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return {"detent": __version__, "python": platform.python_version(), "system": platform.platform(),
            "processor": _processor(), "cpus": _cpus(), "memory_bytes": _memory(),
            "threads": {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
                        if name in os.environ},
            "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None, "packages": packages}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps runs of the two from standing beside each other."""
    return [f"{name} was {old.get(name)} and is {new[name]}" for name in SAME if old.get(name) != new[name]]


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None

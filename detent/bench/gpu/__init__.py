"""Times of Detent's GPU kernels beside what the engines ship, each case with the least time the machine allows.

A module a kernel (:data:`KERNELS`) makes :class:`Case` objects; :mod:`detent.bench.gpu.timing` replays their arms
by turns, :mod:`detent.bench.gpu.record` keeps the times of several runs in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

KERNELS = ("attention", "gemm", "moe", "rows", "all_reduce")
"""Kernels that can be timed; each is a module here with ``cases(options)`` and ``bounds(record)``, and the beginning of
the names of its files in ``kernels/``."""


class NotHere(Exception):
    """A kernel cannot be timed on this machine, and why."""


@dataclass(frozen=True)
class Case:
    """One shape. ``arms``: by name what is called with a turn's number, Detent's own beside the others.

    ``group``: cases that a bound is about, such as "decode". ``stock``: names of the arms that an engine would run, of
    which the fastest counts; ``ours``: Detent's. ``floor_us``: microseconds that the machine needs for ``floor``
    ("bytes", "operations", or "link bytes" between GPUs). ``timed``: times the arms, where it takes several processes.
    """

    kernel: str
    group: str
    name: str
    arms: Mapping[str, Callable[[int], Any]] = field(repr=False)
    stock: tuple[str, ...]
    ours: tuple[str, ...]
    floor_us: float
    floor: str
    timed: Callable[[], Mapping[str, float]] | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        return f"{self.kernel}/{self.group}/{self.name}"

    def times(self) -> Mapping[str, float]:
        """Each arm's microseconds a call."""
        from detent.bench.gpu import timing

        return timing.microseconds(self.arms, self.floor_us) if self.timed is None else self.timed()


@dataclass(frozen=True)
class Options:
    """``quick``: fewer cases. ``libraries``: files of stock kernels by name, such as ``fa3``."""

    quick: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """What a kernel has to reach. ``value`` and ``must`` (and ``aim``) in the same unit; at most, unless ``least``.

    ``value`` None: nothing was measured that would say.
    """

    what: str
    value: float | None
    must: float | None
    aim: float | None
    detail: str = ""
    least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the must is met; None where there is none, or where nothing was measured."""
        if self.must is None or self.value is None:
            return None
        return self.value >= self.must if self.least else self.value <= self.must


    @property
    def open(self) -> bool:
        """Whether there is a must and nothing was measured."""
        return self.must is not None and self.value is None


def cases(kernel: str, options: Options) -> Iterator[Case]:
    """The kernel's cases, each made when it is asked for: one case's tensors are in memory at a time."""
    found: Iterator[Case] = import_module(f"{__name__}.{kernel}").cases(options)
    return found

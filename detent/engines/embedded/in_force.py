"""Which selection points the calls of a step were computed with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.engines.embedded.selectors import PROGRAMS

KNOWN = 1024
"""Different sets of selections that are kept with their points."""


class InForce:
    """Every selection of a step, by family and call site. ``constant``: a tuple's points, by family."""

    def __init__(self, constant: Mapping[str, Mapping[str, Any]]) -> None:
        self._constant = {f"{PROGRAMS[family]}.{name}": value for family, points in constant.items()
                          for name, value in points.items()}
        self._calls: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        # By the identity of selections, which selectors share. Beside the points stand the selections themselves:
        # no other can have their identity meanwhile.
        self._known: dict[tuple[Any, ...], tuple[list[list[Mapping[str, Any]]], Mapping[str, Any]]] = {}

    def begin(self) -> None:
        """A step begins."""
        self._calls.clear()

    def note(self, family: str, site: str, points: Mapping[str, Any]) -> None:
        """A call at a site is computed with these points."""
        seen = self._calls.get((family, site))
        if seen is None:
            self._calls[family, site] = [points]
        elif points is not seen[-1] and points not in seen:
            seen.append(points)

    def points(self) -> Mapping[str, Any]:
        """What has been noted since the step began; see :meth:`detent.engines.embedded.ops.Ops.points_in_force`."""
        if not self._calls:
            return self._constant
        key = tuple((call, *map(id, seen)) for call, seen in self._calls.items())
        if key not in self._known:
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = [list(seen) for seen in self._calls.values()], self._named()
        return self._known[key][1]

    def _named(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for (family, site), seen in self._calls.items():
            for number, points in enumerate(seen, 1):
                label = site if number == 1 else f"{site}, {number}"
                for name, value in points.items():
                    if _used(family, site, name, points):
                        name = f"{PROGRAMS[family]}.{name}"
                        if found.setdefault(name, value) != value:
                            found[f"{name} ({label})"] = value
        return {**self._constant, **found}


def _used(family: str, site: str, name: str, points: Mapping[str, Any]) -> bool:
    """Whether a call was computed with a point: the kernels of other layers and the tiles of another kernel are none
    of its own."""
    if family == "gemm" and name.startswith("kernel."):
        return name == f"kernel.{site}"
    return family != "attention" or name == "kernel" or points["kernel"] != "whole"

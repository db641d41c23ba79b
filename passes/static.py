"""What a value is while a program is being bound: known now, or an operation of the result.

Known values are ordinary Python objects (``int``, ``str``, ``tuple``, ``dict``, ...) and the classes
below; a value that depends on the batch is an xDSL ``SSAValue``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from xdsl.ir import BlockArgument, OpResult, SSAValue

from detent.dialects.selir.semantics import type_of
from detent.dialects.selir.source import Span
from detent.dialects.selir.types import type_name
from detent.dialects.selir.unbound import LambdaOp


class F32(float):
    """A known value of type ``f32``."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A record of the deployment; a field is read on use, so that only facts read enter the cache key."""

    section: str
    read: Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose fields are values of the program."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Keyed:
    """A row of a table of collections, chosen by a batch-dependent key: columns are looked up by that key."""

    rows: dict[Any, Any]
    key: SSAValue


@dataclass(frozen=True, slots=True)
class Filtered:
    """Elements that are present only where their guard (True or a bool of the program) holds."""

    elements: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class Closure:
    """A lambda with the values it captured."""

    op: LambdaOp
    values: dict[SSAValue, Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A helper function used as a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """A variable without a usable value on this path; using it is an error with this text."""

    message: str
    help: str


Place = Span | None

SCALARS = (bool, int, float, str, type(None))
_RESIDUAL = frozenset((OpResult, BlockArgument))


def is_residual(value: Any) -> TypeGuard[SSAValue]:
    """Whether a value is an operation of the bound program rather than known now.

    By class and not by isinstance, which is slow on xDSL's abstract classes and asked for every operand.
    """
    return type(value) in _RESIDUAL


def is_scalar(value: Any) -> bool:
    """Whether a value can be a selection point: known or not, but no collection."""
    return is_residual(value) or isinstance(value, SCALARS)


def scalar_type(value: Any) -> str:
    """The semantics table's type name of a known scalar or of an operation's result; of others, what they are."""
    if is_residual(value):
        return type_name(value.type)
    if isinstance(value, F32):
        return "f32"
    return type_of(value) if isinstance(value, SCALARS) else describe(value)


def describe(value: Any) -> str:
    """What a value is, in an error message."""
    names = {tuple: "a tuple", dict: "a dict", Keyed: "a table row", Filtered: "a filtered collection",
             Facts: "a record of facts", Record: "a record", Closure: "a function", Function: "a function"}
    if is_residual(value):
        return f"a batch-dependent {type_name(value.type)}"
    return names.get(type(value), f"a {scalar_type(value)}" if isinstance(value, SCALARS) else type(value).__name__)


def same_known(a: Any, b: Any) -> bool:
    """Whether two known values agree in type and bits (``True`` is not 1, ``0.0`` is not ``-0.0``)."""
    if is_residual(a) or is_residual(b):
        return a is b
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return bool(a.hex() == b.hex())
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same_known, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_known(a[k], b[k]) for k in a)
    if isinstance(a, SCALARS):
        return bool(a == b)
    return a is b

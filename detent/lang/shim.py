"""The language as plain Python: a program is an ordinary function, and this module gives its words their meaning.

The front end reads a program's syntax tree and never calls these definitions. They serve everything that runs a
program as it stands: conformance against an engine's own outputs, tests, and an author at a prompt.

Only the standard library, and little of it: ``typing`` alone would double the import time.
"""

from __future__ import annotations

import operator
import struct
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil, copysign, floor, inf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Annotated, Any, NoReturn, TypeVar, dataclass_transform

    T = TypeVar("T")
    Function = TypeVar("Function", bound=Callable[..., Any])
    Runtime = Annotated[T, "runtime"]
    Unpinnable = Annotated[T, "unpinnable"]
    Request = Annotated[T, "request"]
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator

    class Marked:
        """What ``Runtime[int]`` is while a program runs: a ``kind`` of input and its ``type``."""

        __slots__ = ("kind", "type")

        def __init__(self, kind, type):
            self.kind, self.type = kind, type

        def __repr__(self):
            return f"{self.kind.capitalize()}[{self.type.__name__}]"

    class Marker:
        """A batch-dependent or request input in a record: ``Runtime[int]``. Type checkers see the bare ``int``."""

        __slots__ = ("kind",)

        def __init__(self, kind):
            self.kind = kind

        def __getitem__(self, type):
            if type not in (bool, float, int, str, F32):
                name = getattr(type, "__name__", type)
                raise Misuse(f"an input is an int, float, f32, bool or str, not {name}; anything else is a fact")
            return Marked(self.kind, type)

        def __repr__(self):
            return self.kind.capitalize()

    Runtime = Marker("runtime")
    Unpinnable = Marker("unpinnable")
    Request = Marker("request")

__all__ = [
    "F32",
    "Request",
    "Runtime",
    "Table",
    "Unpinnable",
    "Violation",
    "assume",
    "ceil",
    "f32",
    "floor",
    "knob",
    "knobs",
    "record",
    "report",
    "require",
    "selection",
]

Table = dict[int, dict[str, int]]
"""A tuned table of facts: rows by integer key, in the order of its file."""


# ---- single precision ------------------------------------------------------------------------------------------

_SINGLE = struct.Struct("f")


def _round(value: float) -> float:
    """The nearest single, ties to even. Past the largest single this is an infinity, as in C."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return copysign(inf, value)
    except struct.error:
        raise TypeError(f"f32 takes a number, not {value!r}") from None
    return rounded


def _arithmetic(op: Callable[[float, float], float], a: float, b: float) -> float:
    """C's usual conversions: a double makes the result a double, otherwise it is a single, rounded once.

    Rounding a double result of ``+ - * /`` to single is exact: a double has more than twice a single's digits.
    """
    if not (isinstance(a, (float, int)) and isinstance(b, (float, int))):
        return NotImplemented
    if isinstance(a, (F32, int)) and isinstance(b, (F32, int)):
        return F32(op(_round(a), _round(b)))
    return op(float(a), float(b))


def _comparable(other: object) -> Any:
    """An int is converted to single before it is compared, as C does; a double is compared exactly."""
    return F32(other) if isinstance(other, int) else other


class F32(float):
    """A float32 with C's conversions: f32∘f32 and f32∘int are f32, f32∘float is a double.

    Equal values hash alike, but for an int that no single represents: it is rounded by ``==`` and not by ``hash``.
    """

    __slots__ = ()

    def __new__(cls, value: float) -> F32:
        return float.__new__(cls, _round(value))

    def __repr__(self) -> str:
        return f"f32({float.__repr__(self)})"

    def __add__(self, other: float) -> float:
        return _arithmetic(operator.add, self, other)

    def __radd__(self, other: float) -> float:
        return _arithmetic(operator.add, other, self)

    def __sub__(self, other: float) -> float:
        return _arithmetic(operator.sub, self, other)

    def __rsub__(self, other: float) -> float:
        return _arithmetic(operator.sub, other, self)

    def __mul__(self, other: float) -> float:
        return _arithmetic(operator.mul, self, other)

    def __rmul__(self, other: float) -> float:
        return _arithmetic(operator.mul, other, self)

    def __truediv__(self, other: float) -> float:
        return _arithmetic(operator.truediv, self, other)

    def __rtruediv__(self, other: float) -> float:
        return _arithmetic(operator.truediv, other, self)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("f32 has only + - * / as C's float; make it an int first: ceil(...), floor(...) or int(...)")

    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __divmod__ = __rdivmod__ = __pow__ = __rpow__ = _refuse

    def __neg__(self) -> F32:
        return F32(float.__neg__(self))

    def __pos__(self) -> F32:
        return self

    def __abs__(self) -> F32:
        return F32(float.__abs__(self))

    def __lt__(self, other: float) -> bool:
        return float.__lt__(self, _comparable(other))

    def __le__(self, other: float) -> bool:
        return float.__le__(self, _comparable(other))

    def __gt__(self, other: float) -> bool:
        return float.__gt__(self, _comparable(other))

    def __ge__(self, other: float) -> bool:
        return float.__ge__(self, _comparable(other))

    def __eq__(self, other: object) -> bool:
        return float.__eq__(self, _comparable(other))

    def __ne__(self, other: object) -> bool:
        return float.__ne__(self, _comparable(other))

    __hash__ = float.__hash__


f32 = F32


# ---- conditions and knobs --------------------------------------------------------------------------------------


class Misuse(TypeError):
    """A word of the language used as it cannot be; says what to write instead."""


class Violation(Exception):
    """A condition that does not hold. ``kind`` is ``assume`` or ``require``; ``message`` is the program's own, or
    the condition's place where the program gives none."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)
        self.kind, self.message = kind, message

    def __str__(self) -> str:
        return f"{self.kind} does not hold: {self.message}"


_collected: ContextVar[list[Violation] | None] = ContextVar("detent.lang.collected", default=None)
_settings: ContextVar[dict[str, object] | None] = ContextVar("detent.lang.knobs", default=None)


def _check(kind: str, condition: bool, message: str) -> None:
    if condition:
        return
    if not message:
        caller = sys._getframe(2)
        message = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    violation, collected = Violation(kind, message), _collected.get()
    if collected is None:
        raise violation
    collected.append(violation)


def assume(condition: bool, message: str = "") -> None:
    """What the engine guarantees about inputs. Raises Violation where it does not hold, or see :func:`report`."""
    _check("assume", condition, message)


def require(condition: bool, message: str = "") -> None:
    """What makes the selection valid. Raises Violation where it does not hold, or see :func:`report`."""
    _check("require", condition, message)


@contextmanager
def report() -> Iterator[list[Violation]]:
    """Inside the block conditions are collected in the list instead of being enforced."""
    found: list[Violation] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def knob(name: str, values: tuple[T, ...], *, default: T) -> T:
    """A deployment setting: its default, or what an enclosing :func:`knobs` sets. Raises ValueError for a value
    that is not among ``values``."""
    value: Any = (_settings.get() or {}).get(name, default)
    if value not in values:
        raise ValueError(f"knob {name!r} takes {', '.join(map(repr, values))}, not {value!r}; add it to the knob's "
                         "values, or set one of them")
    return value  # type: ignore[no-any-return]


@contextmanager
def knobs(**settings: object) -> Iterator[None]:
    """Inside the block the named knobs have these values; an enclosing block's other settings stay."""
    token = _settings.set({**(_settings.get() or {}), **settings})
    try:
        yield
    finally:
        _settings.reset(token)


# ---- records and selections ------------------------------------------------------------------------------------


def _optional(annotation: Any) -> bool:
    return type(None) in getattr(annotation, "__args__", ()) and not isinstance(annotation, type)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """An immutable record with a keyword constructor.

    Its fields are the class's annotations: a bare type is a fact, ``Runtime[T]``, ``Unpinnable[T]`` and
    ``Request[T]`` are inputs. A fact that may be absent from a deployment is annotated ``T | None``, and is None
    when it is not given. ``__detent_fields__`` keeps ``{name: (kind, type)}`` in order, ``kind`` being ``fact``,
    ``runtime``, ``unpinnable`` or ``request``. The constructor raises TypeError for missing and unknown fields.
    """
    frame = sys._getframe(1)
    fields: dict[str, tuple[str, Any]] = {}
    for name, annotation in cls.__annotations__.items():
        if name in cls.__dict__:
            raise Misuse(f"{cls.__name__}.{name}: a field has no default; write the value in the deployment")
        if isinstance(annotation, str):
            annotation = eval(annotation, frame.f_globals, dict(frame.f_locals))
        kind = getattr(annotation, "kind", "fact")
        fields[name] = (kind, annotation if kind == "fact" else annotation.type)
    optional = {name for name, (_, type) in fields.items() if _optional(type)}

    def __init__(self: object, **values: object) -> None:
        missing = [name for name in fields if name not in values and name not in optional]
        unknown = [name for name in values if name not in fields]
        if missing or unknown:
            problems = [f"{what} {', '.join(names)}" for what, names in (("missing", missing), ("unknown", unknown))
                        if names]
            raise TypeError(f"{cls.__name__}: {'; '.join(problems)} (its fields: {', '.join(fields)})")
        for name in fields:
            object.__setattr__(self, name, values.get(name))

    def __setattr__(self: object, name: str, value: object) -> None:
        raise AttributeError(f"{cls.__name__} is immutable; make another record instead of setting {name}")

    def __delattr__(self: object, name: str) -> None:
        raise AttributeError(f"{cls.__name__} is immutable; {name} stays")

    def values_of(self: object) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in fields)

    def __eq__(self: object, other: object) -> Any:
        return values_of(self) == values_of(other) if type(other) is cls else NotImplemented

    def __hash__(self: object) -> int:
        return hash((cls, values_of(self)))

    def __repr__(self: object) -> str:
        return f"{cls.__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"

    for method in (__init__, __setattr__, __delattr__, __eq__, __hash__, __repr__):
        method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
        setattr(cls, method.__name__, method)
    cls.__detent_fields__ = fields  # type: ignore[attr-defined]
    return cls


NOT_A_FAMILY = "family={!r} is no name of a kernel family: write letters, digits, '_' and '-', a letter first"


def is_family(name: object) -> bool:
    """Whether a value can be a family's name: it is a key in tuples and part of messages and file names."""
    return isinstance(name, str) and name.isascii() and name[:1].isalpha() and name.replace("-", "_").isidentifier()


def selection(*misplaced: object, family: str = "") -> Callable[[Function], Function]:
    """Mark a function as the selection of a kernel family; it stays an ordinary function.

    Raises Misuse if it is used without a family, or with one that is no name.
    """
    if misplaced or not family:
        raise Misuse("@selection needs the kernel family by name: write @selection(family=\"norm\")")
    if not is_family(family):
        raise Misuse(f"@selection: {NOT_A_FAMILY.format(family)}")

    def mark(function: Function) -> Function:
        function.__detent_selection__ = family  # type: ignore[attr-defined]
        return function

    return mark

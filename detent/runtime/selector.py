"""Compiled selectors: what an engine calls before a dispatch.

The source is a function the solver wrote. A selector remembers the points of inputs it has seen, checks new
ones, and raises :class:`Violation` where an ``assume`` or an unproved ``require`` does not hold. That is not
remembered: every dispatch with such inputs fails.
"""

from __future__ import annotations

import functools
import math
import struct
from types import MappingProxyType

from detent.runtime.errors import BadInput, DetentError, UnknownName, Violation, brief_repr, named, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType
    from typing import Any

    Typed = Iterable[tuple[str, str]]
    """Names with their types."""
    Conditions = Iterable[tuple[str, str, str, str, list[str]]]
    """Kind, message, text, ``file:line``, pins and knobs."""

SEEN = 32_768
"""Input combinations a selector remembers (with ten inputs some 20 MB); the longest unused one goes first."""

_SINGLE = struct.Struct("f")


def round32(value: float) -> float:
    """Round to the nearest IEEE single; overflow gives an infinity. The same as the compiler's."""
    try:
        return float(_SINGLE.unpack(_SINGLE.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


_GLOBALS = {"f32": round32, "ceil": math.ceil, "floor": math.floor, "isfinite": math.isfinite, "Violation": Violation}


def compile_source(source: str, program: str) -> CodeType:
    """The code object of a generated module that defines ``select``."""
    return compile(source, f"<detent selector {program}>", "exec", dont_inherit=True)


def load_code(code: CodeType) -> Callable[..., Any]:
    """The ``select`` function of a generated module."""
    space: dict[str, Any] = dict(_GLOBALS)
    exec(code, space)
    function: Callable[..., Any] = space["select"]
    return function


def brief(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a selector needs of a solution document besides source and assignment."""
    return {
        "program": document["program"],
        "inputs": [[item["name"], item["type"]] for item in document["inputs"]],
        "points": [[item["name"], item["type"]] for item in document["points"]],
        "conditions": [[c["kind"], c["message"], c["text"], position(c["source"]), [*c["pins"], *c["knobs"]]]
                       for c in document["conditions"]],
    }


def position(source: Mapping[str, Any] | None) -> str:
    """``file:line`` of a location in a solution document, as generated source writes it; empty for none."""
    return "" if source is None else f"{source['file']}:{source['line']}"


class _Compiled:
    """The part that both kinds of selector share: signature, checks of types, memory.

    Every object has a ``__call__`` of its own in a slot: the interpreter finds there, without a step in Python, the
    cache that knows the combinations seen. That cache compares as Python does, so the checks of new inputs do too:
    what equals a value of the declared type is that value (``True`` and ``1.0`` are 1), seen before or not. Telling
    types apart would cost a seen combination three times as much. Selectors with float inputs remember nothing: 0.0
    and -0.0 are equal and may have different points.
    """

    __slots__ = ("__call__", "__dict__", "__weakref__")

    _result: Callable[[Any], Any]
    """What a call returns, of what the compiled function returned; each kind of selector has its own."""
    __call__: Callable[..., Any]
    """Points for the inputs in the order of :attr:`inputs`; values that cannot be hashed are a TypeError."""

    def __init__(self, program: str, inputs: Typed, points: Typed, conditions: Conditions, source: str,
                 code: CodeType | None) -> None:
        self.program, self.source = program, source
        self.inputs: Mapping[str, str] = MappingProxyType(dict(inputs))
        self.points_schema: Mapping[str, str] = MappingProxyType(dict(points))
        self.conditions = tuple(conditions)
        self.code = compile_source(source, program) if code is None else code
        self.function = load_code(self.code)
        self._results: dict[Any, Any] = {}
        # Equal floats may be different values (0.0 and -0.0), so results that hold any are told apart by their text.
        self._float_points = any(kind in ("float", "f32") for kind in self.points_schema.values())
        if {"float", "f32"}.isdisjoint(self.inputs.values()):
            self.__call__ = functools.lru_cache(SEEN)(self._new)
        else:
            self.__call__ = self._new

    def call(self, **inputs: Any) -> Any:
        """The same with inputs by name. Raises UnknownName or BadInput for a name too many or missing."""
        for name in inputs:
            if name not in self.inputs:
                raise UnknownName("input", name, list(self.inputs), self.program)
        missing = [name for name in self.inputs if name not in inputs]
        if missing:
            raise BadInput(f"{self.program}: no value for input {shorten(missing)}", "give every input a value")
        return self(*(inputs[name] for name in self.inputs))

    def _new(self, *inputs: Any) -> Any:
        checked = self._checked(inputs)
        try:
            return self._result(self._run(checked))
        except Violation as violation:
            raise self._explained(violation, checked) from None

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        return self.function(*inputs)

    def _shared(self, points: dict[str, Any]) -> Mapping[str, Any]:
        """The points read-only; equal results share one object."""
        values = tuple(points.values())
        key = repr(values) if self._float_points else values
        shared = self._results.get(key)
        if shared is None:
            if len(self._results) >= SEEN:
                self._results.clear()
            shared = self._results[key] = MappingProxyType(points)
        return shared

    def _checked(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs as plain Python values of the declared types; equal numbers of other types are converted."""
        if len(inputs) != len(self.inputs):
            raise BadInput(f"{self.program}: takes {len(self.inputs)} inputs, not {len(inputs)}",
                           f"their order is {', '.join(self.inputs)}")
        values: list[Any] = []
        for value, (name, kind) in zip(inputs, self.inputs.items(), strict=True):
            if kind == "f32" or type(value) is not _EXACT[kind]:
                try:
                    value = _CONVERT[kind](value)
                except (TypeError, ValueError, AttributeError, OverflowError):
                    found = f"{brief_repr(value)} of type {type(value).__name__}"
                    raise BadInput(f"{self.program}: input {name} is {found}", f"pass one of type {kind}") from None
            values.append(value)
        return tuple(values)

    def _explained(self, violation: Violation, inputs: tuple[Any, ...]) -> DetentError:
        broken = (violation.kind, violation.reason, violation.source)
        text, names = next(((c[2], c[4]) for c in self.conditions if (c[0], c[1], c[3]) == broken), ("", []))
        if violation.kind == "assume":
            remedy = ("these inputs are outside of what was solved: correct the deployment's fact that the condition "
                      "names, or keep the engine within it")
        else:
            chosen = f" for {shorten(names)}" if names else ""
            remedy = f"commit to other values{chosen}, or keep the engine's inputs within the condition"
        return Violation(*broken, text, dict(zip(self.inputs, inputs, strict=True)), remedy)


def _to_int(value: Any) -> int:
    """Only numbers that cannot change: anything else with an ``__index__``, such as a tensor, may be the same key
    with another value later."""
    from numbers import Number

    # numpy's bool is no Number.
    if not isinstance(value, Number) and type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    whole = int(getattr(value, "real", value))
    if whole != value:
        raise TypeError
    return whole


def _to_float(value: Any) -> float:
    from numbers import Real

    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def _to_bool(value: Any) -> bool:
    number = _to_int(value)
    if number not in (0, 1):
        raise TypeError
    return number == 1


def _to_single(value: Any) -> float:
    return round32(_to_float(value))


def _to_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


_EXACT: dict[str, type] = {"int": int, "float": float, "f32": float, "bool": bool, "str": str}
_CONVERT: dict[str, Callable[[Any], Any]] = {
    "int": _to_int, "float": _to_float, "f32": _to_single, "bool": _to_bool, "str": _to_text}


class Selector(_Compiled):
    """The points of a program under one assignment: ``selector(*inputs)`` in the order of ``inputs``.

    Returns a read-only mapping from point to value. Raises :class:`Violation`, or BadInput for inputs that do
    not fit the signature. ``source`` is the compiled text, ``assignment`` the constants in it,
    ``points_schema`` the points' types, ``inputs`` the inputs' types. Built by :class:`detent.runtime.repin.Repin`,
    which checks that the assignment is legal.
    """

    def __init__(self, program: str, inputs: Typed, points: Typed, conditions: Conditions, source: str,
                 assignment: Mapping[str, Any], code: CodeType | None = None) -> None:
        super().__init__(program, inputs, points, conditions, source, code)
        self.assignment: Mapping[str, Any] = MappingProxyType(dict(assignment))

    def state(self) -> dict[str, Any]:
        """Constructor arguments as JSON values, without the code object."""
        return {"program": self.program, "inputs": list(self.inputs.items()), "points": [*self.points_schema.items()],
                "conditions": list(self.conditions), "source": self.source, "assignment": dict(self.assignment)}

    def _result(self, value: Any) -> Mapping[str, Any]:
        return self._shared(value)

    def __repr__(self) -> str:
        return f"<Selector {self.program}: {named(self.assignment)}>"


class UnpinnedSelector(_Compiled):
    """The program without pins: ``selector(*inputs)`` gives ``(points, broken)``.

    ``broken`` are the numbers of the ``require`` conditions that do not hold; they are reported, not enforced.
    An ``assume`` that does not hold raises :class:`Violation`. Knobs are at their defaults unless given.
    """

    def __init__(self, document: Mapping[str, Any], source: str, knobs: Mapping[str, Any] | None = None) -> None:
        super().__init__(**brief(document), source=source, code=None)
        self.knobs = {knob["name"]: knob["default"] for knob in document["knobs"]}
        allowed = {knob["name"]: knob["values"] for knob in document["knobs"]}
        for name, value in (knobs or {}).items():
            if name not in allowed:
                raise UnknownName("knob", name, list(allowed), self.program)
            if not any(type(v) is type(value) and v == value for v in allowed[name]):
                raise BadInput(f"{self.program}: knob {name} is {brief_repr(value)}",
                               f"its values are {shorten(allowed[name])}")
            self.knobs[name] = value

    def _run(self, inputs: tuple[Any, ...]) -> Any:
        return self.function(*inputs, **self.knobs)

    def _result(self, value: Any) -> tuple[Mapping[str, Any], tuple[int, ...]]:
        points, broken = value
        return self._shared(points), tuple(broken)

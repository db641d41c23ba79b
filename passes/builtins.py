"""Python's own functions on collections that are known while facts are bound."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import StringAttr

from detent.dialects.selir import structure
from detent.dialects.selir.source import SourceError
from detent.dialects.selir.types import TYPES, ValueAttr
from detent.passes import access, reductions
from detent.passes.static import (
    Filtered,
    Keyed,
    describe,
    is_residual,
    is_scalar,
    scalar_type,
)

if TYPE_CHECKING:
    from detent.passes.evaluator import Evaluator

MAX_ELEMENTS = 100_000


def call(ev: Evaluator, name: str, values: list[Any], keywords: dict[str, Any]) -> Any:
    """A ``selir.builtin``; raises SourceError for arguments it does not take."""
    try:
        return _TABLE[name](ev, *values, **keywords)
    except SourceError:
        raise
    except TypeError as error:
        ev.fail(f"{name}: {_reason(error)}")


def _reason(error: TypeError) -> str:
    text = str(error)
    return text.split("()", 1)[-1].strip() if "()" in text else text


def elements(ev: Evaluator, value: Any) -> list[Any]:
    """The elements of a collection that is known; anything that depends on the batch is an error."""
    if isinstance(value, Filtered):
        ev.fail("the collection's length depends on the batch", "reduce it with next, any, all or sum")
    if isinstance(value, (tuple, dict, range)):
        return list(value)
    if isinstance(value, Keyed):
        ev.fail("iteration over a table row that depends on the batch", "iterate over facts only")
    if is_residual(value):
        ev.fail("iteration over a batch-dependent value", "iterate over a literal, a range or a table of facts")
    ev.fail(f"{describe(value)} cannot be iterated over")


def known(ev: Evaluator, value: Any, what: str) -> Any:
    """A value that must not depend on the batch."""
    if is_residual(value):
        ev.fail(f"{what} depends on the batch", "it must follow from facts")
    return value


def make_dict(ev: Evaluator, pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict display: keys known, later ones win, as in Python."""
    return {known(ev, k, "a dict's key"): v for k, v in pairs}


def common_type(a: Any, b: Any) -> str | None:
    """The one scalar type of two values, or None."""
    kind = scalar_type(a)
    return kind if kind == scalar_type(b) else None


def mixed(a: Any, b: Any) -> tuple[str, str]:
    """Message and help for a variable that a branch leaves with values that cannot be merged."""
    if isinstance(a, dict) and isinstance(b, dict):
        return (f"one branch gives the keys {', '.join(map(repr, a))}, the other {', '.join(map(repr, b))}",
                "give both branches the same keys in the same order")
    return (f"one branch gives {describe(a)}, the other {describe(b)}",
            "give both branches values of one type and shape")


def _range(ev: Evaluator, *bounds: Any) -> tuple[int, ...]:
    found = range(*[known(ev, b, "a range") for b in bounds])
    if len(found) > MAX_ELEMENTS:
        ev.fail(f"a range of {len(found)} elements", f"at most {MAX_ELEMENTS}")
    return tuple(found)


def _contains(ev: Evaluator, collection: Any, value: Any) -> Any:
    if isinstance(collection, str) and isinstance(value, str):
        return value in collection
    members = elements(ev, collection)
    if not is_residual(value) and not any(map(is_residual, members)):
        return value in members
    result: Any = False
    for member in access.matching_keys(ev, members, value) if is_residual(value) else members:
        equal = ev.scalar("eq", value, member)
        if equal is True:
            return True
        if equal is not False:
            result = equal if result is False else ev.residual("or", (result, equal), "bool")
    return result


def _format(ev: Evaluator, *pieces: Any) -> str:
    for piece in pieces:
        if is_residual(piece) or not is_scalar(piece):
            ev.fail(f"an f-string of {describe(piece)}", "format facts only")
    return "".join(map(str, pieces))


def _get(ev: Evaluator, table: Any, key: Any, default: Any = None) -> Any:
    if isinstance(table, Keyed):
        rows = {name: row.get(known(ev, key, "a column"), default) for name, row in table.rows.items()}
        return access.read_rows(ev, rows, table.key)
    if not isinstance(table, dict):
        ev.fail(f"{describe(table)} has no get")
    if not is_residual(key):
        return table.get(key, default)
    present = _contains(ev, table, key)
    if present is False:
        return default
    ev.guards.append(present)
    found = access.item(ev, table, key)
    ev.guards.pop()
    if not is_scalar(found) or not is_scalar(default):
        ev.fail("get with a batch-dependent key on a table of collections", "read the row with [key]")
    return ev.merge(present, found, default)


def _dict_of(ev: Evaluator, value: Any) -> dict[Any, Any]:
    if isinstance(value, Keyed):
        value = access.columns(ev, value)
    if not isinstance(value, dict):
        ev.fail(f"{describe(value)} is not a dict")
    return value


def _union(ev: Evaluator, a: Any, b: Any) -> Any:
    if is_scalar(a) and is_scalar(b):
        ev.fail("bit operations are not part of the language", "write 'or' for bools, arithmetic for numbers")
    return _dict_of(ev, a) | _dict_of(ev, b)


def _knob(ev: Evaluator, name: Any, values: Any, default: Any = None) -> Any:
    if not isinstance(name, str) or not name.isidentifier():
        ev.fail("a knob's name is a constant identifier", 'write knob("name", (values...), default=value)')
    if keyword.iskeyword(name) or any(op.input_name.data == name for op in ev.inputs()):
        ev.fail(f"{name!r} cannot name a knob: it is {'a word of Python' if keyword.iskeyword(name) else 'an input'}",
                "give it another name")
    choices = tuple(elements(ev, values))
    default = choices[0] if default is None and choices else default
    for value in (*choices, default):
        known(ev, value, "a knob's value")
    if any(isinstance(v, float) and not math.isfinite(v) for v in choices):
        ev.fail(f"knob '{name}' has a value that is not finite", "give it finite numbers")
    if not choices or len({scalar_type(v) for v in choices}) != 1 or len(set(choices)) != len(choices):
        ev.fail(f"knob '{name}' needs distinct values of one type", 'write knob("name", (1, 2, 4), default=1)')
    if default not in choices:
        ev.fail(f"knob '{name}': the default {default!r} is not among its values", f"values: {choices}")
    if ev.branches:
        ev.fail(f"knob '{name}' under a batch-dependent branch", "read it before the branch")
    old = ev.knobs.get(name)
    if old is not None:
        if old.choices != ValueAttr(choices) or old.default != ValueAttr(default):
            ev.fail(f"knob '{name}' is declared twice with different values", "declare it once and pass the value on")
        return old.res
    op = structure.KnobOp.create(
        result_types=[TYPES[scalar_type(choices[0])]], location=ev.location,
        properties={"name": StringAttr(name), "values": ValueAttr(choices), "default": ValueAttr(default)})
    op.res.name_hint = name
    ev.knobs[name] = op
    ev.header.append(op)
    return op.res


def _abs(ev: Evaluator, value: Any) -> Any:
    return ev.scalar("abs", ev.cast("int", value) if is_scalar(value) and scalar_type(value) == "bool" else value)


def _cast(kind: str) -> Callable[..., Any]:
    def run(ev: Evaluator, value: Any) -> Any:
        if not is_scalar(value) or scalar_type(value) in ("str", "none"):
            ev.fail(f"{kind} of {describe(value)}")
        return ev.cast(kind, value)

    return run


def _pow(ev: Evaluator, base: Any, exponent: Any) -> Any:
    if is_residual(base) or is_residual(exponent):
        ev.fail("a power of a batch-dependent value", "write products")
    if not isinstance(base, int) or not isinstance(exponent, int) or not 0 <= exponent <= 4096:
        ev.fail(f"{base!r} ** {exponent!r}", "powers are of ints with exponents from 0 to 4096")
    return base**exponent


def _sorted(ev: Evaluator, collection: Any, key: Any = None, reverse: Any = False) -> tuple[Any, ...]:
    items = elements(ev, collection)
    keys = [item if key is None else ev.apply_value(key, item) for item in items]
    for value in keys:
        known(ev, value, "the order")
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=bool(known(ev, reverse, "the order")))
    return tuple(items[i] for i in order)


def _len(ev: Evaluator, value: Any) -> int:
    return len(value) if isinstance(value, str) else len(elements(ev, value))


_TABLE: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "all": reductions.all_of,
    "any": reductions.any_of,
    "bool": lambda ev, value: ev.truth(value),
    "ceil": _cast("ceil"),
    "contains": _contains,
    "dict.get": _get,
    "dict.items": lambda ev, table: tuple(_dict_of(ev, table).items()),
    "dict.keys": lambda ev, table: tuple(_dict_of(ev, table)),
    "dict.values": lambda ev, table: tuple(_dict_of(ev, table).values()),
    "enumerate": lambda ev, value, start=0: tuple(enumerate(elements(ev, value), start)),
    "f32": _cast("f32"),
    "float": _cast("float"),
    "floor": _cast("floor"),
    "format": _format,
    "int": _cast("int"),
    "is_none": lambda ev, value: value is None,
    "knob": _knob,
    "len": _len,
    "max": lambda ev, *values, **keywords: reductions.extreme(ev, "max", values, keywords),
    "min": lambda ev, *values, **keywords: reductions.extreme(ev, "min", values, keywords),
    "next": reductions.first,
    "pow": _pow,
    "range": _range,
    "reversed": lambda ev, value: tuple(reversed(elements(ev, value))),
    "sorted": _sorted,
    "sum": reductions.total,
    "tuple": lambda ev, value=(): tuple(elements(ev, value)),
    "union": _union,
    "zip": lambda ev, *values: tuple(zip(*[elements(ev, v) for v in values], strict=False)),
}

"""Reading records, tuples, dicts and table rows while facts are bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from detent.passes.static import Facts, Keyed, Record, describe, is_residual, is_scalar, scalar_type

if TYPE_CHECKING:
    from detent.passes.evaluator import Evaluator


def field(ev: Evaluator, value: Any, name: str) -> Any:
    """``value.name`` of a record."""
    if isinstance(value, Facts):
        return value.read(name)
    if isinstance(value, Record):
        if name not in value.fields:
            ev.fail(f"the record has no field '{name}'", f"fields: {', '.join(value.fields)}")
        return value.fields[name]
    ev.fail(f"{describe(value)} has no fields")


def item(ev: Evaluator, value: Any, key: Any) -> Any:
    """``value[key]`` of a tuple, dict or table row; an unknown key becomes a lookup by that key."""
    if isinstance(value, Keyed):
        if is_residual(key):
            ev.fail("a table row indexed by a batch-dependent value", "index rows by facts")
        return column(ev, value, key)
    if not isinstance(value, (tuple, dict)):
        ev.fail(f"{describe(value)} cannot be indexed")
    if is_residual(key):
        rows = dict(enumerate(value)) if isinstance(value, tuple) else value
        if not rows:
            ev.fail("the table is empty")
        return read_rows(ev, rows, key)
    if isinstance(value, dict):
        if key not in value:
            ev.fail(f"key {key!r} is missing", f"keys: {', '.join(map(repr, list(value)[:12]))}")
        return value[key]
    if not isinstance(key, int) or not -len(value) <= key < len(value):
        ev.fail(f"index {key!r} is outside a collection of {len(value)}")
    return value[key]


def read_rows(ev: Evaluator, rows: dict[Any, Any], key: SSAValue) -> Any:
    """The row at an unknown key."""
    values = list(rows.values())
    if not all(map(is_scalar, values)):
        return Keyed(dict(rows), key)
    if any(map(is_residual, values)) or not ev.keep_keys:
        return _chain(ev, rows, key)
    return ev.lookup(list(rows.items()), key)


def _chain(ev: Evaluator, rows: dict[Any, Any], key: SSAValue) -> Any:
    """Selects over the rows: where the rows themselves are not known."""
    pairs = list(rows.items())
    result = pairs[-1][1]
    for row, value in reversed(pairs[:-1]):
        result = ev.merge(ev.scalar("eq", key, row), value, result)
    return result


def column(ev: Evaluator, row: Keyed, key: Any) -> Any:
    """One column of a table row."""
    values: dict[Any, Any] = {}
    for name, collection in row.rows.items():
        known = collection if isinstance(collection, dict) else dict(enumerate(collection))
        if key not in known:
            ev.fail(f"row {name!r} of the table has no {key!r}", "give every row the same keys")
        values[name] = known[key]
    return read_rows(ev, values, row.key)


def columns(ev: Evaluator, row: Keyed) -> Any:
    """A table row as a dict (or tuple) of lookups, which needs rows of one shape."""
    first, *rest = row.rows.values()
    if isinstance(first, dict):
        if any(not isinstance(r, dict) or list(r) != list(first) for r in rest):
            ev.fail("the table's rows have different keys", "give every row the same keys in one order")
        return {k: column(ev, row, k) for k in first}
    if isinstance(first, tuple) and all(isinstance(r, tuple) and len(r) == len(first) for r in rest):
        return tuple(column(ev, row, i) for i in range(len(first)))
    ev.fail("the table's rows have different shapes")


def unpack_row(ev: Evaluator, rows: dict[Any, Any], key: SSAValue) -> Any:
    """The collection at an unknown position, with one lookup for each scalar in it."""
    first = next(iter(rows.values()))
    if isinstance(first, tuple) and all(isinstance(r, tuple) and len(r) == len(first) for r in rows.values()):
        return tuple(read_rows(ev, {k: r[i] for k, r in rows.items()}, key) for i in range(len(first)))
    return Keyed(rows, key)


def as_dict_if_row(ev: Evaluator, value: Any, other: Any) -> Any:
    """A table row spelled out where it must be merged with another collection."""
    if isinstance(value, Keyed) and value is not other:
        return columns(ev, value)
    return value


def unpack(ev: Evaluator, value: Any, count: int) -> tuple[Any, ...]:
    """The targets of ``a, b = value``."""
    if isinstance(value, Keyed):
        value = columns(ev, value)
    if not isinstance(value, tuple):
        ev.fail(f"{describe(value)} cannot be unpacked")
    if len(value) != count:
        ev.fail(f"{count} targets for {len(value)} values")
    return value


def matching_keys(ev: Evaluator, collection: Any, value: SSAValue) -> list[Any]:
    """The members of a known collection that a batch-dependent value could equal, by type."""
    kind = scalar_type(value)
    members = list(collection)
    if any(is_scalar(m) and not is_residual(m) and scalar_type(m) not in (kind, "bool" if kind == "int" else kind)
           for m in members):
        ev.fail(f"membership of {kind} in a collection of other types", "keep one type in the collection")
    return members

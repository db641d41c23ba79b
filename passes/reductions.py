"""Reductions over known collections of values that may depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from detent.passes import access
from detent.passes.static import Filtered, is_residual, is_scalar, scalar_type

if TYPE_CHECKING:
    from detent.passes.evaluator import Evaluator

_MISSING = object()


def guarded(ev: Evaluator, value: Any) -> Sequence[tuple[Any, Any]]:
    """The elements of a collection, each with the condition under which it is present."""
    from detent.passes.builtins import elements

    return value.elements if isinstance(value, Filtered) else [(True, v) for v in elements(ev, value)]


def _connect(ev: Evaluator, kind: str, a: Any, b: Any) -> Any:
    """``and`` / ``or`` of truth values, either of which may be known."""
    neutral = kind == "and"
    if isinstance(a, bool):
        return b if a is neutral else a
    if isinstance(b, bool):
        return a if b is neutral else b
    return ev.residual(kind, (a, b), "bool")


def any_of(ev: Evaluator, collection: Any) -> Any:
    """``any(...)``; an element that a filter removes does not count."""
    result: Any = False
    for guard, value in guarded(ev, collection):
        result = _connect(ev, "or", result, _connect(ev, "and", guard, ev.truth(value)))
        if result is True:
            return True
    return result


def all_of(ev: Evaluator, collection: Any) -> Any:
    """``all(...)``; an element that a filter removes does not count."""
    result: Any = True
    for guard, value in guarded(ev, collection):
        result = _connect(ev, "and", result, _connect(ev, "or", ev.negate(guard), ev.truth(value)))
        if result is False:
            return False
    return result


def total(ev: Evaluator, collection: Any, start: Any = 0) -> Any:
    """``sum(...)``; an element that a filter removes counts as 0."""
    result = start
    for guard, value in guarded(ev, collection):
        if guard is not True:
            value = ev.scalar("add", value, 0)  # bools count as ints
            value = ev.merge(guard, value, ev.cast("float", 0) if scalar_type(value) == "float" else 0)
        result = ev.scalar("add", result, value)
    return result


def first(ev: Evaluator, collection: Any, default: Any = _MISSING) -> Any:
    """``next(...)``: the first element that is present, else the default."""
    found = list(guarded(ev, collection))
    for position, (guard, _) in enumerate(found):
        if guard is True:  # nothing behind a certain element can be reached
            found = found[: position + 1]
            break
    if found and found[-1][0] is True:
        result = found.pop()[1]
    elif default is not _MISSING:
        result = default
    else:
        ev.fail("next may find no element", "give it a default: next(..., default)")
    for guard, value in reversed(found):
        result = choose(ev, guard, value, result)
    return result


def choose(ev: Evaluator, condition: Any, on_true: Any, on_false: Any) -> Any:
    """A choice between two values of one shape."""
    if isinstance(on_true, tuple) and isinstance(on_false, tuple) and len(on_true) == len(on_false):
        return tuple(choose(ev, condition, a, b) for a, b in zip(on_true, on_false, strict=True))
    if not is_scalar(on_true) or not is_scalar(on_false):
        ev.fail("the elements have different shapes", "reduce over scalars or tuples of one length")
    return ev.merge(condition, on_true, on_false)


def extreme(ev: Evaluator, kind: str, values: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """``min`` / ``max`` of several values or of a collection, with ``key=`` and ``default=``.

    Python keeps the first of equal elements. With ``key=`` the element is chosen by comparing keys; a
    tuple or dict element is chosen by its position, so the position stays the one value all fields
    depend on.
    """
    if keywords.keys() - {"key", "default"}:
        ev.fail(f"{kind} has no argument '{next(iter(keywords.keys() - {'key', 'default'}))}'")
    if len(values) == 1:
        found = guarded(ev, values[0])
    else:
        found = [(True, v) for v in values]
    if any(guard is not True for guard, _ in found):
        ev.fail(f"{kind} over a filter that depends on the batch", f"write {kind}(x if condition else other for ...)")
    items = [value for _, value in found]
    if not items:
        if "default" in keywords:
            return keywords["default"]
        ev.fail(f"{kind} of nothing", "give it a default")
    key = keywords.get("key")
    if key is None:
        result = items[0]
        for value in items[1:]:
            result = ev.scalar(kind, result, value)
        return result
    return _by_key(ev, kind, items, [ev.apply_value(key, item) for item in items])


def _by_key(ev: Evaluator, kind: str, items: list[Any], keys: list[Any]) -> Any:
    better = "lt" if kind == "min" else "gt"
    scalars = all(map(is_scalar, items)) or not ev.keep_keys
    choice: Any = items[0] if scalars else 0
    best = keys[0]
    for position, (item, key) in enumerate(zip(items[1:], keys[1:], strict=True), 1):
        wins = ev.scalar(better, key, best)
        candidate = item if scalars else position
        if is_residual(wins):
            choice = choose(ev, wins, candidate, choice)
        elif wins:
            choice = candidate
        best = ev.scalar(kind, best, key)
    if scalars:
        return choice
    if not is_residual(choice):
        return items[choice]
    return access.unpack_row(ev, dict(enumerate(items)), choice)

"""JSON texts that are compared and hashed, and files that are never half-written."""

from __future__ import annotations

import hashlib
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def canonical(value: Any) -> str:
    """JSON text that does not depend on the order of keys. Raises ValueError for a number that is not finite.

    The text keeps apart what Python's ``==`` does not: ``1``, ``1.0`` and ``true``.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def ordered(value: Any) -> str:
    """JSON text that does depend on the order of keys: what a program may observe of a table of facts."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def digest(*parts: str | bytes) -> str:
    """SHA-256 (hex) of the parts, each with its length, so that no two lists of parts read the same."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(b"%d:" % len(data))
        state.update(data)
    return state.hexdigest()


def sha256(data: bytes) -> str:
    """SHA-256 (hex) of bytes as they are."""
    return hashlib.sha256(data).hexdigest()


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """``object_pairs_hook`` that refuses a JSON object with a key twice (ValueError)."""
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} appears twice")
            seen.add(key)
    return result


def refuse_constant(name: str) -> Any:
    """``parse_constant`` that refuses NaN and the infinities (ValueError)."""
    raise ValueError(f"{name} is no finite number")


def strict_json(text: str) -> Any:
    """Parse JSON; a key twice in one object or a non-finite number is a ValueError like any other bad JSON."""
    return json.loads(text, object_pairs_hook=unique_pairs, parse_constant=refuse_constant)


def write_atomic(path: str, data: bytes, mode: int = 0o600, sync: bool = False) -> None:
    """Replace a file's content in one step; readers see the old bytes or the new ones. ``sync`` survives power loss."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def new_file_mode() -> int:
    """The mode that a file a user asked for gets, as if it were opened for writing."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

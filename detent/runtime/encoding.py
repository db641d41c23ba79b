"""JSON texts that are compared and hashed, and files that are never half-written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


MAX_DIGITS = 300
"""Digits of an integer in a user's file: more than any quantity has, far fewer than Python can convert."""


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


def finite(text: str) -> float:
    """``parse_float`` that refuses a number beyond the largest double (ValueError)."""
    value = float(text)
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{text if len(text) <= MAX_DIGITS else 'a number'} is beyond the largest double")
    return value


def integer(text: str) -> int:
    """``int(text)`` for decimal digits; ValueError where they are too many to be a quantity."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(text)} digits is too long (at most {MAX_DIGITS})")
    return int(text)


def strict_json(text: str) -> Any:
    """Parse JSON; a key twice in one object, a number that is too large or nesting without end is a ValueError
    like any other bad JSON."""
    try:
        return json.loads(text, object_pairs_hook=unique_pairs, parse_constant=refuse_constant, parse_float=finite,
                          parse_int=integer)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def strict_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML; whatever is wrong with it is a ValueError."""
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        # Python's own limit on digits, whose text advises to change the interpreter.
        raise ValueError("an integer in it is too long") from None


def write_atomic(path: str, data: bytes, mode: int = 0o600, sync: bool = False) -> None:
    """Write a file a user asked for, in one step where that is possible.

    A link is followed and an existing file keeps its mode; ``mode`` is a new one's. What a rename would turn into
    something else (a device, a pipe, another user's file, one with several names) is written in place.
    Raises OSError; ``sync`` survives power loss.
    """
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    real = os.path.realpath(path)
    try:
        there = os.stat(path)
    except FileNotFoundError:
        replace_file(real, data, mode, sync)
        return
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    replaceable = stat.S_ISREG(there.st_mode) and there.st_nlink == 1 and there.st_uid == os.geteuid()
    if not replaceable or not os.access(os.path.dirname(real), os.W_OK | os.X_OK):
        with open(path, "wb") as file:
            file.write(data)
        return
    replace_file(real, data, stat.S_IMODE(there.st_mode), sync, exact=True)


def replace_file(path: str, data: bytes, mode: int = 0o600, sync: bool = False, exact: bool = False) -> None:
    """Put a file in the place of whatever is there; readers see the old bytes or the new ones.

    The process's mask applies to ``mode`` unless it is ``exact``.
    """
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    except OSError as error:  # whoever asked for the file knows nothing of the temporary one
        raise OSError(error.errno, error.strerror, path) from None
    try:
        with open(descriptor, "wb") as file:
            if exact:
                os.fchmod(descriptor, mode)
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

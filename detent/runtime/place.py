"""Where the cache is, and whether it may be trusted. What is in it gets executed, so it is treated as code."""

from __future__ import annotations

import os
import stat


def default_directory() -> str:
    """``DETENT_CACHE_DIR``, else ``XDG_CACHE_HOME/detent``, else ``~/.cache/detent``; absolute."""
    own = os.environ.get("DETENT_CACHE_DIR")
    if own:
        return os.path.abspath(os.path.expanduser(own))
    # The XDG specification says to ignore a relative path.
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "detent")


def prepare(directory: str) -> str | None:
    """Create the directory (mode 0700) if it is missing; why it may not be used, or None if it may."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.stat(directory)
    except OSError as error:
        return f"{directory} cannot be made a cache directory ({error.strerror})"
    if found.st_uid != os.geteuid():
        return f"{directory} belongs to another user; set DETENT_CACHE_DIR to a directory of your own"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{directory} can be written by others; run chmod 700 on it or set DETENT_CACHE_DIR"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} is not writable; set DETENT_CACHE_DIR to another directory"
    return None

"""Where the cache is, and whether it may be trusted. What is in it gets executed, so it is treated as code."""

from __future__ import annotations

import os
import stat

FOLDERS = ("solutions", "normalised", "locks")
"""What the cache keeps below its directory."""
ELSEWHERE = "set DETENT_CACHE_DIR to a directory of your own"


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
        return f"{directory} cannot be made a cache directory ({error.strerror}); {ELSEWHERE}"
    if found.st_uid != os.geteuid():
        return f"{directory} belongs to another user; {ELSEWHERE}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{directory} can be written by others; run chmod 700 on it or set DETENT_CACHE_DIR"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"{directory} is not writable; {ELSEWHERE}"
    for name in FOLDERS:
        problem = _folder_problem(os.path.join(directory, name))
        if problem is not None:
            return f"{problem}; remove it or {ELSEWHERE}"
    return None


def _folder_problem(path: str) -> str | None:
    """Why a folder of the cache cannot be used; one that is missing can be made."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path} cannot be used ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a folder"
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return f"{path} cannot be read and written"
    return None

"""The ``detent`` command line.

Importing this package imports nothing else. A command's module is loaded when the command is used, and what a
command needs beyond the cache (xdsl, rich) when it gets that far: a cache hit pays for neither.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code.

    0: done. 1: a check found a difference. 2: bad input, with one line on standard error that says where and
    what to do. 130: interrupted.
    """
    try:
        from detent.cli.app import detent

        code: int = detent.main(argv, prog_name="detent", standalone_mode=False)
    except KeyboardInterrupt:  # while importing; what a command does ends in detent.cli.errors
        import os

        os.write(2, b"interrupted\n")
        code = 130
    return code

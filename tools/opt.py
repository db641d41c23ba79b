"""``detent-opt``: run Detent's passes one by one over SelIR or over a program, and look at each step.

It is xDSL's driver with Detent's passes, targets and front end only, MLIR's spelling of pipelines beside
xDSL's, and errors on one line. Exit codes: 0, 1 after any error, or 130 if interrupted.

Importing this module imports neither xDSL nor the compiler, so that an interrupt meanwhile ends well too.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import TextIO


def run(argv: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Run the driver on ``argv`` (without the program's name), writing to the given streams; the exit code."""
    from detent.tools.driver import USER_ERRORS, DetentOpt, message

    tool: DetentOpt | None = None
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            tool = DetentOpt(args=argv)
            tool.run()
        except SystemExit as stop:  # argparse: 0 after --help and --version
            return 1 if stop.code else 0
        except USER_ERRORS as error:
            if "--debug" in argv:
                traceback.print_exc()
            print(f"error: {message(error, tool.place_of(error) if tool is not None else '')}", file=stderr)
            return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The ``detent-opt`` command."""
    try:
        from detent.cli.errors import CLOSED, drop_output

        if sys.stdout is None:
            print(f"error: {CLOSED}", file=sys.stderr)
            return 1
        code = run(sys.argv[1:] if argv is None else argv, sys.stdout, sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:  # said already; the interpreter would fail on it once more
            drop_output()
            code = 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    return code


if __name__ == "__main__":
    sys.exit(main())

"""``detent-opt``: run Detent's passes one by one over SelIR or over a program, and look at each step.

It is xDSL's driver with Detent's passes, targets and front end only, MLIR's spelling of pipelines beside
xDSL's, and errors on one line. Exit codes: 0, or 1 after any error.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import IO, TextIO

from xdsl.dialects import get_all_dialects
from xdsl.frontend import get_all_frontends
from xdsl.targets import get_all_targets
from xdsl.transforms import get_all_passes
from xdsl.utils.exceptions import (
    AlreadyRegisteredConstructException,
    ArgSpecParseError,
    DiagnosticException,
    InvalidIRException,
    ParseError,
    UnregisteredConstructException,
    VerifyException,
)
from xdsl.xdsl_opt_main import xDSLOptMain

from detent import __version__
from detent.dialects.selir.source import SourceError
from detent.passes.errors import AnalysisError
from detent.universe import UNIVERSE

XDSL_DIALECTS = ("builtin", "test")  # test: its ops keep a value alive in a test of a pass
XDSL_PASSES = ("canonicalize", "cse", "dce")

USER_ERRORS = (
    AnalysisError,
    AlreadyRegisteredConstructException,
    ArgSpecParseError,  # derives from BaseException
    DiagnosticException,  # a pass that failed, IR that does not verify
    InvalidIRException,
    OSError,
    ParseError,
    SourceError,  # what the front end refuses, facts that a deployment lacks
    UnregisteredConstructException,
    ValueError,  # unknown passes and options
)


def mlir_pipeline(text: str) -> str:
    """xDSL's spelling of a pipeline written as MLIR's ``builtin.module(a, b{opt=1})``; xDSL's own passes through."""
    match = re.fullmatch(r"\s*builtin\.module\s*\((.*)\)\s*", text, re.DOTALL)
    inner = match[1].strip() if match else text
    nested = re.search(r"([\w.-]+)\s*\(", re.sub(r'"[^"]*"', "", inner))
    if nested:
        raise argparse.ArgumentTypeError(f"{nested[1]}(...): passes run on builtin.module only and do not nest")
    return re.sub(r'("[^"]*")|,\s+', lambda part: part[1] or ",", inner)  # xDSL takes no space after a comma


class _Held(io.StringIO):
    """Text for ``-o`` that outlives ``close()``: it is written to its file once the run has succeeded."""

    def close(self) -> None:
        pass


class DetentOpt(xDSLOptMain):
    """xDSL's driver over Detent's universe."""

    version_format = f"detent-opt {__version__} (xDSL {{xdsl_version}})"

    def register_all_dialects(self) -> None:
        theirs = get_all_dialects()
        for name, load in {name: theirs[name] for name in XDSL_DIALECTS}.items() | UNIVERSE.all_dialects.items():
            self.ctx.register_dialect(name, load)

    def register_all_frontends(self) -> None:
        self.available_frontends |= get_all_frontends() | UNIVERSE.all_frontends

    def register_all_passes(self) -> None:
        theirs = get_all_passes()
        for name, load in UNIVERSE.all_passes.items():
            self.register_pass(name, load)
        for name in XDSL_PASSES:
            self.register_pass(name, theirs[name])

    def register_all_targets(self) -> None:
        self.available_targets |= {"mlir": get_all_targets()["mlir"]} | UNIVERSE.all_targets

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        super().register_all_arguments(arg_parser)
        arg_parser.prog = "detent-opt"
        arg_parser.usage = "detent-opt [options] [FILE.mlir | FILE.py | FILE.py:SELECTION]"
        arg_parser.add_argument(
            "--pass-pipeline",
            dest="passes",
            default=argparse.SUPPRESS,
            type=mlir_pipeline,
            metavar="PIPELINE",
            help="passes to run, as MLIR writes them: 'builtin.module(a,b{opt=1})'; or as -p takes them",
        )
        arg_parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def prepare_output(self) -> IO[str]:
        # xDSL opens the file before it has read anything, so an error would leave it empty.
        self._output: IO[str] = _Held() if self.args.output_file else sys.stdout
        return self._output

    def run(self) -> None:
        one = re.fullmatch(r"(.+\.py):(\w+)", self.args.input_file or "")
        if one:
            self.args.input_file = one[1]
            self.args.frontend = f'py{{function="{one[2]}"}}'
        super().run()  # type: ignore[no-untyped-call]
        if isinstance(self._output, _Held):
            with open(self.args.output_file, "w", encoding="utf-8") as file:
                file.write(self._output.getvalue())


def message(error: BaseException) -> str:
    """One line that says what is wrong and, where it is known, ``file:line:column`` or the operation's name."""
    match error:
        case ParseError():
            text = f"{error.span.get_location()}: {error.msg}"
        case SourceError():
            text = error.one_line
        case ArgSpecParseError():  # a title, the place, the source line, carets, what is wrong
            _, place, *_, wrong = str(error).strip().splitlines()
            text = f"{place}: {wrong}"
        case VerifyException():  # xDSL notes the whole module, with carets under the operation
            marked = re.search(r'"([\w.]+)"\(.*\n *\^', "\n".join(getattr(error, "__notes__", ())))
            text = f"{marked[1]}: {error}" if marked else str(error)
        case OSError(filename=name, strerror=reason) if name and reason:
            text = f"{name}: {reason}"
        case _:
            text = str(error)
    return " ".join(text.split())


def run(argv: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Run the driver on ``argv`` (without the program's name), writing to the given streams; the exit code."""
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            DetentOpt(args=argv).run()
        except SystemExit as stop:  # argparse: 0 after --help and --version, 2 after a usage error
            return 1 if stop.code else 0
        except USER_ERRORS as error:
            if "--debug" in argv:
                traceback.print_exc()
            print(f"error: {message(error)}", file=stderr)
            return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The ``detent-opt`` command."""
    return run(sys.argv[1:] if argv is None else argv, sys.stdout, sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

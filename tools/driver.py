"""xDSL's driver over Detent's universe, and what its errors say; :mod:`detent.tools.opt` runs it."""

from __future__ import annotations

import argparse
import io
import re
import sys
import textwrap
from difflib import get_close_matches
from typing import IO, ClassVar, NoReturn
from weakref import WeakKeyDictionary

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.dialects.builtin import ModuleOp
from xdsl.frontend import get_all_frontends
from xdsl.frontend.mlir import MLIRFrontend
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.targets import get_all_targets
from xdsl.transforms import get_all_passes
from xdsl.utils.arg_spec import parse_pipeline
from xdsl.utils.exceptions import (
    AlreadyRegisteredConstructException,
    ArgSpecParseError,
    DiagnosticException,
    InvalidIRException,
    ParseError,
    UnregisteredConstructException,
    VerifyException,
)
from xdsl.utils.lexer import Span as TextSpan
from xdsl.xdsl_opt_main import xDSLOptMain

from detent import __version__
from detent.cli.errors import TOO_DEEP, frames
from detent.dialects.selir.source import SourceError, span_of
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
    RecursionError,
    SourceError,  # what the front end refuses, facts that a deployment lacks
    UnregisteredConstructException,
    ValueError,  # unknown passes and options
)


def mlir_pipeline(text: str) -> str:
    """xDSL's spelling of a pipeline written as MLIR's ``builtin.module(a, b{opt=1})``; xDSL's own passes through."""
    bare = re.sub(r'"[^"]*"', "", text)
    if bare.count("(") != bare.count(")"):
        missing, other = (")", "(") if bare.count("(") > bare.count(")") else ("(", ")")
        raise argparse.ArgumentTypeError(f"a '{other}' has no '{missing}'; write 'builtin.module(a,b{{opt=1}})'")
    match = re.fullmatch(r"\s*builtin\.module\s*\((.*)\)\s*", text, re.DOTALL)
    inner = match[1].strip() if match else text
    nested = re.search(r"([\w.-]+)\s*\(", re.sub(r'"[^"]*"', "", inner))
    if nested:
        raise argparse.ArgumentTypeError(f"{nested[1]}(...): passes run on builtin.module only and do not nest")
    return re.sub(r'("[^"]*")|,\s+', lambda part: part[1] or ",", inner)  # xDSL takes no space after a comma


class _Help(argparse.HelpFormatter):
    """Breaks help between words only: the name of a pass has hyphens in it."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


class _Parser(Parser):
    """Remembers where each operation stands in the text."""

    places: ClassVar[WeakKeyDictionary[Operation, TextSpan]] = WeakKeyDictionary()

    def parse_operation(self) -> Operation:
        start = self._current_token.span
        op = super().parse_operation()
        self.places[op] = start
        return op


class _Frontend(MLIRFrontend):
    """xDSL's reader of SelIR text, with our parser."""

    def parse(self, ctx: Context, input: IO[bytes], input_name: str = "input") -> ModuleOp:
        return _Parser(ctx, input.read(), input_name).parse_module(not self.no_implicit_module)

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
        self.available_frontends |= get_all_frontends() | UNIVERSE.all_frontends | {"mlir": lambda: _Frontend}

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
        arg_parser.formatter_class = _Help
        for action in arg_parser._actions:  # xDSL joins the names of passes and targets without blanks
            action.help = re.sub(r",(?=\S)", ", ", action.help or "")
        arg_parser.error = refuse_usage  # type: ignore[method-assign, assignment]
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

    def setup_pipeline(self) -> None:
        for spec in parse_pipeline(self.args.passes):
            if spec.name not in self.available_passes:
                close = get_close_matches(spec.name, self.available_passes, n=1)
                guess = f"did you mean {close[0]!r}? " if close else ""
                raise ValueError(f"unknown pass {spec.name!r}; {guess}known: {', '.join(self.available_passes)}")
        super().setup_pipeline()  # type: ignore[no-untyped-call]

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        try:
            return super().prepare_input()
        except ValueError:
            known = " or ".join(f".{name}" for name in self.available_frontends)
            raise ValueError(f"{self.args.input_file}: unknown kind of file; its name ends in {known}, or name the "
                             "reader with -f") from None

    def parse_chunk(self, chunk: IO[bytes], file_extension: str, start_offset: int = 0) -> ModuleOp | None:
        self.offset = start_offset
        try:
            return super().parse_chunk(chunk, file_extension, start_offset)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.args.input_file or 'stdin'}: is not text ({error}); give SelIR in UTF-8") from None

    def place_of(self, error: BaseException) -> str:
        """``file:line:column`` of the operation that a verifier's error is about, or the file, with a colon."""
        for frame in reversed(list(frames(error))):
            op = frame.f_locals.get("self")
            if frame.f_code is Operation.emit_error.__code__ and isinstance(op, Operation):
                span, text = span_of(op), _Parser.places.get(op)
                if span is not None:
                    return f"{span.file}:{span.line}:{span.column}: "
                if text is not None:
                    at = text.get_location()
                    return f"{at._replace(line=at.line + self.offset)}: "
        return f"{self.args.input_file or 'stdin'}: "

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
            try:
                with open(self.args.output_file, "w", encoding="utf-8") as file:
                    file.write(self._output.getvalue())
            except OSError as error:  # a full disk names no file
                raise OSError(error.errno, error.strerror, self.args.output_file) from None


def refuse_usage(text: str) -> NoReturn:
    """What argparse calls for a wrong command line: our errors are one line."""
    raise ValueError(f"{text}; see detent-opt --help")


def message(error: BaseException, place: str = "") -> str:
    """One line that says what is wrong and where; ``place`` is that of a verifier's error."""
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
            text = place + (f"{marked[1]}: {error}" if marked else str(error))
        case OSError(filename=name, strerror=reason) if name and reason:
            text = f"{name}: {reason}"
        case OSError(strerror=str(reason)):
            text = f"standard output: {reason}; write to where there is room"
        case RecursionError():
            text = f"{place}{TOO_DEEP}"
        case _:
            text = str(error)
    return " ".join(text.split())

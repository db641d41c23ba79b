"""Every operation and every error knows the exact piece of text it comes from."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

import pytest
from lang_cases import ACCEPTED, cases
from lang_support import HEADER, build, ops_of, program, unmark, write
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

import detent.lang.errors
from detent.dialects.selir.source import Span, real_path, span_of
from detent.dialects.selir.structure import IfOp, InputOp, ProgramOp, RequireOp
from detent.dialects.selir.unbound import CallOp, FactsOp, FuncOp, UnpackOp
from detent.lang.builder import build_module
from detent.lang.errors import LanguageError, UnknownName, UnsupportedSyntax
from detent.lang.load import load_program
from detent.programs.registry import PROGRAMS


def spans(module: ModuleOp) -> list[tuple[Operation, Span]]:
    """Every operation but the module with its span; an operation without one fails."""
    found: list[tuple[Operation, Span]] = []
    for op in module.walk():
        if op is not module:
            span = span_of(op)
            assert span is not None, f"{op.name} has no location"
            found.append((op, span))
    return found


def text_at(span: Span) -> str:
    """What the file has where a span says that it is."""
    lines = Path(real_path(span.file)).read_text(encoding="utf-8").split("\n")
    return "\n".join(lines[span.line - 1 :])[span.column - 1 :][: len(span.text)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_spans_of_our_programs_are_what_the_files_have(name: str) -> None:
    for op, span in spans(build_module(load_program(name)).module):
        assert span.file.startswith("programs/"), op
        assert span.text and text_at(span) == span.text, op


@pytest.mark.parametrize("title", cases(ACCEPTED))
def test_spans_of_every_construct_are_what_the_file_has(title: str, tmp_path: Path) -> None:
    before, body = cases(ACCEPTED)[title]
    for op, span in spans(build(tmp_path, program(body, before)).module):
        assert span.text and text_at(span) == span.text, op


def test_parameters_of_functions_and_lambdas_have_places(tmp_path: Path) -> None:
    text = program("return {'x': min((1, f(2)), key=lambda k: -k)}", "def f(given: int):\n    return given")
    places = [
        span_of(argument.location)
        for op in build(tmp_path, text).module.walk()
        for region in op.regions
        for block in region.blocks
        for argument in block.args
    ]
    assert sorted(place.text for place in places if place) == ["given: int", "k"]


def test_what_a_span_covers(tmp_path: Path) -> None:
    body = """
        a, b = 1, 2
        if (facts.n >
                b):
            a = 3
        require(a
                < 9, "small")
        return {"x": f(a)}
    """
    before = "def f(x):\n    return x"
    built = build(tmp_path, program(body, before, "facts: Facts, call: Call"))

    def text(kind: type[Operation]) -> str:
        (op,) = ops_of(built, kind)
        span = span_of(op)
        assert span is not None
        return span.text

    assert text(UnpackOp) == "a, b"
    assert text(IfOp) == "if (facts.n >\n            b"
    assert text(RequireOp) == 'require(a\n            < 9, "small")'
    assert text(CallOp) == "f(a)"
    assert text(FuncOp) == "f"
    assert text(ProgramOp) == "choose"
    assert text(FactsOp) == "facts: Facts"
    assert [span_of(op).text for op in ops_of(built, InputOp)] == [  # type: ignore[union-attr]
        "tokens: Unpinnable[int]",
        "graph: Runtime[bool]",
    ]


def test_an_input_points_at_its_declaration_in_another_file(tmp_path: Path) -> None:
    record = "from detent.lang import Runtime, record\n\n@record\nclass Own:\n    n: int\n    size: Runtime[int]\n"
    path = write(tmp_path, record, "records.py")
    built = build(tmp_path, program("return {'x': own.size}", "from records import Own", "own: Own"))
    (found,) = ops_of(built, InputOp)
    assert span_of(found) == Span(str(path), 6, 5, "size: Runtime[int]")
    assert str(path) in built.files


def test_a_helper_in_another_file_is_placed_there(tmp_path: Path) -> None:
    path = write(tmp_path, "\n\ndef f(x):\n    return x.n + nowhere\n", "helpers.py")
    with pytest.raises(UnknownName) as caught:
        build(tmp_path, program("return {'x': f(facts)}", "from helpers import f"))
    assert caught.value.span == Span(str(path), 4, 18, "nowhere")


# ---- columns ---------------------------------------------------------------------------------------------------

LINES = {
    "plain": "    return {'x': «gone»}",
    "tab": "\treturn {'x':\t«gone»}",
    "utf-8": "    return {'ü€𝄞': 1, 'x': «gone», 'y': 'é'}",
    "utf-8 inside": "    return {'x': «gone('ü€𝄞')», 'y': 1}".replace("«gone(", "«abs(1, "),
    "after a semicolon": "    a = 'ß'; return {'x': «gone»}",
    "two lines": "    return {'x': «abs(1,\n        'ü')», 'y': 2}",
    "three lines": "    return {'x': «abs(1,\n\n   2)», 'y': 2}",
    "after a continuation": "    return {'x': 1 + \\\n  «gone»}",
    "in parentheses": "    return {'x': ((«gone»))}",
    "form feed": "    a = 1\n\f\n    return {'x': «gone»}",
}


@pytest.mark.parametrize("name", LINES)
def test_columns_count_characters(name: str, tmp_path: Path) -> None:
    text, marked = unmark(f"{HEADER}\n@selection(\n    family='test'\n)\ndef choose(facts: Facts):\n{LINES[name]}\n")
    path = write(tmp_path, text)
    with pytest.raises(LanguageError) as caught:
        build_module(load_program(path))
    error = caught.value
    assert error.span == marked._replace(file=str(path))
    end_line = marked.line + marked.text.count("\n")
    end_column = len(marked.text) - marked.text.rfind("\n") if "\n" in marked.text else marked.column + len(marked.text)
    assert (error.filename, error.lineno, error.offset) == (str(path), marked.line, marked.column)
    assert (error.end_lineno, error.end_offset) == (end_line, end_column)
    assert error.text == text.split("\n")[marked.line - 1] + "\n"


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_endings(ending: str, tmp_path: Path) -> None:
    text, marked = unmark(program("a = 1\nreturn {'x': «gone»}"))
    path = tmp_path / "choose.py"
    path.write_bytes(text.replace("\n", ending).encode())
    with pytest.raises(UnknownName) as caught:
        build_module(load_program(path))
    assert caught.value.span == marked._replace(file=str(path))


def test_another_encoding(tmp_path: Path) -> None:
    text, marked = unmark("# coding: latin-1\n" + program("return {'é': 1, 'x': «gone»}"))
    path = tmp_path / "choose.py"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnknownName) as caught:
        build_module(load_program(path))
    assert caught.value.span == marked._replace(file=str(path))


def test_an_f_string_is_placed_as_far_as_python_knows(tmp_path: Path) -> None:
    text, marked = unmark(program("return {'x': «f'é {gone} b'», 'y': 1}"))
    path = write(tmp_path, text)
    with pytest.raises(UnknownName) as caught:
        build_module(load_program(path))
    if sys.version_info >= (3, 12):
        marked = marked._replace(column=marked.column + 5, text="gone")
    assert caught.value.span == marked._replace(file=str(path))


def test_a_selection_inside_a_function(tmp_path: Path) -> None:
    header, _, selection = program("return {'x': «gone»}").partition("@selection")
    nested = "\n".join(f"        {line}" for line in f"@selection{selection}".rstrip().split("\n"))
    text, marked = unmark(f"{header}\ndef make():\n    if True:\n{nested}\n    return choose\nmade = make()\n")
    path = write(tmp_path, text)
    with pytest.raises(UnknownName) as caught:
        build_module(load_program(path))
    assert caught.value.span == marked._replace(file=str(path))


# ---- errors as Python objects --------------------------------------------------------------------------------------


def error_kinds() -> list[type[LanguageError]]:
    found = [LanguageError]
    for kind in found:
        found += kind.__subclasses__()
    return found


def test_every_error_class_is_pickled_here() -> None:
    public = {n for n, kind in vars(detent.lang.errors).items() if isinstance(kind, type) and n != "SourceError"}
    assert public == {kind.__name__ for kind in error_kinds()}


@pytest.mark.parametrize("kind", error_kinds())
@pytest.mark.parametrize("span", [Span("programs/x.py", 3, 5, "a +\n  b"), None], ids=["span", "no span"])
def test_errors_survive_pickling(kind: type[LanguageError], span: Span | None) -> None:
    error = kind("what is wrong", span, "what to write")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert isinstance(again, SyntaxError)
    assert vars(again) == vars(error)
    assert (again.args, again.lineno, again.end_offset) == (error.args, error.lineno, error.end_offset)
    assert "what to write" in str(again)


def test_python_shows_the_line_with_carets(tmp_path: Path) -> None:
    path = write(tmp_path, program("return {'x': facts.n & 1}"))
    with pytest.raises(UnsupportedSyntax) as caught:
        build_module(load_program(path))
    shown = traceback.format_exception_only(caught.value)
    assert shown[0] == f'  File "{path}", line {caught.value.lineno}\n'
    assert shown[1:3] == ["    return {'x': facts.n & 1}\n", "                 ^^^^^^^^^^^\n"]
    assert "UnsupportedSyntax: '&' is not part of the language" in shown[3]
    assert "help: write 'and', 'or', 'not' on bools" in "".join(shown[3:])
    assert caught.value.one_line.startswith(f"{path}:{caught.value.lineno}:18: '&' is not part of the language (")

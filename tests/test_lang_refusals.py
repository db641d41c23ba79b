"""What is not in the language is refused where it stands, with what to write instead; nothing slips through."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from lang_cases import ERRORS, REFUSED_STATEMENTS, cases
from lang_support import program, unmark, write

from detent.lang.builder import build_module
from detent.lang.errors import LanguageError, NoSelection, UnknownName, UnsupportedSyntax, WrongRecord
from detent.lang.expressions import BUILTIN_OPERATORS, EXPRESSIONS, SCALARS
from detent.lang.load import load_program
from detent.lang.refusals import FUNCTIONS, PARTS, REFUSALS
from detent.lang.statements import MOST_COPIES, STATEMENTS

# Each refusal of the table with the place that the error points at between « and ».
EXPRESSION_CASES = {
    "NamedExpr": "(«b := 1») + 1",
    "Set": "«{1, 2}»",
    "SetComp": "«{k for k in (1, 2)}»",
    "Slice": "facts.table[«1:2»]",
    "Starred": "(1, «*facts.table»)",
    "TemplateStr": "«t'{facts.n}'»",
    "Yield": "(«yield 1»)",
    "YieldFrom": "(«yield from facts.table»)",
    "bytes": "«b'x'»",
    "complex": "1 + «2j»",
    "ellipsis": "«...»",
    "conversion": "f'«{facts.n!r}»'",
    "format spec": "f'«{facts.n:3}»'",
    "dict unpacking": "{1: 2, **«facts.table»}",
    "identity": "«facts.n is 3»",
    "equality with None": "«facts.missing != None»",
    "lambda": "«lambda x: x»",
    "lambda parameters": "min((1, 2), key=«lambda x, y=1: x»)",
    "generator": "«(k for k in (1, 2))»",
    "iterator": "«zip((1,), (2,))»",
    "next of a collection": "next(«facts.table», 1)",
    "computed callee": "«facts.table[0]»(1)",
    "argument unpacking": "max(*«facts.table»)",
    "condition inside": "1 if «assume(facts.on)» else 2",
    "method": "«facts.word.upper»()",
    "BitAnd": "«facts.n & 1»",
    "BitXor": "«facts.n ^ 1»",
    "Invert": "«~facts.n»",
    "LShift": "«1 << facts.n»",
    "MatMult": "«facts.n @ 1»",
    "RShift": "«facts.n >> 1»",
    "UAdd": "«+facts.n»",
}
HELPER_CASES = {
    "AsyncFunctionDef": "async def «f»(x):\n    return x",
    "decorator": "def keep(g):\n    return g\n@«keep»\ndef f(x):\n    return x",
    "variadic parameter": "def f(*«xs»):\n    return 1",
    "type parameter": "def f[«T»](x):\n    return x",
}
SELECTION_CASES = {
    "selection decorator": ("def keep(g):\n    return g\n\n@«keep»", "facts: Facts"),
    "selection default": ("", "facts: Facts = «None»"),
}
SINCE = {"TypeAlias": (3, 12), "TemplateStr": (3, 14), "type parameter": (3, 12)}
INSIDE_F_STRING = {"conversion", "format spec"}


def texts() -> dict[str, str]:
    """A marked program for each entry of the table that this Python's grammar has."""
    found: dict[str, str] = {}
    for use, (_, body) in cases(REFUSED_STATEMENTS).items():
        found[use] = program(f"{body}\nreturn {{'x': 1}}")
    for use, expression in EXPRESSION_CASES.items():
        if use in INSIDE_F_STRING and sys.version_info < (3, 12):
            expression = f"«{expression.replace('«', '').replace('»', '')}»"
        found[use] = program(f"return {{'x': {expression}}}")
    for use, helper in HELPER_CASES.items():
        found[use] = program("return {'x': f(facts.n)}", helper)
    for use, (before, parameters) in SELECTION_CASES.items():
        found[use] = program("return {'x': 1}", before, parameters)
    return {use: text for use, text in found.items() if sys.version_info >= SINCE.get(use, (3, 11))}


def refused(folder: Path, text: str) -> LanguageError:
    """The error for a marked program; its span is checked against the marks."""
    plain, marked = unmark(text)
    path = write(folder, plain)
    with pytest.raises(LanguageError) as caught:
        build_module(load_program(f"{path}:choose"))
    error = caught.value
    assert error.span == marked._replace(file=str(path.resolve()))
    return error


@pytest.mark.parametrize("use", texts())
def test_refused_where_it_stands(use: str, tmp_path: Path) -> None:
    error = refused(tmp_path, texts()[use])
    assert type(error) is UnsupportedSyntax
    assert error.message == f"{REFUSALS[use].what} is not part of the language"
    assert error.help == REFUSALS[use].instead


@pytest.mark.parametrize(
    "body", ["async for k in facts.table:\n    pass", "async with facts.on:\n    pass", "a = await facts.n", "pass"]
)
def test_an_async_selection_is_refused_with_all_its_parts(body: str, tmp_path: Path) -> None:
    text = program(f"{body}\nreturn {{'x': 1}}").replace("def choose", "async def «choose»")
    assert refused(tmp_path, text).message == f"{REFUSALS['AsyncFunctionDef'].what} is not part of the language"


def test_every_entry_of_the_table_has_a_case() -> None:
    used = {*cases(REFUSED_STATEMENTS), *EXPRESSION_CASES, *HELPER_CASES, *SELECTION_CASES}
    assert used | {"Nonlocal"} == set(REFUSALS)


def test_nonlocal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "choose.py"
    text = program("nonlocal x\nreturn {'x': 1}").replace("@selection", "x = 1\n@selection")
    header, _, selection = text.partition("x = 1\n@selection")
    nested = "\n".join(f"    {line}" for line in f"x = 1\n@selection{selection}".split("\n"))
    path.write_text(f"{header}\ndef make():\n{nested}\n    return choose\nmade = make()\n")
    with pytest.raises(UnsupportedSyntax, match="'nonlocal' is not part"):
        build_module(load_program(f"{path}:choose"))


# ---- all of Python's syntax ------------------------------------------------------------------------------------


def syntax_classes() -> list[type[ast.AST]]:
    """Every concrete class of syntax tree that this Python's parser makes."""
    found: list[type[ast.AST]] = []
    stack = [ast.AST]
    while stack:
        children = [c for c in stack.pop().__subclasses__() if c.__module__ in ("ast", "_ast")]
        found += children
        stack += children
    deprecated = set("Num Str Bytes NameConstant Ellipsis Index ExtSlice AugLoad AugStore Param Suite".split())
    abstract = {"slice"} | {c.__name__ for c in found if c.__subclasses__() and c is not ast.Constant}
    return [c for c in found if c.__name__ not in deprecated | abstract]


def accepted_classes() -> set[str]:
    tables = (STATEMENTS, EXPRESSIONS, SCALARS, BUILTIN_OPERATORS)
    return {c.__name__ for table in tables for c in table} | {"And", "Or"}


@pytest.mark.parametrize("name", sorted({c.__name__ for c in syntax_classes()}))
def test_every_syntax_class_is_accepted_refused_or_a_part(name: str) -> None:
    homes = [name in accepted_classes(), name in REFUSALS, name in PARTS]
    assert homes.count(True) == 1, f"ast.{name}: decide about it in detent/lang/refusals.py"


def test_the_tables_name_real_syntax() -> None:
    names = {c.__name__ for c in syntax_classes()}
    later = {"ParamSpec", "TypeVar", "TypeVarTuple", "TypeAlias", "Interpolation", "TemplateStr"}  # 3.12, 3.14
    listed = {use for use in REFUSALS if use[0].isupper()} | PARTS | accepted_classes()
    assert listed - later <= names


def test_syntax_that_no_table_knows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(REFUSALS, "Set")
    assert "Python's Set is not part of the language" in str(refused(tmp_path, program("return {'x': «{1, 2}»}")))


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_refused_functions_have_advice(name: str, tmp_path: Path) -> None:
    error = refused(tmp_path, program(f"return {{'x': «{name}»(facts.n)}}"))
    assert error.help == FUNCTIONS[name]


# ---- names, calls, returns, records --------------------------------------------------------------------------------

@pytest.mark.parametrize("case", cases(ERRORS))
def test_error_where_it_stands(case: str, tmp_path: Path) -> None:
    _, kind, message = case.split(" | ")
    before, body = cases(ERRORS)[case]
    error = refused(tmp_path, program(body, before))
    assert type(error).__name__ == kind
    assert message in error.message


SIGNATURES: dict[str, tuple[type[LanguageError], str, str, str]] = {
    "no annotation": (WrongRecord, "'facts' has no annotation", "", "«facts»"),
    "not a record": (WrongRecord, "'facts': int is not a record", "", "«facts: int»"),
    "unknown record": (UnknownName, "'Fact' is not defined", "", "facts: «Fact»"),
    "inputs of one name": (
        WrongRecord,
        "input 'tokens' is in two records: Call and Other",
        "@record\nclass Other:\n    tokens: Runtime[int]",
        "call: Call, «other: Other»",
    ),
    "starred": (UnsupportedSyntax, "a '*' or '**' parameter", "", "facts: Facts, **«rest»"),
}


@pytest.mark.parametrize("case", SIGNATURES)
def test_error_in_the_signature(case: str, tmp_path: Path) -> None:
    kind, message, before, parameters = SIGNATURES[case]
    error = refused(tmp_path, program("return {'x': 1}", before, parameters))
    assert type(error) is kind
    assert message in error.message


def test_a_selection_without_points(tmp_path: Path) -> None:
    plain = program("assume(facts.n > 0)").replace("def choose", "def «choose»")
    error = refused(tmp_path, plain)
    assert type(error) is NoSelection
    assert "no selection point" in error.message


def test_a_similar_name_is_suggested(tmp_path: Path) -> None:
    assert "did you mean 'facts'?" in refused(tmp_path, program("return {'x': «facst».n}")).help
    # Only names that the language has are proposed: open() is none of them.
    assert "open" not in refused(tmp_path, program("return {'x': «opem»}")).help
    assert "did you mean 'sorted'?" in refused(tmp_path, program("return {'x': «sortd»((1, 2))[0]}")).help
    assert "did you mean 'ceil'?" in refused(tmp_path, program("return {'x': «math.ceill»(1)}")).help


def test_too_many_copies_of_a_continuation(tmp_path: Path) -> None:
    count = MOST_COPIES.bit_length()
    branch = "    if x > {0}:\n        if x == {0}:\n            return 1\n        y = 1\n    else:\n        y = 2"
    branches = "\n".join(branch.format(n) for n in range(count))
    path = write(tmp_path, program("return {'x': f(facts.n)}", f"def f(x):\n{branches}\n    return y"))
    with pytest.raises(UnsupportedSyntax, match="return early in more than") as caught:
        build_module(load_program(path))
    assert "helper" in caught.value.help


def test_nesting_beyond_pythons_recursion_limit(tmp_path: Path) -> None:
    returns = "\n".join(f"    if x < {n}:\n        return {n}" for n in range(1500))
    text = program("return {'x': f(facts.n)}", f"def f(x):\n{returns}\n    return -1").replace("def f(", "def «f»(", 1)
    error = refused(tmp_path, text)
    assert type(error) is UnsupportedSyntax
    assert error.message == "'f' nests too deeply" and error.help.startswith("split it")

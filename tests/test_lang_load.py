"""Programs are found by name, path or function, and a file is run without leaving traces."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from lang_support import HEADER, build, names_of, ops_of, program, write
from xdsl.context import Context

from detent.dialects.selir.structure import ProgramOp
from detent.dialects.selir.unbound import FuncOp
from detent.lang.builder import build_module
from detent.lang.errors import LanguageError, NoSelection, ProgramFailed, SourceUnavailable, UnknownProgram
from detent.lang.frontend import PythonFrontend
from detent.lang.load import load_program
from detent.programs.registry import PROGRAMS
from detent.tools import opt

TWO = program("return {'x': 1}") + '\n@selection(family="other")\ndef second(facts: Facts):\n    return {"y": 2}\n'


def test_a_registered_name() -> None:
    for name, place in PROGRAMS.items():
        assert load_program(name).__name__ == place.partition(":")[2]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownProgram, match="no program 'atention'") as caught:
        load_program("atention")
    assert "did you mean 'attention'?" in caught.value.help
    assert all(name in caught.value.help for name in PROGRAMS)


def test_a_path_with_and_without_a_function(tmp_path: Path) -> None:
    path = write(tmp_path, program("return {'x': 1}"))
    for spec in (path, str(path), f"{path}:choose"):
        assert load_program(spec).__name__ == "choose"


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, program("return {'x': 1}"))
    monkeypatch.chdir(tmp_path)
    function = load_program("choose.py:choose")
    assert function.__code__.co_filename == str(tmp_path / "choose.py")


def test_a_function(tmp_path: Path) -> None:
    function = load_program(write(tmp_path, program("return {'x': 1}")))
    assert load_program(function) is function


def test_what_is_not_a_selection(tmp_path: Path) -> None:
    path = write(tmp_path, program("return {'x': 1}", "def helper(x):\n    return x\nvalue = 3"))
    for spec in (len, lambda: None, ModuleType("m")):
        with pytest.raises(NoSelection, match="is not a selection"):
            load_program(spec)
        with pytest.raises(NoSelection, match="is not a selection"):
            build_module(spec)  # type: ignore[arg-type]
    with pytest.raises(NoSelection, match="'helper' in .* is not a selection"):
        load_program(f"{path}:helper")
    with pytest.raises(NoSelection, match="'chose' in .* does not exist") as caught:
        load_program(f"{path}:chose")
    assert "did you mean 'choose'?" in caught.value.help


def test_a_file_with_none_or_several_selections(tmp_path: Path) -> None:
    with pytest.raises(NoSelection, match="has no selection") as caught:
        load_program(write(tmp_path, HEADER))
    assert "@selection" in caught.value.help
    path = write(tmp_path, TWO)
    with pytest.raises(NoSelection, match="has several selections") as caught:
        load_program(path)
    assert f"{path}:choose" in caught.value.help
    assert "choose, second" in caught.value.help
    assert load_program(f"{path}:second").__name__ == "second"


def test_imported_selections_are_not_the_files_own(tmp_path: Path) -> None:
    write(tmp_path, TWO, "other.py")
    path = write(tmp_path, program("return {'x': 1}", "from other import second"))
    assert load_program(path).__name__ == "choose"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownProgram, match="cannot be read: no such file"):
        load_program(tmp_path / "absent.py")
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UnknownProgram, match="cannot be read: is a directory"):
        load_program(tmp_path / "folder.py")
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff'\n")
    with pytest.raises(UnknownProgram, match="is not text"):
        load_program(tmp_path / "bytes.py")
    (tmp_path / "null.py").write_bytes(b"x = 1\0\n")
    with pytest.raises(LanguageError, match="null bytes"):
        load_program(tmp_path / "null.py")


def test_a_file_that_is_not_python(tmp_path: Path) -> None:
    path = write(tmp_path, "x = 1\ny = (2 +\n")
    with pytest.raises(LanguageError, match="not Python: '\\(' was never closed") as caught:
        load_program(path)
    assert caught.value.span is not None
    assert caught.value.span[:3] == (str(path), 2, 5)


@pytest.mark.parametrize("failure", ["raise KeyError('gone')", "import not_there", "1 // 0", "raise SystemExit(3)"])
def test_a_file_that_fails(failure: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"x = 1\nif x:\n    {failure}\n")
    with pytest.raises(ProgramFailed, match="running the file failed: ") as caught:
        load_program(path)
    assert caught.value.span == (str(path), 3, 5, failure)
    assert caught.value.__cause__ is not None


def test_a_module_beside_it_that_is_not_python(tmp_path: Path) -> None:
    write(tmp_path, "x = = 1\n", "helpers.py")
    with pytest.raises(LanguageError, match="not Python") as caught:
        load_program(write(tmp_path, "import helpers\n"))
    assert caught.value.filename == str(tmp_path / "helpers.py")


def test_modules_beside_it_stay_its_own(tmp_path: Path) -> None:
    modules, path = dict(sys.modules), list(sys.path)
    functions = []
    for name, value in (("one", 1), ("two", 2)):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, f"LIMIT = {value}\ndef f(x):\n    return x + LIMIT\n", "helpers.py")
        functions.append(load_program(write(folder, program("return {'x': f(1)}", "from helpers import f"))))
    for value, function in enumerate(functions, 1):
        assert build_module(function).globals == (("helpers", "LIMIT", value),)
    assert sys.path == path
    assert "helpers" not in sys.modules
    assert not {n: m for n, m in modules.items() if sys.modules.get(n) is not m}
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_module_of_that_name_from_elsewhere_steps_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ModuleType("helpers")
    monkeypatch.setitem(sys.modules, "helpers", elsewhere)
    write(tmp_path, "def f(x):\n    return x\n", "helpers.py")
    load_program(write(tmp_path, program("return {'x': f(1)}", "from helpers import f")))
    assert sys.modules["helpers"] is elsewhere


def test_each_load_reads_the_file_again(tmp_path: Path) -> None:
    write(tmp_path, "def f(x):\n    return x\n", "helpers.py")
    text = program("return {'x': f(1)}", "from helpers import f")
    first = build(tmp_path, text)
    write(tmp_path, "def f(x):\n    return x + 1\n", "helpers.py")
    assert first.module.is_structurally_equivalent(first.module)
    assert not build(tmp_path, text).module.is_structurally_equivalent(first.module)


def test_a_text_that_changed_since_it_was_loaded_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, program("return {'x': 1}"))
    function = load_program(path)
    for text in (program("return {'x': 2}"), program("return {'x': 1}", "X = 1\nY = 2"), HEADER):
        write(tmp_path, text)
        with pytest.raises(SourceUnavailable, match="'choose' .* is not what was loaded") as caught:
            build_module(function)
        assert "load the program again" in caught.value.help
    write(tmp_path, program("return {'x': 1}  # a comment"))
    build_module(function)


def test_a_normally_imported_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "consts_of_it.py").write_text("LIMIT = 3\n")
    write(tmp_path, program("return {'x': LIMIT}", "from consts_of_it import LIMIT"), "program_of_it.py")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("program_of_it")
    assert build_module(module.choose).globals == (("consts_of_it", "LIMIT", 3),)


# ---- the front end of the driver ---------------------------------------------------------------------------------


def symbols(module: object) -> list[str]:
    return [op.sym_name.data for op in module.walk() if isinstance(op, ProgramOp | FuncOp)]  # type: ignore[attr-defined]


def test_the_frontend_reads_every_selection_of_a_file(tmp_path: Path) -> None:
    before = "def shared(x):\n    return x"
    text = program("return {'x': shared(1)}", before) + program("return {'x': shared(2)}")[len(HEADER) :].replace(
        "choose", "second"
    )
    path = write(tmp_path, text)
    module = PythonFrontend().parse(Context(), io.BytesIO(path.read_bytes()), str(path))
    module.verify()
    assert symbols(module) == ["choose", "shared", "second"]
    one = PythonFrontend("second").parse(Context(), io.BytesIO(path.read_bytes()), str(path))
    assert symbols(one) == ["second", "shared"]
    with pytest.raises(NoSelection, match="'third'"):
        PythonFrontend("third").parse(Context(), io.BytesIO(path.read_bytes()), str(path))
    with pytest.raises(NoSelection, match="has no selection"):
        PythonFrontend().parse(Context(), io.BytesIO(b"x = 1\n"), "stdin")


def test_the_frontend_reads_a_stream() -> None:
    text = program("return {'x': LIMIT}", "LIMIT = 3")
    module = PythonFrontend().parse(Context(), io.BytesIO(text.encode()), "stdin")
    assert symbols(module) == ["choose"]
    with pytest.raises(LanguageError) as caught:
        PythonFrontend().parse(Context(), io.BytesIO(text.replace("LIMIT}", "{1}}").encode()), "stdin")
    assert (caught.value.filename, caught.value.text) == ("<stdin>", "    return {'x': {1}}\n")


def run_opt(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    return opt.run(arguments, out, err), out.getvalue(), err.getvalue()


def test_detent_opt_takes_programs(tmp_path: Path) -> None:
    path = write(tmp_path, TWO)
    code, out, _ = run_opt(str(path))
    assert code == 0
    assert 'selir.program "choose"' in out and 'selir.program "second"' in out
    code, out, _ = run_opt(f"{path}:second")
    assert code == 0
    assert 'selir.program "choose"' not in out
    code, out, err = run_opt(str(write(tmp_path, program("return {'x': {1}}"))))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {path}:") and err.count("\n") == 1


def test_building_needs_neither_passes_nor_the_solver(root: Path, tmp_path: Path) -> None:
    path = write(tmp_path, program("return {'x': 1}"))
    code = (
        "import sys; from detent.lang.load import load_program; from detent.lang.builder import build_module;"
        f"build_module(load_program({str(path)!r}));"
        "print(*sorted(m for m in sys.modules if m.startswith(('detent.', 'networkx', 'numpy'))))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert {name.split(".")[1] for name in run.stdout.split()} == {"lang", "dialects"}


def test_a_name_that_cannot_be_printed_is_no_hint(tmp_path: Path) -> None:
    built = build(tmp_path, program("größe = facts.n + 1\nreturn {'x': größe}"))
    (function,) = ops_of(built, ProgramOp)
    assert {hint for op in function.walk() for hint in names_of(op) if hint} == {"facts"}

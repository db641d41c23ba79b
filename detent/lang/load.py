"""Finds a program by name, by path, or as a function."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from hashlib import sha256
from types import FunctionType, ModuleType
from typing import Any

from detent.dialects.selir.source import Span, display_path
from detent.lang.builder import MARK
from detent.lang.errors import LanguageError, NoSelection, ProgramFailed, UnknownProgram
from detent.lang.globals import SIBLINGS

REGISTRY = "detent.programs.registry"  # looked up by name when it is needed: programs are above lang
_PATH = re.compile(r"(?P<path>.+\.py)(?::(?P<function>\w+))?")
_LOCK = threading.RLock()


def load_program(spec: str | os.PathLike[str] | Callable[..., Any]) -> FunctionType:
    """The selection that ``spec`` names.

    ``spec`` is a registered name, ``path/to/file.py:function``, a file with exactly one selection, or a function.
    A file is run as a module, and anew at each call; what stands beside it can be imported by it.
    Raises UnknownProgram, NoSelection, ProgramFailed if the file raises, and LanguageError if it is not Python.
    """
    if isinstance(spec, str | os.PathLike):
        text = os.fspath(spec)
        found = _PATH.fullmatch(text)
        if found is None:
            return _registered(text)
        return one_selection(load_file(found["path"]), found["path"], found["function"])
    if isinstance(spec, FunctionType) and hasattr(spec, MARK):
        return spec
    name = getattr(spec, "__name__", repr(spec))
    raise NoSelection(f"'{name}' is not a selection", None, "decorate the function with @selection(family=...)")


def _registered(name: str) -> FunctionType:
    programs: dict[str, str] = importlib.import_module(REGISTRY).PROGRAMS
    if name not in programs:
        close = get_close_matches(name, programs, n=1)
        guess = f"did you mean '{close[0]}'? " if close else ""
        known = f"known programs: {', '.join(sorted(programs))}; or give path/to/file.py:function"
        raise UnknownProgram(f"there is no program '{name}'", None, guess + known)
    module, _, function = programs[name].partition(":")
    return one_selection(importlib.import_module(module), name, function)


def selections(module: ModuleType) -> dict[str, FunctionType]:
    """The selections that a module defines itself, in the order of its text."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, FunctionType) and hasattr(value, MARK) and value.__globals__ is vars(module)
    ]
    return {function.__name__: function for function in sorted(found, key=lambda f: f.__code__.co_firstlineno)}


def one_selection(module: ModuleType, place: str, name: str | None) -> FunctionType:
    """The named selection of a module, or its only one. Raises NoSelection."""
    found = selections(module)
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    known = f"its selections: {', '.join(found)}" if found else "decorate a function with @selection(family=...)"
    if name is None and found:
        raise NoSelection(f"{place} has several selections", None, f"name one, as in {place}:{next(iter(found))}; {known}")
    if name is None:
        raise NoSelection(f"{place} has no selection", None, known)
    if name not in found:
        what = "is not a selection" if name in vars(module) else "does not exist"
        close = get_close_matches(name, found, n=1)
        guess = f"did you mean '{close[0]}'? " if close else ""
        raise NoSelection(f"'{name}' in {place} {what}", None, guess + known)
    return found[name]


# ---- running a file --------------------------------------------------------------------------------------------


def load_file(path: str) -> ModuleType:
    """Run a Python file as a module. Raises UnknownProgram, ProgramFailed or LanguageError."""
    real = os.path.realpath(path)
    try:
        with open(real, "rb") as file:
            text = importlib.util.decode_source(file.read())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnknownProgram(f"{path} cannot be read: {reason}", None, "give path/to/file.py:function") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UnknownProgram(f"{path} is not a text file: {error}", None, "save it as UTF-8") from None
    return load_text(text, real)


def load_text(text: str, path: str) -> ModuleType:
    """Run Python text as a module whose file is ``path``, which need not exist."""
    linecache.checkcache(path)
    if not os.path.exists(path):
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    shown = display_path(path) if os.path.exists(path) else path
    try:
        code = compile(text, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        lines = text.split("\n")
        piece = lines[line - 1][column - 1 : column] if line <= len(lines) else ""
        raise LanguageError(f"not Python: {error.msg}", Span(shown, line, column, piece)) from None
    except ValueError as error:  # null bytes
        raise UnknownProgram(f"{shown} is not a text file: {error}", None, "save it as UTF-8") from None
    stem = os.path.splitext(os.path.basename(path))[0]
    name = f"_detent_program_{sha256(path.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec) if spec is not None else ModuleType(name)
    module.__dict__.update(__file__=path, __detent_name__=stem)
    with _LOCK, _beside(os.path.dirname(path)) as siblings:
        sys.modules[name] = module
        try:
            exec(code, vars(module))
        except Exception as error:
            raise _failure(error, path, shown) from error
        finally:
            siblings()
    return module


@contextmanager
def _beside(folder: str) -> Iterator[Callable[[], None]]:
    """Make the modules of a folder importable, and only for the time of the block.

    A module of the same name from elsewhere steps aside meanwhile, and the folder's own modules leave
    ``sys.modules`` afterwards: two programs may each have their ``helpers.py``, and a changed one is read again.
    """
    before = dict(sys.modules)
    for name, module in before.items():
        if name.partition(".")[0] in _names_in(folder) and not _is_in(module, folder):
            del sys.modules[name]
    path, sys.path = sys.path, [folder, *sys.path]
    write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()

    def keep() -> None:
        """Remember the folder's modules for those who look up where a constant comes from."""
        own = {n: m for n, m in sys.modules.items() if before.get(n) is not m and _is_in(m, folder)}
        for module in own.values():
            SIBLINGS[str(module.__file__)] = own

    try:
        yield keep
    finally:
        sys.path, sys.dont_write_bytecode = path, write
        for name, module in list(sys.modules.items()):
            if before.get(name) is not module and _is_in(module, folder) and not hasattr(module, "__detent_name__"):
                del sys.modules[name]
        for name, module in before.items():
            sys.modules.setdefault(name, module)

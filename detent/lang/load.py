"""Finds a program by name, by path, or as a function."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import Any

from detent.lang.builder import MARK
from detent.lang.errors import NoSelection, UnknownProgram
from detent.lang.run import run_file

REGISTRY = "detent.programs.registry"  # looked up by name when it is needed: programs are above lang
_PATH = re.compile(r"(?P<path>.+\.py)(?::(?P<function>\w+))?")


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
        return one_selection(run_file(found["path"]), found["path"], found["function"])
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
        help = f"name one, as in {place}:{next(iter(found))}; {known}"
        raise NoSelection(f"{place} has several selections", None, help)
    if name is None:
        raise NoSelection(f"{place} has no selection", None, known)
    if name not in found:
        what = "is not a selection" if name in vars(module) else "does not exist"
        close = get_close_matches(name, found, n=1)
        guess = f"did you mean '{close[0]}'? " if close else ""
        raise NoSelection(f"'{name}' in {place} {what}", None, guess + known)
    return found[name]

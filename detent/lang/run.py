"""Runs a program's file as a module, without leaving traces of the folder it is in."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from hashlib import sha256
from types import ModuleType

from detent.dialects.selir.source import Span, display_path
from detent.lang.depth import HELP, text_too_deep
from detent.lang.errors import LanguageError, ProgramFailed, UnknownProgram
from detent.lang.globals import SIBLINGS
from detent.lang.shim import Misuse
from detent.lang.text import not_python, quiet

_LOCK = threading.RLock()


def run_file(path: str) -> ModuleType:
    """Run a Python file as a module. Raises UnknownProgram, ProgramFailed or LanguageError."""
    real = os.path.realpath(path)
    try:
        with open(real, "rb") as file:
            encoded = file.read()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UnknownProgram(f"{path} cannot be read: {reason}", None, "give path/to/file.py:function") from None
    return run_text(encoded, real)


def run_text(encoded: bytes, path: str) -> ModuleType:
    """Run Python text as a module whose file is ``path``, which need not exist; a unique name keeps it apart."""
    exists = os.path.exists(path)
    shown = display_path(path) if exists else path
    try:
        text = importlib.util.decode_source(encoded)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UnknownProgram(f"{shown} is not text: {error}", None, "save it as UTF-8") from None
    linecache.checkcache(path)
    if not exists:
        linecache.cache[path] = (len(text), None, [f"{line}\n" for line in text.split("\n")], path)
    try:
        with quiet():
            code = compile(text, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise not_python(error, shown, text) from None
    except (RecursionError, MemoryError):  # Python's parser has a stack of its own
        raise text_too_deep(text, shown) from None
    except ValueError as error:  # null bytes
        raise UnknownProgram(f"{shown} is not text: {error}", None, "save it as UTF-8") from None
    name = f"_detent_program_{sha256(path.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec) if spec is not None else ModuleType(name)
    module.__dict__.update(__file__=path, __detent_name__=os.path.splitext(os.path.basename(path))[0])
    # What a program prints is no part of what a command answers on standard output.
    with _LOCK, _beside(module, os.path.dirname(path)), redirect_stdout(sys.stderr):
        try:
            exec(code, vars(module))
        except (Exception, SystemExit) as error:
            raise _failure(error, path, shown, text) from error
    return module


@contextmanager
def _beside(module: ModuleType, folder: str) -> Iterator[None]:
    """Make what stands beside a module importable, and only for the time of the block.

    Modules of those names from elsewhere step aside meanwhile, and the folder's own leave ``sys.modules`` afterwards:
    two programs may each have their ``helpers.py``, and a changed one is read again. Where a constant of theirs comes
    from can still be looked up in SIBLINGS.
    """
    names = _modules_in(folder) if folder else frozenset()
    aside = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}
    path, sys.path = sys.path, [folder, *sys.path] if folder else sys.path
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        sys.path, sys.dont_write_bytecode = path, bytecode
        own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}
        for reader in (module, *own.values()):
            SIBLINGS[str(reader.__file__)] = own
        sys.modules.update(aside)


def _modules_in(folder: str) -> frozenset[str]:
    """The names under which a folder's modules and packages are imported; never ours or Python's own."""
    found: set[str] = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            stem, extension = os.path.splitext(entry.name)
            if extension == ".py" or (not extension and os.path.exists(os.path.join(entry.path, "__init__.py"))):
                found.add(stem)
    return frozenset(found - sys.stdlib_module_names - {"detent", "xdsl"})


def _failure(error: BaseException, path: str, shown: str, text: str) -> LanguageError:
    """What a file's own exception becomes: an error at the line of the file that was running."""
    if isinstance(error, SyntaxError) and error.filename and os.path.exists(error.filename):
        with open(error.filename, encoding="utf-8", errors="replace") as file:
            return not_python(error, display_path(error.filename), file.read())
    if isinstance(error, RecursionError):
        message, help = "running the file nests too deeply, here or in a module that it imports", HELP
    elif isinstance(error, Misuse):
        message, help = str(error), ""
    else:
        message, help = f"running the file failed: {type(error).__name__}: {error}", ""
    span = None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path and frame.lineno is not None:
            line = text.split("\n")[frame.lineno - 1]
            span = Span(shown, frame.lineno, len(line) - len(line.lstrip()) + 1, line.strip())
    return ProgramFailed(message, span, help)

"""Single modules of the installed engines, imported with everything around them replaced by stand-ins.

Both engines refuse to import without a GPU build of their own libraries. A module named here is the engine's, byte for
byte; what it imports is a :class:`Stand` unless it too is named. A stand-in can be called, subclassed and used as a
decorator, but never asked whether it is true or compared: what a decision reads must be set, so that no stand-in
decides anything.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ENGINES = ("vllm", "sglang")
ABSENT = ("aiter", "flashinfer", "flydsl", "sgl_kernel", "torch_npu", "triton")
"""Libraries that engines import and that need a GPU build; stand-ins replace them even if they are installed."""


class Unset(AssertionError):
    """A decision asked a stand-in."""


class Stand:
    """Stands for anything an engine's module imports."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, Stand(f"{self._name}.{name}"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        decorated = args[0] if len(args) == 1 and not kwargs else None
        return decorated if isinstance(decorated, type | types.FunctionType) else self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def _refuse(self, *args: Any) -> Any:
        raise Unset(f"{self._name} was asked for its value; set it in the test")

    __bool__ = __int__ = __float__ = __len__ = __iter__ = __contains__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _refuse
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if other is None or isinstance(other, str | int | float | tuple):
            self._refuse()
        return self is other

    def __repr__(self) -> str:
        return f"<stand-in {self._name}>"


class StandModule(types.ModuleType):
    """A module of stand-ins; attributes that a test sets are what they are set to."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = Stand(f"{self.__name__}.{name}")
        self.__dict__[name] = value
        return value


_absent: dict[str, StandModule] = {}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, real: Sequence[str]) -> None:
        self.real = set(real)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name in self.real:
            return None
        if name.partition(".")[0] not in (*ENGINES, *ABSENT):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.name in _absent:
            return _absent[spec.name]
        module = StandModule(spec.name)
        folder = _folder(spec.name)
        module.__path__ = [folder] if folder else []
        if spec.name.partition(".")[0] in ABSENT:
            _absent[spec.name] = module
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def _folder(name: str) -> str | None:
    """Where the package lies among the installed ones; nothing of it is run to find out."""
    path = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = list(spec.submodule_search_locations)
    return path[0] if path else None


@contextmanager
def _standing(real: Sequence[str]) -> Iterator[None]:
    """Imports inside go to stand-ins. PyTorch must not meet them: it is there before, compiles nothing meanwhile, and
    finds no stand-in for Triton afterwards."""
    import torch

    finder = _Finder(real)
    sys.meta_path.insert(0, finder)
    compiler, torch.compile = torch.compile, _uncompiled
    try:
        yield
    finally:
        torch.compile = compiler
        sys.meta_path.remove(finder)
        for name in _absent:
            sys.modules.pop(name, None)


def _uncompiled(function: Any = None, **options: Any) -> Any:
    return function if function is not None else _uncompiled


def stand(name: str, **values: Any) -> types.ModuleType:
    """The stand-in for a module, with attributes set to what decisions may read; modules that have the real one keep
    it."""
    if name in sys.modules and not isinstance(sys.modules[name], StandModule):
        del sys.modules[name]
    with _standing(()):
        module = importlib.import_module(name)
    for key, value in values.items():
        setattr(module, key, value)
    return module


def engine(name: str, *also: str) -> types.ModuleType:
    """The engine's own module, with those of ``also`` real too where it imports them."""
    for wanted in (name, *also):
        if isinstance(sys.modules.get(wanted), StandModule):
            del sys.modules[wanted]
    with _standing((name, *also)):
        module = importlib.import_module(name)
    assert not isinstance(module, StandModule)
    return module


def literal(name: str, variable: str) -> Any:
    """A literal that a module of an engine assigns at its top level, read from its text."""
    folder = _folder(name.rpartition(".")[0])
    with open(f"{folder}/{name.rpartition('.')[2]}.py", encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == variable:
                return ast.literal_eval(node.value)
    raise LookupError(f"{name} assigns no {variable}")

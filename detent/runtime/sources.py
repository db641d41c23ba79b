"""Program texts: where a program's files are, and what of their text matters to a solution.

Two texts are the same program if they differ only in comments, formatting and docstrings. The normalised
text is our own dump of the syntax tree and not ``ast.dump``, whose output changes with Python's version.
"""

from __future__ import annotations

import os

from detent.runtime.encoding import digest
from detent.runtime.errors import UnknownName

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OWN_FOLDERS = ("dialects", "lang", "passes", "runtime", "solver")
"""Detent's own sources that a solution depends on. Programs are not among them: an entry lists the files it used."""
IGNORED_FIELDS = frozenset(("ctx", "kind", "type_comment", "type_ignores"))
BUILT_IN = "detent:"


class Program:
    """``name`` for people, ``path`` of the main file (absolute), ``function`` in it, ``id`` for a command line."""

    __slots__ = ("function", "id", "name", "path")

    def __init__(self, name: str, path: str, function: str, id: str = "") -> None:
        self.name, self.path, self.function = name, os.path.abspath(path), function
        self.id = id or f"{self.path}:{function}"

    @property
    def shipped(self) -> bool:
        """Whether it comes with Detent."""
        return tag(self.path, self.path).startswith(f"{BUILT_IN}programs/")

    def __repr__(self) -> str:
        return f"Program({self.name!r}, {self.path!r}, {self.function!r})"


class SourceFile:
    """A file a solution was made from.

    ``name`` is how the document's locations call it, ``text`` what was parsed (None: as it is on disk now).
    """

    __slots__ = ("name", "path", "text")

    def __init__(self, name: str, path: str, text: str | None = None) -> None:
        self.name, self.path, self.text = name, os.path.abspath(path), text

    def raw(self) -> bytes:
        """The text as bytes. Raises OSError if it has to be read and cannot be."""
        if self.text is not None:
            return self.text.encode("utf-8", "surrogatepass")
        with open(self.path, "rb") as file:
            return file.read()


_registry: dict[str, str] | None = None


def registry() -> dict[str, str]:
    """Names of the programs that come with Detent, as ``{name: "detent.programs.module:function"}``.

    Reads ``programs/registry.py`` by itself: importing the package of programs would import the language.
    """
    global _registry
    if _registry is None:
        path = os.path.join(PACKAGE, "programs", "registry.py")
        space: dict[str, object] = {"__name__": "detent.programs.registry", "__file__": path}
        try:
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec"), space)
        except FileNotFoundError:
            return {}
        programs = space["PROGRAMS"]
        assert isinstance(programs, dict)
        _registry = programs
    return _registry


def resolve(program: str) -> Program:
    """The program of a registered name, of ``detent.programs.module:function`` or of ``path.py:function``.

    Only looks where the file is; whether it holds the function is for the front end to say. Raises UnknownName.
    """
    known = registry()
    target, _, function = known.get(program, program).rpartition(":")
    if target.startswith("detent.") and function:
        path = os.path.join(PACKAGE, *target.split(".")[1:]) + ".py"
        if os.path.isfile(path):
            return Program(program if program in known else function, path, function, program)
    if target.endswith(".py") and function and os.path.isfile(target):
        return Program(function, target, function)
    raise UnknownName("program", program, [*sorted(known), "path/to/file.py:function"])


def tag(path: str, main: str) -> str:
    """A path that stays the same when the project, the home or the working directory moves.

    ``detent:programs/x.py`` for Detent's own files, otherwise relative to the program's main file.
    """
    real = os.path.realpath(path)
    # In a checkout detent/programs is a link to a folder outside of the package.
    for folder, prefix in ((os.path.join(PACKAGE, "programs"), "programs/"), (PACKAGE, "")):
        root = os.path.realpath(folder)
        if real.startswith(root + os.sep):
            return BUILT_IN + prefix + real[len(root) + 1:].replace(os.sep, "/")
    return os.path.relpath(real, os.path.dirname(os.path.realpath(main))).replace(os.sep, "/")


def untag(tagged: str, main: str) -> str:
    """Where :func:`tag` of a file is now, for this main file."""
    if tagged.startswith(BUILT_IN):
        return os.path.join(PACKAGE, *tagged[len(BUILT_IN):].split("/"))
    return os.path.normpath(os.path.join(os.path.dirname(os.path.realpath(main)), *tagged.split("/")))


def display_name(path: str, main: str) -> str:
    """What locations should call a file, whatever directory it is in: ``programs/attention.py``, ``family.py``."""
    return tag(path, main).removeprefix(BUILT_IN)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a syntax tree with their positions, parents first, docstrings left out.

    The order depends only on the normalised text, so a node's number finds it again in a reformatted file.
    """
    import ast

    yield tree
    for name in tree._fields:
        if name in IGNORED_FIELDS:
            continue
        value = getattr(tree, name, None)
        if isinstance(value, ast.AST):
            yield from nodes(value)
        elif isinstance(value, list):
            for item in _significant(tree, name, value):
                if isinstance(item, ast.AST):
                    yield from nodes(item)


def normalise(source: str | bytes) -> str:
    """The program text without comments, formatting and docstrings. Raises SyntaxError (ValueError for NUL bytes)."""
    import ast

    out: list[str] = []

    def dump(value: object) -> None:
        if isinstance(value, ast.AST):
            out.append(f"({type(value).__name__}")
            for name in value._fields:
                item = getattr(value, name, None)
                if name not in IGNORED_FIELDS and item is not None and item != []:
                    out.append(f" {name}=")
                    dump(_significant(value, name, item) if isinstance(item, list) else item)
            # A constant's None would otherwise look like an absent field.
            if isinstance(value, ast.Constant) and value.value is None:
                out.append(" None")
            out.append(")")
        elif isinstance(value, list):
            out.append("[")
            for item in value:
                dump(item)
            out.append("]")
        else:
            out.append(f"{ascii(value)},")

    dump(ast.parse(source))
    return "".join(out)


def _significant(parent: ast.AST, name: str, items: list[object]) -> list[object]:
    """The items of a list field without a docstring."""
    import ast

    documented = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    if name == "body" and items and isinstance(parent, documented):
        first = items[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return items[1:]
    return items


_own: dict[str, str] = {}


def own_sources() -> dict[str, str]:
    """A hash for each folder of Detent's own sources (and ``version`` for the package's own file), once a process."""
    if not _own:
        for folder in OWN_FOLDERS:
            _own[folder] = hash_sources(os.path.join(PACKAGE, folder))
        with open(os.path.join(PACKAGE, "__init__.py"), "rb") as file:
            _own["package"] = digest(file.read())
    return _own


def own_sources_hash() -> str:
    """One hash over :func:`own_sources`."""
    return digest(*(part for item in sorted(own_sources().items()) for part in item))


def hash_sources(folder: str) -> str:
    """A hash over the Python files below a folder: relative paths and bytes, in sorted order."""
    parts: list[str | bytes] = []
    for relative, path in sorted(_python_files(folder, "")):
        with open(path, "rb", buffering=0) as file:
            parts += [relative, file.read()]
    return digest(*parts)


def _python_files(folder: str, prefix: str) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _python_files(entry.path, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".py"):
                yield prefix + entry.name, entry.path

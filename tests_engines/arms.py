"""Counts how often each arm of each branch of the programs' helpers is taken.

Importing this module makes later imports of ``detent.programs`` go through a loader that wraps every condition: the
test of an ``if``, of a conditional expression and of a comprehension, and each operand of ``and`` and ``or``. Nothing
else of a program changes.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
from dataclasses import dataclass
from typing import Any

PACKAGE = "detent.programs"


@dataclass(slots=True)
class Arm:
    """A condition of ``function`` and how often it was false and true."""

    module: str
    function: str
    line: int
    text: str
    counts: list[int]


ARMS: list[Arm] = []


def _taken(index: int, value: Any) -> Any:
    ARMS[index].counts[1 if value else 0] += 1
    return value


class _Wrap(ast.NodeTransformer):
    def __init__(self, module: str) -> None:
        self.module, self.function = module, ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        outer, self.function = self.function, node.name
        node.body = [self.visit(statement) for statement in node.body]
        self.function = outer
        return node

    def condition(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.BoolOp):
            return self.visit(node)
        arm = Arm(self.module, self.function, node.lineno, ast.unparse(node), [0, 0])
        ARMS.append(arm)
        call = ast.Call(ast.Name("__taken__", ast.Load()), [ast.Constant(len(ARMS) - 1), self.visit(node)], [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.BoolOp:
        node.values = [self.condition(value) for value in node.values]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A condition of the program holds on every input, so its operands have arms that are never taken."""
        if isinstance(node.func, ast.Name) and node.func.id in ("assume", "require"):
            return node
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.If:
        node.test = self.condition(node.test)
        node.body = [self.visit(statement) for statement in node.body]
        node.orelse = [self.visit(statement) for statement in node.orelse]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        node.test = self.condition(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        node.ifs = [self.condition(test) for test in node.ifs]
        node.iter = self.visit(node.iter)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        return compile(_Wrap(self.name).visit(ast.parse(data, path)), path, "exec", dont_inherit=True)

    def exec_module(self, module: Any) -> None:
        module.__dict__["__taken__"] = _taken
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith(f"{PACKAGE}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


assert not any(name.startswith(f"{PACKAGE}.") for name in sys.modules), "programs were imported before their arms"
sys.meta_path.insert(0, _Finder())


def of(*functions: Any) -> list[Arm]:
    """The arms of these functions of the programs."""
    names = {(function.__module__, function.__name__) for function in functions}
    return [arm for arm in ARMS if (arm.module, arm.function) in names]

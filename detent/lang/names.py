"""What a name means: a value of the function, or something outside it."""

from __future__ import annotations

import ast
import builtins
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from xdsl.ir import Block, SSAValue

from detent.dialects.selir.unbound import FuncRefOp
from detent.lang.emit import Emitter, hint, string
from detent.lang.errors import CapturedGlobal, UnknownName, UnsupportedSyntax, WrongArguments
from detent.lang.globals import REMEDY, known
from detent.lang.refusals import FUNCTIONS
from detent.lang.text import SourceFile

if TYPE_CHECKING:
    from detent.lang.builder import Helper, ModuleBuilder


class Reference(NamedTuple):
    """A variable outside the function: the variables of its module, its name there, and what it holds."""

    names: dict[str, Any]
    name: str
    value: Any


class Names(Emitter):
    """The variables that one function sees.

    ``env`` holds the values of local variables on the current path; ``inside`` names the expression whose parts
    may have no effects, such as a lambda; ``effects`` are the language's words with effects that were met.
    """

    def __init__(self, owner: ModuleBuilder, function: FunctionType, source: SourceFile, block: Block) -> None:
        super().__init__(source, block)
        self.owner, self.function, self.names = owner, function, function.__globals__
        self.env: dict[str, SSAValue] = {}
        self.locals: frozenset[str] = frozenset()
        self.inside: str | None = None
        self.effects: set[str] = set()

    def reference(self, node: ast.expr) -> Reference | None:
        """What a name, or a dotted name that starts at a module, stands for outside; None for a local value.

        Raises UnknownName, and CapturedGlobal for a variable of an enclosing function.
        """
        if isinstance(node, ast.Name):
            return None if node.id in self.env or node.id in self.locals else self._outside(node)
        if isinstance(node, ast.Attribute):
            base = self.reference(node.value)
            if base is not None and isinstance(base.value, ModuleType):
                names = vars(base.value)
                if node.attr not in names:
                    message = f"module '{base.value.__name__}' has no '{node.attr}'"
                    raise self.error(UnknownName, message, node, _suggest(node.attr, names))
                return Reference(names, node.attr, names[node.attr])
        return None

    def _outside(self, node: ast.Name) -> Reference:
        name = node.id
        if name in self.function.__code__.co_freevars:
            message = f"'{name}' is a variable of an enclosing function"
            raise self.error(CapturedGlobal, message, node, REMEDY)
        if name in self.names:
            return Reference(self.names, name, self.names[name])
        if name in vars(builtins):
            return Reference(vars(builtins), name, vars(builtins)[name])
        ours = (name for name, value in vars(builtins).items() if known(value) is not None)
        candidates = [*self.env, *self.locals, *self.names, *ours]
        raise self.error(UnknownName, f"'{name}' is not defined", node, _suggest(name, candidates))

    def variable(self, node: ast.Name) -> SSAValue:
        """The value of a name in an expression."""
        value = self.env.get(node.id)
        if value is not None:
            return value
        if node.id in self.locals:
            message, help = f"'{node.id}' is read before it is assigned", "assign it on every path that leads here"
            raise self.error(UnknownName, message, node, help)
        return self.outer(node, self._outside(node))

    def outer(self, node: ast.expr, found: Reference) -> SSAValue:
        """The value of something outside the function: a literal constant, or a helper to be called later."""
        name, value = found.name, found.value
        if known(value) is not None:
            message = f"'{name}' can only be called"
            raise self.error(UnsupportedSyntax, message, node, f"to hand it on, wrap it: lambda x: {name}(x)")
        if isinstance(value, FunctionType):
            helper = self.helper(value, node)
            if helper.effects:
                self.refuse_effects(helper, node)
            if any(p.has_default or p.kind == "keyword" for p in helper.parameters):
                message = f"'{name}' has parameters with defaults or by name only, and is handed on"
                raise self.error(WrongArguments, message, node, f"wrap it: lambda x: {name}(x)")
            return self.emit(FuncRefOp, node, (), {"callee": string(helper.symbol)}).results[0]
        if isinstance(value, ModuleType) or callable(value):
            raise self.not_a_value(node, found)
        result = self.constant(self.owner.modules.constant(found.names, name, self.span(node)), node)
        hint(result, name)
        return result

    def not_a_value(self, node: ast.expr, found: Reference) -> UnsupportedSyntax:
        """The error for a module, a class or a foreign function."""
        kinds = {ModuleType: "a module", type: "a class"}
        what = next((text for kind, text in kinds.items() if isinstance(found.value, kind)), "no plain Python function")
        help = FUNCTIONS.get(found.name, "") if found.names is vars(builtins) else ""
        default = "call helpers defined with 'def' at the top of a module, and the functions that the language lists"
        return self.error(UnsupportedSyntax, f"'{found.name}' is {what}", node, help or default)

    def helper(self, function: FunctionType, node: ast.expr) -> Helper:
        """A helper function, lowered when it is met first."""
        return self.owner.helper(function, self.span(node))

    def refuse_effects(self, helper: Helper, node: ast.expr) -> None:
        """Raise the error for a helper with conditions or knobs where only values are allowed."""
        words = " and ".join(sorted(helper.effects))
        message = f"'{helper.symbol}' contains {words}, which cannot be inside {self.inside or 'a function handed on'}"
        raise self.error(UnsupportedSyntax, message, node, "call it in a statement before, and use its result here")


def _suggest(name: str, candidates: Any) -> str:
    close = get_close_matches(name, [c for c in candidates if not c.startswith("__")], n=1)
    return f"did you mean '{close[0]}'?" if close else "define it, or make it a parameter"

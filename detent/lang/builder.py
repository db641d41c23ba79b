"""From a program's function to a SelIR module: the program, and each helper that it reaches."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region

from detent.dialects.selir.source import Span, span_of
from detent.dialects.selir.structure import ProgramOp, verify_order
from detent.dialects.selir.unbound import FuncOp, ReturnOp
from detent.lang.depth import HELP, limited
from detent.lang.emit import ANY, string, strings
from detent.lang.errors import CapturedGlobal, NoSelection, RecursionRefused, SourceUnavailable, UnsupportedSyntax
from detent.lang.flow import parameters
from detent.lang.globals import LIBRARY, REMEDY, Modules, NotLiteral, frozen, known, loaded
from detent.lang.parameters import Parameters
from detent.lang.shim import NOT_A_FAMILY, is_family
from detent.lang.text import Function, SourceFile

MARK = "__detent_selection__"


class Parameter(NamedTuple):
    """A helper's parameter; ``kind`` says how it may be passed: ``positional``, ``keyword`` or ``both``."""

    name: str
    kind: str
    has_default: bool
    default: Any


@dataclass
class Helper:
    """A helper function of a module. ``effects``: the words with effects that it, or what it calls, contains."""

    symbol: str
    parameters: tuple[Parameter, ...]
    effects: frozenset[str] = frozenset()
    done: bool = False


@dataclass(frozen=True)
class Built:
    """A program as SelIR.

    ``files`` are the real paths of the files that it was read from, constants and records included, in the order
    they were met, and ``texts`` what each held then. ``globals`` are the captured constants: module, name and value.
    """

    module: ModuleOp
    name: str
    family: str
    files: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict, repr=False)
    globals: tuple[tuple[str, str, Any], ...] = field(default=(), repr=False)


class ModuleBuilder:
    """Builds a module from one or several selections; helpers they share are in it once."""

    def __init__(self) -> None:
        self.modules = Modules()
        self.block = Block()
        self.helpers: dict[FunctionType, Helper] = {}
        self._symbols: set[str] = set()
        self._open: list[FunctionType] = []

    # ---- selections --------------------------------------------------------------------------------------------

    def program(self, function: FunctionType) -> None:
        """Add a selection and the helpers it reaches."""
        source, node = self._text(function, None)
        body = Block()
        lowering = Parameters(self, function, source, body)
        self._check_decorators(lowering, function, node)
        family: str = getattr(function, MARK)
        if not is_family(family):  # the mark was set by other means than the decorator
            raise NoSelection(f"'{function.__name__}': {NOT_A_FAMILY.format(family)}", source.name(node))
        program = ProgramOp.create(
            properties={
                "sym_name": string(self._symbol(function.__name__)),
                "family": string(family),
            },
            regions=[Region(body)],
            location=lowering.location(node),
        )
        self.block.add_op(program)
        with limited(node, source):
            lowering.parameters(node)
            result = lowering.body(node)
        if not lowering.gives_value:
            message = f"'{function.__name__}' returns nothing: it has no selection point"
            help = "return a dict of the selection points: {'name': value}"
            raise NoSelection(message, source.name(node), help)
        lowering.emit(ReturnOp, node, (result,), results=())

    def _check_decorators(self, lowering: Parameters, function: FunctionType, node: Function) -> None:
        if isinstance(node, ast.AsyncFunctionDef):
            lowering.refuse_node(node, node)
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            found = lowering.reference(called)
            if found is None or known(found.value) != "selection":
                lowering.refuse("selection decorator", decorator)

    def declarations(self, record: type, names: dict[str, Any]) -> dict[str, Span]:
        """Where the fields of a record are declared; the file counts among those that the program was read from."""
        module = loaded(names, record.__module__)
        path = getattr(module, "__file__", None)
        return {} if path is None else self.modules.source(path).fields(record.__name__)

    # ---- helpers -----------------------------------------------------------------------------------------------

    def helper(self, function: FunctionType, at: Span) -> Helper:
        """The helper for a function, lowered if it is new; ``at`` is where it is used.

        Raises RecursionRefused, and what lowering its body raises.
        """
        helper = self.helpers.get(function)
        if helper is None:
            if f"{function.__module__}.".startswith(LIBRARY):
                help = "use it where the program is called from"
                raise UnsupportedSyntax(f"'{function.__name__}' is not for use inside a program", at, help)
            if hasattr(function, MARK):
                help = "move what both need to a plain helper and call that"
                raise UnsupportedSyntax(f"'{function.__name__}' is a selection, which is never called", at, help)
            if function.__name__ == "<lambda>" or hasattr(function, "__wrapped__"):
                what = "a lambda" if function.__name__ == "<lambda>" else "a decorated function"
                help = "define it with a plain 'def' at the top of its module"
                raise UnsupportedSyntax(f"a helper is {what}", at, help)
            helper = self._lower(function, at)
        elif not helper.done:
            path = [f.__name__ for f in self._open[self._open.index(function) :]]
            chain = " -> ".join([*path, function.__name__])
            help = "write it without recursion: a reduction over a static collection, or one helper per level"
            raise RecursionRefused(f"'{function.__name__}' calls itself: {chain}", at, help)
        return helper

    def _lower(self, function: FunctionType, at: Span) -> Helper:
        source, node = self._text(function, at)
        body = Block()
        lowering = Parameters(self, function, source, body)
        helper = Helper(self._symbol(function.__name__), self._signature(lowering, function, node))
        self.helpers[function] = helper
        self._open.append(function)
        args = parameters(node.args)
        for arg in args:
            value = body.insert_arg(ANY, len(body.args))
            value.location = lowering.location(arg)
            lowering.env[arg.arg] = value
        func = FuncOp.create(
            properties={"sym_name": string(helper.symbol), "params": strings(*(arg.arg for arg in args))},
            regions=[Region(body)],
            location=lowering.location(node),
        )
        self.block.add_op(func)
        with limited(node, source):
            lowering.emit(ReturnOp, node, (lowering.body(node),), results=())
        helper.effects, helper.done = frozenset(lowering.effects), True
        self._open.pop()
        return helper

    def _signature(self, lowering: Parameters, function: FunctionType, node: Function) -> tuple[Parameter, ...]:
        """A helper's parameters, or the error for a definition that the language does not have."""
        args = node.args
        if isinstance(node, ast.AsyncFunctionDef):
            lowering.refuse_node(node, node)
        if node.decorator_list:
            lowering.refuse("decorator", node.decorator_list[0])
        if getattr(node, "type_params", None):
            lowering.refuse("type parameter", node.type_params[0])  # type: ignore[attr-defined]
        for arg in (args.vararg, args.kwarg):
            if arg is not None:
                lowering.refuse("variadic parameter", arg)
        if function.__code__.co_freevars:
            names = ", ".join(function.__code__.co_freevars)
            message = f"'{function.__name__}' uses variables of an enclosing function: {names}"
            raise CapturedGlobal(message, lowering.source.name(node), REMEDY)
        defaults: dict[str, ast.expr] = {}
        by_place = [*args.posonlyargs, *args.args]
        for arg, default in zip(by_place[len(by_place) - len(args.defaults) :], args.defaults, strict=True):
            defaults[arg.arg] = default
        defaults |= {a.arg: d for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is not None}
        kinds = [("positional", args.posonlyargs), ("both", args.args), ("keyword", args.kwonlyargs)]
        return tuple(
            Parameter(arg.arg, kind, arg.arg in defaults, self._default(lowering, defaults.get(arg.arg)))
            for kind, group in kinds
            for arg in group
        )

    def _default(self, lowering: Parameters, node: ast.expr | None) -> Any:
        if node is None:
            return None
        try:
            return frozen(self.modules.literal(lowering.names, node))
        except NotLiteral as error:
            message = f"a default is a literal constant: {error.args[0]}"
            raise lowering.error(CapturedGlobal, message, node, REMEDY) from None

    # ---- both --------------------------------------------------------------------------------------------------

    def _text(self, function: FunctionType, at: Span | None) -> tuple[SourceFile, Function]:
        try:
            source = self.modules.source(function.__code__.co_filename)
            return source, source.definition(function)
        except SourceUnavailable as error:
            raise SourceUnavailable(error.message, at, error.help) from None

    def _symbol(self, name: str) -> str:
        symbol, count = name, 1
        while symbol in self._symbols:
            count += 1
            symbol = f"{name}.{count}"
        self._symbols.add(symbol)
        return symbol

    def finish(self) -> ModuleOp:
        """The module, verified."""
        module = ModuleOp(Region(self.block))
        try:
            verify(module)
        except RecursionError:
            first = self.block.first_op
            raise UnsupportedSyntax("the program nests too deeply", span_of(first), HELP) from None
        return module


def verify(module: ModuleOp) -> None:
    """Verify a module that the front end has built; raises VerifyException.

    xDSL's verifier costs as much as building. Every type is ``!selir.any`` here, so what it checks of an operation
    can only come out differently for another shape: it runs once for each. Only the order of values is particular.
    """
    seen: set[tuple[object, ...]] = set()
    for function in module.ops:
        verify_order(function.regions[0])
        for op in function.walk():
            ends = [len(last.operands) for region in op.regions if (last := region.block.last_op)]
            shape = (type(op), len(op.operands), len(op.results), *op.properties, *ends, op.next_op is None)
            if shape not in seen:
                seen.add(shape)
                op.verify(verify_nested_ops=False)


def build_module(function: FunctionType) -> Built:
    """Read a selection off its Python text.

    Raises a LanguageError that points at what is wrong. The module holds one ``selir.program`` and one
    ``selir.func`` for each helper that it reaches, and is verified.
    """
    family = getattr(function, MARK, None)
    if not isinstance(function, FunctionType) or family is None:
        name = getattr(function, "__name__", repr(function))
        raise NoSelection(f"'{name}' is not a selection", None, "decorate the function with @selection(family=...)")
    builder = ModuleBuilder()
    builder.program(function)
    captured = tuple((module, name, value) for (module, name), value in builder.modules.captured.items())
    texts = {source.path: source.text for source in builder.modules.sources.values()}
    return Built(builder.finish(), function.__name__, family, tuple(texts), texts, captured)

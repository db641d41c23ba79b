"""Appends operations to blocks. The one place where an operation gets its location."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from xdsl.dialects.builtin import ArrayAttr, LocationAttr, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from detent.dialects.selir.scalar import SCALAR_OPS, ConstantOp
from detent.dialects.selir.source import Span, make_location
from detent.dialects.selir.structure import IfOp, YieldOp
from detent.dialects.selir.types import TYPES, ValueAttr
from detent.dialects.selir.unbound import BuiltinOp, CallOp
from detent.lang.errors import LanguageError, UnsupportedSyntax
from detent.lang.refusals import REFUSALS, Refusal
from detent.lang.text import SourceFile

ANY = TYPES["any"]
ONE = (ANY,)
NONE: Mapping[str, Attribute] = {}
Node = ast.expr | ast.stmt | ast.arg | ast.keyword
Op = TypeVar("Op", bound=Operation)
Error = TypeVar("Error", bound=LanguageError)


@lru_cache(maxsize=4096)
def string(text: str) -> StringAttr:
    """A shared string attribute: a fresh one costs more than the operation that carries it."""
    return StringAttr(text)


@lru_cache(maxsize=256)
def strings(*texts: str) -> ArrayAttr[StringAttr]:
    """A shared array of string attributes."""
    return ArrayAttr([string(text) for text in texts])


@lru_cache(maxsize=4096)
def _shared(spelled: str, value: str | float | None) -> ValueAttr:
    return ValueAttr(value)


def constant(value: Any) -> ValueAttr:
    """The attribute of a constant; scalars share theirs."""
    if isinstance(value, tuple | dict):
        return ValueAttr(value)
    return _shared(repr(value), value)  # -0.0 == 0.0 and True == 1 must stay apart


def hint(value: SSAValue, name: str) -> None:
    """Let a value print as a variable of the program; what a function or lambda is given keeps its caller's name."""
    if isinstance(value.owner, Operation) and name.isascii():
        value.name_hint = name


class Emitter:
    """Builds the operations of one function of a source file."""

    def __init__(self, source: SourceFile, block: Block) -> None:
        self.source, self.block = source, block
        self._locations: dict[ast.AST, LocationAttr] = {}
        self._stand_in: Node | None = None

    # ---- places ------------------------------------------------------------------------------------------------

    def span(self, node: Node) -> Span:
        """The text of a node."""
        return self.source.span(self._stand_in or node)

    def location(self, node: Node) -> LocationAttr:
        """The location of everything built from a node."""
        node = self._stand_in or node
        found = self._locations.get(node)
        if found is None:
            span = self.source.head(node) if isinstance(node, ast.stmt) else self.source.span(node)
            found = self._locations[node] = make_location(span)
        return found

    @contextmanager
    def placed_at(self, node: Node | None) -> Iterator[None]:
        """Place everything at one node, whatever it is built from; None changes nothing."""
        before, self._stand_in = self._stand_in, self._stand_in or node
        yield
        self._stand_in = before

    # ---- operations --------------------------------------------------------------------------------------------

    def emit(
        self,
        kind: type[Op],
        node: Node,
        operands: Sequence[SSAValue] = (),
        properties: Mapping[str, Attribute] = NONE,
        *,
        results: Sequence[Attribute] = ONE,
        regions: Sequence[Region] = (),
        attributes: Mapping[str, Attribute] = NONE,
        at: Span | None = None,
    ) -> Op:
        """Append an operation that was read off ``node``, or off a span of another file."""
        op = kind.create(
            operands=operands,
            result_types=results,
            properties=properties,
            attributes=attributes,
            regions=regions,
            location=self.location(node) if at is None else make_location(at),
        )
        self.block.add_op(op)
        return op

    def constant(self, value: Any, node: Node) -> SSAValue:
        """``selir.constant``."""
        return self.emit(ConstantOp, node, (), {"value": constant(value)}).results[0]

    def scalar(self, kind: str, node: Node, *operands: SSAValue) -> SSAValue:
        """An operation of the semantics table."""
        return self.emit(SCALAR_OPS[kind], node, operands).results[0]

    def builtin(self, name: str, node: Node, *operands: SSAValue, keywords: Sequence[str] = ()) -> SSAValue:
        """``selir.builtin``; the last operands belong to the keywords."""
        properties = {"function": string(name), "keywords": strings(*keywords)}
        return self.emit(BuiltinOp, node, operands, properties).results[0]

    def call(self, symbol: str, node: Node, operands: Sequence[SSAValue]) -> SSAValue:
        """``selir.call`` with every argument in its place."""
        return self.emit(CallOp, node, operands, {"callee": string(symbol), "keywords": strings()}).results[0]

    def ends(self, node: Node, *values: SSAValue) -> None:
        """End a region with what it gives."""
        self.emit(YieldOp, node, values, results=())

    @contextmanager
    def region(self, *args: Node) -> Iterator[Region]:
        """A region with one argument for each node, filled by what is emitted inside the ``with``."""
        outer = self.block
        self.block = Block(arg_types=[ANY] * len(args))
        for value, node in zip(self.block.args, args, strict=True):
            value.location = self.location(node)
        region = Region(self.block)
        yield region
        self.block = outer

    def choose(self, cond: SSAValue, node: Node, then: Region, orelse: Region, logical: str | None = None) -> IfOp:
        """``selir.if`` with as many results as its regions yield."""
        last = then.block.last_op
        count = len(last.operands) if last is not None else 0
        attributes = {"logical": string(logical)} if logical else NONE
        return self.emit(IfOp, node, (cond,), results=ONE * count, regions=(then, orelse), attributes=attributes)

    # ---- errors ------------------------------------------------------------------------------------------------

    def error(self, kind: type[Error], message: str, node: Node, help: str = "") -> Error:
        """An error that points at a node."""
        return kind(message, self.source.head(self._stand_in or node), help)

    def refuse(self, use: str, node: Node) -> NoReturn:
        """Raise the refusal that the table has for a use."""
        refusal = REFUSALS[use]
        raise self.error(UnsupportedSyntax, f"{refusal.what} is not part of the language", node, refusal.instead)

    def refuse_node(self, part: ast.AST, at: Node) -> NoReturn:
        """Raise the refusal of a syntax class, be it in the table or unknown to it."""
        name = type(part).__name__
        unknown = Refusal(f"Python's {name}", "use the constructs that the language reference lists")
        refusal = REFUSALS.get(name, unknown)
        raise self.error(UnsupportedSyntax, f"{refusal.what} is not part of the language", at, refusal.instead)

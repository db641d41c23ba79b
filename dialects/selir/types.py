"""Types and attributes of the ``selir`` dialect."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import Data, ParametrizedAttribute, SpacedOpaqueSyntaxAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.str_enum import StrEnum

from xdsl.dialects.utils import EnumAttribute  # isort: skip


@irdl_attr_definition
class IntType(ParametrizedAttribute, TypeAttribute):
    """Python's ``int``: no width, no overflow."""

    name = "selir.int"


@irdl_attr_definition
class FloatType(ParametrizedAttribute, TypeAttribute):
    """Python's ``float``: an IEEE double."""

    name = "selir.float"


@irdl_attr_definition
class F32Type(ParametrizedAttribute, TypeAttribute):
    """C's ``float``: an IEEE single."""

    name = "selir.f32"


@irdl_attr_definition
class BoolType(ParametrizedAttribute, TypeAttribute):
    """Python's ``bool``; not a number here: arithmetic on it goes through ``selir.int``."""

    name = "selir.bool"


@irdl_attr_definition
class StrType(ParametrizedAttribute, TypeAttribute):
    """Python's ``str``."""

    name = "selir.str"


@irdl_attr_definition
class NoneType(ParametrizedAttribute, TypeAttribute):
    """The type of ``None``."""

    name = "selir.none"


@irdl_attr_definition
class AnyType(ParametrizedAttribute, TypeAttribute):
    """A value whose type depends on facts that are not bound yet; none is left after binding."""

    name = "selir.any"


TYPES: dict[str, TypeAttribute] = {
    "int": IntType(),
    "float": FloatType(),
    "f32": F32Type(),
    "bool": BoolType(),
    "str": StrType(),
    "none": NoneType(),
    "any": AnyType(),
}
"""Scalar type names of the semantics table, with the attribute that stands for each."""


def type_name(attribute: Any) -> str:
    """``int`` for ``!selir.int`` and so on; raises KeyError for a type of another dialect."""
    return _NAMES[type(attribute)]


_NAMES: dict[type, str] = {type(attribute): name for name, attribute in TYPES.items()}


class Source(StrEnum):
    """Where an input comes from (design: Runtime, Unpinnable, Request)."""

    RUNTIME = "runtime"
    UNPINNABLE = "unpinnable"
    REQUEST = "request"


@irdl_attr_definition
class SourceAttr(EnumAttribute[Source], SpacedOpaqueSyntaxAttribute):
    """``#selir<source runtime>``: whether an input may be pinned and whether it depends on the batch."""

    name = "selir.source"


@irdl_attr_definition
class ValueAttr(Data[Any]):
    """A Python constant: a scalar, a tuple of constants, or a dict of constants in key order.

    Two are equal only when type and bits are: ``True`` is not ``1``, ``0.0`` is not ``-0.0``.
    """

    name = "selir.value"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueAttr) and constant_key(self.data) == constant_key(other.data)

    def __hash__(self) -> int:
        return hash(constant_key(self.data))

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Any:
        parser.parse_punctuation("<")
        value = parse_constant(parser)
        parser.parse_punctuation(">")
        return value

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string("<")
        print_constant(printer, self.data)
        printer.print_string(">")


def constant_key(value: Any) -> Any:
    """A hashable key under which constants agree exactly when type and bits agree."""
    if isinstance(value, tuple):
        return ("tuple", *map(constant_key, value))
    if isinstance(value, dict):
        return ("dict", *((constant_key(k), constant_key(v)) for k, v in value.items()))
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)


def parse_constant(parser: AttrParser) -> Any:
    """Parse what :func:`print_constant` prints."""
    if parser.parse_optional_punctuation("[") is not None:
        return tuple(_items(parser, "]", lambda: parse_constant(parser)))
    if parser.parse_optional_punctuation("{") is not None:
        return dict(_items(parser, "}", lambda: _pair(parser)))
    text = parser.parse_optional_str_literal()
    if text is not None:
        return text.encode("ascii").decode("unicode_escape")
    word = parser.parse_optional_keyword_in(("true", "false", "none", "inf", "nan", "ninf"))
    if word is not None:
        return {"true": True, "false": False, "none": None, "inf": math.inf, "nan": math.nan, "ninf": -math.inf}[word]
    return parser.parse_number(allow_boolean=False, context_msg=" in a selir constant")


def _items(parser: AttrParser, end: Any, item: Any) -> list[Any]:
    values: list[Any] = []
    if parser.parse_optional_punctuation(end) is not None:
        return values
    while True:
        values.append(item())
        if parser.parse_optional_punctuation(end) is not None:
            return values
        parser.parse_punctuation(",")


def _pair(parser: AttrParser) -> tuple[Any, Any]:
    key = parse_constant(parser)
    parser.parse_punctuation(":")
    return key, parse_constant(parser)


def print_constant(printer: Printer, value: Any) -> None:
    """Print a constant so that it reads back with the same type and bits."""
    if isinstance(value, bool):
        printer.print_string("true" if value else "false")
    elif value is None:
        printer.print_string("none")
    elif isinstance(value, str):
        # The IR's strings are bytes; escaping keeps what is printed ASCII.
        printer.print_string_literal(value.encode("unicode_escape").decode("ascii"))
    elif isinstance(value, float):
        printer.print_string(_float_text(value))
    elif isinstance(value, int):
        printer.print_string(str(value))
    elif isinstance(value, tuple):
        printer.print_string("[")
        printer.print_list(value, lambda v: print_constant(printer, v))
        printer.print_string("]")
    else:
        printer.print_string("{")
        printer.print_list(value.items(), lambda kv: _print_pair(printer, kv))
        printer.print_string("}")


def _print_pair(printer: Printer, pair: tuple[Any, Any]) -> None:
    print_constant(printer, pair[0])
    printer.print_string(": ")
    print_constant(printer, pair[1])


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "ninf"
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    # The IR's number syntax wants a decimal point before an exponent.
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{mantissa}e{exponent}" if exponent else mantissa

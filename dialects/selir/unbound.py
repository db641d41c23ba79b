"""Operations that exist only before facts are bound: what the front end reads off the Python text.

Their values are of type ``!selir.any``; partial evaluation replaces every one of them. The scalar
operations of :mod:`detent.dialects.selir.scalar` appear at this level too, on ``!selir.any``.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from detent.dialects.selir.structure import verify_order
from detent.dialects.selir.types import AnyType, ValueAttr


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A helper function of the program; its block arguments are its parameters in order."""

    name = "selir.func"
    sym_name = prop_def(StringAttr)
    params = prop_def(ArrayAttr[StringAttr])
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())
    assembly_format = "$sym_name $params attr-dict-with-keyword $body"

    def verify_(self) -> None:
        if len(self.params) != len(self.body.block.args):
            raise VerifyException("a function has one block argument for each parameter")
        verify_order(self.body)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a function, an unbound program, or an arm of a branch in tail position."""

    name = "selir.return"
    value = operand_def(AnyAttr())
    traits = traits_def(IsTerminator())
    assembly_format = "$value attr-dict `:` type($value)"


@irdl_op_definition
class FactsOp(IRDLOperation):
    """A record of deployment facts. ``fields`` maps field names to the types they are declared with."""

    name = "selir.facts"
    section = prop_def(StringAttr)
    fields = prop_def(ValueAttr)
    res = result_def(AnyType)
    assembly_format = "$section $fields attr-dict `:` type($res)"


@irdl_op_definition
class RecordOp(IRDLOperation):
    """A record made of values, such as the batch inputs of one call."""

    name = "selir.record"
    fields = prop_def(ArrayAttr[StringAttr])
    values = var_operand_def(AnyAttr())
    res = result_def(AnyType)
    assembly_format = "$fields ($values^ `:` type($values))? attr-dict `->` type($res)"

    def verify_(self) -> None:
        if len(self.fields) != len(self.values):
            raise VerifyException("a record has one value for each field")


@irdl_op_definition
class FieldOp(IRDLOperation):
    """``value.field`` of a record."""

    name = "selir.field"
    value = operand_def(AnyAttr())
    field_name = prop_def(StringAttr, prop_name="name")
    res = result_def(AnyType)
    assembly_format = "$value $name attr-dict `:` type($value) `->` type($res)"


@irdl_op_definition
class ItemOp(IRDLOperation):
    """``value[key]`` of a tuple or a dict."""

    name = "selir.item"
    value = operand_def(AnyAttr())
    key = operand_def(AnyAttr())
    res = result_def(AnyType)
    assembly_format = "$value `at` $key attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class TupleOp(IRDLOperation):
    """A tuple or list display."""

    name = "selir.tuple"
    values = var_operand_def(AnyAttr())
    res = result_def(AnyType)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class DictOp(IRDLOperation):
    """A dict display; operands are key, value, key, value, ..."""

    name = "selir.dict"
    items = var_operand_def(AnyAttr())
    res = result_def(AnyType)
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        if len(self.items) % 2:
            raise VerifyException("a dict has a value for each key")


@irdl_op_definition
class UnpackOp(IRDLOperation):
    """``a, b = value``: one result for each target."""

    name = "selir.unpack"
    value = operand_def(AnyAttr())
    res = var_result_def(AnyType)
    assembly_format = "$value attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class CallOp(IRDLOperation):
    """A call of a helper function. The last ``len(keywords)`` arguments are passed by keyword."""

    name = "selir.call"
    callee = prop_def(StringAttr)
    keywords = prop_def(ArrayAttr[StringAttr])
    args = var_operand_def(AnyAttr())
    res = result_def(AnyType)
    assembly_format = "$callee $keywords ($args^)? attr-dict `:` functional-type(operands, results)"


@irdl_op_definition
class BuiltinOp(IRDLOperation):
    """A call of one of Python's own functions, methods or operators on static collections.

    ``function`` is one of :data:`BUILTINS`; keyword arguments come last, as in :class:`CallOp`.
    """

    name = "selir.builtin"
    function = prop_def(StringAttr)
    keywords = prop_def(ArrayAttr[StringAttr])
    args = var_operand_def(AnyAttr())
    res = result_def(AnyType)
    assembly_format = "$function $keywords ($args^)? attr-dict `:` functional-type(operands, results)"

    def verify_(self) -> None:
        if self.function.data not in BUILTINS:
            raise VerifyException(f"unknown function '{self.function.data}'")


BUILTINS = {
    "abs": "abs(x)",
    "all": "all(bools)",
    "any": "any(bools)",
    "bool": "truth of a value",
    "ceil": "ceil(x), an int",
    "contains": "x in collection: (collection, x)",
    "dict.get": "table.get(key[, default])",
    "dict.items": "table.items()",
    "dict.keys": "table.keys()",
    "dict.values": "table.values()",
    "enumerate": "enumerate(collection[, start])",
    "f32": "f32(x)",
    "float": "float(x)",
    "floor": "floor(x), an int",
    "format": "an f-string: pieces in order",
    "int": "int(x), towards zero",
    "is_none": "x is None",
    "knob": "knob(name, values, default=)",
    "len": "len(collection)",
    "max": "max(a, b, ...) or max(collection, key=, default=)",
    "min": "min(a, b, ...) or min(collection, key=, default=)",
    "next": "next(generator[, default])",
    "pow": "a ** b of facts",
    "range": "range of facts",
    "reversed": "reversed(collection)",
    "sorted": "sorted(collection, key=, reverse=) of facts",
    "sum": "sum(collection[, start])",
    "tuple": "tuple(collection), list(collection)",
    "union": "a | b of dicts",
    "zip": "zip(collections...)",
}
"""Function names of ``selir.builtin`` with what each means."""


@irdl_op_definition
class LambdaOp(IRDLOperation):
    """An anonymous function; the region's block arguments are its parameters."""

    name = "selir.lambda"
    body = region_def("single_block")
    res = result_def(AnyType)
    assembly_format = "$body attr-dict `:` type($res)"


@irdl_op_definition
class FuncRefOp(IRDLOperation):
    """A helper function used as a value (``key=distance``)."""

    name = "selir.func_ref"
    callee = prop_def(StringAttr)
    res = result_def(AnyType)
    assembly_format = "$callee attr-dict `:` type($res)"


@irdl_op_definition
class ComprehensionOp(IRDLOperation):
    """A list, generator or dict comprehension: what the ``selir.emit`` in its region gives, in order."""

    name = "selir.comprehension"
    form = prop_def(StringAttr)
    body = region_def("single_block")
    res = result_def(AnyType)
    traits = traits_def(NoTerminator())
    assembly_format = "$form $body attr-dict `:` type($res)"

    def verify_(self) -> None:
        if self.form.data not in ("list", "generator", "dict"):
            raise VerifyException(f"unknown comprehension '{self.form.data}'")


@irdl_op_definition
class ForEachOp(IRDLOperation):
    """One ``for`` clause of a comprehension: the region runs for every element of a static collection."""

    name = "selir.for_each"
    collection = operand_def(AnyAttr())
    body = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = "$collection $body attr-dict `:` type($collection)"


@irdl_op_definition
class FilterOp(IRDLOperation):
    """One ``if`` clause of a comprehension: the rest of the region counts only where it holds."""

    name = "selir.filter"
    cond = operand_def(AnyAttr())
    assembly_format = "$cond attr-dict `:` type($cond)"


@irdl_op_definition
class EmitOp(IRDLOperation):
    """An element (key and value for a dict) of the enclosing comprehension."""

    name = "selir.emit"
    values = var_operand_def(AnyAttr())
    assembly_format = "$values attr-dict `:` type($values)"


@irdl_op_definition
class UndefOp(IRDLOperation):
    """A variable that has no value on this path; using it is an error that names it."""

    name = "selir.undef"
    variable = prop_def(StringAttr)
    res = result_def(AnyType)
    assembly_format = "$variable attr-dict `:` type($res)"

"""The xDSL dialect object of SelIR."""

from __future__ import annotations

from xdsl.dialect_interfaces.constant_materialization import ConstantMaterializationInterface
from xdsl.ir import Attribute, Dialect, Operation

from detent.dialects.selir import structure, types, unbound
from detent.dialects.selir.scalar import SCALAR_OPS, ConstantOp, LookupOp
from detent.dialects.selir.types import ValueAttr


class MaterializeConstant(ConstantMaterializationInterface):
    """Turns the attribute a fold gives back into ``selir.constant``."""

    def materialize_constant(self, value: Attribute, type: Attribute) -> Operation | None:
        if isinstance(value, ValueAttr):
            return ConstantOp.create(result_types=[type], properties={"value": value})
        return None


SELIR = Dialect(
    "selir",
    [
        ConstantOp,
        *SCALAR_OPS.values(),
        LookupOp,
        structure.ProgramOp,
        structure.PointsOp,
        structure.YieldOp,
        structure.InputOp,
        structure.KnobOp,
        structure.IfOp,
        structure.AssumeOp,
        structure.RequireOp,
        structure.PinOp,
        unbound.FuncOp,
        unbound.ReturnOp,
        unbound.FactsOp,
        unbound.RecordOp,
        unbound.FieldOp,
        unbound.ItemOp,
        unbound.TupleOp,
        unbound.DictOp,
        unbound.UnpackOp,
        unbound.CallOp,
        unbound.BuiltinOp,
        unbound.LambdaOp,
        unbound.FuncRefOp,
        unbound.ComprehensionOp,
        unbound.ForEachOp,
        unbound.FilterOp,
        unbound.EmitOp,
        unbound.UndefOp,
    ],
    [
        types.IntType,
        types.FloatType,
        types.F32Type,
        types.BoolType,
        types.StrType,
        types.NoneType,
        types.AnyType,
        types.SourceAttr,
        types.ValueAttr,
    ],
    [MaterializeConstant()],
)

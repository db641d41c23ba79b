"""A program's parameters: records of deployment facts and of inputs."""

from __future__ import annotations

import ast
import re
from types import FunctionType
from typing import Any

from xdsl.ir import SSAValue

from detent.dialects.selir.structure import InputOp
from detent.dialects.selir.types import TYPES, Source, SourceAttr
from detent.dialects.selir.unbound import FactsOp, FieldOp, RecordOp
from detent.lang.emit import constant, hint, string, strings
from detent.lang.errors import WrongRecord
from detent.lang.flow import parameters
from detent.lang.statements import Statements
from detent.lang.text import Function

SOURCES = {source.value: SourceAttr(source) for source in Source}
EXAMPLE = "annotate it with a class that @record decorates, such as 'layer: Layer'"


def section_of(record: type) -> str:
    """The deployment's section that a record reads: ``MoeConfig`` reads ``[moe_config]``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", record.__name__).lower()


def type_text(declared: Any) -> str:
    """A field's declared type as text: ``int``, ``dict[int, int] | None``."""
    return declared.__name__ if type(declared) is type else str(declared)


class Parameters(Statements):
    """Lowers a selection's parameters."""

    def parameters(self, function: FunctionType, node: Function) -> None:
        """Emit what each parameter stands for. Raises WrongRecord."""
        seen: dict[str, str] = {}
        if node.args.vararg or node.args.kwarg:
            self.refuse("variadic parameter", node.args.vararg or node.args.kwarg)  # type: ignore[arg-type]
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        if defaults:
            self.refuse("selection default", defaults[0])
        for arg in parameters(node.args):
            record = self._record_class(function, arg)
            for name, (kind, _) in record.__detent_fields__.items():
                if kind != "fact" and name in seen:
                    message = f"input '{name}' is in two records: {seen[name]} and {record.__name__}"
                    raise self.error(WrongRecord, message, arg, "rename one; an input is known by its field's name")
                if kind != "fact":
                    seen[name] = record.__name__
            self.env[arg.arg] = self._record(record, arg)
            hint(self.env[arg.arg], arg.arg)

    def _record_class(self, function: FunctionType, arg: ast.arg) -> Any:
        if arg.annotation is None:
            raise self.error(WrongRecord, f"parameter '{arg.arg}' has no annotation", arg, EXAMPLE)
        declared = function.__annotations__.get(arg.arg)
        if isinstance(declared, str):
            found = self.reference(arg.annotation)
            declared = found.value if found is not None else None
        if not hasattr(declared, "__detent_fields__"):
            text = self.source.span(arg.annotation).text
            raise self.error(WrongRecord, f"parameter '{arg.arg}': {text} is not a record", arg, EXAMPLE)
        self.owner.read_record(declared, self.names)
        return declared

    def _record(self, record: Any, arg: ast.arg) -> SSAValue:
        """The value of one parameter: facts, inputs, or a record of both."""
        fields: dict[str, tuple[str, Any]] = record.__detent_fields__
        declared = {name: type_text(type_) for name, (kind, type_) in fields.items() if kind == "fact"}
        properties = {"section": string(section_of(record)), "fields": constant(declared)}
        facts = self.emit(FactsOp, arg, (), properties).results[0] if declared or not fields else None
        if facts is not None and len(declared) == len(fields):
            return facts
        values: list[SSAValue] = []
        for name, (kind, type_) in fields.items():
            if kind == "fact":
                assert facts is not None
                values.append(self.emit(FieldOp, arg, (facts,), {"name": string(name)}).results[0])
            else:
                values.append(self._input(name, kind, type_text(type_), arg))
            hint(values[-1], name)
        return self.emit(RecordOp, arg, values, {"fields": strings(*fields)}).results[0]

    def _input(self, name: str, kind: str, declared: str, arg: ast.arg) -> SSAValue:
        type_ = TYPES.get(declared.lower())
        if type_ is None or declared in ("any", "none"):
            message = f"input '{name}' is declared {declared}"
            raise self.error(WrongRecord, message, arg, "an input is an int, a float, an f32, a bool or a str")
        properties = {"name": string(name), "source": SOURCES[kind]}
        return self.emit(InputOp, arg, (), properties, results=(type_,)).results[0]

"""A program's parameters: records of deployment facts and of inputs."""

from __future__ import annotations

import ast
import re
from typing import Any

from xdsl.ir import Operation, SSAValue, TypeAttribute

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

    def parameters(self, node: Function) -> None:
        """Emit what each parameter stands for. Raises WrongRecord."""
        seen: dict[str, str] = {}
        for starred in (node.args.vararg, node.args.kwarg):
            if starred is not None:
                self.refuse("variadic parameter", starred)
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        if defaults:
            self.refuse("selection default", defaults[0])
        for arg in parameters(node.args):
            record = self._record_class(arg)
            for name, (kind, _) in record.__detent_fields__.items():
                if kind != "fact" and name in seen:
                    message = f"input '{name}' is in two records: {seen[name]} and {record.__name__}"
                    raise self.error(WrongRecord, message, arg, "rename one; an input is known by its field's name")
                if kind != "fact":
                    seen[name] = record.__name__
            self.env[arg.arg] = self._record(record, arg)
            hint(self.env[arg.arg], arg.arg)

    def _record_class(self, arg: ast.arg) -> Any:
        if arg.annotation is None:
            raise self.error(WrongRecord, f"parameter '{arg.arg}' has no annotation", arg, EXAMPLE)
        declared: Any = self.function.__annotations__.get(arg.arg)
        if isinstance(declared, str):  # from __future__ import annotations
            found = self.reference(arg.annotation)
            declared = None if found is None else found.value
        if not hasattr(declared, "__detent_fields__"):
            text = self.source.span(arg.annotation).text
            raise self.error(WrongRecord, f"parameter '{arg.arg}': {text} is not a record", arg, EXAMPLE)
        return declared

    def _record(self, record: Any, arg: ast.arg) -> SSAValue:
        """The value of one parameter: facts, inputs, or a record of both."""
        fields: dict[str, tuple[str, Any]] = record.__detent_fields__
        places = self.owner.declarations(record, self.names)
        declared = {name: type_text(type_) for name, (kind, type_) in fields.items() if kind == "fact"}
        properties = {"section": string(section_of(record)), "fields": constant(declared)}
        facts = self.emit(FactsOp, arg, (), properties).results[0] if declared or not fields else None
        if facts is not None and len(declared) == len(fields):
            return facts
        values: list[SSAValue] = []
        for name, (kind, type_) in fields.items():
            if kind == "fact":
                operands = (facts,) if facts is not None else ()
                op: Operation = self.emit(FieldOp, arg, operands, {"name": string(name)}, at=places.get(name))
            else:
                input_type = self._input_type(name, type_text(type_), arg)
                properties = {"name": string(name), "source": SOURCES[kind]}
                op = self.emit(InputOp, arg, (), properties, results=(input_type,), at=places.get(name))
            values.append(op.results[0])
            hint(values[-1], name)
        return self.emit(RecordOp, arg, values, {"fields": strings(*fields)}).results[0]

    def _input_type(self, name: str, declared: str, arg: ast.arg) -> TypeAttribute:
        found = TYPES.get(declared.lower())
        if found is None or declared in ("any", "none"):
            message = f"input '{name}' is declared {declared}"
            raise self.error(WrongRecord, message, arg, "an input is an int, a float, an f32, a bool or a str")
        return found

"""Binding facts: what folds, what is refused with which words, and that every operation keeps its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import UnknownLoc
from xdsl.ir import Operation

from detent.dialects.selir.scalar import LookupOp
from detent.dialects.selir.source import SourceError
from detent.dialects.selir.structure import IfOp, InputOp, ProgramOp
from detent.lang.builder import build_module
from detent.lang.load import load_program
from detent.passes.control_dependence import flatten_branches
from detent.passes.fact_types import mismatch
from detent.passes.flatten import flatten
from detent.passes.interpret import interpret
from detent.passes.partial_eval import Binding, DoesNotApply, bind
from detent.solver.compiled import split_module

HEAD = """
from detent.lang import *

@record
class Facts:
    n: int
    table: Table | None
    rows: dict
    name: str

@record
class Call:
    x: Runtime[int]
    y: Unpinnable[int]
    flag: Runtime[bool]
    z: Runtime[float]

def helper(a, b):
    return a * b + 1

@selection(family="test")
def program(f: Facts, call: Call):
"""
FACTS: dict[str, dict[str, Any]] = {
    "facts": {"n": 3, "table": {1: {"a": 10, "b": 1}, 4: {"a": 40, "b": 1}, 9: {"a": 90, "b": 2}},
              "rows": {"p": 5, "q": 6}, "name": "model"},
}


@pytest.fixture
def bound(tmp_path: Path) -> Callable[..., ProgramOp]:
    counter = itertools.count()

    def run(body: str, facts: dict[str, dict[str, Any]] = FACTS, **options: bool) -> ProgramOp:
        path = tmp_path / f"program_{next(counter)}.py"
        path.write_text(HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines()))
        program, functions = split_module(build_module(load_program(f"{path}:program")).module)
        result = bind(program, functions, Binding(facts, "demo"), **options)
        result.verify()
        return result

    return run


def operations(program: ProgramOp) -> list[str]:
    return [op.name.removeprefix("selir.") for op in program.walk() if op is not program]


def results(program: ProgramOp, **inputs: Any) -> dict[str, Any]:
    flatten_branches(program.block)
    graph = flatten(program)
    leaves = {node: inputs[graph.data[node].name] for node in graph.of_kind("input") if graph.data[node].name in inputs}
    values = interpret(graph, leaves, [node for _, node in graph.points])
    return {name: values[node] for name, node in graph.points}


def test_facts_alone_leave_no_operation(bound: Callable[..., ProgramOp]) -> None:
    program = bound("""
k = helper(f.n, 2)
best = min(f.table, key=lambda row: abs(row - f.n))
total = sum(v for v in f.rows.values() if v > 5)
label = f"{f.name}.{k}"
return {"k": k, "best": f.table[best]["a"], "total": total, "label": label, "any": any(r > 8 for r in f.table),
        "sorted": sorted(f.rows, key=lambda r: -f.rows[r])[0], "none": None, "pow": 2 ** 31, "in": 4 in f.table}""")
    assert set(operations(program)) == {"input", "constant", "points"}
    assert results(program) == {"k": 7, "best": 40, "total": 6, "label": "model.7", "any": True, "sorted": "q",
                                "none": None, "pow": 2**31, "in": True}


def test_a_table_read_at_a_batch_value_keeps_its_key(bound: Callable[..., ProgramOp]) -> None:
    body = """
row = min(f.table, key=lambda r: abs(r - call.x))
config = f.table[row]
return {"a": config["a"], "b": config["b"]}"""
    program = bound(body)
    lookups = [op for op in program.walk() if isinstance(op, LookupOp)]
    assert len(lookups) == 2 and len({op.key for op in lookups}) == 1
    assert "lookup" not in operations(bound(body, keep_keys=False))
    for x, a in ((-5, 10), (2, 10), (3, 40), (6, 40), (7, 90), (100, 90)):
        for keep in (True, False):
            assert results(bound(body, keep_keys=keep), x=x)["a"] == a


def test_a_reduction_over_items_is_chosen_by_position(bound: Callable[..., ProgramOp]) -> None:
    program = bound("""
row, config = min(f.table.items(), key=lambda item: abs(item[0] - call.x))
return {"row": row, "a": config["a"]}""")
    keys = {op.key for op in program.walk() if isinstance(op, LookupOp)}
    assert len(keys) == 1
    assert results(program, x=6) == {"row": 4, "a": 40}


def test_branches_stay_branches_and_equal_known_values_stay_known(bound: Callable[..., ProgramOp]) -> None:
    body = """
if call.x > 3:
    tile, block = 64, 128
else:
    tile, block = 128, 128
return {"tile": tile, "block": block, "blocks": range(block)[1]}"""
    program = bound(body)
    assert operations(program).count("if") == 1
    (branch,) = [op for op in program.walk() if isinstance(op, IfOp)]
    assert len(branch.res) == 1
    assert results(program, x=4) == {"tile": 64, "block": 128, "blocks": 1}


def test_every_operation_keeps_a_place_in_the_text(bound: Callable[..., ProgramOp]) -> None:
    program = bound("""
w = 0 if call.flag else call.x // call.y
require(w < 100)
return {"w": w, "c": ceil(f32(call.x) / f32(3)), "m": max(call.x, w, f.n)}""")
    flatten_branches(program.block)
    lost = [op.name for op in program.walk() if isinstance(op.location, UnknownLoc) and not isinstance(op, ProgramOp)]
    assert lost == []


def test_casts_are_pythons_and_cs(bound: Callable[..., ProgramOp]) -> None:
    program = bound("""
return {"sum": call.x + call.flag, "double": call.x + call.z, "single": f32(call.x) / 3,
        "mixed": f32(call.x) * 0.1, "order": f32(call.x) >= 16777217, "minus": -call.flag, "true": call.x / call.y}""")
    found = results(program, x=16777216, y=2, flag=True, z=0.5)
    assert found["sum"] == 16777217 and type(found["sum"]) is int
    assert found["double"] == 16777216.5 and found["single"] == 5592405.5
    assert found["mixed"] == 16777216 * 0.1 and found["order"] is True
    assert found["minus"] == -1 and type(found["minus"]) is int
    assert found["true"] == 8388608.0


def test_filters_and_short_circuits_guard_what_can_fail(bound: Callable[..., ProgramOp]) -> None:
    program = bound("""
safe = call.y != 0 and call.x // call.y > 2
first = next((call.x // d for d in (call.y, 2) if d > 0), 0)
return {"safe": safe, "first": first}""")
    flatten_branches(program.block)
    graph = flatten(program)
    divisions = [node for node, kind in enumerate(graph.kinds) if kind == "floordiv"]
    assert len(divisions) == 3 and set(divisions) - set(graph.guards) == {
        node for node in divisions if graph.kinds[graph.args[node][1]] == "constant"}


def test_optional_facts_may_be_left_out(bound: Callable[..., ProgramOp]) -> None:
    facts = {"facts": {"n": 3, "rows": {}, "name": "m"}}
    program = bound('return {"a": 1 if f.table is None else f.table[1]["a"]}', facts)
    assert results(program) == {"a": 1}


def test_unused_inputs_stay_in_the_signature(bound: Callable[..., ProgramOp]) -> None:
    program = bound('return {"a": 1}')
    assert [op.input_name.data for op in program.block.ops if isinstance(op, InputOp)] == ["x", "y", "flag", "z"]


def test_only_facts_read_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(HEAD + '    return {"a": f.n}\n')
    program, functions = split_module(build_module(load_program(f"{path}:program")).module)
    binding = Binding(FACTS)
    bind(program, functions, binding)
    assert list(binding.read) == [("facts", "n")]


REFUSED = {
    'return {"a": f.table[5]["a"]}': "key 5 is missing",
    'return {"a": f.table[call.x]["c"]}': "has no 'c'",
    'return {"a": (1, 2)[5]}': "index 5 is outside a collection of 2",
    'return {"a": len([v for v in (1, 2) if v < call.x])}': "length depends on the batch",
    'return {"a": [v for v in range(call.x)]}': "a range depends on the batch",
    'return {"a": sum(v for v in call.x)}': "iteration over a batch-dependent value",
    'return {"a": next(v for v in (1, 2) if v < call.x)}': "next may find no element",
    'return {"a": max(v for v in (1, 2) if v < call.x)}': "max over a filter that depends on the batch",
    'return {"a": min(())}': "min of nothing",
    'return {"a": min(call.x, call.z)}': "min of int and float would give either type",
    'return {"a": 1 if call.flag else "b"}': "one branch gives a int, the other a str",
    'return {"a": 1 if call.flag else None}': "one branch gives a int, the other a none",
    'return {"a": 1 if call.flag else True}': "one branch gives a int, the other a bool",
    'return {"a": call.x + f.name}': "'add' does not take",
    'return {"a": call.x == "b"}': "'eq' does not take",
    'return {"a": f32(call.x) % 3}': "'mod' does not take",
    'return {"a": f.n // 0}': "division by zero",
    'return {"a": 2 ** call.x}': "a power of a batch-dependent value",
    'return {"a": f"{call.x}"}': "an f-string of a batch-dependent int",
    'return {"a": sorted((1, 2), key=lambda v: v - call.x)[0]}': "the order depends on the batch",
    'return {"a": knob("k", (1, 2), default=3)}': "the default 3 is not among its values",
    'return {"a": knob("k", (1, 1), default=1)}': "needs distinct values",
    'return {"a": knob("k", (1, call.x), default=1)}': "a knob's value depends on the batch",
    'return {"a": f.bogus}': "has no field 'bogus'",
    'return {"a": call.bogus}': "has no field 'bogus'",
    'return {"a": (1, 2)}': "selection point 'a' is a tuple",
    "return {}": "the selection has no points",
    "return call.x": "a selection returns a dict",
    "return {1: 2}": "selection point 1 is",
    'return {call.x: 1}': "a dict's key depends on the batch",
    'return {"a": call.x in ("b", "c")}': "membership of int in a collection of other types",
    'return {"a": call.x | call.y}': "bit operations are not part of the language",
    'require(f.n == 4, "four heads")\nreturn {"a": 1}':
        "this require does not hold for the deployment's facts: four heads",
    'if call.flag:\n    assume(call.x > 0)\nreturn {"a": 1}': "an assume under a batch-dependent branch",
    'if call.flag:\n    k = knob("k", (1, 2), default=1)\nelse:\n    k = 1\nreturn {"a": k}':
        "under a batch-dependent branch",
    'if call.flag:\n    v = 1\nreturn {"a": v}': "'v' may have no value here",
    'if call.flag:\n    v = (1, 2)\nelse:\n    v = (1, 2, 3)\nreturn {"a": v[0]}':
        "one branch gives a tuple, the other a tuple",
    'a, b = (1, 2, 3)\nreturn {"a": a}': "2 targets for 3 values",
    'a, b = call.x\nreturn {"a": a}': "cannot be unpacked",
    'return {"a": f.rows[call.x]}': "the key is int, the table's keys are str",
    'return {"a": int("3")}': "int of a str",
}


@pytest.mark.parametrize("body", REFUSED)
def test_refused_with_a_place_and_a_reason(bound: Callable[..., ProgramOp], body: str) -> None:
    with pytest.raises(SourceError) as caught:
        bound(body)
    assert REFUSED[body] in caught.value.message
    span = caught.value.span
    assert span is not None and span.file.endswith(".py")
    first = HEAD.count("\n") + 1
    assert first - 14 <= span.line <= first + body.count("\n")


def test_facts_are_checked_where_they_are_read(bound: Callable[..., ProgramOp]) -> None:
    with pytest.raises(SourceError, match=r"no fact 'n' in \[facts\].*\n.*did you mean 'nn'"):
        bound('return {"a": f.n}', {"facts": {"nn": 1}})
    with pytest.raises(SourceError, match=r"\[facts\] n: True is not an int"):
        bound('return {"a": f.n}', {"facts": {"n": True}})
    with pytest.raises(DoesNotApply, match=r"no facts \[facts\]"):
        bound('return {"a": f.n}', {"other": {}})


WRONG_FACTS = {
    "n": ("3", "n: '3' is not an int"),
    "table": (3, "table: 3 is not a table"),
    "rows": ([1], "rows: (1,) is not a table"),
}


@pytest.mark.parametrize("name", WRONG_FACTS)
def test_facts_of_every_declared_type_are_checked(bound: Callable[..., ProgramOp], name: str) -> None:
    value, message = WRONG_FACTS[name]
    with pytest.raises(SourceError) as caught:
        bound(f'return {{"a": 1 if f.{name} is None else 2}}', {"facts": {**FACTS["facts"], name: value}})
    assert message in caught.value.message and "deployment demo" in caught.value.message and caught.value.help


@pytest.mark.parametrize(
    ("value", "declared", "problem"),
    [
        ({1: {"a": 2}}, "Table", ""),
        (None, "Table | None", ""),
        ({1: {"a": 2.5}}, "Table", "[1] [a] 2.5 is not an int"),
        ({"x": {"a": 2}}, "Table | None", "key 'x' is not an int"),
        ((1, 2), "tuple[int, ...]", ""),
        ((1, "b"), "tuple[int, ...]", "[1] 'b' is not an int"),
        ((1, 2), "tuple[int]", "2 elements, not 1"),
        ((1, 2), "list[int]", ""),
        ((1, 2), "list", ""),
        (1, "list", "1 is not a list"),
        (1, "float", ""),
        (True, "float", "True is not a number"),
        (1, "complex", "the declared type complex is not one a fact can have"),
    ],
)
def test_declared_types(value: Any, declared: str, problem: str) -> None:
    assert mismatch(value, declared) == problem


def test_absurd_ints_are_refused(bound: Callable[..., ProgramOp]) -> None:
    with pytest.raises(SourceError, match="an int of 20481 bits"):
        bound('k = 2 ** 4096\nreturn {"a": k * k * k * k * k}')


@pytest.mark.parametrize("body", ['return {"a": 1e999}', 'return {"a": knob("k", (1.0, 1e999), default=1.0)}',
                                  'return {"a": 1e308 * 10}'])
def test_infinite_values_are_refused(bound: Callable[..., ProgramOp], body: str) -> None:
    with pytest.raises(SourceError, match="finite"):
        bound(body)


def test_the_result_is_plain_scalars(bound: Callable[..., ProgramOp]) -> None:
    program = bound('return {"a": helper(call.x, call.y), "b": any(call.x > v for v in (1, 2))}')
    types = {str(result.type) for op in program.walk() for result in op.results}
    assert "!selir.any" not in types
    assert all(isinstance(op, Operation) for op in program.walk())

"""What Python would refuse at some admissible input is refused when solving, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.lang.builder import build_module
from detent.lang.load import load_program
from detent.passes.check_failures import Reachable
from detent.passes.errors import UnboundedInput
from detent.solver.compiled import Compiled, compile_program

HEAD = """
from detent.lang import *

@record
class Facts:
    table: Table

@record
class Call:
    x: Unpinnable[int]
    y: Unpinnable[int]

@selection(family="test")
def program(f: Facts, call: Call):
"""
TABLE = {1: {"a": 10}, 4: {"a": 40}}
BOUNDS = "assume(0 <= call.x <= 100)\nassume(0 <= call.y <= 1000000)\n"


def compiled(tmp_path: Path, body: str) -> Compiled:
    path = tmp_path / "program.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    module = build_module(load_program(f"{path}:program")).module
    return compile_program(module, {"facts": {"table": TABLE}}, "demo")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('return {"a": 100 // call.x}', "division by zero at x=0"),
        ('return {"a": 100 % (call.x - 7)}', "division by zero at x=7"),
        ('return {"a": 1.0 / call.y > 2.0}', "division by zero at"),
        ('return {"a": f.table[call.x]["a"]}', "a key that the table does not have at x="),
        ('return {"a": f.table[call.x]["a"] if call.y > 5 else 0}', "a key that the table does not have at x="),
        ('return {"a": f.table[call.x]["a"] if call.x == 1 or call.x == 3 else 0}', "the table does not have at x=3"),
        ('return {"a": f.table[call.x]["a"] if call.x == 1 or call.y == 4 else 0}', "the table does not have at x="),
        ('return {"a": 1 if call.x > 3 and 10 // (call.x - 4) > 2 else 0}', "division by zero at x=4"),
        ('return {"a": ceil(f32(1e38) * f32(call.x)) > 5}', "ceil of a number that is not finite at x="),
        (f'big = {" * ".join(["(call.y + 1)"] * 60)}\nreturn {{"a": f32(big) > 2.0}}', "an int too large for a float"),
    ],
)
def test_reachable_failures_are_refused_with_a_witness(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(Reachable) as caught:
        compiled(tmp_path, BOUNDS + body)
    assert message in str(caught.value)
    assert caught.value.location is not None and caught.value.location.file.endswith("program.py")
    assert caught.value.remedy


@pytest.mark.parametrize(
    "body",
    [
        'return {"a": 100 // (call.x + 1)}',
        'return {"a": 100 // call.x if call.x != 0 else 0}',
        'return {"a": call.x > 0 and 100 // call.x > 3}',
        'return {"a": call.x == 0 or 100 // call.x > 3}',
        'return {"a": next((100 // d for d in (call.x, 5) if d > 0), 0)}',
        'return {"a": f.table[call.x]["a"] if call.x in f.table else 0}',
        'return {"a": f.table[1 if call.x < 3 else 4]["a"]}',
        'assume(call.x > 0)\nreturn {"a": 100 // call.x}',
        # only a relation between two inputs excludes it
        'assume(call.y < call.x)\nreturn {"a": 100 // (call.x - call.y)}',
        # the guard is that the table has the key, or the key is one of few
        'return {"a": {1: 5, 2: 6, 8: -2}.get(call.x * call.y - 7, 3)}',
        'return {"a": (4, 9, 2, 7)[(call.x * call.y + 3) % 4]}',
        'if call.x > call.y:\n    v = 100 // (call.x - call.y)\nelse:\n    v = 0\nreturn {"a": v}',
    ],
)
def test_excluded_failures_are_accepted(tmp_path: Path, body: str) -> None:
    assert compiled(tmp_path, BOUNDS + body).graph.points


def test_an_input_without_a_domain_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnboundedInput, match="'y'"):
        compiled(tmp_path, 'assume(0 <= call.x <= 100)\nreturn {"a": call.x + call.y}')

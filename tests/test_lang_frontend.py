"""The front end reads what Python means: every construct, bound by facts alone, gives what the function returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lang_cases import ACCEPTED, cases
from lang_support import FACTS, bound_points, build, names_of, ops_of, parsed, printed, program
from xdsl.dialects.builtin import StringAttr

from detent.dialects.selir.scalar import SCALAR_OPS, ConstantOp
from detent.dialects.selir.structure import AssumeOp, IfOp, InputOp, ProgramOp, RequireOp
from detent.dialects.selir.unbound import (
    BuiltinOp,
    CallOp,
    ComprehensionOp,
    EmitOp,
    FactsOp,
    FieldOp,
    FilterOp,
    ForEachOp,
    FuncOp,
    RecordOp,
    ReturnOp,
    UndefOp,
)
from detent.lang.builder import build_module
from detent.lang.load import load_program
from detent.lang.parameters import section_of
from detent.programs.registry import PROGRAMS

PROGRAM_TEXTS = {title: program(body, before) for title, (before, body) in cases(ACCEPTED).items()}


def run(function: Any) -> dict[str, Any]:
    """What the selection returns as plain Python."""
    points: dict[str, Any] = function(function.__globals__["Facts"](**FACTS))
    return points


@pytest.mark.parametrize("name", PROGRAM_TEXTS)
def test_bound_program_gives_what_python_gives(name: str, tmp_path: Path) -> None:
    text = PROGRAM_TEXTS[name]
    built = build(tmp_path, text)
    expected = run(load_program(tmp_path / "choose.py"))
    found = bound_points(built, FACTS)
    assert list(found) == list(expected)
    assert [(type(v), repr(v)) for v in found.values()] == [(type(v), repr(v)) for v in expected.values()]


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("name", PROGRAM_TEXTS)
def test_text_form_round_trips(name: str, generic: bool, tmp_path: Path) -> None:
    module = build(tmp_path, PROGRAM_TEXTS[name]).module
    text = printed(module, generic=generic, locations=True)
    again = parsed(text)
    again.verify()
    assert printed(again, generic=generic, locations=True) == text
    assert again.is_structurally_equivalent(module)


@pytest.mark.parametrize("name", PROGRAMS)
def test_our_programs_build(name: str) -> None:
    function = load_program(name)
    built = build_module(function)
    built.module.verify()
    assert printed(parsed(printed(built.module))) == printed(built.module)
    assert built.files[0] == str(Path(function.__code__.co_filename).resolve())
    assert built.name == function.__name__


# ---- structure -----------------------------------------------------------------------------------------------------


def test_parameters_become_facts_inputs_and_records(tmp_path: Path) -> None:
    before = "@record\nclass BothSides:\n    width: int\n    left: Request[float]\n    single: Unpinnable[F32]"
    built = build(tmp_path, program("return {'a': both.left}", before, "facts: Facts, call: Call, both: BothSides"))
    facts = {op.section.data: op.fields.data for op in ops_of(built, FactsOp)}
    assert list(facts) == ["facts", "both_sides"]
    assert facts["both_sides"] == {"width": "int"}
    assert facts["facts"]["table"] == "dict[int, dict[str, int]]"
    assert facts["facts"]["missing"] == "int | None"
    inputs = [(op.input_name.data, str(op.source.data), str(op.res.type)) for op in ops_of(built, InputOp)]
    assert inputs == [
        ("tokens", "unpinnable", "!selir.int"),
        ("graph", "runtime", "!selir.bool"),
        ("left", "request", "!selir.float"),
        ("single", "unpinnable", "!selir.f32"),
    ]
    records = [[name.data for name in op.fields] for op in ops_of(built, RecordOp)]
    assert records == [["tokens", "graph"], ["width", "left", "single"]]
    assert built.family == "test"


@pytest.mark.parametrize(
    ("name", "section"), [("Gpu", "gpu"), ("MoeConfig", "moe_config"), ("FA3Limits", "fa3_limits"), ("A", "a")]
)
def test_a_record_reads_the_section_of_its_name(name: str, section: str) -> None:
    assert section_of(type(name, (), {})) == section


def test_everything_but_inputs_is_any(tmp_path: Path) -> None:
    built = build(tmp_path, program("return {'a': call.tokens + 1}", parameters="call: Call"))
    for op in built.module.walk():
        if not isinstance(op, InputOp):
            assert {str(result.type) for result in op.results} <= {"!selir.any"}


def test_logical_branches_are_marked(tmp_path: Path) -> None:
    body = "return {'a': facts.on and facts.n > 1 or 0 < facts.m < 9, 'b': 1 if facts.on else 2}"
    built = build(tmp_path, program(body))
    marks = [op.attributes.get("logical") for op in ops_of(built, IfOp)]
    assert marks == [StringAttr("and"), StringAttr("or"), StringAttr("and"), None]
    (marked,) = [op for op in ops_of(built, IfOp) if op.attributes.get("logical") == StringAttr("or")]
    assert marked.then.block.last_op.operands[0] is marked.cond
    for op in ops_of(built, IfOp):
        if op.attributes.get("logical") == StringAttr("and"):
            assert op.orelse.block.last_op.operands[0] is op.cond


def test_operands_of_a_chain_are_computed_once(tmp_path: Path) -> None:
    built = build(tmp_path, program("return {'a': 0 < facts.n < facts.m < 9}"))
    assert [op.field_name.data for op in ops_of(built, FieldOp)] == ["n", "m"]


def test_conditions_compute_in_their_own_region(tmp_path: Path) -> None:
    body = """
        limit = facts.n * 2
        assume(1 <= call.tokens <=
               facts.n)
        require(limit + 1 > call.tokens, f"{LIMIT} is the {'limit'}")
        return {"a": limit}
    """
    built = build(tmp_path, program(body, "LIMIT = 3", "facts: Facts, call: Call"))
    (assumed,), (required,) = ops_of(built, AssumeOp), ops_of(built, RequireOp)
    assert assumed.message.data == "1 <= call.tokens <= facts.n"
    assert required.message.data == "3 is the limit"
    inside = set(required.body.block.ops)
    (add,) = ops_of(built, SCALAR_OPS["add"])
    (mul,) = ops_of(built, SCALAR_OPS["mul"])
    assert add in inside and mul not in inside
    assert add.operands[0] is mul.results[0]
    assert ("choose", "LIMIT", 3) in built.globals


def test_helpers_are_functions_in_the_order_they_are_reached(tmp_path: Path) -> None:
    before = "def f(x):\n    return g(x)\ndef g(x, y=1):\n    return x\ndef unused(x):\n    return x"
    built = build(tmp_path, program("return {'a': g(f(facts.n), y=3)}", before))
    assert [op.sym_name.data for op in built.module.ops if isinstance(op, ProgramOp | FuncOp)] == ["choose", "g", "f"]
    for call in ops_of(built, CallOp):
        assert len(call.keywords) == 0
        assert len(call.args) == {"g": 2, "f": 1}[call.callee.data]
    (g,) = [op for op in ops_of(built, FuncOp) if op.sym_name.data == "g"]
    assert [p.data for p in g.params] == ["x", "y"]


def test_helpers_of_one_name_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f(x):\n    return x + 1\n")
    (tmp_path / "two.py").write_text("import one\ndef f(x):\n    return one.f(x) * 10\n")
    built = build(tmp_path, program("return {'a': f(facts.n), 'b': one.f(1)}", "import one\nfrom two import f"))
    assert sorted(op.sym_name.data for op in ops_of(built, FuncOp)) == ["f", "f.2"]
    assert bound_points(built, FACTS) == {"a": 80, "b": 2}
    assert [Path(file).name for file in built.files] == ["choose.py", "two.py", "one.py"]


def test_names_become_hints(tmp_path: Path) -> None:
    before = "LIMIT = 3\ndef f(given):\n    kept = given\n    return kept + 1"
    body = """
        a = facts.n + 1
        b = a
        c, (d, e) = (1, (2, 3))
        if facts.on:
            g = 1
        else:
            g = 2
        return {"x": f(b) + LIMIT, "y": [k for k in (1, 2)][0], "z": c + d + e + g}
    """
    built = build(tmp_path, program(body, before))
    hints = {hint for op in built.module.walk() for hint in names_of(op) if hint}
    assert {"b", "c", "d", "e", "g", "LIMIT"} <= hints
    assert "a" not in hints  # the value was named again, and the last name wins
    (f,) = ops_of(built, FuncOp)
    assert [arg.name_hint for arg in f.body.block.args] == [None]


def test_a_name_without_a_value_on_one_path_is_undefined_there(tmp_path: Path) -> None:
    body = "if facts.on:\n    a = 1\nelse:\n    b = 2\nreturn {'x': a}"
    built = build(tmp_path, program(body))
    assert [op.variable.data for op in ops_of(built, UndefOp)] == ["b", "a"]
    (branch,) = ops_of(built, IfOp)
    assert names_of(branch) == ["a", "b"]
    assert bound_points(built, FACTS) == {"x": 1}


def test_a_branch_gives_only_what_it_assigns(tmp_path: Path) -> None:
    body = "a = 1\nb = 2\nif facts.on:\n    a = a\n    b = 3\nreturn {'x': a + b}"
    (branch,) = ops_of(build(tmp_path, program(body)), IfOp)
    assert names_of(branch) == ["b"]


def test_clauses_of_a_comprehension_are_nested(tmp_path: Path) -> None:
    body = "return {'x': len([a + b for a in (1, 2) if a for b in (3, a) if b if a < b])}"
    (comprehension,) = ops_of(build(tmp_path, program(body)), ComprehensionOp)
    assert comprehension.form.data == "list"
    outer, inner = [op for op in comprehension.walk() if isinstance(op, ForEachOp)]
    assert [op.name for op in comprehension.body.block.ops] == ["selir.for_each"]
    assert [op.name for op in outer.body.block.ops][0] == "selir.filter"
    assert inner.parent is outer.body.block
    assert sum(isinstance(op, FilterOp) for op in inner.body.block.ops) == 2
    assert isinstance(inner.body.block.last_op, EmitOp)


def test_each_function_returns_once_at_its_end(tmp_path: Path) -> None:
    built = build(tmp_path, PROGRAM_TEXTS["all paths"])
    for op in ops_of(built, FuncOp) + ops_of(built, ProgramOp):
        returns = [inner for inner in op.walk() if isinstance(inner, ReturnOp)]
        assert returns == [op.body.block.last_op]


def test_what_follows_an_early_return_is_in_the_other_arm(tmp_path: Path) -> None:
    body = "if facts.n > 9:\n    return {'a': 1}\nrequire(facts.n > 5, 'enough')\nreturn {'a': 2}"
    built = build(tmp_path, program(body))
    (branch,), (condition,) = ops_of(built, IfOp), ops_of(built, RequireOp)
    assert condition.parent is branch.orelse.block


def test_a_continuation_is_copied_only_where_two_arms_go_on(tmp_path: Path) -> None:
    body = """
        if facts.n > 9:
            if facts.on:
                return {"a": 1}
            b = 2
        else:
            b = 3
        return {"a": b + 40}
    """
    constants = [op.value.data for op in ops_of(build(tmp_path, program(body)), ConstantOp)]
    assert constants.count(40) == 2
    assert constants.count(1) == 1


def test_many_early_returns_in_a_row(tmp_path: Path) -> None:
    tests = "\n".join(f"if x < {n}:\n    return {n * n}" for n in range(60))
    before = "def f(x):\n" + "\n".join(f"    {line}" for line in tests.split("\n")) + "\n    return -1"
    built = build(tmp_path, program("return {'a': f(facts.n), 'b': f(99)}", before))
    assert bound_points(built, FACTS) == {"a": 64, "b": -1}


def test_knob_keeps_its_arguments(tmp_path: Path) -> None:
    built = build(tmp_path, program("k = knob(values=(1, 2), default=2, name='stride')\nreturn {'a': k}"))
    (op,) = [op for op in ops_of(built, BuiltinOp) if op.function.data == "knob"]
    assert [keyword.data for keyword in op.keywords] == ["default"]
    first, _, default = op.args
    assert (first.owner.value.data, default.owner.value.data) == ("stride", 2)


def test_comments_and_formatting_change_only_locations(tmp_path: Path) -> None:
    plain = program("a = facts.n + 1\nreturn {'x': a, 'y': 2}")
    spaced = program("# why\na = (facts.n  +  1)  # because\n\nreturn {\n    'x': a,\n    'y': 2,\n}")
    first, second = build(tmp_path, plain), build(tmp_path, spaced)
    assert printed(first.module) == printed(second.module)
    assert printed(first.module, locations=True) != printed(second.module, locations=True)

"""Ablations beside the whole solver, and the inputs that show one unsound."""

from __future__ import annotations

import importlib.util
import itertools
import math
from typing import Any

import pytest

from detent.passes.graph import Graph, Input, Knob
from detent.passes.input_domains import input_domains
from detent.runtime.deployment import load
from detent.runtime.errors import UnknownName
from detent.solver.ablation import Counts, compare, compare_all, reaching_constants
from detent.solver.choices import free_choices, legal_assignments, own_choices
from detent.solver.compiled import ABLATIONS
from detent.solver.solve import solve

DEPLOYMENT = "qwen3-30b-a3b-tp4-h200"
PROGRAM = """\
from detent.lang import Request, Runtime, Unpinnable, assume, record, selection

@record
class Call:
    tokens: Unpinnable[int]
    graph: Runtime[bool]
    greedy: Request[bool]

@selection(family="modes")
def modes(call: Call):
    assume(1 <= call.tokens <= 64)
    size = call.tokens // 16
    block = 32 if call.graph and size > 1 else 16
    return {"mode": block if call.greedy else 0, "size": size}
"""


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("modes")
    (folder / "modes.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "mine.toml").write_text("", encoding="utf-8")
    return f"{folder / 'modes.py'}:modes", str(folder / "mine.toml")


def plain(program: str) -> Any:
    """The program and its record in plain Python."""
    spec = importlib.util.spec_from_file_location("modes_plain", program.rpartition(":")[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_point_that_moves_is_shown_by_two_inputs(modes: tuple[str, str]) -> None:
    program, deployment = modes
    found = compare(program, deployment, "control-dependence")
    full, ablated = found.rows
    assert full.pins == 2 and full.legal == full.candidates
    assert ablated.pins == 1 and [pin["name"] for pin in found.document["pins"]] == ["size"]
    moved = found.moved
    assert moved is not None and moved.point == "mode" and set(moved.pins) == {"size"}
    assert moved.values[0] != moved.values[1]
    assert moved.inputs[0]["greedy"] == moved.inputs[1]["greedy"]
    # The pin of ``size`` is behind the branch, so these are the values that the program itself has there, unless
    # the branch reads the pin.
    module = plain(program)
    for value, inputs in zip(moved.values, moved.inputs, strict=True):
        size = moved.pins["size"]
        expected = (32 if inputs["graph"] and size > 1 else 16) if inputs["greedy"] else 0
        assert value == expected
        assert 1 <= inputs["tokens"] <= 64
        assert module.modes(module.Call(**inputs))["mode"] in (0, 16, 32)


def test_sound_ablations_move_nothing(modes: tuple[str, str]) -> None:
    solve(*modes)
    for name in ("cut", "cse", "value-sets"):
        found = compare(*modes, name)
        assert found.moved is None, name
        assert found.off == ABLATIONS[name][0] and found.full.cached


def test_locations_do_not_depend_on_the_folder(modes: tuple[str, str]) -> None:
    found = compare(*modes, "control-dependence")
    assert {pin["source"]["file"] for pin in found.document["pins"]} == {"modes.py"}


def test_moe_without_simplification_is_not_finite() -> None:
    found = compare("moe", DEPLOYMENT, "simplification")
    assert found.ablated is None and "has no finite set of values" in found.problem
    assert found.rows == (Counts(2, 11, 36, 18), Counts(2, 11, None, None))


def test_attention_without_control_dependence_cannot_be_judged() -> None:
    found = compare("attention", DEPLOYMENT, "control-dependence")
    full, ablated = found.rows
    assert full.pins == 3 and ablated.pins < 3
    assert ablated.legal is None and "moves with the batch and is not pinned" in found.problem
    assert found.moved is not None


def test_a_loaded_deployment_and_an_unknown_ablation() -> None:
    assert compare("moe", load(DEPLOYMENT), "cut").rows[1].pins == 6
    with pytest.raises(UnknownName, match="did you mean 'cut'"):
        compare("moe", DEPLOYMENT, "cat")


# ---- all of them -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A size from a table that only ranges tell not to be reached to its end, and a path that is named by strings."""
    folder = tmp_path_factory.mktemp("sized")
    (folder / "sized.py").write_text("""\
from detent.lang import Unpinnable, assume, knob, record, require, selection

SIZES = (512, 1024, 2048, 4096)

@record
class Call:
    tokens: Unpinnable[int]

@selection(family="sized")
def sized(call: Call):
    assume(1 <= call.tokens <= 2000)
    room = knob("room", (1, 2), default=1)
    size = next((size for size in SIZES if call.tokens <= size), 4096)
    path = "few" if call.tokens * room < 1500 else "many"
    require(call.tokens <= size, "a piece fits")
    return {"size": size, "path": path, "room": room, "flag": False}
""", encoding="utf-8")
    (folder / "mine.toml").write_text("", encoding="utf-8")
    return f"{folder / 'sized.py'}:sized", str(folder / "mine.toml")


def test_every_ablation_in_turn(sized: tuple[str, str]) -> None:
    steps: list[str] = []
    found = compare_all(*sized, progress=steps.append)
    assert [each.name for each in found.comparisons] == list(ABLATIONS)
    assert {each.full.key for each in found.comparisons} == {found.full.key}
    assert any(step.startswith("without cut: ") for step in steps)
    assert (found.full.candidates, found.full.legal) == (3 * 2 * 2, 1 * 2 * 2)


def test_legal_assignments_that_bypass_the_selection(sized: tuple[str, str]) -> None:
    found = compare_all(*sized)
    by_name = {each.name: each for each in found.comparisons}
    assert found.choices is not None and not found.choices.bypassing and not found.choices.unused
    # Without ranges the last size stays a candidate and is legal, but no token count takes it.
    ranges = by_name["ranges"]
    assert ranges.rows[1] == Counts(2, 2, 16, 8) and ranges.choices is not None
    assert ranges.choices.unused == {"size": [4096]} and ranges.choices.legal == 8
    assert {case["size"] for case in ranges.choices.bypassing} == {4096} and len(ranges.choices.bypassing) == 4
    # The unpinned program says what is chosen together: at the same room, by plain enumeration.
    module = plain(sized[0])
    taken = set()
    for tokens, room in itertools.product(range(1, 2001), (1, 2)):
        size = next((size for size in module.SIZES if tokens <= size), 4096)
        taken.add((size, "few" if tokens * room < 1500 else "many", room))
    for choices in (found.choices, ranges.choices):
        assert all((c["size"], c["path"], c["room"]) in taken for c in choices.together)
        assert not any((c["size"], c["path"], c["room"]) in taken for c in [*choices.apart, *choices.bypassing])
        assert choices.together and choices.apart


def test_names_without_value_sets_have_what_reaches_them(sized: tuple[str, str]) -> None:
    found = compare(*sized, "value-sets")
    assert found.rows[1] == Counts(2, 2, None, None) and found.ablated is None
    assert found.reached is not None and found.reached["candidates"] == found.full.candidates
    assert {pin["name"]: pin["candidates"] for pin in found.reached["pins"]}["path"] == ["few", "many"]
    assert "has no finite set of values, which the analysis that is off would give" in found.remark
    assert f"{found.reached['candidates']} assignments can be made, 4 of them legal" in found.remark
    assert compare(*sized, "cse").remark == "" and compare(*sized, "cse").reached is None


def test_a_condition_that_cannot_be_judged_names_what_it_reads() -> None:
    found = compare("allreduce", "llama-3.1-70b-tp4-h100", "control-dependence")
    assert "this require reads 'kernel_adds', a value of the selection that moves" in found.problem
    assert found.remark.startswith("unsound: ") and "not judged: programs/allreduce.py:" in found.remark
    assert found.reached is None and found.choices is None


def test_allreduce_bypasses_its_sizes_without_ranges() -> None:
    found = compare("allreduce", "llama-3.1-70b-tp4-h100", "ranges")
    assert found.choices is not None
    # 16 MiB is the largest message: two larger sizes cover it as well, and no message takes them.
    assert found.choices.unused == {"part": [2**25, 2**26]}
    assert (len(found.choices.bypassing), found.choices.legal) == (6, 9)
    assert {case["part"] for case in found.choices.apart} == {2**24}


def test_inputs_that_are_too_many_are_not_compared() -> None:
    solution = solve("attention", DEPLOYMENT)
    assert own_choices(solution.document, solution.graph, input_domains(solution.graph)) is None


def test_legal_assignments(sized: tuple[str, str]) -> None:
    solution = solve(*sized)
    found = legal_assignments(solution.document)
    assert found is not None and len(found) == solution.legal
    for values in itertools.product((512, 1024, 2048), ("few", "many"), (1, 2)):
        assignment = dict(zip(("size", "path", "room"), values, strict=True))
        assert (assignment in found) is (solution.refutation(assignment) is None)
    assert legal_assignments(solution.document, limit=solution.legal - 1) is None


def test_free_choices(sized: tuple[str, str]) -> None:
    solution = solve(*sized)
    assert free_choices(solution.document, solution.graph) == {"size": 3, "path": 2, "room": 2, "flag": 2}
    attention = solve("attention", DEPLOYMENT)
    free = free_choices(attention.document, attention.graph)
    assert sum(count == 2 for count in free.values()) == 17 and math.prod(free.values()) == 2**17 * 256 * 7


def test_constants_that_reach_a_value() -> None:
    graph = Graph("g", "g")
    x = graph.add("input", data=Input("x", "unpinnable"))
    one, two, three = (graph.add("constant", data=value) for value in (1, 2, 3))
    wide = graph.add("lt", (x, two), type="bool")
    chosen = graph.add("select", (wide, one, two))
    least = graph.add("min", (chosen, three))
    table = graph.add("lookup", (x,), data=((0, 7), (1, 8)))
    computed = graph.add("add", (chosen, one))
    mixed = graph.add("select", (wide, computed, one))
    knob = graph.add("knob", data=Knob("k", (4, 5), 4))
    pin = graph.add("pin", (least,), data="least")
    sets = reaching_constants(graph)
    expected = {chosen: (1, 2), least: (1, 2, 3), table: (7, 8), knob: (4, 5), pin: (1, 2, 3)}
    assert {node: sets[node] for node in expected} == {node: frozenset(values) for node, values in expected.items()}
    assert sets[wide] == frozenset((False, True))
    assert sets[x] is sets[computed] is sets[mixed] is None

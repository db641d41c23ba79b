"""The traps that made a wrong solver look right, each as a whole program.

The tenth, that surplus empty splits change nothing, is about which legal assignments behave alike: nothing here
claims that any two do, so there is nothing to test before something does.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from end_support import Emitted, Pinned, Written, compiled, controls, evaluated
from programs_support import changed

from detent.lang import Violation
from detent.lang.load import load_program
from detent.passes.legality_condition import UnpinnedValue
from detent.passes.min_cut import InfeasibleCut
from detent.runtime.deployment import load
from detent.runtime.repin import Repin
from detent.solver.compiled import Compiled
from detent.solver.defaults import default_of
from detent.solver.document import document

QWEN = "qwen3-30b-a3b-tp4-h100"


def pins(found: Compiled) -> dict[str, list[Any]]:
    """Candidates by name of pin."""
    return {found.graph.data[node]: found.candidates[node].values for node in found.graph.of_kind("pin")}


def legal(found: Compiled) -> set[tuple[Any, ...]]:
    """Legal values of the pins and knobs, in the order of the program."""
    nodes = found.legality.candidates_of
    return {values for values in itertools.product(*nodes.values())
            if found.legality.is_legal(dict(zip(nodes, values, strict=True)))}


# ---- 1: a condition's own computation is not the selection's ---------------------------------------------------


def test_trap_01_a_conditions_own_test_never_merges_with_the_pin_of_the_same_test(tmp_path: Path) -> None:
    found = Written(tmp_path, "b: Unpinnable[int]", """assume(1 <= call.b <= 1024)
    dependent = call.b <= 992
    require(not dependent or call.b <= 992, "one prepare block")
    return {"dependent": dependent}""").solve()
    assert pins(found) == {"dependent": [False, True]}
    assert legal(found) == {(False,)}
    assert found.legality.witnesses[-1][found.graph.of_kind("input")[0]] == 993
    assert compiled(load_program("attention"), load(QWEN).facts).legality.legal == 2976  # 5,952 with the trap


def test_trap_01_nor_with_a_value_that_a_condition_names(tmp_path: Path) -> None:
    """The second condition names ``rows`` and computes the same sum itself: one is pinned, the other true."""
    found = Written(tmp_path, "b: Unpinnable[int]", """assume(0 <= call.b <= 3)
    rows = call.b + 1
    require(rows >= 2, "two rows")
    require(rows >= call.b + 1, "a row for each and one")
    return {"rows": rows}""").solve()
    assert legal(found) == {(4,)}


# ---- 2: what conditions name is a sink -------------------------------------------------------------------------

NAMED = """assume(1 <= call.tokens <= 64)
    small = call.tokens <= 16
    require({condition}, "the short kernel's room")
    return {{"path": "short" if small else "full"}}"""


@pytest.mark.parametrize(("condition", "expected"), [
    ("not small or call.tokens <= 16", {(False,)}),
    ("small", {(True,)}),
    ("small or call.tokens > 16", {(True,)}),
])
def test_trap_02_what_a_condition_names_is_a_sink_of_the_cut(tmp_path: Path, condition: str, expected: Any) -> None:
    found = Written(tmp_path, "tokens: Unpinnable[int]", NAMED.format(condition=condition)).solve()
    assert pins(found) == {"small": [False, True]}
    assert legal(found) == expected


def test_trap_02_a_path_that_no_condition_reads_above_is_pinned_at_the_end(tmp_path: Path) -> None:
    found = Written(tmp_path, "tokens: Unpinnable[int]", NAMED.format(condition="call.tokens <= 64")).solve()
    assert pins(found) == {"path": ["full", "short"]}
    half = compiled(load_program("moe"), load("qwen3-30b-a3b-tp4-h100-sglang").facts)
    assert (half.legality.candidates, half.legality.legal) == (72, 36)  # 72 with the trap


# ---- 3: a pinned input is not what its own condition checks -----------------------------------------------------


def test_trap_03_a_condition_reads_the_true_input_of_a_pinned_one(tmp_path: Path) -> None:
    fields = "width: Runtime[int]"
    body = """assume(1 <= call.width <= 8)
    require(call.width <= {limit}, "room")
    return {{"double": call.width * 2, "half": call.width // 2}}"""
    found = Written(tmp_path, fields, body.format(limit=7)).solve()
    assert pins(found) == {"width_pin": list(range(1, 9))}
    assert legal(found) == set()
    assert found.legality.witnesses[-1] == {found.graph.of_kind("input")[0]: 8}
    assert len(legal(Written(tmp_path, fields, body.format(limit=8)).solve())) == 8


def test_trap_03_a_condition_on_an_unpinned_moving_value_is_an_error(tmp_path: Path) -> None:
    """Only an ablation can leave one: what conditions name is cut off from the batch."""
    written = Written(tmp_path, "tokens: Unpinnable[int]", """assume(1 <= call.tokens <= 64)
    rows = 16 if call.tokens <= 16 else call.tokens
    path = "short" if rows == 16 else "full"
    require(rows <= 64, "rows fit")
    return {"path": path}""")
    assert pins(written.solve()) == {"rows": list(range(16, 65))}
    with pytest.raises(UnpinnedValue, match="not pinned"):
        Written(tmp_path, "tokens: Unpinnable[int]", """assume(1 <= call.tokens <= 64)
    path = ("short" if call.tokens <= 16 else "full") == "short"
    require(path, "short")
    return {"size": 1 if path else 2}""").solve("control-dependence")


# ---- 4: what sizes a buffer is not pinned -----------------------------------------------------------------------


def test_trap_04_an_unpinnable_input_is_never_pinned_itself(tmp_path: Path) -> None:
    body = """assume(1 <= call.tokens <= 2000)
    large = call.tokens > 64
    return {"large": large, "wide": call.tokens * 8 > 1024}"""
    assert pins(Written(tmp_path, "tokens: Unpinnable[int]", body).solve()).keys() == {"large", "wide"}
    nonsense = """assume(1 <= call.tokens <= 2000)
    return {"one": call.tokens + 1, "two": call.tokens * 2}"""
    assert list(pins(Written(tmp_path, "tokens: Runtime[int]", nonsense).solve())) == ["tokens_pin"]
    assert len(pins(Written(tmp_path, "tokens: Unpinnable[int]", nonsense).solve())) == 2
    with pytest.raises(InfeasibleCut, match="'tokens' reaches selection point 'grid'"):
        Written(tmp_path, "tokens: Unpinnable[int]", """assume(1 <= call.tokens <= 2000)
    return {"grid": call.tokens}""").solve()


@pytest.mark.parametrize("program", ["attention", "fa3-upstream-stock", "fa3-vllm-stock", "moe", "moe-vllm-stock"])
def test_trap_04_sizes_in_our_programs_are_unpinnable(program: str) -> None:
    graph = compiled(load_program(program), load(QWEN).facts).graph
    kinds = {graph.data[node].name: (graph.data[node].source, graph.types[node]) for node in graph.of_kind("input")}
    assert {kind for name, (kind, type) in kinds.items() if type == "int"} <= {"unpinnable", "request"}
    assert not {graph.kinds[graph.args[node][0]] for node in graph.of_kind("pin")} & {"input"}


# ---- 5: a count made on the device ------------------------------------------------------------------------------


def test_trap_05_a_pinned_count_must_be_what_the_device_counts(tmp_path: Path) -> None:
    """The batch's total enters truthfully; only a count of one is what every batch gives."""
    found = Written(tmp_path, "b: Unpinnable[int]\n    total: Unpinnable[int]\n    own: Request[int]",
                    """assume(1 <= call.b <= 8)
    assume(1 <= call.total <= 200)
    assume(1 <= call.own <= 20)
    assume(call.own <= call.total)
    asked = 8 if call.b <= 4 else 1
    splits = max(min(-(-call.own // ceil(f32(call.total) / 4)), asked), 1)
    require(splits == max(min(-(-call.own // ceil(f32(call.total) / 4)), asked), 1), "the device counts")
    return {"asked": asked, "splits": splits}""").solve()
    assert pins(found) == {"asked": [1, 8], "splits": list(range(1, 9))}
    assert legal(found) == {(1, 1)} and found.legality.sampled == 0


# ---- 6: a condition on what is not used --------------------------------------------------------------------------


@pytest.mark.parametrize(("guard", "expected"), [("splits == 1 or ", {(256, 1), (512, 1)}), ("", set())])
def test_trap_06_a_strides_multiple_counts_only_where_something_is_split(tmp_path: Path, guard: str,
                                                                        expected: Any) -> None:
    found = Written(tmp_path, "b: Unpinnable[int]", f"""assume(1 <= call.b <= 64)
    stride = knob("stride", (256, 512), default=256)
    splits = 1 if call.b > 32 else 4
    require({guard}stride % 80 == 0, "splits begin at a block")
    return {{"splits": splits, "stride": stride}}""").solve()
    assert legal(found) == expected


def test_trap_06_head_dim_256_has_legal_assignments() -> None:
    facts = changed(QWEN, model={"head_dim": 256, "head_dim_v": 256})
    assert compiled(load_program("attention"), facts).legality.legal == 7


# ---- 7: an unpinned program can break its own conditions --------------------------------------------------------


def test_trap_07_an_unpinned_selector_reports_and_never_enforces_a_require() -> None:
    facts = load(QWEN).facts
    emitted = Emitted(compiled(load_program("attention"), facts))
    point = {"b": 1, "max_seqlen_q": 1, "max_seqlen_k": 8192, "total_q": 1, "table_width": 2560, "in_graph": False}
    points, broken = emitted(point)
    assert broken == {"the splits cover the longest request"} and points["num_splits"] == ("int", 32)
    assert emitted(point, {"split_stride": 2048})[1] == set()
    with pytest.raises(Violation, match="assume"):
        emitted({**point, "total_q": 0})


# ---- 8: values that move together --------------------------------------------------------------------------------


def test_trap_08_values_of_one_root_are_tabulated_together(tmp_path: Path) -> None:
    found = Written(tmp_path, "flag: Runtime[bool]\n    n: Unpinnable[int]", """assume(0 <= call.n <= 9)
    tile = 64 if call.flag else 128
    other = 128 if call.flag else 64
    steps = (call.n + 1) * 2 - call.n - call.n
    return {"sum": tile + other, "steps": steps, "same": tile == other}""").solve()
    assert pins(found) == {}
    assert {name: found.graph.data[node] for name, node in found.graph.points} == {
        "sum": 192, "steps": 2, "same": False}


def test_trap_08_a_branchs_condition_narrows_what_is_chosen_in_it(tmp_path: Path) -> None:
    found = Written(tmp_path, "n: Unpinnable[int]", """assume(0 <= call.n <= 100000)
    rows = call.n if call.n < 4 else 4
    few = call.n if not (call.n > 3 or call.n < 1) else 9
    some = call.n if call.n >= 1 and not call.n > 3 else 8
    return {"rows": rows, "few": few, "some": some}""").solve()
    assert pins(found) == {"rows": [0, 1, 2, 3, 4], "few": list(range(1, 10)), "some": list(range(1, 9))}


@pytest.mark.parametrize(("condition", "point", "expected"), [
    ("tile >= 5", "tile", 12),  # 16 with the trap
    ("tile <= 8", "max(tile, 5)", 16),
    ("max(tile, 5) <= 7", "tile", 15),
    ("tile * 2 != 4 or call.a > 7", "min(tile, 8) - tile", 15),
])
def test_trap_08_what_moves_together_unpinned_need_not_once_pinned(tmp_path: Path, condition: str, point: str,
                                                                  expected: int) -> None:
    """Unpinned, the tile has five rows or more. Pins of its two operands know nothing of each other."""
    written = Written(tmp_path, "a: Unpinnable[int]", f"""assume(0 <= call.a <= 7)
    large = call.a >= 4
    rows = call.a + 1
    tile = rows if large else 5
    require({condition}, "rule")
    return {{"large": large, "rows": rows, "tile": {point}}}""")
    found = written.solve()
    assert pins(found) == {"large": [False, True], "rows": list(range(1, 9))}
    plain = Pinned(written.function, {})
    nodes = found.legality.candidates_of
    for values in itertools.product(*nodes.values()):
        assignment = dict(zip(nodes, values, strict=True))
        outcome = plain.under(controls(found.graph, assignment), {"a": 3})
        assert outcome == evaluated(found.graph, {"a": 3}, assignment)
        assert found.legality.is_legal(assignment) == (not outcome[1])
    assert found.legality.legal == expected


def test_trap_08_no_legal_assignment_makes_an_operation_fail(tmp_path: Path) -> None:
    """Unpinned, the divisor is 1 to 4. With ``large`` true and four rows it is 0."""
    found = Written(tmp_path, "a: Unpinnable[int]", """assume(0 <= call.a <= 7)
    large = call.a >= 4
    rows = call.a + 1
    divisor = rows - 4 if large else 1
    return {"large": large, "rows": rows, "share": 60 // divisor}""").solve()
    assert (True, 4) not in legal(found) and found.legality.legal == 15
    repin = Repin({**document(found, default_of(found)), "program": "program", "deployment": "test"})
    for large, rows in legal(found):
        repin({"large": large, "rows": rows})(3)


# ---- 9: modes that are jointly illegal ---------------------------------------------------------------------------


def test_trap_09_the_default_is_the_most_frequent_jointly_legal_assignment(tmp_path: Path) -> None:
    """Most inputs are low, most are even, but low and even together are not legal."""
    found = Written(tmp_path, "n: Unpinnable[int]", """assume(call.n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16))
    low = call.n < 8
    even = call.n % 2 == 0
    require(not (low and even), "no such kernel")
    return {"low": low, "even": even}""").solve()
    default = default_of(found)
    assert default is not None
    assert controls(found.graph, default) == {"low": False, "even": True}
    assert found.legality.is_legal(default) and (True, True) not in legal(found)

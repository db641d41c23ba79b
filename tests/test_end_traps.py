"""The traps that made a wrong solver look right, each as a whole program.

The tenth, that surplus empty splits change nothing, is about which legal assignments behave alike: nothing here
claims that any two do, so there is nothing to test before something does.
"""

from __future__ import annotations

import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any

import pytest
from end_support import Emitted, Pinned, Plain, compiled, controls, load_text, product
from programs_support import changed

from detent.lang import Violation
from detent.lang.load import load_program
from detent.passes.check_failures import Reachable
from detent.passes.graph import Graph
from detent.passes.legality_condition import UnpinnedValue
from detent.passes.min_cut import InfeasibleCut
from detent.runtime.deployment import load
from detent.solver.compiled import ABLATIONS, Compiled
from detent.solver.defaults import default_of

HEADER = """from __future__ import annotations

from detent.lang import F32, Request, Runtime, Unpinnable, assume, ceil, f32, floor, knob, record, require, selection


@record
class Call:
{fields}


@selection(family="trap")
def program(call: Call):
{body}
"""
QWEN = "qwen3-30b-a3b-tp4-h100"


class Written:
    """A program from the lines of its record and its body."""

    def __init__(self, folder: Path, fields: str, body: str) -> None:
        fields, body = (textwrap.indent(inspect.cleandoc(text), "    ") for text in (fields, body))
        self.function = load_text(HEADER.format(fields=fields, body=body), folder)

    def solve(self, ablation: str = "") -> Compiled:
        return compiled(self.function, {}, *(ABLATIONS[ablation][1:] if ablation else ()))


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
    return {"rows": rows, "few": few}""").solve()
    assert pins(found) == {"rows": [0, 1, 2, 3, 4], "few": list(range(1, 10))}


JOINT = """assume(0 <= call.a <= 7)
    large = call.a >= 4
    rows = call.a + 1
    {body}"""


def test_trap_08_what_moves_together_unpinned_need_not_once_pinned(tmp_path: Path) -> None:
    """Unpinned, the tile has five rows or more. Pins of its two operands know nothing of each other."""
    written = Written(tmp_path, "a: Unpinnable[int]", JOINT.format(body="""tile = rows if large else 5
    require(tile >= 5, "five rows at least")
    return {"large": large, "rows": rows, "tile": tile}"""))
    found = written.solve()
    assert pins(found) == {"large": [False, True], "rows": list(range(1, 9))}
    plain = Pinned(written.function, {})
    nodes = found.legality.candidates_of
    for values in itertools.product(*nodes.values()):
        assignment = dict(zip(nodes, values, strict=True))
        broken = plain.under(controls(found.graph, assignment), {"a": 3})[1]
        assert found.legality.is_legal(assignment) == (not broken)
    assert found.legality.legal == 12


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


# ---- what Python refuses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", [
    "7 // call.n", "7 % call.n", "7 / call.n", "f32(7) / call.n", "7.0 // (call.n - call.n)", "7 // (call.n * 0)",
    "0 * (7 // call.n)", "(7 // call.n > 1) and False", "{1: 2, 2: 3}[call.n]", "(5, 6, 7)[call.n + 1]",
    "ceil(f32(3e38) * call.n * 10 - f32(3e38) * 100)", "int(1e308 * 10 * (call.n - 1))", "7 // (call.n - k)",
])
@pytest.mark.parametrize("use", ["return {{'point': {0}}}", "unused = {0}\n    return {{'point': 1}}",
                                 "return {{'point': 1 if call.n > 7 or ({0}) == 5 else 2}}",
                                 "require(({0}) != 77, 'rule')\n    return {{'point': 1}}"])
def test_what_python_refuses_at_some_input_is_refused(tmp_path: Path, expression: str, use: str) -> None:
    written = Written(tmp_path, "n: Unpinnable[int]", "assume(0 <= call.n <= 2)\n    "
                      "k = knob('k', (3, 2), default=3)\n    " + use.format(expression))
    with pytest.raises(Reachable, match=r"at n=[012]|not finite"):
        written.solve()


@pytest.mark.parametrize("expression", [
    "7 // call.n if call.n else 0", "call.n != 0 and 7 // call.n > 1", "call.n == 0 or 7 % call.n > 1",
    "7 // max(1, call.n)", "{1: 2, 2: 3}.get(call.n, 0)", "call.n in (1, 2) and {1: 2, 2: 3}[call.n] > 2",
    "sum(7 // x for x in (1, 2) if x == call.n)", "7 // call.n if call.n % 3 != 0 and not call.n < 1 else 5",
    "any(7 // call.n == x for x in (3, 7) if call.n > 0)", "call.n > 5 and 7 // (call.n - call.n) > 1",
])
def test_what_python_computes_at_every_input_is_not(tmp_path: Path, expression: str) -> None:
    written = Written(tmp_path, "n: Unpinnable[int]", f"assume(0 <= call.n <= 2)\n    return {{'point': {expression}}}")
    found = written.solve()
    plain, emitted = Plain(written.function, {}), Emitted(found)
    for point in product({"n": (0, 1, 2)}):
        assert emitted(point) == plain(point)


# ---- single precision ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("expression", "kind"), [
    ("f32(call.n) / f32(3)", "f32"), ("f32(call.n) / 3", "f32"), ("7 * f32(call.n) * f32(0.1)", "f32"),
    ("f32(call.n) * 0.1", "float"), ("f32(call.n) / 3 * 0.85", "float"), ("max(f32(call.n), f32(2)) - f32(0.1)", "f32"),
    ("call.n / 3", "float"), ("-abs(f32(call.n) - f32(1.1))", "f32"),
])
def test_single_and_double_follow_cs_rule(tmp_path: Path, expression: str, kind: str) -> None:
    written = Written(tmp_path, "n: Unpinnable[int]", f"""assume(1 <= call.n <= 9)
    value = {expression}
    return {{"value": value, "up": ceil(value), "down": floor(value), "same": value == f32(call.n) / 3 * 0.85}}""")
    found = written.solve()
    plain, emitted = Plain(written.function, {}), Emitted(found)
    assert types(found.graph)["value"] == kind
    for point in product({"n": tuple(range(1, 10))}):
        assert emitted(point) == plain(point)


def types(graph: Graph) -> dict[str, str]:
    return {name: graph.types[node] for name, node in graph.points}

"""Selectors: points, checks, memory; repinning and what it refuses."""

from __future__ import annotations

import numbers
import pickle
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from runtime_fixture import DEFAULT, UNPINNED, document

from detent.dialects.selir import semantics
from detent.runtime import selector as selectors
from detent.runtime.errors import BadInput, DetentError, NoCandidate, NotLegal, UnknownName, Violation
from detent.runtime.repin import Repin, repin
from detent.runtime.selector import Selector, UnpinnedSelector


@pytest.fixture
def selector() -> Selector:
    return Repin(document())(DEFAULT)


class Indexed:
    """Stands for an integer as a tensor does: it may hold another one later."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class Integer(Indexed):
    """An integer of another library: equal to and hashed like Python's."""

    def __int__(self) -> int:
        return self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == other


numbers.Integral.register(Integer)


def test_points_are_constants_and_request_inputs(selector: Selector) -> None:
    assert selector(700, True) == {"kernel": "long", "splits": 4, "stride": 256, "mask": True}
    assert selector.call(masked=False, rows=1)["mask"] is False
    assert dict(selector.points_schema) == {"kernel": "str", "splits": "int", "stride": "int", "mask": "bool"}
    assert dict(selector.assignment) == DEFAULT and "⟦" not in selector.source


def test_points_cannot_be_changed_and_equal_ones_are_shared(selector: Selector) -> None:
    points = selector(3, True)
    with pytest.raises(TypeError):
        points["splits"] = 2
    assert selector(3, True) is points and selector(4, True) is points
    assert selector(4, False) is not points


def test_violation_says_everything_and_is_not_remembered(selector: Selector) -> None:
    for _ in range(2):
        with pytest.raises(Violation) as caught:
            selector(1025, True)
        error = caught.value
        assert (error.kind, error.source, error.text) == ("assume", "tile.py:8", "1 <= call.rows <= limits.rows")
        assert error.inputs == {"rows": 1025, "masked": True}
        told = "tile.py:8: assume does not hold [1 <= call.rows <= limits.rows] with rows=1025, masked=True; "
        assert told in str(error)
        assert "correct the deployment's fact" in error.remedy
    narrow = Repin(document())({**DEFAULT, "splits": 1})
    with pytest.raises(Violation, match="splits cover the rows .* commit to other values for splits, stride"):
        narrow(257, False)
    assert narrow(256, False)["splits"] == 1


def test_errors_survive_pickling(selector: Selector) -> None:
    with pytest.raises(Violation) as violation:
        selector(0, True)
    with pytest.raises(UnknownName) as unknown:
        selector.call(row=1, masked=True)
    with pytest.raises(NotLegal) as illegal:
        Repin(document())({**DEFAULT, "splits": 1, "stride": 128})
    for error in (violation.value, unknown.value, illegal.value):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and str(copy) == str(error) and vars(copy) == vars(error)


def test_inputs_are_checked_against_the_signature(selector: Selector) -> None:
    with pytest.raises(BadInput, match=r"takes 2 inputs, not 1; their order is rows, masked"):
        selector(1)
    with pytest.raises(UnknownName, match="unknown input 'row'; did you mean 'rows'"):
        selector.call(row=1, masked=True)
    with pytest.raises(BadInput, match="no value for input masked"):
        selector.call(rows=1)
    for bad in (1.5, "1", None, (1,), float("nan"), float("inf"), 1 + 1j, Decimal("1.5"), Fraction(1, 2), Indexed(5)):
        with pytest.raises(BadInput, match="input rows is .* pass one of type int"):
            selector(bad, True)
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        selector([1], True)
    with pytest.raises(BadInput, match="input masked is 2 of type int"):
        selector(1, 2)
    assert selector(Integer(5), True) is selector(5, True)


def test_what_equals_a_value_is_that_value_seen_before_or_not(selector: Selector) -> None:
    fresh = Repin(document())(DEFAULT)
    assert selector(1, True) is selector(1, True)
    for rows in (1, True, 1.0, 1 + 0j, Decimal(1), Fraction(1), Integer(1)):
        for masked in (True, 1, 1.0, Integer(1)):
            new = Repin(document())(DEFAULT)
            assert selector(rows, masked) is selector(1, True)
            assert new(rows, masked) == new(1, True) == fresh(1, True)
    for count in (0, 1, 3):
        with pytest.raises(BadInput, match="takes 2 inputs"):
            selector(*[1] * count)
    with pytest.raises(BadInput, match="pass one of type"):
        selector((1,), True)
    free = UnpinnedSelector(document(), UNPINNED)
    assert free(True, 1) == free(1, True) and free(1, True) is free(True, True)


def test_a_violation_names_the_values_as_the_program_sees_them(selector: Selector) -> None:
    with pytest.raises(Violation, match="with rows=0, masked=True"):
        selector(False, 1)


def test_a_selector_is_one_and_says_what_it_is(selector: Selector) -> None:
    assert isinstance(selector, Selector) and type(selector).__name__ == "Selector"
    assert type(selector) is type(Repin(document())({**DEFAULT, "splits": 2}))
    constant = Selector("p", [], [("y", "int")], [], "def select():\n    return {'y': 1}\n", {})
    assert constant() is constant() and constant()["y"] == 1
    with pytest.raises(BadInput, match="takes 0 inputs"):
        constant(1)


def test_long_values_are_cut_in_messages(selector: Selector) -> None:
    with pytest.raises(Violation, match="rows=<int>, masked=True"):
        selector(10 ** 5000, True)
    with pytest.raises(BadInput) as caught:
        selector("x" * 10_000, True)
    assert len(str(caught.value)) < 200
    with pytest.raises(BadInput, match="input x is <int> of type int"):
        Selector("p", [("x", "float")], [], [], "def select(x):\n    return {}\n", {})(10 ** 5000)


def test_memory_is_bounded_and_recent_inputs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "SEEN", 8)
    selector = Repin(document())(DEFAULT)
    calls: list[int] = []
    function = selector.function

    def counted(rows: int, masked: bool) -> Any:
        calls.append(rows)
        return function(rows, masked)

    selector.function = counted
    for rows in range(1, 200):
        selector(rows, True)
        selector(1000, True)
    assert len(calls) < 200 + 2 and len(selector._results) <= 8
    assert calls.count(1000) == 1


def test_float_points_that_compare_equal_are_kept_apart() -> None:
    source = "def select(x):\n    return {'y': x}\n"
    selector = Selector("p", [("x", "float")], [("y", "float")], [], source, {})
    assert str(selector(0.0)["y"]) == "0.0"
    assert str(selector(-0.0)["y"]) == "-0.0"
    assert str(selector(0.0)["y"]) == "0.0"


@pytest.mark.parametrize("value", [0.1, -0.0, 16777217.0, 3.5e38, -1e39, float("inf"), 1e-46])
def test_single_precision_is_the_compilers(value: float) -> None:
    assert struct.pack("d", selectors.round32(value)) == struct.pack("d", semantics.round32(value))
    selector = Selector("p", [("x", "f32")], [("y", "f32")], [], "def select(x):\n    return {'y': f32(x + x)}\n", {})
    single = semantics.round32(value)
    assert selector(value)["y"] == semantics.round32(single + single)


def test_repin_swaps_constants() -> None:
    make = Repin(document())
    assert make({"small": True, "splits": 4, "stride": 128})(1, True) == {
        "kernel": "short", "splits": 4, "stride": 128, "mask": True}
    assert repin(document(), DEFAULT)(1, True)["stride"] == 256
    assert make.complete({"splits": 2}) == {"small": False, "splits": 2, "stride": 256}


def test_repin_names_the_require_and_a_witness() -> None:
    with pytest.raises(NotLegal) as caught:
        Repin(document())({"small": False, "splits": 2, "stride": 128})
    error = caught.value
    assert error.condition is not None and error.condition["text"] == "call.rows <= splits * stride"
    assert error.witness == {"rows": 257, "masked": True}
    assert "tile.py:12: require call.rows <= splits * stride" in str(error)
    assert "with rows=257, masked=True; with the rest as it is, legal for splits: 4" in str(error)


def test_repin_refuses_what_is_no_assignment() -> None:
    make = Repin(document())
    with pytest.raises(NotLegal, match=r"tile.splits: 3 is no value of this pin; its values are 1, 2, 4"):
        make({**DEFAULT, "splits": 3})
    with pytest.raises(NotLegal, match="tile.stride: 64 is no value of this knob"):
        make({**DEFAULT, "stride": 64})
    with pytest.raises(NotLegal, match="tile.splits: True is no value"):
        make({**DEFAULT, "splits": True})
    with pytest.raises(NoCandidate, match=r"tile.splits: \[1\] is no value"):
        make({**DEFAULT, "splits": [1]})
    with pytest.raises(NotLegal, match="tile.small: 1 is no value"):
        make({**DEFAULT, "small": 1})
    with pytest.raises(UnknownName, match="unknown pin or knob 'split'; did you mean 'splits'"):
        make({**DEFAULT, "split": 1})
    with pytest.raises(DetentError, match="no value for stride"):
        make({"small": True, "splits": 4})


def test_a_program_without_legal_assignment() -> None:
    nothing = document()
    nothing["default"] = None
    nothing["components"][1]["legal"] = []
    with pytest.raises(NotLegal, match="no assignment is legal on toy-h100"):
        Repin(nothing).complete({})
    with pytest.raises(NotLegal, match="nothing is legal here"):
        Repin(nothing).check(DEFAULT)


def test_values_from_a_command_line() -> None:
    make = Repin(document())
    assert make.parse("splits", "4") == 4
    assert make.parse("small", "true") is True and make.parse("small", "False") is False
    with pytest.raises(NotLegal, match="'4.0' is no value of type int it can take; its values are 1, 2, 4"):
        make.parse("splits", "4.0")


def test_unpinned_selector_reports_requires_and_enforces_assumes() -> None:
    free = UnpinnedSelector(document(), UNPINNED)
    assert free(64, True) == ({"kernel": "short", "splits": 1, "stride": 256, "mask": True}, ())
    assert UnpinnedSelector(document(), UNPINNED, {"stride": 128})(300, True)[1] == (1,)
    with pytest.raises(Violation, match="tile.py:8: assume does not hold"):
        free(2000, True)
    with pytest.raises(BadInput, match="knob stride is 64; its values are 128, 256"):
        UnpinnedSelector(document(), UNPINNED, {"stride": 64})
    with pytest.raises(UnknownName, match="unknown knob 'strid'"):
        UnpinnedSelector(document(), UNPINNED, {"strid": 64})

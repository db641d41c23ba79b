"""The language as plain Python: singles with C's rules, records, conditions, knobs."""

from __future__ import annotations

import ctypes
import json
import math
import operator
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.lang import (
    F32,
    Request,
    Runtime,
    Table,
    Unpinnable,
    Violation,
    assume,
    ceil,
    f32,
    floor,
    knob,
    knobs,
    record,
    report,
    require,
    selection,
)
from detent.lang.shim import Misuse, is_family


def bits(value: float) -> int:
    assert type(value) is F32
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


# ---- singles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "expected"), [
    (f32(0.1), 0x3DCCCCCD),
    (f32(0.1) + f32(0.2), 0x3E99999A),
    (f32(1) / f32(3), 0x3EAAAAAB),
    (f32(0.8) * 132, 0x42D33333),
    (132 * f32(0.8), 0x42D33333),
    (f32(7) / 132, 0x3D59364E),
    (7 / f32(132), 0x3D59364E),
    (f32(16777216) + 1, 0x4B800000),
    (16777217 - f32(0), 0x4B800000),
    (f32(1) - f32(0.9), 0x3DCCCCD0),
    (f32(1) + True, 0x40000000),
    (-f32(0.0), 0x80000000),
    (abs(f32(-0.1)), 0x3DCCCCCD),
    (f32(3e38) * 2, 0x7F800000),
    (f32(-1e39), 0xFF800000),
    (f32(1e-46), 0x00000000),
    (max(f32(0.1), f32(0.2)), 0x3E4CCCCD),
    (min(f32(0.1), f32(0.2)), 0x3DCCCCCD),
])
def test_exact_singles(value: float, expected: int) -> None:
    assert bits(value) == expected


def test_a_double_makes_a_double() -> None:
    for product in (f32(0.1) * 0.85, 0.85 * f32(0.1)):
        assert type(product) is float
        assert product == 0.100000001490116119384765625 * 0.85
    assert type(f32(1) + 1.0) is type(1.0 - f32(1)) is type(f32(1) / 2.0) is float


def test_comparisons_convert_ints_and_keep_doubles_exact() -> None:
    assert f32(16777216) == 16777217 and 16777217 == f32(16777216)
    assert not f32(16777216) < 16777217
    assert f32(16777216) != 16777217.0 and f32(16777216) < 16777217.0
    assert f32(0.1) != 0.1 and f32(0.1) > 0.1 and 0.1 < f32(0.1) and not f32(0.1) <= 0.1
    assert f32(1) == True and f32(0.5) != "0.5"  # noqa: E712
    assert f32(2) >= 2 and 2 <= f32(2)


def test_equal_singles_hash_alike() -> None:
    assert len({f32(0.1), f32(0.1), float(f32(0.1))}) == 1
    assert {f32(3): "three"}[3] == "three"  # type: ignore[index]


def test_rounding_to_int() -> None:
    assert (ceil(f32(2.5)), floor(f32(-2.5)), int(f32(2.9))) == (3, -3, 2)
    assert all(type(v) is int for v in (ceil(f32(2.5)), floor(f32(-2.5))))


@pytest.mark.parametrize("op", [operator.floordiv, operator.mod, operator.pow, divmod])
def test_c_has_no_such_operator(op: Callable[[Any, Any], Any]) -> None:
    for a, b in ((f32(3), 2), (3, f32(2)), (3.0, f32(2))):
        with pytest.raises(TypeError, match="f32 has only"):
            op(a, b)


def test_division_by_zero_raises_as_in_python() -> None:
    for a, b in ((f32(1), f32(0)), (f32(1), 0), (1, f32(0)), (1.0, f32(0))):
        with pytest.raises(ZeroDivisionError):
            a / b


def test_only_numbers_become_singles() -> None:
    with pytest.raises(TypeError, match="f32 takes a number, not 'x'"):
        f32("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        f32(1) + "x"  # type: ignore[operator]


def test_a_single_survives_pickling_and_prints_as_one() -> None:
    assert type(pickle.loads(pickle.dumps(f32(0.1)))) is F32
    assert repr(f32(0.5)) == "f32(0.5)"
    assert json.dumps(f32(0.5)) == "0.5"


SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(SINGLES, st.one_of(SINGLES, st.integers(-(2**53), 2**53)), st.sampled_from("+-*/"))
def test_one_rounding_of_the_exact_result(a: float, b: float, op: str) -> None:
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[op]
    single = ctypes.c_float(b).value
    if op == "/" and single == 0:
        return
    expected = ctypes.c_float(apply(a, single)).value
    result = apply(f32(a), b if isinstance(b, int) else f32(b))
    assert type(result) is F32
    assert struct.pack("d", result) == struct.pack("d", expected)


@given(SINGLES, st.one_of(SINGLES, st.floats(allow_nan=False)))
def test_comparison_with_floats_is_exact(a: float, b: float) -> None:
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        assert compare(f32(a), b) == compare(a, b)
        assert compare(b, f32(a)) == compare(b, a)


# ---- records ---------------------------------------------------------------------------------------------------


@record
class Shape:
    """Facts."""

    hidden: int
    scale: float
    table: Table | None


@record
class Call:
    """Inputs."""

    num_tokens: Unpinnable[int]
    in_graph: Runtime[bool]
    own_len: Request[int]
    load: Runtime[f32]
    limit: int


def test_fields_in_order_with_kind_and_type() -> None:
    assert list(Shape.__detent_fields__.items()) == [  # type: ignore[attr-defined]
        ("hidden", ("fact", int)), ("scale", ("fact", float)), ("table", ("fact", Table | None))]
    assert list(Call.__detent_fields__.items()) == [  # type: ignore[attr-defined]
        ("num_tokens", ("unpinnable", int)), ("in_graph", ("runtime", bool)), ("own_len", ("request", int)),
        ("load", ("runtime", F32)), ("limit", ("fact", int))]


def test_an_annotation_need_not_be_a_string() -> None:
    cls = type("Plain", (), {"__annotations__": {"n": Runtime[int], "k": int}})
    assert record(cls).__detent_fields__ == {"n": ("runtime", int), "k": ("fact", int)}  # type: ignore[attr-defined]


def test_records_are_values() -> None:
    one, other = Shape(hidden=4, scale=0.5, table=None), Shape(scale=0.5, hidden=4)  # type: ignore[call-arg]
    assert one == other and hash(one) == hash(other)
    assert one != Shape(hidden=5, scale=0.5, table=None) and one.__eq__(4) is NotImplemented
    assert repr(one) == "Shape(hidden=4, scale=0.5, table=None)"


def test_records_do_not_change() -> None:
    shape = Shape(hidden=4, scale=0.5, table=None)
    with pytest.raises(AttributeError, match="Shape is immutable"):
        shape.hidden = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Shape is immutable"):
        del shape.hidden
    assert shape.hidden == 4


def test_missing_and_unknown_fields_are_named() -> None:
    with pytest.raises(TypeError, match=r"Shape: missing scale; unknown hiden \(its fields: hidden, scale, table\)"):
        Shape(hidden=4, hiden=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Shape(4, 0.5, None)  # type: ignore[call-arg]


def test_a_field_has_no_default() -> None:
    with pytest.raises(TypeError, match=r"Bad\.n: a field has no default"):
        record(type("Bad", (), {"__annotations__": {"n": int}, "n": 4}))


def test_an_input_is_a_scalar() -> None:
    with pytest.raises(TypeError, match="an input is an int, float, f32, bool or str, not list"):
        Unpinnable[list]  # type: ignore[type-arg]
    assert (repr(Request), repr(Runtime[int])) == ("Request", "Runtime[int]")


def test_a_selection_stays_a_function() -> None:
    def choose(n: int) -> dict[str, object]:
        return {"n": n}

    marked = selection(family="toy")(choose)
    assert marked is choose and marked(3) == {"n": 3}
    assert choose.__detent_selection__ == "toy"  # type: ignore[attr-defined]


# ---- conditions and knobs --------------------------------------------------------------------------------------


def checked(n: int) -> int:
    assume(n > 0)
    require(n < 10, "one digit")
    return n


def test_conditions_are_enforced() -> None:
    assert checked(3) == 3
    with pytest.raises(Violation, match="require does not hold: one digit") as caught:
        checked(12)
    assert (caught.value.kind, caught.value.message) == ("require", "one digit")
    with pytest.raises(Violation, match=r"assume does not hold: .*test_lang_shim\.py:\d+"):
        checked(0)


def test_a_violation_survives_pickling() -> None:
    copy = pickle.loads(pickle.dumps(Violation("require", "one digit")))
    assert (copy.kind, copy.message) == ("require", "one digit")


def test_report_collects_and_ends() -> None:
    with report() as outer:
        checked(12)
        with report() as inner:
            checked(-1)
        checked(13)
    assert [v.kind for v in inner] == ["assume"]
    assert [v.message for v in outer] == ["one digit", "one digit"]
    with pytest.raises(Violation):
        checked(12)


def test_knobs() -> None:
    def stride() -> int:
        return knob("stride", (256, 512, 1024), default=256)

    assert stride() == 256
    with knobs(stride=512, other=1):
        assert stride() == 512
        with knobs(other=2):
            assert stride() == 512
    assert stride() == 256
    with knobs(stride=300), pytest.raises(ValueError, match="knob 'stride' takes 256, 512, 1024, not 300"):
        stride()
    with pytest.raises(ValueError, match="knob 'stride' takes 1, 2, not 3"):
        knob("stride", (1, 2), default=3)


def test_a_failed_block_leaves_nothing_behind() -> None:
    with pytest.raises(KeyError), report() as found, knobs(stride=512):
        checked(12)
        raise KeyError
    assert len(found) == 1 and knob("stride", (256, 512), default=256) == 256
    with pytest.raises(Violation):
        checked(12)


def test_importing_the_language_is_cheap(root: Path) -> None:
    code = "import json, sys, detent.lang; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    loaded = set(json.loads(run.stdout))
    assert {m for m in loaded if m.startswith("detent")} == {"detent", "detent.lang", "detent.lang.shim"}
    assert not {m for m in loaded if m.split(".")[0] in ("xdsl", "typing", "inspect", "dataclasses", "numpy")}


def test_f32_rounds_nan_and_infinity_to_themselves() -> None:
    assert math.isnan(f32(math.nan)) and f32(math.inf) == math.inf


@pytest.mark.parametrize("family", [3, "", "a b/c.d", "7up", "é", "-a", None])
def test_a_family_is_a_name(family: Any) -> None:
    with pytest.raises(Misuse, match="family"):
        selection(family=family)
    assert is_family("rms-norm_2") and not is_family(family)


def test_a_selection_without_its_family() -> None:
    for misuse in (lambda: selection(len), lambda: selection()):  # type: ignore[arg-type,call-arg]
        with pytest.raises(Misuse, match=r'write @selection\(family="norm"\)'):
            misuse()

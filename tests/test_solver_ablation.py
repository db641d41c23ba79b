"""Ablations beside the whole solver, and the inputs that show one unsound."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from detent.runtime.deployment import load
from detent.runtime.errors import UnknownName
from detent.solver.ablation import Counts, compare
from detent.solver.compiled import ABLATIONS

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

"""The measured choice between ``gemm``'s implementations: only where a GPU showed that both give the same bits."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_gemm import LAYERS, bits, needs_deep, wide

from detent.kernels import gemm as gemm_module
from detent.kernels import gemm_deep, gemm_fastest
from detent.kernels.gemm import FASTEST, gemm

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def maker() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import gemm_fastest as found
    finally:
        sys.path.pop(0)
    return found


@pytest.fixture(scope="module")
def runs() -> tuple[Any, Any]:
    bits_run, times = (json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))
                       for name in ("gemm_h200.json", "kernels_h200.json"))
    return bits_run, times


def test_the_data_are_those_of_the_stored_runs(maker: Any, runs: tuple[Any, Any]) -> None:
    assert maker.made(*runs) == gemm_fastest.data()
    assert len(gemm_fastest.data()["shapes"]) == 14


@pytest.mark.parametrize("change", [
    {"rows_alone_that_differ_between": {"deep_gemm,triton": 1}}, {"rows_alone_that_differ_between": {}},
    {"differ_from_own_rows_alone": {"triton 16x64 at 64": 1}}, {"differ_from_own_rows_alone": {"deep 64 at 7": 2}},
    {"implementations": ["triton"]}])
def test_a_shape_whose_bits_were_not_shown_to_agree_is_left_out(maker: Any, runs: tuple[Any, Any],
                                                                change: dict[str, Any]) -> None:
    bits_run = copy.deepcopy(runs[0])
    bits_run["bits"][0] |= change
    shape = bits_run["bits"][0]["layer"].split()[-1]
    assert set(gemm_fastest.data()["shapes"]) - set(maker.made(bits_run, runs[1])["shapes"]) == {shape}


def test_the_faster_of_the_timed_counts(maker: Any) -> None:
    us = {"deep 1": [10.0, 30.0, 11.0], "deep 128": [20.0], "triton": [12.0, 13.0, 12.5]}
    assert maker.faster(64, us, [1, 64, 128]) == {"1": "deep_gemm", "64": "deep_gemm", "128": "triton"}


def test_a_choice_is_that_of_the_nearest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_fastest, "data", lambda: {"shapes": {"8x16": {
        "1": {"1": "a", "64": "b"}, "64": {"1": "c", "64": "d"}, "65": {"1": "e", "64": "f"}}}})
    choice = gemm_fastest.choice.__wrapped__
    assert [choice(rows, 8, 16, 1) for rows in (1, 32, 33, 64, 65, 9999)] == ["a", "a", "c", "c", "e", "e"]
    assert [choice(1, 8, 16, padding) for padding in (0, 1, 32, 64, 512)] == ["a", "a", "a", "b", "b"]
    assert choice(1, 16, 8, 1) is None


def test_other_versions_and_other_shapes_take_one_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    x, known, other = (torch.zeros(shape) for shape in ((64, 4096), (6144, 4096), (64, 4096)))
    monkeypatch.setattr(gemm_module, "_found", lambda: "deep_gemm")
    monkeypatch.setattr(gemm_module, "_compared", lambda: True)
    taken = {gemm_module._fastest(x[:rows], known, 256) for rows in (1, 7, 16, 64)}
    assert "triton" in taken  # at 1 row 256 columns of padding cost DeepGEMM more
    assert {gemm_module._fastest(x[:rows], other, 256) for rows in (1, 7, 16, 64)} == {"deep_gemm"}
    monkeypatch.setattr(gemm_module, "_compared", lambda: False)
    assert {gemm_module._fastest(x[:rows], known, 256) for rows in (1, 7, 16, 64)} == {"deep_gemm"}
    versions = gemm_fastest.data()["versions"]
    assert gemm_fastest.comparable(dict(versions)) and not gemm_fastest.comparable(versions | {"triton": "3.7.0"})


def test_an_early_launch_leaves_the_setting_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    deep = SimpleNamespace(bf16_gemm_nt=lambda *tensors: said.append("run"), get_pdl=lambda: "before",
                           set_pdl=said.append)
    monkeypatch.setattr(gemm_deep, "module", lambda: deep)
    x: Any = None
    gemm_deep.run(x, x, x)
    gemm_deep.run(x, x, x, early=True)
    assert said == ["run", True, "run", "before"]
    del deep.set_pdl
    with pytest.raises(ValueError, match="no set_pdl"):
        gemm_deep.run(x, x, x, early=True)


@needs_deep
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_a_row_has_the_same_bits_whichever_is_taken(n: int, k: int) -> None:
    """Alone and among others, launched early behind what wrote its operand or not."""
    generator = torch.Generator(device="cuda").manual_seed(n)
    weight, whole = wide(generator, n, k), wide(generator, 700, k)
    want = {name: gemm(whole, weight, padding=64, implementation=name) for name in ("deep_gemm", "triton")}
    assert torch.equal(bits(want["deep_gemm"]), bits(want["triton"]))
    for rows in (1, 7, 65, 700):
        for early in (False, True):
            x = whole[:rows] + 0  # a kernel writes it just before
            got = gemm(x, weight, padding=64, implementation=FASTEST, early=early)
            assert torch.equal(bits(got), bits(want["triton"][:rows])), (rows, early)
            deep = gemm(whole[:rows] + 0, weight, padding=64, implementation="deep_gemm", early=early)
            assert torch.equal(bits(deep), bits(want["triton"][:rows])), (rows, early)

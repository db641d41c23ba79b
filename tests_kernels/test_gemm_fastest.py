"""The measured choice between ``gemm``'s implementations: only where a GPU showed that both give the same bits."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_gemm import LAYERS, bits, needs_deep, wide

from detent.kernels import gemm as gemm_module
from detent.kernels import gemm_deep, gemm_fastest
from detent.kernels.gemm import FASTEST, gemm, padded

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def maker(script: Callable[[str], Any]) -> Any:
    return script("gemm_fastest")


@pytest.fixture(scope="module")
def runs() -> tuple[Any, str, Any]:
    bits_run, tests, times = ((ROOT / "results" / name).read_text(encoding="utf-8")
                              for name in ("gemm_h200.json", "gpu_tests_h200.txt", "kernels_h200.json"))
    return json.loads(bits_run), tests, json.loads(times)


def test_the_data_are_those_of_the_stored_runs(maker: Any, runs: tuple[Any, str, Any]) -> None:
    assert maker.made(*runs) == gemm_fastest.data()
    assert len(gemm_fastest.data()["shapes"]) == 14


@pytest.mark.parametrize("change", [
    {"rows_alone_that_differ_between": {"deep_gemm,triton": 1}}, {"rows_alone_that_differ_between": {}},
    {"differ_from_own_rows_alone": {"triton 16x64 at 64": 1}}, {"differ_from_own_rows_alone": {"deep 64 at 7": 2}},
    {"implementations": ["triton"]}])
def test_a_shape_whose_bits_were_not_shown_to_agree_is_left_out(maker: Any, runs: tuple[Any, str, Any],
                                                                change: dict[str, Any]) -> None:
    bits_run = copy.deepcopy(runs[0])
    bits_run["bits"][0] |= change
    shape = bits_run["bits"][0]["layer"].split()[-1]
    assert set(gemm_fastest.data()["shapes"]) - set(maker.made(bits_run, *runs[1:])["shapes"]) == {shape}


@pytest.mark.parametrize(("old", "new"), [
    ("393 passed", "1 failed, 393 passed"), ("393 passed", "393 passed, 14 skipped"), ("393 passed", "no tests ran"),
    ("393 passed", "393 passed, 1 error"), ("test_gemm_fastest", "test_gemm")])
def test_early_launches_are_left_out_unless_their_test_passed(maker: Any, runs: tuple[Any, str, Any], old: str,
                                                              new: str) -> None:
    bits_run, tests, times = runs
    assert old in tests and "early" in json.dumps(gemm_fastest.data()["shapes"])
    assert "early" not in json.dumps(maker.made(bits_run, tests.replace(old, new), times)["shapes"])


def test_the_fastest_of_the_timed_arms(maker: Any) -> None:
    us = {"deep 1": [10.0, 30.0, 11.0], "deep 128": [20.0], "early 1": [9.0], "triton": [12.0, 13.0, 12.5]}
    alone = {"1": ["deep 1"], "64": ["deep 64"], "128": ["triton"]}  # 64 rows: paddings 1 and 64 are one count
    assert maker.fastest(64, us, [1, 64, 128], False) == alone
    assert maker.fastest(64, us, [1, 64, 128], True) == alone | {"1": ["early 1"]}
    us |= {"deep 64": [8.0], "deep 128": [7.0], "triton": [7.5]}
    assert maker.fastest(63, us, [1, 64, 128], True) == {
        "1": ["deep 128", "triton"], "64": ["deep 128", "triton"], "128": ["deep 128"]}


def test_a_choice_is_that_of_the_nearest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_fastest, "data", lambda: {"shapes": {"8x16": {
        "1": {"1": ["triton"], "64": ["deep 64"]}, "64": {"1": ["early 1"], "64": ["deep 128", "triton"]},
        "65": {"1": ["deep 128", "early 1"], "64": ["triton"]}}}})
    monkeypatch.setattr(gemm_fastest, "table", gemm_fastest.table.__wrapped__)

    def best(rows: int, padding: int) -> Any:
        return gemm_fastest.choice(rows, 8, 16, padding).best

    triton, early, wide = ("triton", 1, False), ("deep_gemm", 1, True), ("deep_gemm", 128, False)
    assert [best(rows, 1) for rows in (1, 32, 33, 64, 65, 9999)] == [triton, triton, early, early, wide, wide]
    assert [best(1, padding) for padding in (0, 1, 32, 64, 512)] == [triton] * 3 + [("deep_gemm", 64, False)] * 2
    assert gemm_fastest.choice(65, 8, 16, 8).plain == early and gemm_fastest.choice(64, 8, 16, 64).plain == triton
    assert gemm_fastest.choice(1, 16, 8, 1) is None


def test_every_entry_has_every_padding_and_pads_no_less_than_asked() -> None:
    for ends, by_padding in gemm_fastest.table().values():
        assert list(by_padding) == [1, 64, 128, 256] and ends == sorted(ends)
        for padding, ways in by_padding.items():
            assert len(ways) == len(ends) + 1 == 18
            for best, plain in ways:
                assert best.padding % padding == 0 or best.implementation == "triton"
                assert plain.padding == padding or plain.implementation == "triton"


def test_what_would_be_copied_or_leave_the_grid_is_not_padded_further(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, plain = gemm_fastest.Way("deep_gemm", 128), gemm_fastest.Way("deep_gemm", 1, True)
    monkeypatch.setattr(gemm_module, "_compared", lambda: True)
    monkeypatch.setattr(gemm_fastest, "choice", lambda *asked: gemm_fastest.Ways(wide, plain))
    room, weight = torch.zeros(394, 4096), torch.zeros(6144, 4096)

    def taken(x: Any, padding: int = 1, out: Any = None) -> Any:
        return gemm_module._fastest(x, weight, out, padding)

    assert taken(room[:257]) == taken(room[10:267]) == taken(room[:257], 0) == taken(room[:257], 32) == wide
    assert taken(room[300:]) == taken(room[:257].clone()) == plain  # nothing behind them
    assert taken(room[:257], out=room) == plain
    assert taken(room[:256], out=room) == taken(room[:256].clone()) == wide  # a count as it is
    assert taken(room[:1]) == taken(room[:1].as_strided((1, 4096), (1, 1))) == wide  # a lone row's step says nothing
    assert taken(room[:257].clone(), 8) == plain._replace(padding=8)
    assert taken(room[:257], 256) == plain._replace(padding=256)  # 384 is no multiple


def test_other_versions_and_other_shapes_take_one_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    x, known, other = (torch.zeros(shape) for shape in ((64, 4096), (6144, 4096), (64, 4096)))
    monkeypatch.setattr(gemm_module, "_found", lambda: "deep_gemm")
    monkeypatch.setattr(gemm_module, "_compared", lambda: True)

    def taken(weight: Any, padding: int) -> set[tuple[str, bool]]:
        ways = [gemm_module._fastest(x[:rows], weight, None, padding) for rows in (1, 7, 16, 64)]
        return {(way.implementation, way.early) for way in ways}

    assert ("triton", False) in taken(known, 256)  # at 1 row 256 columns of padding cost DeepGEMM more
    assert ("deep_gemm", True) in taken(known, 1)
    assert taken(other, 1) == {("deep_gemm", False)}
    monkeypatch.setattr(gemm_module, "_compared", lambda: False)
    assert taken(known, 256) == taken(known, 1) == {("deep_gemm", False)}
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
    """Alone and among others, padded as asked and further, launched early behind what wrote its operand or not."""
    generator = torch.Generator(device="cuda").manual_seed(n)
    weight, whole = wide(generator, n, k), wide(generator, 1024, k)
    counts = (1, 7, 65, 129, 257, 700)
    gemm_deep.compile_all([(n, k)], [padded(rows, padding) for rows in counts for padding in (1, 64, 128)], processes=2)
    want = gemm(whole, weight, padding=64, implementation="triton")
    assert torch.equal(bits(gemm(whole, weight, padding=64, implementation="deep_gemm")), bits(want))
    for rows in counts:
        for padding, early, name in itertools.product((1, 64), (False, True), (FASTEST, "deep_gemm")):
            x = (whole + 0)[:rows]  # a kernel writes it just before, and there is room behind it
            got = gemm(x, weight, padding=padding, implementation=name, early=early)
            assert torch.equal(bits(got), bits(want[:rows])), (rows, padding, early, name)

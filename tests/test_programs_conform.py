"""The transcribed helpers against outputs recorded from the engines' own FlashAttention-3 libraries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent.programs import fa3, fa3_conform, fa3_tiles, fused_moe, moe_conform
from detent.programs.attention import attention
from detent.programs.fa3_sglang_stock import fa3_sglang_stock
from detent.programs.fa3_upstream_stock import fa3_upstream_stock
from detent.programs.fa3_vllm_stock import fa3_vllm_stock
from detent.programs.moe_sglang_stock import moe_sglang_stock
from detent.programs.moe_vllm_stock import moe_vllm_stock
from detent.tools.conform import conform

GOLDEN = Path(__file__).parent / "golden"
DEFAULT = fused_moe.default_config


@pytest.mark.parametrize(("program", "name", "rows", "outputs"), [
    (fa3_vllm_stock, "fa3_vllm-0.26.0.csv", 3000, 4),
    (fa3_vllm_stock, "fa3_tiles_vllm-0.26.0.csv", 3552, 4),
    (fa3_sglang_stock, "fa3_sglang-0.5.17.csv", 3000, 4),
    (fa3_sglang_stock, "fa3_tiles_sglang-0.5.17.csv", 3552, 4),
    (fa3_upstream_stock, "fa3_upstream-0251105a.csv", 3000, 4),
    (fa3_upstream_stock, "fa3_tiles_upstream-0251105a.csv", 1776, 4),
    (moe_vllm_stock, "moe_vllm-0.26.0.csv", 2500, 9),
    (moe_sglang_stock, "moe_sglang-0.5.17.csv", 2500, 10),
])
def test_no_mismatch(program: Callable[..., object], name: str, rows: int, outputs: int) -> None:
    report = conform(program, GOLDEN / name)
    assert (report.rows, report.points, report.mismatches, report.first) == (rows, outputs * rows, 0, [])
    assert str(report) == f"{outputs * rows} points, 0 mismatches"


def test_every_recorded_file_is_compared() -> None:
    compared = next(mark for mark in test_no_mismatch.pytestmark if mark.name == "parametrize")
    assert {path.name for path in GOLDEN.glob("*.csv")} == {name for _, name, _, _ in compared.args[1]}


def test_the_engines_differ() -> None:
    """Otherwise a helper could ignore which engine it works for."""
    report = conform(fa3_vllm_stock, GOLDEN / "fa3_sglang-0.5.17.csv")
    assert report.mismatches > 1000 and len(report.first) == 5
    assert conform(fa3_sglang_stock, GOLDEN / "fa3_tiles_vllm-0.26.0.csv").mismatches > 1000
    assert conform(fa3_upstream_stock, GOLDEN / "fa3_sglang-0.5.17.csv").mismatches > 1000
    assert conform(fa3_upstream_stock, GOLDEN / "fa3_tiles_sglang-0.5.17.csv").mismatches > 100


@pytest.mark.parametrize(("module", "constant", "value"), [
    (fa3, "OCCUPIED", 0.75),
    (fa3, "EFFICIENT", 0.86),
    (fa3, "FEW_BLOCKS", 5),
    (fa3, "ONE_WG_ROWS", 56),
    (fa3, "PACK_GAIN", 0.2),
    (fa3_conform, "STOCK_SPLITS", 100),
    (fa3, "cdiv", lambda a, b: a // b + 1),
])
def test_a_wrong_constant_is_noticed(monkeypatch: pytest.MonkeyPatch, module: Any, constant: str,
                                     value: object) -> None:
    monkeypatch.setattr(module, constant, value)
    assert conform(fa3_vllm_stock, GOLDEN / "fa3_vllm-0.26.0.csv").mismatches > 0


def test_double_precision_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa3, "f32", float)
    assert conform(fa3_vllm_stock, GOLDEN / "fa3_vllm-0.26.0.csv").mismatches == 5


@pytest.mark.parametrize(("constant", "value"), [
    ("NAIVE_SPARSITY", 5),
    ("nearest_row", lambda table, m: min(table, key=lambda row: (abs(row - m), row))),
    ("nearest_row", lambda table, m: min(table, key=lambda row: (abs(row - m), -row))),
    ("default_config", lambda engine, m, *facts: DEFAULT(engine, m + 1, *facts)),
    ("default_config", lambda engine, m, experts, *facts: DEFAULT(engine, m, experts + 1, *facts)),
])
def test_a_wrong_rule_of_the_fused_moe_is_noticed(monkeypatch: pytest.MonkeyPatch, constant: str,
                                                  value: object) -> None:
    for module in (fused_moe, moe_conform):
        if hasattr(module, constant):
            monkeypatch.setattr(module, constant, value)
    assert conform(moe_vllm_stock, GOLDEN / "moe_vllm-0.26.0.csv").mismatches > 0


def test_a_wrong_rule_of_sglangs_fused_moe_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_moe, "COMPILED_SUM", 33)
    assert conform(moe_sglang_stock, GOLDEN / "moe_sglang-0.5.17.csv").mismatches > 0
    assert conform(moe_vllm_stock, GOLDEN / "moe_vllm-0.26.0.csv").mismatches == 0


def test_a_wrong_tile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa3_tiles, "vllm_16bit", fa3_tiles.sglang_16bit)
    assert conform(fa3_vllm_stock, GOLDEN / "fa3_tiles_vllm-0.26.0.csv").mismatches > 0


def test_one_wrong_cell_is_found(tmp_path: Path) -> None:
    lines = (GOLDEN / "fa3_tiles_vllm-0.26.0.csv").read_text().splitlines()
    assert lines[4] == "32,32,0,0,2,1,0,0,0,192,192,0,1"
    lines[4] = lines[4].replace("192,192", "192,144")
    path = tmp_path / "tiles.csv"
    path.write_text("\n".join(lines[:40]))
    seen: list[int] = []
    report = conform(fa3_vllm_stock, path, seen.append)
    assert (report.rows, report.points, report.mismatches) == (39, 156, 1)
    assert seen == list(range(1, 40))
    assert str(report.first[0]) == (
        "line 5: ->kBlockN is 144, the program says 192 (headdim=32, headdim_v=32, is_causal=0, is_local=0, "
        "elem_bytes=2, v_colmajor=1, paged_non_tma=0, softcap=0, use_one_mma_wg=0)")


HEADER = ",".join((*fa3_conform.TILE_COLUMNS, *(f"->{name}" for name in fa3_conform.TILE_OUTPUTS)))
ROW = "32,32,0,0,2,0,0,0,0,192,192,0,1"


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is empty; give a CSV table"),
    (HEADER.encode(), "no rows below the header"),
    (b"\x89PNG\r\n\x1a\n\x00\xff", "is not CSV"),
    (b'a,"b\n', "is not CSV"),
    (b"a,b\n1,2\n", "no column's name starts with '->'"),
    (b"a,->b\n1,2\n", "nothing computes b; the program computes ->use_one_mma_wg_ref"),
    (f"{HEADER.replace('is_local,', '')}\n".encode(), "columns is_local are missing"),
    (f"{HEADER.replace(',->kBlockN', '')}\n".encode(), "columns ->kBlockN are missing"),
    (f"{HEADER},->kBlockK\n{ROW},1\n".encode(), "nothing computes kBlockK; drop"),
    (f"{HEADER},softcap\n{ROW},0\n".encode(), "two columns are named softcap"),
    (f"{HEADER}\n{ROW}\n{ROW},1\n".encode(), r":3: 14 cells under 13 columns"),
    (f"{HEADER}\n{ROW.replace('192', 'wide')}\n".encode(), r":2: ->kBlockM is 'wide'; write an integer"),
])
def test_a_bad_file_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        conform(fa3_vllm_stock, path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_row_that_cannot_be_computed_is_named(tmp_path: Path) -> None:
    header, first, *_ = (GOLDEN / "fa3_vllm-0.26.0.csv").read_text().splitlines()
    cells = dict(zip(header.split(","), first.split(","), strict=True)) | {"h_k": "0"}
    path = tmp_path / "host.csv"
    path.write_text("\n".join((header, first, ",".join(cells.values()))))
    with pytest.raises(ValueError, match=r"host\.csv:3: .* \(ZeroDivisionError: .*\); give values that") as caught:
        conform(fa3_vllm_stock, path)
    assert "\n" not in str(caught.value)


def test_a_function_with_too_few_values_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fa3_vllm_stock.__globals__, "CONFORM", ((("a",), ("b", "c"), lambda row: (1,)),))
    path = tmp_path / "own.csv"
    path.write_text("a,->b,->c\n1,1,1\n")
    with pytest.raises(ValueError, match=r"own\.csv:2: the program computes 1 values for 2 columns"):
        conform(fa3_vllm_stock, path)


def test_a_missing_file_and_a_program_without_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file or directory; give the path of a CSV file"):
        conform(fa3_vllm_stock, tmp_path / "none.csv")
    with pytest.raises(ValueError, match="attention names nothing to compare; define CONFORM"):
        conform(attention, GOLDEN / "fa3_vllm-0.26.0.csv")

"""Rows that may take turns: only those whose bits a stored run compared, on the kernels and versions that ran."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent.kernels import moe_agreement
from detent.kernels.moe import row_of
from detent.kernels.moe_agreement import ByTokens, agreeing, deciding, may_take_turns

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "programs" / "tables" / "vllm-0.26.0" / "E=128,N=768,device_name=NVIDIA_H200.json"
OTHER = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 2}


@pytest.fixture(scope="module")
def made(script: Callable[[str], Any]) -> Any:
    return script("moe_agreement").made


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "results" / "moe_h200.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def table() -> dict[int, dict[str, Any]]:
    content = json.loads(TABLE.read_text(encoding="utf-8"))
    return {int(key): row for key, row in content.items() if key.isdigit()}


def versions() -> dict[str, str]:
    return dict(moe_agreement.data()["versions"])


def test_the_data_are_those_of_the_stored_run_and_of_the_kernels_as_they_are(made: Any, stored: Any) -> None:
    """Kernels that changed since have to be compared anew: run benchmarks/gpu_moe_rows.py on a GPU."""
    assert made(stored) == moe_agreement.data()
    assert set(moe_agreement.data()["rows"]) == {"2048x192", "2048x384", "2048x768"}


def test_a_row_that_differs_and_a_table_that_failed_are_left_out(made: Any, stored: Any) -> None:
    changed = copy.deepcopy(stored)
    name = next(name for name, each in changed["rows"].items() if ",N=768," in each["table"])
    for other in [other for other, each in changed["rows"].items() if ",N=768," in each["table"] and other != name]:
        del changed["rows"][other]
    changed["rows"][name]["classes"]["4"] = "B"
    lost = set(made(stored)["rows"]["2048x768"]) - set(made(changed)["rows"]["2048x768"])
    assert stored["rows"][name]["rows"]["4"] in lost
    changed["rows"][name]["failed"] = {"8": "out of shared memory"}
    assert "2048x768" not in made(changed)["rows"]
    assert made(changed)["rows"]["2048x384"] == made(stored)["rows"]["2048x384"]


def test_every_row_of_the_engines_table_may_take_turns(table: dict[int, dict[str, Any]]) -> None:
    assert {row_of(row) for row in table.values()} <= agreeing(2048, 768, versions())
    assert may_take_turns(table, table[64], 2048, 768, versions())


@pytest.mark.parametrize("change", [
    {"gpu": "NVIDIA H100"}, {"torch": "2.12.0+cu130"}, {"triton": "3.7.0"}, {"hidden": 4096}, {"width": 100},
    {"pinned": OTHER}, {"table": OTHER}, {"code": "another"}])
def test_nothing_takes_turns_beside_what_was_compared(change: dict[str, Any], table: dict[int, dict[str, Any]],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    here = {name: change.get(name, value) for name, value in versions().items()}
    if "code" in change:
        monkeypatch.setattr(moe_agreement, "digest", lambda: "another")
    rows = {**table, 5: change["table"]} if "table" in change else table
    assert not may_take_turns(rows, change.get("pinned", table[64]), change.get("hidden", 2048),
                              change.get("width", 768), here)


def test_the_nearest_key_has_the_row_and_the_lower_of_two(table: dict[int, dict[str, Any]]) -> None:
    """As vLLM looks it up: the first of the keys whose distance is least."""
    by_tokens, rows = ByTokens(table), {key: row_of(row) for key, row in table.items()}
    for tokens in range(1, 9000):
        assert by_tokens(tokens) == rows[min(table, key=lambda key: abs(key - tokens))]


CODE = (ROOT / "kernels" / "moe.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(("part", "other"), [
    ("CHUNK, SUB = 256, 32", "CHUNK, SUB = 256, 64"), ("COMBINE_SPAN = 2048, 1024", "COMBINE_SPAN = 2048, 512"),
    ("CHUNK, SUB, device.early, num_warps=4, **device.options", "CHUNK, SUB, device.early, num_warps=8, "
     "**device.options"),
    ("num_warps=row.warps", "num_warps=4"), ("row.block_k, row.group, device", "row.block_k, 1, device"),
    ("tensor.shape[0] > 1 else tensor.shape[1]", "tensor.shape[0] > 0 else tensor.shape[1]"),
    ('{"enable_fp_fusion": False}', '{"enable_fp_fusion": True}'), ('{"launch_pdl": True}', '{"launch_pdl": False}'),
    ("    block_n: int\n    block_k: int", "    block_k: int\n    block_n: int"),
    ("blocks, second, second=True", "blocks, up, second=True"), ("@functools.cache\ndef _device", "def _device"),
    ("    order = _empty(torch", "    order = torch.empty(torch"),
])
def test_what_decides_bits_is_in_the_digest(part: str, other: str) -> None:
    assert CODE.count(part) == 1
    assert deciding(CODE.replace(part, other)) != deciding(CODE)


@pytest.mark.parametrize(("part", "other"), [
    ("MAX_TOP_K = 32", "MAX_TOP_K = 64"), ("made.stages > 8", "made.stages > 9"), ("hidden == 0 or", "hidden < 0 or"),
    ("moe: k {k} is not", "moe: {k} is not"), ('"""Sort pairs by expert', '"""Sorts pairs by expert'),
    ("    pairs = topk_ids.numel()\n", "    # pairs of all tokens\n    pairs = (topk_ids.numel())\n"),
    ("renormalize, num_warps=1", "renormalize, num_warps=2"),  # of the router, which no row of a table changes
])
def test_what_decides_none_is_not(part: str, other: str) -> None:
    assert CODE.count(part) == 1
    assert deciding(CODE.replace(part, other)) == deciding(CODE)

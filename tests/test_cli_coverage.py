"""``detent coverage``: the table for people, the rows for programs."""

from __future__ import annotations

import pytest
from cli_support import done, loaded, refused

from detent.runtime.coverage import load


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_table_shows_every_row_in_100_columns(engine: str) -> None:
    text = done("coverage", "--engine", engine)
    coverage = load(engine)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith(f"{engine} {coverage.version}: {len(coverage.rows)} selections, ")
    shown = [line.split()[0] for line in lines if line.startswith((" E", " X-"))]
    assert sorted(shown) == sorted(row.id for row in coverage.rows)
    for title in ("Covered by programs", "Switched off by the plug-in", "Refused at start-up"):
        assert title in lines


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_json_has_the_rows_of_the_file(engine: str) -> None:
    found = loaded("coverage", "--engine", engine)
    coverage = load(engine)
    assert (found["engine"], found["version"]) == (engine, coverage.version)
    assert [row["id"] for row in found["rows"]] == [row.id for row in coverage.rows]
    assert found["counts"] == {status: sum(row["status"] == status for row in found["rows"])
                               for status in ("covered", "switched-off", "refused")}
    assert all(row.keys() == {"id", "what", "where", "reads", "status", "by", "why"} for row in found["rows"])


def test_json_of_each_status() -> None:
    by = {row["id"]: row["by"] for row in loaded("coverage", "--engine", "vllm")["rows"]}
    assert by["E1-20"] == ["moe", "moe-vllm-stock"]
    assert by["E3-05"][0] == {"option": "compilation_config.custom_ops", "has": "+rms_norm"}
    assert by["E1-02c"] == [{"env": "VLLM_USE_AOT_COMPILE", "value": "0"}]
    assert by["E1-13"] == [{"option": "attention_config.flash_attn_version", "allowed": [3], "absent": True},
                           {"fact": "model.head_dim", "at_most": 256}]


def test_single_rows() -> None:
    text = done("coverage", "--engine", "sglang", "--row", "E2-13", "--row", "X-18")
    assert "covered: moe; moe-sglang-stock" in text and "reads: num_tokens" in text
    assert "refused: enable_fused_moe_sum_all_reduce is false" in text and "why: atomics add in no fixed order" in text
    assert "in sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py:97" in text
    assert [row["id"] for row in loaded("coverage", "--engine", "sglang", "--row", "X-18")["rows"]] == ["X-18"]


@pytest.mark.parametrize(("arguments", "expected"), [
    ([], ["missing option '--engine'"]),
    (["--engine", "vlm"], ["unknown engine 'vlm'", "did you mean 'vllm'?"]),
    (["--engine", "vllm", "--engine-version", "0.25.0"], ["unknown version of vllm '0.25.0'", "0.26.0"]),
    (["--engine", "vllm", "--row", "E1-99"], ["unknown row 'E1-99'", "vllm 0.26.0"]),
])
def test_bad_input(arguments: list[str], expected: list[str]) -> None:
    line = refused("coverage", *arguments)
    for fragment in expected:
        assert fragment in line

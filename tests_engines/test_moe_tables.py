"""Every MoE table that either engine ships: read as a deployment reads it, looked up at every row and every tie."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moe_engines as engines
import pytest
from compare import INPUTS, compare

from detent.programs.facts import Moe, Parallel
from detent.programs.fused_moe import engine_config, nearest_row, second_config, table_config
from detent.programs.moe_conform import engine_facts
from detent.runtime.deployment import load

TABLES = {"vllm": sorted(engines.VLLM_TABLES.rglob("E=*.json")),
          "sglang": sorted(engines.SGLANG_TABLES.rglob("E=*.json"))}
FIELDS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
ONE_RANK = Parallel(tensor_parallel=1, expert_parallel=False)
Table = dict[int, dict[str, Any]]


def read(path: Path, folder: Path) -> Table:
    """A table as a deployment names it; vLLM's newer files hold the version of Triton beside the rows."""
    drop = [key for key in json.loads(path.read_text()) if not key.isdigit()]
    assert drop in ([], ["triton_version"])
    file = folder / "table.toml"
    file.write_text(f"[moe]\ntable = {{ json = {json.dumps(str(path))}, drop = {json.dumps(drop)} }}\n")
    table: Table = load(str(file)).facts["moe"]["table"]
    return table


def token_counts(table: Table, rng: random.Random, count: int) -> Iterator[tuple[bool, int]]:
    """All rows and ties with their neighbours, filled up to ``count`` with others."""
    rows = sorted(table)
    ties = {(a + b) // 2 for a, b in zip(rows, rows[1:], strict=False)}
    edges = {max(0, m + d) for m in (*rows, *ties) for d in (-1, 0, 1)} | {0, 1}
    yield from ((True, m) for m in sorted(edges))
    yield from ((False, rng.randrange(2 * rows[-1] + 2)) for _ in range(count - len(edges)))


def facts(name: dict[str, Any], table: Table | None, down: Table | None) -> Moe:
    block = name["block"] or (None, None)
    return Moe(num_experts=name["experts"], num_experts_per_tok=8, moe_intermediate_size=name["width"],
               hidden_act="silu", quantization=name["dtype"] or "none", apply_router_weight_on_input=False,
               block_n=block[0], block_k=block[1], table=table, down_table=down)


def six(config: dict[str, Any]) -> tuple[int, ...]:
    """A configuration; Triton takes 4 warps and 3 stages where it names none."""
    return *(config[field] for field in FIELDS[:4]), config.get("num_warps", 4), config.get("num_stages", 3)


def test_all_tables_are_there() -> None:
    assert {name: len(paths) for name, paths in TABLES.items()} == {"vllm": 326, "sglang": 358}


def test_vllm(tmp_path: Path) -> None:
    """vLLM's choice is the very row of its file. Eight tables are another kernel's (FlyDSL, AMD), whose lookup is
    inside the kernel's launcher: its rows are looked up all the same, and its file found by vLLM."""
    rng = random.Random("vllm tables")
    engine = engine_facts("vllm")
    paths = TABLES["vllm"]
    count = -(-INPUTS // len(paths))

    def cases() -> Iterator[tuple[bool, Any]]:
        for path in paths:
            name, table = engines.named(path), read(path, tmp_path)
            moe = facts(name, table, None)
            for edge, m in token_counts(table, rng, count):
                yield edge, (name, moe, m)

    def run(case: Any) -> tuple[Any, Any]:
        name, moe, m = case
        row = nearest_row(moe.table, m)
        if name["flydsl"]:
            engines.vllm_device = name["device"]
            engines.flydsl.try_get_optimal_config.cache_clear()
            theirs = engines.flydsl.try_get_optimal_config(name["experts"], name["width"])
            return (theirs == moe.table, next(iter(theirs[row]))), (True, "tile_m")
        width = name["width"] // 2 if name["dtype"] == "int4_w4a16" else name["width"]
        theirs = engines.vllm_config(m, name["experts"], width, name["dtype"], name["block"], name["device"])
        return (theirs, six(theirs)), (moe.table[row], engine_config(engine, moe, ONE_RANK, m))

    result = compare("vllm", "fused_moe.try_get_optimal_moe_config, every table", "engine_config, nearest_row",
                     [engine_config, nearest_row, table_config], cases(), run)
    assert result.inputs >= INPUTS


def found(name: str, triton: str) -> Path | None:
    """The file that SGLang's search comes to: the version's own, else the newest."""
    folders = sorted((path for path in engines.SGLANG_TABLES.iterdir() if path.name.startswith("triton_")),
                     key=lambda path: (path.name == triton, [int(part) for part in path.name.split("_")[1:]]),
                     reverse=True)
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def test_sglang(tmp_path: Path) -> None:
    """SGLang's choice for both GEMMs, with the tables that its search finds for either."""
    rng = random.Random("sglang tables")
    facts_of = {mode: engine_facts("sglang", mode) for mode in (False, True)}
    paths = TABLES["sglang"]
    count = -(-INPUTS // len(paths))

    def cases() -> Iterator[tuple[bool, Any]]:
        for path in paths:
            name, triton = engines.named(path), path.parent.name
            up, down = found(path.name.replace("_down", ""), triton), found(
                path.name.replace("_down", "").replace(".json", "_down.json"), triton)
            assert path in (up, down)
            tables = [read(file, tmp_path) if file else None for file in (up, down)]
            moe = facts(name, tables[0], tables[1])
            asked = tables[1 if name["down"] else 0]
            assert asked is not None
            for edge, m in token_counts(asked, rng, count):
                yield edge, (name, triton.removeprefix("triton_").replace("_", "."), moe, m, rng.random() < 0.01)

    def run(case: Any) -> tuple[Any, Any]:
        name, triton, moe, m, engines.deterministic = case
        engine = facts_of[engines.deterministic]
        if engines.deterministic:
            engines.sglang.get_moe_configs.cache_clear()
        up, down = engines.sglang_config(m, name["experts"], name["width"], name["dtype"], name["block"],
                                         name["channel"], name["device"], triton)
        if engines.deterministic:
            engines.deterministic = False
            engines.sglang.get_moe_configs.cache_clear()
        second = down or up
        theirs = (*six(up), *six(second), bool(second.get("USE_TMA", False)))
        ours = engine_config(engine, moe, ONE_RANK, m)
        *others, tma = second_config(engine, moe, *ours, m)
        return theirs, (*ours, ours[0], *others, tma)

    result = compare("sglang", "fused_moe_triton_config.try_get_optimal_moe_config, every table",
                     "engine_config, second_config", [engine_config, second_config, nearest_row, table_config],
                     cases(), run)
    assert result.inputs >= INPUTS


@pytest.mark.parametrize(("engine", "choices"), [
    ("vllm", {896: 1024, 640: 768}),
    ("sglang", {896: 1024, 640: 768}),
])
def test_a_table_out_of_order(tmp_path: Path, engine: str, choices: dict[int, int]) -> None:
    """E=16, N=3200 on H100 in fp8: of two rows as near, the one that comes first in the file."""
    path = next(path for path in TABLES[engine] if path.name.startswith("E=16,N=3200,device_name=NVIDIA_H100"))
    table = read(path, tmp_path)
    assert list(table)[:5] == [3328, 1024, 3072, 256, 768]
    assert {m: nearest_row(table, m) for m in choices} == choices

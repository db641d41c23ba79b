"""Programs and deployments of the embedded engine, and the operations that select by them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_support import done, refused
from programs_support import changed, fact_records, run, varying

from detent.lang import knobs
from detent.programs.attention_cpu import attention_cpu
from detent.programs.gemm_cpu import LAYERS, gemm_cpu
from detent.programs.measured import row_for
from detent.programs.moe_cpu import moe_cpu
from detent.programs.norm_cpu import norm_cpu
from detent.runtime.deployment import load
from detent.runtime.repin import Repin
from detent.runtime.tuple import CommitmentTuple
from detent.runtime.unpinned import STOCK_KNOBS, load_unpinned, solution

DENSE, EXPERTS = "smollm2-135m-cpu", "tiny-moe-cpu"
PROGRAMS = ["attention-cpu", "gemm-cpu", "norm-cpu"]


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return {name: solution(name, EXPERTS).document for name in [*PROGRAMS, "moe-cpu"]}


@pytest.mark.parametrize(("size", "row"), [(1, 1), (2, 4), (4, 4), (5, 16), (16, 16), (17, 16), (999, 16)])
def test_a_row_counts_up_to_its_key(size: int, row: int) -> None:
    assert row_for({16: {}, 1: {}, 4: {}}, size) == row


def test_gemm_follows_its_table() -> None:
    records = fact_records(gemm_cpu, DENSE)
    table = load(DENSE).facts["embedded"]["gemm"]
    for count in (1, 2, 3, 8, 9, 1024):
        points, broken = run(gemm_cpu, records, num_rows=count)
        row = min(key for key in table if key >= count)
        packed = all(table[row][layer] for layer in LAYERS)
        assert points == {"rows": 1024 if packed else row, "fill": False} | {
            f"kernel.{layer}": "packed" if table[row][layer] else "plain" for layer in LAYERS}
        assert {v.message for v in broken} <= {"a plain product's bits are those of a full tile"}
        assert bool(broken) == (0 in [table[row][layer] for layer in LAYERS])


def test_without_packed_weights_full_tiles_are_the_default() -> None:
    plain = {key: dict.fromkeys(LAYERS, 0) for key in (1, 8)}
    points, broken = run(gemm_cpu, fact_records(gemm_cpu, changed(DENSE, embedded={"gemm": plain})), num_rows=3)
    assert (points["fill"], points["rows"], broken) == (True, 8, [])
    points, broken = run(moe_cpu, fact_records(moe_cpu, changed(EXPERTS, embedded={"moe": {8: {"packed": 0}}})),
                         num_tokens=3)
    assert (points["fill"], points["kernel"], points["rows"], broken) == (True, "plain", 8, [])
    records = fact_records(moe_cpu, changed(EXPERTS, embedded={"moe": {2: {"packed": 0}, 8: {"packed": 1}}}))
    for count, kernel in ((2, "plain"), (3, "packed")):
        points, broken = run(moe_cpu, records, num_tokens=count)
        assert (points["fill"], points["kernel"], points["rows"]) == (False, kernel, 1024)
        assert len(broken) == (kernel == "plain")


def test_attention_follows_requests_keys_and_cores() -> None:
    table = {64: {"requests": 2}, 256: {"requests": 3}, 1024: {"requests": 900}}

    def kernel(b: int, max_q: int, total_k: int, cores: int = 2) -> str:
        records = fact_records(attention_cpu, changed(DENSE, embedded={"attention": table}, machine={"cores": cores}))
        always, never = run(attention_cpu, records, b=b, max_seqlen_q=max_q, total_k=total_k)
        assert always == {"kernel": "split", "query_rows": 2, "split_stride": 256} and not never
        with knobs(always_split=False):
            found, broken = run(attention_cpu, records, b=b, max_seqlen_q=max_q, total_k=total_k)
        assert found["query_rows"] == 2 and found["split_stride"] == 256
        assert [v.message for v in broken] == ([] if found["kernel"] == "split" else [
            "what torch adds up at once hangs on the step's keys and queries"])
        return str(found["kernel"])

    assert [kernel(b, 1, 64 * b) for b in (3, 4)] == ["whole", "split"]
    assert [kernel(4, 1, keys) for keys in (256, 257)] == ["split", "whole"]
    assert [kernel(6, 1, keys) for keys in (6 * 256, 6 * 256 + 1)] == ["split", "whole"]
    assert [kernel(8, 1, 512, cores) for cores in (4, 5)] == ["split", "whole"]
    assert kernel(4, 2, 256) == "whole"


def test_tiles_fill_the_least_product() -> None:
    """Query heads of a KV head times queries of a tile: at most 8 rows, if one query has no more."""
    for heads, kv_heads, rows in ((9, 3, 2), (4, 2, 4), (8, 8, 8), (32, 2, 1), (8, 1, 1)):
        records = fact_records(attention_cpu, changed(DENSE, model={"num_attention_heads": heads,
                                                                    "num_key_value_heads": kv_heads}))
        assert run(attention_cpu, records, b=1, max_seqlen_q=1, total_k=1)[0]["query_rows"] == rows


def test_points_of_random_batches() -> None:
    table = {64: {"requests": 1}, 128: {"requests": 3}}
    records, rng = fact_records(attention_cpu, changed(DENSE, embedded={"attention": table})), random.Random(0)
    samples = []
    for _ in range(300):
        b = rng.randint(1, 9)
        lengths = [(rng.choice([1, 1, 1, rng.randint(1, 100)]), rng.randint(100, 120)) for _ in range(b)]
        with knobs(always_split=False):
            points, broken = run(attention_cpu, records, b=b, max_seqlen_q=max(q for q, _ in lengths),
                                 total_k=sum(k for _, k in lengths))
        assert {v.kind for v in broken} <= {"require"}
        samples.append(points)
    assert varying(samples) == {"kernel"}


def test_norm_takes_rows_of_every_head() -> None:
    records = fact_records(norm_cpu, EXPERTS)
    for count, kinds in ((4 * 1024, []), (4 * 1024 + 1, ["assume"])):
        assert [v.kind for v in run(norm_cpu, records, num_rows=count)[1]] == kinds


def test_solutions(documents: dict[str, Any]) -> None:
    assert {name: [pin["name"] for pin in d["pins"]] for name, d in documents.items() if name != "norm-cpu"} == {
        "attention-cpu": [], "gemm-cpu": ["rows"], "moe-cpu": []}
    assert documents["attention-cpu"]["default"] == {"always_split": True, "query_rows": 4, "split_stride": 256}
    default = documents["gemm-cpu"]["default"]
    assert default["fill"] is False and all(load(EXPERTS).facts["embedded"]["gemm"][default["rows"]].values())
    assert Repin(documents["gemm-cpu"])(default)(3)["rows"] == 1024
    assert documents["moe-cpu"]["default"] == {"fill": True, "tile": 8}
    for name, document in documents.items():
        assert document["legality"]["sampled"] == 0, name


def test_unpinned_selectors_are_the_programs(documents: dict[str, Any]) -> None:
    records, rng = fact_records(gemm_cpu, EXPERTS), random.Random(1)
    select = load_unpinned("gemm-cpu", EXPERTS)
    filling = load_unpinned("gemm-cpu", EXPERTS, {"fill": True})
    for count in [1, 1024, *(rng.randint(1, 1024) for _ in range(50))]:
        points, broken = run(gemm_cpu, records, num_rows=count)
        assert (dict(select(count)[0]), len(select(count)[1])) == (points, len(broken))
        row = row_for(load(EXPERTS).facts["embedded"]["gemm"], count)
        assert dict(filling(count)[0]) == points | {"fill": True, "rows": row}


def test_a_tuple_of_all_families(documents: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", EXPERTS, path)
    assert set(CommitmentTuple.load(str(path)).families) == {"attention", "gemm", "moe", "norm"}


def test_points_in_force(documents: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "tuple.json"
    done("tuple", "new", "-d", EXPERTS, "--set", "gemm.rows=4", "--set", "gemm.fill=true", path)
    stock, pinned = done("explain", "--in-force", "-d", EXPERTS), done("explain", "--in-force", "-d", EXPERTS,
                                                                      "--tuple", path)

    def shown(text: str) -> dict[str, list[str]]:
        lines = [line.split() for line in text.splitlines() if "-cpu." in line]
        return {line[0]: line[1:] for line in lines}

    count = sum(len(document["points"]) for document in documents.values())
    assert len(shown(stock)) == len(shown(pinned)) == count
    assert shown(stock)["gemm-cpu.rows"] == ["–", "the", "batch"]
    assert shown(stock)["gemm-cpu.fill"] == ["False", "knob", "fill"]
    assert shown(pinned)["gemm-cpu.rows"] == ["4", "pin", "rows,", "knob", "fill"]
    assert shown(pinned)["gemm-cpu.fill"] == ["True", "knob", "fill"]
    assert f"{count} of {count} are the same for every batch" in pinned
    assert documents["moe-cpu"]["default"]["fill"] is True  # which is for a tuple
    assert shown(stock)["moe-cpu.fill"][0] == "False" and shown(stock)["moe-cpu.rows"][0] == "1024"
    assert shown(pinned)["moe-cpu.fill"][0] == "True" and shown(pinned)["moe-cpu.rows"][0] == "8"
    for arguments, expected in ((("gemm-cpu", "--in-force"), "exclude each"), (("--in-force", "--dot"), "exclude each"),
                                (("gemm-cpu", "--tuple", path), "--tuple needs --in-force"), ((), "missing argument")):
        assert expected in refused("explain", "-d", EXPERTS, *arguments)


# ---- with torch ---------------------------------------------------------------------------------------------------


def test_deployments_that_come_with_detent_are_those_of_the_models(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from detent.engines.embedded.config import Config, Limits
    from detent.engines.embedded.deployment import deployment
    from detent.engines.embedded.random_weights import MODELS

    tiny = MODELS["tiny-moe"]
    smollm = Config("SmolLM2", "llama", vocabulary=49152, hidden=576, layers=30, heads=9, kv_heads=3, head_dim=64,
                    intermediate=1536, context=8192)
    assert deployment(tiny, Limits.of(tiny), 2).name == EXPERTS
    assert deployment(smollm, Limits.of(smollm), 2).name == DENSE
    others = [deployment(tiny, Limits.of(tiny), 4), deployment(tiny, replace(Limits.of(tiny), budget=512), 2),
              deployment(tiny, Limits.of(tiny), 2, packed=False)]
    assert len({other.name for other in others}) == 3
    assert all(other.name.startswith("tiny-moe-cpu-") and Path(other.path).is_file() for other in others)
    assert others[0].facts["machine"]["cores"] == 4 and others[1].facts["limits"]["max_num_batched_tokens"] == 512
    assert load(others[2].path).facts == others[2].facts
    assert not any(row[layer] for row in others[2].facts["embedded"]["gemm"].values() for layer in LAYERS)


def test_ops_select_by_the_tuple(documents: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    import torch

    from detent.engines.embedded.ops import Ops

    facts = load(EXPERTS)
    default = Ops.pinned(facts)
    assert default.hash == Ops.pinned(facts).hash != "stock" == Ops.stock(facts).hash
    families = {document["family"]: document for document in documents.values()}
    other = CommitmentTuple.new(facts.name, families, {"gemm.rows": 4, "gemm.fill": True})
    chosen = Ops.pinned(facts, other, {"weights": "abc"})
    assert chosen.hash not in (default.hash, other.hash) and chosen.hash != Ops.pinned(facts, other).hash
    assert chosen.selectors.commitment is not None and chosen.selectors.commitment.environment["weights"] == "abc"
    assert chosen.points_in_force()["gemm-cpu.rows"] == 4
    assert set(chosen.points_in_force()) == {f"{name}.{point['name']}" for name, document in documents.items()
                                             for point in document["points"]}
    stock = Ops.stock(facts)
    assert stock.points_in_force() == {}
    weight = torch.zeros(9, 128)
    for rows in (1, 5):
        stock.begin()
        stock.linear(torch.zeros(rows, 128), weight)
        assert stock.points_in_force()["gemm-cpu.rows"] == (1 if rows == 1 else 1024)
    assert stock.boundaries(64) == default.boundaries(64) != ()
    for family, kept in (("gemm", STOCK_KNOBS["gemm-cpu"]), ("moe", STOCK_KNOBS["moe-cpu"])):
        assert kept.items() <= stock.selectors.select[family](3).items()
    table = facts.facts["embedded"]["gemm"]
    assert stock.selectors.select["attention"](1, 1, 1)["kernel"] == "whole"
    assert (2 in stock.boundaries(64)) == (table[1] != table[2])


def test_a_tuple_of_other_kernels_is_refused(documents: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from detent.engines.embedded.ops import Ops
    from detent.runtime.errors import TupleMismatch

    families = {document["family"]: document for document in documents.values()}
    old = CommitmentTuple.new(EXPERTS, families, environment={"kernels": "older"})
    with pytest.raises(TupleMismatch, match="environment.kernels"):
        Ops.pinned(load(EXPERTS), old)


def test_plain_products_are_legal_in_full_tiles_only(documents: dict[str, Any]) -> None:
    from detent.runtime.errors import NotLegal

    repin, table = Repin(documents["gemm-cpu"]), load(EXPERTS).facts["embedded"]["gemm"]
    for rows in repin.values["rows"]:
        for fill in repin.values["fill"]:
            if fill or all(table[rows][layer] for layer in LAYERS):
                points = repin({"rows": rows, "fill": fill})(3)
                assert (points["rows"], points["fill"]) == (rows if fill else 1024, fill)
            else:
                with pytest.raises(NotLegal, match="a plain product's bits"):
                    repin({"rows": rows, "fill": fill})


def test_tables_are_what_was_measured(root: Path) -> None:
    """Stock takes a candidate near the best at every measured shape, and is near plain torch."""
    pytest.importorskip("torch")
    import json

    from detent.tools import measure_embedded

    result = json.loads((root / "results" / "embedded_kernels.json").read_text(encoding="utf-8"))
    tables = measure_embedded.tables(result["times"])
    assert tables == measure_embedded.stored()
    for family, table in tables.items():
        assert load(DENSE).facts["embedded"][family] == table
    lines = measure_embedded.shortfalls(result["times"], tables)
    assert lines == result["shortfalls"] == []
    worse = {family: {key: {name: 1 - value if value in (0, 1) else value for name, value in row.items()}
                      for key, row in table.items()} for family, table in tables.items()}
    assert len(measure_embedded.shortfalls(result["times"], worse)) > len(lines)


@pytest.mark.parametrize(("times", "expected"), [((100.0, 104.0), 0), ((100.0, 102.0), 1), ((100.0, 50.0), 1)])
def test_near_ties_go_to_the_kernel_whose_bits_are_a_rows_own(times: tuple[float, float], expected: int) -> None:
    pytest.importorskip("torch")
    from detent.tools import measure_embedded as m

    plain, packed = ([took, took * 1.5, took * 0.9] for took in times)
    found = m.tables({
        "gemm": {f"{layer} {rows}": {"plain": plain, "packed": packed} for layer in m.LAYERS for rows in m.ROWS},
        "attention": {f"decode {b} x {n}": {"whole": plain, "split": packed} for b in m.REQUESTS for n in m.LENGTHS},
        "moe": {str(rows): {"plain": plain, "packed": packed} for rows in m.ROWS},
        "norm": {str(rows): {"composed": plain, "own": packed} for rows in m.ROWS}})
    assert all(row["qkv"] == expected for row in found["gemm"].values())
    assert all(row == {"packed": expected} for row in found["moe"].values())
    assert all(row == {"requests": 1 if expected else m.NEVER} for row in found["attention"].values())

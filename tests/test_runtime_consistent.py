"""Facts that contradict each other, Detent or the tables beside them: one line each, whoever wrote the deployment."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_support import arguments_of, done, loaded, refused

from detent.lang.parameters import section_of
from detent.runtime.consistent import require_consistent
from detent.runtime.deployment import PROGRAMS, Deployment, known, load
from detent.runtime.known_facts import declared, names
from detent.runtime.sources import registry

H200_TP2 = Path(PROGRAMS) / "tables" / "vllm-0.26.0" / "E=128,N=384,device_name=NVIDIA_H200.json"


@pytest.mark.parametrize(("rest", "expected"), [
    (",dtype=fp8_w8a8,block_shape=[128,128]", "number type fp8_w8a8, the facts say none"),
    (",dtype=fp8_w8a8,block_shape=[128, 128]", "number type fp8_w8a8, the facts say none"),
    (",dtype=int8_w8a16", "number type int8_w8a16, the facts say none"),
    (",block_shape=[128,128]", "block_shape [128,128], the facts say none"),
    (",per_channel_quant=True", "per_channel_quant True, the facts say none"),
    ("_down", "GEMM the second, the facts say the first"),
])
def test_a_table_of_other_numbers(rest: str, expected: str, tmp_path: Path) -> None:
    table = tmp_path / f"{H200_TP2.stem}{rest}.json"
    shutil.copy(H200_TP2, table)
    output = tmp_path / "mine.toml"
    line = refused("deployment", "new", *arguments_of("qwen3-30b-a3b-tp2-h200"), "--moe-table", table, "-o", output)
    assert f"the table {table.name} is for {expected}" in line and not output.exists()


@pytest.mark.parametrize(("facts", "names"), [
    ({"quantization": "none"}, [""]),
    ({"quantization": "fp8_w8a8"}, [",dtype=fp8_w8a8"]),
    ({"quantization": "fp8_w8a8", "block_n": 128, "block_k": 128},
     [",dtype=fp8_w8a8,block_shape=[128,128]", ",dtype=fp8_w8a8,block_shape=[128, 128]"]),
    ({"quantization": "int8_w8a8"}, ["", ",dtype=int8_w8a8"]),  # vLLM looks for a table without a type
    ({"quantization": "int4_w4a16", "block_k": 128}, [",dtype=int4_w4a16"]),
])
def test_the_engines_names_of_tables_fit(facts: dict[str, Any], names: list[str]) -> None:
    own = load("qwen3-30b-a3b-tp2-h200")
    changed = {**own.facts, "moe": {**own.facts["moe"], **facts}}
    for name in names:
        source = f"{H200_TP2.stem}{name}.json"
        require_consistent(Deployment("mine", changed, sources={"moe.table": source}))


TABLE = "table = { json = "
ROW = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


@pytest.mark.parametrize(("change", "rows", "expected"), [
    (('version = "0.26.0"', 'version = "0.27.0"'), None, ["unknown version of vllm '0.27.0'", "known: 0.26.0"]),
    (('[engine]\nname = "vllm"', '[engine]\nname = "vlm"'), None, ["unknown engine 'vlm'", "did you mean 'vllm'?"]),
    (("arch = 90", "arch = 100"), None, ["does not hold for the deployment's facts", "sm_90"]),
    (('name = "NVIDIA_H200"', 'name = "NVIDIA_H20"'), None, ["is for GPU NVIDIA_H200, the facts say NVIDIA_H20"]),
    (("num_experts = 128", "num_experts = 64"), None, ["is for experts 128, the facts say 64"]),
    ((TABLE, TABLE + '"missing/'), None, ["moe.table: there is no file", "missing/"]),
    (None, {"1": {"BLOCK_SIZE_M": 16}}, ["moe.table: row 1 has no BLOCK_SIZE_N"]),
    (None, {"1": {"BLOCK_SIZE_M": "16", "BLOCK_SIZE_N": 1, "BLOCK_SIZE_K": 1, "GROUP_SIZE_M": 1}},
     ["row 1: BLOCK_SIZE_M is '16'", "positive integer"]),
    (None, {"few": {}}, ["key 'few' is not an integer"]),
    (None, {}, ["has no rows"]),
    (("tensor_parallel = 2", "tensor_parallel = 0"), None, ["tensor_parallel is 0; it is at least 1"]),
    (("tensor_parallel = 2", 'tensor_parallel = "2"'), None, ["parallel.tensor_parallel is '2', not an int"]),
    (("tensor_parallel = 2", "tensor_parallel = true"), None, ["parallel.tensor_parallel is true, not an int"]),
    (("moe_intermediate_size = 768", 'moe_intermediate_size = "768"'), None, ["moe.moe_intermediate_size is '768'"]),
    (("expert_parallel = false", "expert_parallel = 0"), None, ["expert_parallel is 0, not a bool (true or false)"]),
    (('version = "0.26.0"', "version = 26"), None, ["engine.version is 26, not a string"]),
    (('version = "0.26.0"\n', ""), None, ["[engine] has no version", "vllm 0.26.0"]),
    (('kv_cache_dtype = "bf16"', 'kv_cache_dtype = "fp8"'), None,
     ["unknown engine.kv_cache_dtype 'fp8'", "known: bf16, e4m3"]),
    (('dtype = "bf16"', 'dtype = "fp64"'), None, ["unknown model.dtype 'fp64'", "known: bf16, fp16, fp32"]),
    (('quantization = "none"', 'quantization = "fp7"'), None, ["unknown moe.quantization 'fp7'", "fp8_w8a8"]),
    (('backend = "flashinfer"', 'backend = "flashinfr"'), None,
     ["unknown sampling.backend 'flashinfr'", "did you mean 'flashinfer'"]),
    (("table = {", "tabel = {"), None, ["[moe]: unknown fact 'tabel'", "did you mean 'table'"]),
    (("[limits]", "[limits]\nbogus = 3"), None, ["[limits]: unknown fact 'bogus'", "known: max_num_seqs"]),
    (("[engine]", "[engine]\ncascade_atention = true"), None, ["did you mean 'cascade_attention'"]),
    (("num_sm = 132", "num_sm = 0"), None, ["num_sm is 0; it is at least 1"]),
    (("num_experts_per_tok = 8", "num_experts_per_tok = 200"), None,
     ["num_experts_per_tok 200 is more than num_experts 128"]),
    (("num_experts_per_tok = 8", "num_experts_per_tok = 0"), None, ["num_experts_per_tok is 0"]),
    (("num_key_value_heads = 4", "num_key_value_heads = 5"), None, ["no multiple of num_key_value_heads 5"]),
    (("max_num_seqs = 1024", "max_num_seqs = 100000"), None,
     ["100000 sequences do not fit in a step of 8192 tokens"]),
    (("hidden_size = 2048", "hidden_size = 0"), None, ["hidden_size is 0"]),
    (("softcap = 0.0", "softcap = -1.0"), None, ["softcap is -1.0; it is at least 0"]),
    (('quantization = "none"', 'quantization = "fp8_w8a8"'), None,
     ["is for number type none, the facts say fp8_w8a8"]),
    (('quantization = "none"', 'quantization = "none"\nblock_n = 128\nblock_k = 128'), None,
     ["is for block_shape none, the facts say [128,128]"]),
    (("table = {", "down_table = {"), None, ["is for GEMM the first, the facts say the second"]),
    (None, {"-5": ROW}, ["moe.table: row -5", "number of tokens"]),
    (None, {"0": ROW}, ["moe.table: row 0", "at least 1"]),
    (None, {"1": ROW | {"num_stages": -3}}, ["row 1: num_stages is -3", "positive integer"]),
    (None, {"1": ROW | {"num_warps": True}}, ["row 1: num_warps is True", "positive integer"]),
])
def test_deployments_that_contradict_themselves(change: tuple[str, str] | None, rows: dict[str, Any] | None,
                                                expected: list[str], tmp_path: Path) -> None:
    """One line each, when a program that comes with Detent is solved."""
    path = tmp_path / "mine.toml"
    done("deployment", "new", *arguments_of("qwen3-30b-a3b-tp2-h200"), "-o", path)
    text = path.read_text(encoding="utf-8")
    if rows is not None:
        (tmp_path / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
        reference = next(line for line in text.splitlines() if line.startswith(TABLE))
        change = (reference, f'{TABLE}"rows.json" }}')
    assert change is not None and change[0] in text
    text = text.replace(*change).replace('missing/"', "missing/")
    path.write_text(text, encoding="utf-8")
    line = refused("solve", "moe", "-d", path, "--json")
    for fragment in expected:
        assert fragment in line


@pytest.mark.parametrize(("program", "change", "expected"), [
    ("attention", ("num_sm = 132", "num_sm = -4"), "num_sm is -4; it is at least 1"),
    ("gemm", ("hidden_size = 4096", "hidden_size = 0"), "hidden_size is 0; it is at least 1"),
    ("norm", ('dtype = "bf16"', 'dtype = "fp64"'), "unknown model.dtype 'fp64'"),
    ("fa3-vllm-stock", ("[engine]", "[engine]\ncascade_atention = true"), "did you mean 'cascade_attention'"),
])
def test_what_was_solved_before_is_compared_too(program: str, change: tuple[str, str], expected: str,
                                                tmp_path: Path) -> None:
    """Also where the cache has the solution for the facts that the program reads."""
    text = (Path(PROGRAMS) / "deployments" / "llama-3.1-8b-tp1-h200.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('name = "llama-3.1-8b-tp1-h200"\n', ""), encoding="utf-8")
    if program != "fa3-vllm-stock":
        done("solve", program, "-d", path, "--json")
    path.write_text(path.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    assert expected in refused("solve", program, "-d", path, "--json")
    assert expected in refused("solve", "--all", "-d", path, "--json")


def test_sections_of_ones_own_are_free(tmp_path: Path) -> None:
    text = (Path(PROGRAMS) / "deployments" / "llama-3.1-8b-tp1-h200.toml").read_text(encoding="utf-8")
    path = tmp_path / "llama-3.1-8b-tp1-h200.toml"
    path.write_text(text + "\n[mine]\nanything = 3\n", encoding="utf-8")
    assert loaded("solve", "norm", "-d", path)["deployment"] == "llama-3.1-8b-tp1-h200"


@pytest.mark.parametrize("name", known())
def test_deployments_that_come_with_detent_are_consistent(name: str) -> None:
    require_consistent(load(name))


def test_what_the_programs_read_is_known_without_importing_them() -> None:
    shared: dict[str, Any] = {}
    for place in registry().values():
        module, _, function = place.partition(":")
        program = getattr(importlib.import_module(module), function)
        for kind in program.__annotations__.values():
            record = program.__globals__.get(kind)
            fields = getattr(record, "__detent_fields__", {})
            known = {name for name, (source, _) in fields.items() if source == "fact"}
            if known:
                assert known <= set(names(section_of(record))), record
            if known and record.__module__ == "detent.programs.facts":
                shared[section_of(record)] = record
    assert len(shared) >= 8
    for section, record in shared.items():
        assert list(declared(section)) == list(record.__detent_fields__)
    assert declared("moe")["table"] == "Table | None" and declared("nothing") == {} and names("call") == []

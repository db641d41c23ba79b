"""Coverage tables: every selection known is in them, and every way a table can be wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from programs_support import on_gpus

from detent.runtime.coverage import Coverage, known, load, read
from detent.runtime.deployment import load as load_deployment
from detent.runtime.errors import DetentError, UnknownName
from detent.runtime.settings import Check, FactValue, Switch
from detent.runtime.sources import registry

ENGINES = ("vllm", "sglang")
PLACES = {
    ("vllm", "E1"): range(1, 28),  # VLLM_BATCH_INVARIANT
    ("sglang", "E2"): range(1, 21),  # --enable-deterministic-inference
    # Outside of the families: cascade attention, fused all-reduce, compiled sizes, CUDA norms, compiled norms, norms of
    # sgl_kernel, sums of experts, router and head, chunks and prefixes, log-probabilities, speculation.
    ("vllm", "E3"): (1, 2, 3, 4, 5, 8, 9, 10, 11),
    ("sglang", "E3"): (2, 6, 7, 8, 9, 10, 11),
}
NAMED = {
    ("vllm", "cascade attention: a shared prefix"): "switched-off",
    ("vllm", "all-reduce and RMSNorm in one kernel"): "switched-off",
    ("vllm", "naive MoE path"): "covered",
    ("vllm", "replayed graph or eager"): "covered",
    ("vllm", "dynamic FP8 scales"): "refused",
    ("vllm", "router GEMM"): "covered",
    ("vllm", "router kernels for few tokens"): "refused",
    ("vllm", "top-k and top-p: Triton"): "covered",
    ("vllm", "CUDA rms_norm: 1024 threads"): "covered",
    ("vllm", "Gemma's norms"): "covered",
    ("sglang", "all-reduce and RMSNorm in one kernel"): "switched-off",
    ("sglang", "replayed graph or eager"): "covered",
    ("sglang", "dynamic FP8 scales"): "refused",
    ("sglang", "router GEMM"): "covered",
    ("sglang", "top-k, top-p and min-p"): "covered",
    ("sglang", "sum of a token's experts"): "covered",
    ("sglang", "all-reduce algorithm by size"): "covered",
}


def test_both_engines_have_a_table() -> None:
    assert known() == {"sglang": ["0.5.17"], "vllm": ["0.26.0"]}
    for engine in ENGINES:
        assert load(engine).version == known()[engine][-1]
        assert load(engine, known()[engine][0]).engine == engine


@pytest.mark.parametrize(("engine", "prefix"), PLACES)
def test_every_place_of_the_deterministic_modes_and_beside_them_has_a_row(engine: str, prefix: str) -> None:
    ids = [row.id for row in load(engine).rows if row.id.startswith(prefix)]
    assert sorted({int(id[3:5]) for id in ids}) == list(PLACES[engine, prefix])
    for number in PLACES[engine, prefix]:
        parts = [id[5:] for id in ids if id.startswith(f"{prefix}-{number:02}")]
        assert parts == [""] or parts == list("abcdefgh"[:len(parts)]) and len(parts) > 1, (prefix, number, parts)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_other_selections_are_numbered_without_a_gap(engine: str) -> None:
    numbers = [int(row.id[2:]) for row in load(engine).rows if row.id.startswith("X-")]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 30


@pytest.mark.parametrize("engine", ENGINES)
def test_every_program_for_an_engine_covers_a_row(engine: str) -> None:
    expected = {name for name in registry() if not name.endswith(("-stock", "-cpu")) or f"-{engine}-" in name}
    assert load(engine).programs() == expected


@pytest.mark.parametrize(("engine", "what"), NAMED)
def test_well_known_selections(engine: str, what: str) -> None:
    (row,) = [row for row in load(engine).rows if what in row.what]
    assert row.status == NAMED[engine, what]
    assert row.by and row.why


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_say_where_and_how_they_end(engine: str) -> None:
    for row in load(engine).rows:
        filled = [bool(row.programs), bool(row.switches), bool(row.checks)]
        assert filled == [row.status == "covered", row.status == "switched-off", row.status == "refused"], row.id
        assert all(where.split("/")[0] in (engine, "sgl_kernel") for where in row.where), row.id
        assert len(row.what) <= 72 and not row.what.endswith("."), row.id
        assert row.reads or row.status != "covered" or row.id == "E3-06", row.id  # a selection reads the batch


@pytest.mark.parametrize("name", on_gpus())
def test_deployments_agree_with_the_table_of_their_engine(name: str) -> None:
    facts = load_deployment(name).facts
    coverage = load(facts["engine"]["name"], facts["engine"]["version"])
    for check in coverage.refusals():
        if check.kind == "fact":
            section, _, key = check.name.partition(".")
            assert check.allows(facts[section][key]), check
    # What the plug-in switches off is off in the facts that the programs read.
    assert not facts["engine"].get("cascade_attention", False)
    assert facts.get("all_reduce", {}).get("fused_rms_norm", False) is False
    assert facts["engine"]["deterministic"] is False
    assert facts["engine"]["fused_moe_sum_all_reduce"] is False


# ---- what plug-ins ask --------------------------------------------------------------------------------------------


def settled(coverage: Coverage) -> dict[tuple[str, str], Any]:
    """A configuration that the table is content with; every fact that it names is 64."""
    values: dict[tuple[str, str], Any] = {}
    settings: list[Switch | Check] = [*coverage.switches(), *coverage.refusals()]
    for each in settings:
        named = each.value if isinstance(each, Switch) else each.at_most
        if isinstance(named, FactValue):
            values["fact", named.name] = 64
    for check in (each.of(lambda name: 64) for each in coverage.refusals()):
        values[check.kind, check.name] = (None if check.absent else check.allowed[0] if check.allowed
                                          else check.at_most)
    for switch in (each.of(lambda name: 64) for each in coverage.switches()):
        before = values.get((switch.kind, switch.name), ["none"])
        values[switch.kind, switch.name] = [*before, switch.value] if switch.has else switch.value
    return values


@pytest.mark.parametrize("engine", ENGINES)
def test_problems_name_every_setting_that_is_not_as_it_must_be(engine: str) -> None:
    coverage = load(engine)
    values = settled(coverage)
    assert coverage.problems(lambda kind, name: values[kind, name]) == []
    settings: list[Switch | Check] = [*coverage.switches(), *coverage.refusals()]
    for each in settings:
        problems = coverage.problems(lambda kind, name, each=each: (  # type: ignore[misc]
            "something else" if (kind, name) == (each.kind, each.name) else values[kind, name]))
        assert all(problem.startswith(f"{each.name} is 'something else'") for problem in problems)
        assert len(problems) == sum((other.kind, other.name) == (each.kind, each.name) for other in settings)
        (problem,) = [line for line in problems if str(each.of(lambda name: 64)) in line]
        assert f"({', '.join(each.rows)})" in problem and each.why in problem and "\n" not in problem


def test_sglang_refuses_factors_that_follow_the_longest_request() -> None:
    """LongRoPE in SGLang takes its long factors for all rows as soon as one is past the original context."""
    coverage = load("sglang")
    values = settled(coverage)
    assert coverage.row("X-46").status == "refused"
    place = "model_config.hf_text_config."
    for name in ("rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"):
        for kind in ("longrope", "su"):
            told = {**values, ("option", place + name): kind}
            (problem,) = coverage.problems(lambda *each, told=told: told[each])
            assert problem.startswith(f"{place}{name} is '{kind}'") and problem.endswith("(X-46)")
        for kind in ("default", "llama3", "yarn"):
            told = {**values, ("option", place + name): kind}
            assert coverage.problems(lambda *each, told=told: told[each]) == []
    # vLLM decides by its longest context, once: nothing to refuse there.
    assert not any("rope_scaling" in check.name for check in load("vllm").refusals())


@pytest.mark.parametrize(("engine", "id", "names"), [
    ("sglang", "X-47", ("max_running_requests", "chunked_prefill_size", "context_length")),
    ("vllm", "X-36", ("scheduler_config.max_num_seqs", "scheduler_config.max_num_batched_tokens",
                      "model_config.max_model_len")),
])
def test_an_engine_keeps_to_the_limits_that_were_solved_for(engine: str, id: str, names: tuple[str, ...]) -> None:
    """SGLang by itself takes 2048 requests and more, for which nothing was proved."""
    coverage = load(engine)
    values = settled(coverage)
    for name, fact in zip(names, ("max_num_seqs", "max_num_batched_tokens", "max_context"), strict=True):
        values["fact", f"limits.{fact}"] = 1024
        values["option", name] = 1024
        assert coverage.problems(lambda *each: values[each]) == []
        values["option", name] = 2048
        (problem,) = coverage.problems(lambda *each: values[each])
        assert problem.startswith(f"{name} is 2048") and " 1024; " in problem and problem.endswith(f"({id})")
        values["option", name] = 1024


def test_values_that_are_facts(tmp_path: Path) -> None:
    of = '{ fact = "limits.max_num_seqs" }'
    coverage = table(tmp_path, HEAD + SET.replace('["moe"]', f'[{{ option = "seqs", value = {of} }}]')
                     + REFUSE.replace("01", "02").replace('["moe"]', f'[{{ option = "most", at_most = {of} }}]'))
    assert [str(each) for row in coverage.rows for each in (*row.switches, *row.checks)] == [
        "seqs = the fact limits.max_num_seqs", "most is at most the fact limits.max_num_seqs"]
    values = {("option", "seqs"): None, ("option", "most"): 9, ("fact", "limits.max_num_seqs"): 8}
    assert coverage.problems(lambda *each: values[each]) == [
        "seqs is absent: set seqs = 8; because (X-01)", "most is 9, served where most is at most 8; because (X-02)"]
    values |= {("option", "seqs"): 8, ("option", "most"): 8}
    assert coverage.problems(lambda *each: values[each]) == []


def test_settings_of_several_rows_are_asked_once() -> None:
    coverage = load("vllm")
    switches = {str(switch): switch.rows for switch in coverage.switches()}
    assert switches["model_config.disable_cascade_attn = true"] == ("E1-08", "E3-01")
    assert switches["compilation_config.custom_ops has '+rms_norm'"] == ("E3-05", "X-32")
    assert switches["compilation_config.custom_ops has '+gemma_rms_norm'"] == ("E3-05",)
    backends = [check for check in coverage.refusals() if check.name == "attention_config.backend"]
    assert [check.rows for check in backends] == [("E1-14", "E1-15", "E1-16", "E1-18", "E1-19", "E1-26")]
    assert len({(check.kind, str(check)) for check in coverage.refusals()}) == len(coverage.refusals())


def test_switches_and_checks_compare_strictly() -> None:
    off = Switch("option", "x", False, False, "X-01", "why")
    assert off.is_set(False) and not off.is_set(0) and not off.is_set(None)
    assert Switch("option", "x", [], False, "X-01", "why").is_set(()) and str(off) == "x = false"
    has = Switch("option", "ops", "+norm", True, "X-01", "why")
    assert has.is_set(["all", "+norm"]) and not has.is_set("+norm") and not has.is_set([])
    one = Check("option", "n", (1, "a"), False, None, "X-01", "why")
    assert one.allows(1) and one.allows("a") and not one.allows(True) and not one.allows(1.0) and not one.allows(None)
    few = Check("fact", "n", (), True, 256, "X-01", "why")
    assert few.allows(256) and few.allows(1.5) and few.allows(None) and not few.allows(257) and not few.allows(True)
    assert [str(one), str(few)] == ["n is 1 or 'a'", "n is at most 256 or absent"]


def test_unknown_engines_versions_and_rows() -> None:
    with pytest.raises(UnknownName, match="unknown engine 'vlm'; did you mean 'vllm'"):
        load("vlm")
    with pytest.raises(UnknownName, match="unknown version of vllm '0.27.0'.*0.26.0"):
        load("vllm", "0.27.0")
    with pytest.raises(UnknownName, match="coverage of vllm 0.26.0: unknown row 'E1-28'"):
        load("vllm").row("E1-28")


# ---- a table that is wrong ----------------------------------------------------------------------------------------

HEAD = 'engine = "vllm"\nversion = "0.26.0"\n'
ROW = """
[[row]]
id = "X-01"
what = "a choice"
where = ["vllm/x.py:1"]
reads = ["num_tokens"]
status = "covered"
by = ["moe"]
why = "because"
"""
SET = ROW.replace('"covered"', '"switched-off"')
REFUSE = ROW.replace('"covered"', '"refused"')


def table(folder: Path, text: str) -> Coverage:
    path = folder / "table.toml"
    path.write_text(text, encoding="utf-8")
    return read(str(path), "vllm", "0.26.0")


def test_a_small_table(tmp_path: Path) -> None:
    row = table(tmp_path, HEAD + ROW).row("X-01")
    assert (row.programs, row.reads, row.where, row.by) == (("moe",), ("num_tokens",), ("vllm/x.py:1",), ["moe"])


@pytest.mark.parametrize(("text", "told"), [
    (HEAD, r"has no \[\[row\]\]"),
    (HEAD.replace("26", "27") + ROW, "is for vllm 0.27.0, not vllm 0.26.0"),
    (HEAD + ROW + ROW, "row X-01 appears twice"),
    (HEAD + ROW.replace("covered", "cover"), "row X-01: unknown status 'cover'; did you mean 'covered'"),
    (HEAD + ROW.replace('["moe"]', '["mo"]'), "row X-01: unknown program 'mo'; did you mean 'moe'"),
    (HEAD + ROW.replace('["moe"]', "[1]"), "row X-01: unknown program '1'"),
    (HEAD + ROW.replace('why = "because"\n', ""), "row X-01 has no why"),
    (HEAD + ROW.replace('id = "X-01"\n', ""), "row 1 has no id"),
    (HEAD + ROW.replace("why", "because"), "row X-01: unknown key 'because'"),
    (HEAD + ROW.replace("X-01", "X1"), "row X1: an id reads E1-03"),
    (HEAD + ROW.replace('"a choice"', "3"), "row X-01: what is 3; write a string"),
    (HEAD + ROW.replace('["num_tokens"]', '"num_tokens"'), "row X-01: reads is 'num_tokens'; write a list"),
    (HEAD + ROW.replace('["num_tokens"]', "[1]"), "row X-01: reads is a list of strings"),
    (HEAD + ROW.replace('["moe"]', "[]"), "row X-01: what, why, where or by is empty"),
    (HEAD + SET, "row X-01: by holds 'moe'"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x" }]'), "x is set to nothing"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", value = 1, has = 2 }]'), "x is set to nothing, or twice"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", env = "Y", value = 1 }]'), "by names no one setting"),
    (HEAD + SET.replace('["moe"]', '[{ value = 1 }]'), "by names no one setting"),
    (HEAD + SET.replace('["moe"]', '[{ env = "Y", value = 1 }]'), "Y is a variable; its value is a string"),
    (HEAD + SET.replace('["moe"]', '[{ fact = "gpu.arch", value = 90 }]'), "gpu.arch is a fact"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", valu = 1 }]'), "unknown key 'valu'; did you mean 'value'"),
    (HEAD + REFUSE.replace('["moe"]', '[{ option = "x" }]'), "x allows nothing"),
    (HEAD + REFUSE.replace('["moe"]', '[{ option = "x", allowed = 1 }]'), "allowed is a list"),
    (HEAD + REFUSE.replace('["moe"]', '[{ option = "x", at_most = "1" }]'), "at_most is a number"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", value = 1 }]')
     + SET.replace("01", "02").replace('["moe"]', '[{ option = "x", value = 2 }]'),
     "rows X-01 and X-02 set x differently"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", value = { fact = "a.b" } }]')
     + SET.replace("01", "02").replace('["moe"]', '[{ option = "x", value = { fact = "a.c" } }]'),
     "rows X-01 and X-02 set x differently"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", value = { fact = "a" } }]'), "x is {'fact': 'a'}; write { fact"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", value = { fact = "a.b" } }]')
     + REFUSE.replace("01", "02").replace('["moe"]', '[{ option = "x", at_most = 9 }]'),
     "row X-02 refuses what row X-01 sets: x = the fact a.b"),
    (HEAD + SET.replace('["moe"]', '[{ option = "x", value = 1 }]')
     + REFUSE.replace("01", "02").replace('["moe"]', '[{ option = "x", allowed = [2] }]'),
     "row X-02 refuses what row X-01 sets: x = 1"),
    ("engine = \n", "is not TOML"),
])
def test_bad_tables(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(DetentError, match=told) as caught:
        table(tmp_path, text)
    assert "\n" not in str(caught.value) and re.search(r"table\.toml", str(caught.value))


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(DetentError, match="No such file"):
        read(str(tmp_path / "no.toml"), "vllm", "0.26.0")

"""``detent deployment``: what comes with Detent can be written from a model's configuration, and nothing else can."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_support import CONFIGS, arguments_of, done, invoke, loaded, refused
from programs_support import on_gpus

from detent.runtime.coverage import known as known_engines
from detent.runtime.deployment import PROGRAMS, known, load
from detent.runtime.spec import defaults

TABLES = Path(PROGRAMS) / "tables" / "vllm-0.26.0"
H200_TP2 = TABLES / "E=128,N=384,device_name=NVIDIA_H200.json"


@pytest.mark.parametrize("name", on_gpus())
def test_every_deployment_that_comes_with_detent_is_written_from_its_models_configuration(
        name: str, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    assert done("deployment", "new", *arguments_of(name), "-o", path) == f"wrote {path}: {name}\n"
    written, own = load(str(path)), load(name)
    assert (written.name, written.description) == (own.name, own.description)
    assert written.facts == own.facts
    assert list(written.facts) == list(own.facts)
    for section, values in own.facts.items():
        assert list(written.facts[section]) == list(values), section
    table = own.facts.get("moe", {}).get("table", {})
    assert list(written.facts.get("moe", {}).get("table", {})) == list(table)  # ties hang on the order


def test_defaults_are_of_versions_that_were_read() -> None:
    for engine, versions in known_engines().items():
        assert defaults()[engine]["engine"]["version"] in versions


def test_standard_output_holds_the_file() -> None:
    text = done("deployment", "new", *arguments_of("llama-3.1-70b-tp4-h200"))
    assert text.startswith('[deployment]\nname = "llama-3.1-70b-tp4-h200"\n')
    own = (Path(PROGRAMS) / "deployments" / "llama-3.1-70b-tp4-h200.toml").read_text(encoding="utf-8")
    assert text == own


def test_a_written_deployment_is_solved(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    done("deployment", "new", *arguments_of("qwen3-30b-a3b-tp2-h200"), "--max-context", "8192", "--name", "mine",
         "--max-num-seqs", "64", "--max-num-batched-tokens", "4096", "-o", path)
    facts = load(str(path)).facts
    assert facts["limits"] == {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_context": 8192}
    assert facts["engine"]["max_capture_size"] == 128
    found = loaded("solve", "moe", "-d", path)
    assert (found["deployment"], found["legal"]) == ("mine", 18)


# ---- models ---------------------------------------------------------------------------------------------------------


def config(folder: Path, base: str = "Qwen3-8B", drop: tuple[str, ...] = (), **changes: Any) -> Path:
    """A model's configuration with changes, in a folder called ``mine``."""
    content = json.loads((CONFIGS / base / "config.json").read_text(encoding="utf-8"))
    content = {key: value for key, value in {**content, **changes}.items() if key not in drop}
    path = folder / "mine" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def new(path: Path, *more: str, engine: str = "vllm", tp: int = 1) -> list[str]:
    return ["deployment", "new", "--model-config", str(path), "--gpu", "H200", "--tp", str(tp), "--engine", engine,
            *more]


def facts_of(path: Path, *more: str, engine: str = "vllm", tp: int = 1) -> dict[str, dict[str, Any]]:
    output = path.parent / "out.toml"
    done(*new(path, *more, engine=engine, tp=tp), "-o", output)
    return load(str(output)).facts


def test_head_dim_and_kv_heads_may_be_left_out(tmp_path: Path) -> None:
    path = config(tmp_path, "Llama-3.1-8B", drop=("head_dim", "num_key_value_heads"))
    model = facts_of(path)["model"]
    assert (model["head_dim"], model["head_dim_v"], model["num_key_value_heads"], model["name"]) == (
        128, 128, 32, "mine")


@pytest.mark.parametrize(("base", "changes", "head_dim"), [
    ("gemma-7b-it", {}, 256), ("Qwen3-14B", {}, 128), ("Phi-3.5-mini", {}, 96), ("SmolLM2-135M", {}, 64),
    ("Qwen3-14B", {"hidden_size": 5152}, 128), ("Llama-3.1-8B", {"model_type": "mistral", "sliding_window": None}, 128),
])
def test_a_head_dim_that_is_not_named_is_that_of_the_type(base: str, changes: dict[str, Any], head_dim: int,
                                                          tmp_path: Path) -> None:
    """hidden_size / num_attention_heads only where the type's own configuration says so: gemma-7b has 3072 / 16."""
    model = facts_of(config(tmp_path, base, drop=("head_dim",), **changes))["model"]
    assert (model["head_dim"], model["head_dim_v"]) == (head_dim, head_dim)


def test_long_factors_do_not_matter_below_the_original_context(tmp_path: Path) -> None:
    path = config(tmp_path, "Phi-3.5-mini", max_position_embeddings=4096)
    assert facts_of(path, engine="sglang")["limits"]["max_context"] == 4096


@pytest.mark.parametrize(("changes", "engine", "left"), [
    ({}, "vllm", -1),
    ({"sliding_window": 4096}, "vllm", -1),  # use_sliding_window is false
    ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, "vllm", 4095),
    ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, "sglang", -1),
    ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 36}, "vllm", -1),
    ({"sliding_window": 40960, "use_sliding_window": True, "max_window_layers": 0}, "vllm", -1),
    ({"model_type": "mistral", "sliding_window": 4096, "use_sliding_window": True}, "vllm", 4095),
    ({"model_type": "llama", "sliding_window": 4096}, "vllm", -1),
    ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True,
      "layer_types": ["sliding_attention"] * 36}, "vllm", 63),
])
def test_windows(changes: dict[str, Any], engine: str, left: int, tmp_path: Path) -> None:
    model = facts_of(config(tmp_path, **changes), engine=engine)["model"]
    assert (model["window_left"], model["window_right"]) == (left, -1 if left < 0 else 0)


def test_a_window_is_solved(tmp_path: Path) -> None:
    path = config(tmp_path, "Phi-3.5-mini", sliding_window=2048)
    done(*new(path, "--max-context", "4096"), "-o", tmp_path / "out.toml")
    found = loaded("solve", "attention", "-d", tmp_path / "out.toml")
    assert "is_local" in {point["name"] for point in found["selection_points"] if point["batch_dependent"]}
    assert found["legal"] > 0


# ---- MoE tables -----------------------------------------------------------------------------------------------------


def test_a_table_is_named_from_where_the_file_stands(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    shutil.copy(H200_TP2, tmp_path / "tables")
    path = tmp_path / "mine.toml"
    done("deployment", "new", *arguments_of("qwen3-30b-a3b-tp2-h200"), "--moe-table",
         tmp_path / "tables" / H200_TP2.name, "-o", path)
    assert f'table = {{ json = "tables/{H200_TP2.name}" }}' in path.read_text(encoding="utf-8")
    assert load(str(path)).facts["moe"] == load("qwen3-30b-a3b-tp2-h200").facts["moe"]


def test_what_a_table_was_tuned_with_is_dropped(tmp_path: Path) -> None:
    rows = {"triton_version": "3.6.0", **json.loads(H200_TP2.read_text(encoding="utf-8"))}
    (tmp_path / "own.json").write_text(json.dumps(rows), encoding="utf-8")
    done("deployment", "new", *arguments_of("qwen3-30b-a3b-tp2-h200"), "--moe-table", tmp_path / "own.json",
         "-o", tmp_path / "mine.toml")
    table = load(str(tmp_path / "mine.toml")).facts["moe"]["table"]
    assert len(table) == 18 and 4096 in table


def test_no_table(tmp_path: Path) -> None:
    facts = facts_of(config(tmp_path, "Qwen3-30B-A3B"), "--moe-table", "none", tp=8)
    assert "table" not in facts["moe"]


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "more", "expected"), [
    ({"drop": ("hidden_size",)}, [], ["config.json: has no hidden_size"]),
    ({"drop": ("model_type",)}, [], ["has no model_type"]),
    ({"model_type": "qwen4"}, [], ["unknown model_type 'qwen4'", "did you mean 'qwen"]),
    ({"model_type": "gemma2"}, [], ["unknown model_type 'gemma2'"]),
    ({"hidden_size": "4096"}, [], ["hidden_size is '4096', not int"]),
    ({"hidden_size": True}, [], ["hidden_size is True, not int"]),
    ({"num_hidden_layers": 0}, [], ["num_hidden_layers is 0", "at least 1"]),
    ({"num_key_value_heads": 7}, [], ["num_attention_heads 32 is no multiple of num_key_value_heads 7"]),
    ({"base": "Llama-3.1-8B", "hidden_size": 4100, "drop": ("head_dim",)}, [],
     ["hidden_size 4100 is no multiple of num_attention_heads 32"]),
    ({}, ["--tp", "3"], ["--tp 3", "num_attention_heads 32"]),
    ({"num_attention_heads": 48, "num_key_value_heads": 4}, ["--tp", "6"], ["--tp 6", "num_key_value_heads 4"]),
    ({"intermediate_size": 12289}, ["--tp", "2"], ["--tp 2", "intermediate_size 12289"]),
    ({"torch_dtype": "float16"}, [], ["torch_dtype is 'float16'", "bfloat16"]),
    ({"quantization_config": {"quant_method": "fp8"}}, [], ["has a quantization_config"]),
    ({"attn_logit_softcapping": 50.0}, [], ["attn_logit_softcapping is set"]),
    ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 18}, [], ["some layers", "some do not"]),
    ({}, ["--max-context", "40961"], ["--max-context 40961", "max_position_embeddings 40960"]),
    ({}, ["--max-num-seqs", "9000"], ["9000 sequences do not fit in a step of 8192 tokens"]),
    ({}, ["--gpu", "B200"], ["unknown GPU 'B200'", "H100, H200"]),
    ({}, ["--engine", "vlm"], ["unknown engine 'vlm'", "did you mean 'vllm'?"]),
    ({}, ["--tp", "0"], ["0 is not in the range"]),
    ({"base": "Qwen3-30B-A3B"}, ["--tp", "8"],
     ["no E=128,N=96,device_name=NVIDIA_H200.json of vLLM 0.26.0", "--moe-table FILE"]),
    ({"base": "Qwen3-30B-A3B", "num_experts_per_tok": 129}, [], ["num_experts_per_tok 129 is more than num_experts"]),
    ({"base": "Qwen3-30B-A3B"}, ["--moe-table", str(H200_TP2)],
     [f"the table {H200_TP2.name} is for columns of an expert 384, the facts say 768"]),
    ({"base": "Qwen3-30B-A3B"}, ["--tp", "2", "--gpu", "H100", "--moe-table", str(H200_TP2)],
     ["is for GPU NVIDIA_H200, the facts say NVIDIA_H100_80GB_HBM3"]),
    ({"base": "Qwen3-30B-A3B"}, ["--moe-table", "no.json"],
     ["no.json: No such file", "the engine's tuned table with --moe-table"]),
    ({"num_attention_heads": 36, "num_key_value_heads": 6}, ["--tp", "4"], ["--tp 4", "num_key_value_heads 6"]),
    ({"base": "gemma-7b-it", "drop": ("num_key_value_heads",)}, [], ["has no num_key_value_heads"]),
    ({"base": "Qwen3-30B-A3B", "drop": ("head_dim",)}, ["--tp", "2"], ["has no head_dim"]),
    ({"drop": ("torch_dtype",)}, [], ["has no torch_dtype"]),
    ({"model_type": "mistral", "drop": ("sliding_window",)}, [], ["has no sliding_window", "write null"]),
    ({"use_sliding_window": True, "sliding_window": 64, "drop": ("max_window_layers",)}, [],
     ["has no max_window_layers"]),
    ({"base": "Phi-3.5-mini"}, ["--engine", "sglang"], ["rotary factors for long contexts", "SGLang"]),
    ({"rope_scaling": {"type": "longrope"}}, ["--engine", "sglang"], ["rotary factors for long contexts"]),
    ({"rope_parameters": {"rope_type": "longrope"}}, ["--engine", "sglang"], ["rotary factors for long contexts"]),
])
def test_contradictions_are_one_line_and_nothing_is_written(changes: dict[str, Any], more: list[str],
                                                            expected: list[str], tmp_path: Path) -> None:
    path, output = config(tmp_path, **changes), tmp_path / "out.toml"
    line = refused(*new(path, *more), "-o", output)
    for fragment in expected:
        assert fragment in line
    assert not output.exists() and [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("text", "expected"), [
    ("{", "is not JSON"), ("[1]", "holds a list, not an object"), ('{"a": 1, "a": 2}', "key 'a' appears twice"),
])
def test_files_that_are_no_configuration(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert expected in refused(*new(path))
    assert "No such file" in refused(*new(tmp_path / "no.json"))


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    output = tmp_path / "nowhere" / "x.toml"
    line = refused(*new(config(tmp_path)), "-o", output)
    assert line.startswith(f"{output}: No such file or directory") and ".tmp" not in line


# ---- list and show --------------------------------------------------------------------------------------------------


def test_list_is_the_list_of_deployments() -> None:
    assert done("deployment", "list") == done("deployments")
    assert [each["name"] for each in loaded("deployment", "list")] == known()


def test_show() -> None:
    text = done("deployment", "show", "qwen3-30b-a3b-tp4-h100")
    assert "18 rows: 1, 2, 4, 8, 16" in text and "[limits]" in text and "40960" in text
    assert max(map(len, text.splitlines())) <= 100
    found = loaded("deployment", "show", "qwen3-30b-a3b-tp4-h100")
    assert found["facts"]["moe"]["table"]["16"]["BLOCK_SIZE_M"] == 16 and len(found["files"]) == 2
    assert "did you mean 'qwen3-30b-a3b-tp4-h100'" in refused("deployment", "show", "qwen3-30b-a3b-tp4-h10")
    assert invoke("deployment").exit_code == 2

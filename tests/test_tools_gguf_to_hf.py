"""GGUF files as Hugging Face folders: names, the order of Q's and K's rows, dequantised values, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from detent.tools.gguf_to_hf import hf_name, main, unpermute

HIDDEN, HEADS, KV_HEADS = 64, 4, 2
TOKENS = ["<|end|>", "a", "b", "Ġ", "ab", "1", "2"]


def permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter permutes rows."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(
        weight.shape)


def write(path: Path, architecture: str = "llama", pre: str = "smollm", extra: str = "") -> dict[str, Any]:
    """A model of one block; its Hugging Face weights."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    weights = {}
    for name, shape in (("token_embd", (len(TOKENS), HIDDEN)), ("blk.0.attn_q", (HIDDEN, HIDDEN)),
                        ("blk.0.attn_k", (HIDDEN // 2, HIDDEN)), ("blk.0.ffn_down", (HIDDEN, 96))):
        weight = rng.standard_normal(shape).astype(np.float32)
        if name == "blk.0.ffn_down":
            quantised = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            weight = gguf.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
        else:
            heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}.get(name)
            writer.add_tensor(f"{name}.weight", weight if heads is None else permuted(weight, heads))
        weights[hf_name(f"{name}.weight")] = weight
    if extra:
        writer.add_tensor(extra, np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_weights_config_and_tokenizer(tmp_path: Path) -> None:
    weights = write(tmp_path / "model.gguf")
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "out")]) == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == set(weights) and "model.layers.0.self_attn.q_proj.weight" in found
    for name, weight in weights.items():
        assert found[name].dtype == np.float32 and found[name].tobytes() == weight.tobytes(), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_key_value_heads"], config["rope_theta"], config["rms_norm_eps"], config["head_dim"]) == (
        KV_HEADS, 100000.0, 1e-5, HIDDEN // HEADS)
    assert config["tie_word_embeddings"] is True and config["vocab_size"] == len(TOKENS)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("ab 12<|end|>").ids == [4, 3, 5, 6, 0]  # digits one by one


def test_unpermute_undoes_llama_cpps_order() -> None:
    weight = np.arange(4 * 8 * 3.0).reshape(32, 3)
    assert not np.array_equal(permuted(weight, 4), weight)
    assert np.array_equal(unpermute(permuted(weight, 4), 4), weight)


@pytest.mark.parametrize(("options", "message"), [
    ({"architecture": "mamba"}, "only llama can be converted"),
    ({"pre": "qwen2"}, "only gpt2/smollm can be converted"),
    ({"extra": "blk.0.attn_q.bias"}, "only plain llama can be converted"),
])
def test_what_cannot_be_converted(options: dict[str, str], message: str, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "model.gguf", **options)
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(("content", "message"), [(None, "no such file"), (b"GGUX" * 20, "not a GGUF file")])
def test_files_that_are_none(content: bytes | None, message: str, tmp_path: Path,
                             capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err

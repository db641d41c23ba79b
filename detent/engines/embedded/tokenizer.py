"""Tokenizers: the checkpoint's own through ``tokenizers``, or plain bytes for random models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from detent.runtime.errors import BadFile, DetentError, UnknownName

INSTALL = "pip install 'detent[demo]'"
BYTES = 256

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPLITS = {"llama-bpe": LLAMA3, "qwen2": QWEN2, "smollm": None}
"""GGUF's names of pre-tokenizers, with the pattern that each splits by; None: single digits, then GPT-2's pattern."""
CONTROL = (2, 3, 4)
"""GGUF's token types that stand for no text of a user: unknown, control, user-defined."""


class Tokenizer(Protocol):
    """Texts to ids and back."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text, without special tokens."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of ids; special tokens and bytes that make no character leave none or a replacement character."""


class TextTokenizer:
    """A tokenizer of the ``tokenizers`` package."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.inner.decode(list(tokens), skip_special_tokens=True))


class ByteTokenizer:
    """UTF-8 bytes are ids; ids above 255 are special."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token < BYTES).decode(errors="replace")


def package() -> Any:
    """The ``tokenizers`` package. Raises DetentError where it is missing."""
    try:
        import tokenizers
    except ImportError:
        raise DetentError("the package tokenizers is not installed", f"run: {INSTALL}") from None
    return tokenizers


def from_file(path: str) -> tuple[TextTokenizer, tuple[int, ...]]:
    """The tokenizer of a ``tokenizer.json`` and its special ids. Raises BadFile."""
    library = package()
    try:
        inner = library.Tokenizer.from_file(path)
    except Exception as error:  # the package raises plain Exception for whatever is wrong
        raise BadFile(path, f"is no tokenizer: {error}", "give a complete checkpoint") from None
    special = sorted(token for token, added in inner.get_added_tokens_decoder().items() if added.special)
    return TextTokenizer(inner), tuple(special)


def from_vocabulary(tokens: Sequence[str], merges: Sequence[str], types: Sequence[int], split: str,
                    where: str) -> tuple[TextTokenizer, tuple[int, ...]]:
    """A byte-level BPE tokenizer from a GGUF file's lists, and its special ids. Raises UnknownName."""
    library = package()
    if split not in SPLITS:
        raise UnknownName("pre-tokenizer", split, list(SPLITS), where)
    before, pattern = library.pre_tokenizers, SPLITS[split]
    inner = library.Tokenizer(library.models.BPE(
        vocab={text: token for token, text in enumerate(tokens)},
        merges=[tuple(merge.split(" ", 1)) for merge in merges]))
    parts = ([before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)] if pattern is None else
             [before.Split(library.Regex(pattern), "isolated"),
              before.ByteLevel(add_prefix_space=False, use_regex=False)])
    inner.pre_tokenizer = before.Sequence(parts)
    inner.decoder = library.decoders.ByteLevel()
    special = tuple(token for token, kind in enumerate(types) if kind in CONTROL)
    inner.add_special_tokens([library.AddedToken(tokens[token], special=True, normalized=False) for token in special])
    return TextTokenizer(inner), special

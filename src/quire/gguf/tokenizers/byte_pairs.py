"""Byte-pair encoding: the vocabulary and merges of a file, byte-level (`gpt2`) or of characters
between blanks (`whitespace`)."""

from __future__ import annotations

from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.keys import Keys
from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS, WordPattern

Json = dict[str, Any]


def word_pattern(keys: Keys) -> WordPattern:
    name = keys.text("tokenizer.ggml.pre")
    pattern = WORD_PATTERNS.get(name or "")
    if pattern is None:
        raise UnsupportedModelError(
            f"{keys.path}: tokenizer.ggml.pre is {quoted(name)}, so that it is not known how texts "
            f"are cut into words; known are {', '.join(sorted(WORD_PATTERNS))}. Give the model's "
            "own tokenizer: tokenizer=DIRECTORY"
        )
    return pattern


def byte_level(keys: Keys, tokens: list[str], pattern: WordPattern) -> Json:
    splits = [
        {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
        for split in pattern.splits
    ]
    prefix = keys.flag("tokenizer.ggml.add_space_prefix") is True
    letters = {"type": "ByteLevel", "trim_offsets": True}
    return {
        "normalizer": {"type": "NFC"} if pattern.nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                *splits, {**letters, "add_prefix_space": prefix, "use_regex": False}
            ],
        },
        "decoder": {**letters, "add_prefix_space": True, "use_regex": True},
        "model": bpe(tokens, _merges(keys), pattern.ignore_merges),
    }  # fmt: skip


def between_blanks(keys: Keys, tokens: list[str]) -> Json:
    """Jina Embeddings 2 for Chinese: characters of words and of signs, without the blanks."""
    model = bpe(tokens, _merges(keys), ignore_merges=False)
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": None,
        "model": model | {"unk_token": keys.token_of("unknown", tokens)},
    }


def _merges(keys: Keys) -> list[list[str]]:
    merges = merges_of(keys)
    if merges is None:
        raise CheckpointError(f"{keys.path}: tokenizer.ggml.merges is missing")
    return merges


def merges_of(keys: Keys) -> list[list[str]] | None:
    """The pairs in the order in which they merge; None if the file has none."""
    merges = keys.texts("tokenizer.ggml.merges")
    return None if merges is None else [_pair(keys, merge) for merge in merges]


def _pair(keys: Keys, merge: str) -> list[str]:
    """The two parts: the space between them is the first that does not begin the text."""
    space = merge.find(" ", 1)
    if space < 0 or space + 1 == len(merge):
        raise CheckpointError(
            f"{keys.path}: tokenizer.ggml.merges has {quoted(merge)}, which must be a pair"
        )
    return [merge[:space], merge[space + 1 :]]


def bpe(tokens: list[str], merges: list[list[str]], ignore_merges: bool) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": {text: token_id for token_id, text in enumerate(tokens)},
        "merges": merges,
    }

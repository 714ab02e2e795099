"""The special tokens of Whisper, which have the ids after the vocabulary, in a fixed order.

Source: openai-whisper, tokenizer.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError

_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no "
    "th ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw "
    "gl mr pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl "
    "mg as tt haw ln ha ba jw su yue"
)
LANGUAGES: tuple[str, ...] = tuple(_CODES.split())
"""Codes in the order of their tokens. Models before large-v3 lack the last one."""
NUM_TIMESTAMPS = 1501
END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = {"translate": "<|translate|>", "transcribe": "<|transcribe|>"}
NO_TIMESTAMPS = "<|notimestamps|>"
_OTHERS = (*TASKS.values(), "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", NO_TIMESTAMPS)
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_MULTILINGUAL = 51865
"""The smallest vocabulary, with special tokens, of models for several languages."""


def is_multilingual(vocab_size: int) -> bool:
    """Whether a model with so many tokens knows several languages."""
    return vocab_size >= _MULTILINGUAL


def special_tokens(num_languages: int) -> list[str]:
    """The special tokens in order of their ids, without timestamps."""
    return [END, START, *(f"<|{code}|>" for code in LANGUAGES[:num_languages]), *_OTHERS]


def timestamp(index: int) -> str:
    """The token of a time, in steps of 20 ms."""
    return f"<|{index * 0.02:.2f}|>"


def tokenizer_files(tokens: Sequence[bytes], vocab_size: int, path: Path) -> dict[str, str]:
    """The files of a tokenizer for a vocabulary without special tokens, by name.

    `vocab_size`: with special tokens. Raises CheckpointError, naming `path`.
    """
    num_languages = vocab_size - len(tokens) - len(special_tokens(0)) - NUM_TIMESTAMPS
    if not 0 <= num_languages <= len(LANGUAGES):
        raise CheckpointError(
            f"{path}: has {len(tokens)} tokens, and the model {vocab_size}; with the tokens of up "
            f"to {len(LANGUAGES)} languages, they cannot belong to each other"
        )
    texts = special_tokens(num_languages)
    added = _added(texts, len(tokens), special=True)
    added |= timestamps(len(tokens) + len(texts), vocab_size)
    words = tokens[:-1] if not tokens[-1] else tokens
    lines = [f"{base64.b64encode(word).decode()} {rank}\n" for rank, word in enumerate(words)]
    return {"tokenizer.model": "".join(lines), "tokenizer_config.json": tokenizer_config(added)}


def timestamps(first: int, vocab_size: int) -> dict[str, Any]:
    """The tokens of times as `added_tokens_decoder` has them, the first one with the id `first`."""
    count = max(0, min(NUM_TIMESTAMPS, vocab_size - first))
    return _added([timestamp(index) for index in range(count)], first, special=False)


def _added(texts: Sequence[str], first: int, *, special: bool) -> dict[str, Any]:
    return {
        str(token_id): {"content": text, **_FLAGS, "special": special}
        for token_id, text in enumerate(texts, first)
    }


def tokenizer_config(added: dict[str, Any]) -> str:
    """The text of tokenizer_config.json."""
    roles = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END)
    return json.dumps(
        {
            "tokenizer_class": "WhisperTokenizer",
            **roles,
            "add_eos_token": True,
            "clean_up_tokenization_spaces": False,
            "added_tokens_decoder": added,
        }
    )

"""BERT's tokenizer from `vocab.txt`: WordPiece, one token a line.

Called by `rust_tokenizer`, where there is no `tokenizer.json`. Settings are those of
tokenizer_config.json, with transformers' defaults for a `BertTokenizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.config.checkpoint.model_files import read_text
from quire.errors import CheckpointError
from quire.tokenizer.pieces import library_errors

if TYPE_CHECKING:
    import tokenizers

ROLES: Mapping[str, str] = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}  # fmt: skip
_MAX_CHARS = 100
"""Longer words are unknown."""


def build_wordpiece(
    path: Path, config: Mapping[str, Any], roles: Mapping[str, str], max_bytes: int
) -> tokenizers.Tokenizer:
    """Raises CheckpointError for a file without the special tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    lines = read_text(path, max_bytes=max_bytes).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    vocab = {line.rstrip("\r"): index for index, line in enumerate(lines)}
    names = {**ROLES, **roles}
    cls, sep, unk = names["cls_token"], names["sep_token"], names["unk_token"]
    missing = [token for token in (cls, sep, unk) if token not in vocab]
    if missing:
        raise CheckpointError(f"{path} has no token {missing[0]!r}")
    with library_errors(lambda words: CheckpointError(f"{path}: {words}")):
        backend = Tokenizer(
            models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=_MAX_CHARS)
        )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars") is not False,
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = processors.BertProcessing((sep, vocab[sep]), (cls, vocab[cls]))
    return backend

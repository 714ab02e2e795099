"""Tokenizers of encoders: WordPiece (`bert`) and SentencePiece's Unigram (`t5`, XLM-R's).

Called by `files`. llama.cpp stores WordPiece's tokens with "▁" before those that begin
a word and without "##" before the others.
"""

from __future__ import annotations

import base64
from typing import Any

from quire.errors import CheckpointError
from quire.gguf.keys import Keys

Json = dict[str, Any]

_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_SPACE = "▁"
_MAX_CHARS = 100
"""Longer words are unknown, as in transformers."""


def word_pieces(keys: Keys, tokens: list[str]) -> Json:
    """BERT's tokenizer. Replaces `tokens` by WordPiece's own spelling. Letters are lowered unless
    the file says otherwise, as in llama.cpp: vocabularies of uncased models may have capital
    letters, as Chinese ones have "<S>"."""
    kinds = keys.numbers("tokenizer.ggml.token_type", int, len(tokens)) or [_NORMAL] * len(tokens)
    tokens[:] = [
        text if kind == _CONTROL else _word_piece(text)
        for text, kind in zip(tokens, kinds, strict=True)
    ]
    lowers = keys.flag("tokenizer.ggml.normalizer.lowercase")
    unknown = _special(keys, tokens, "unknown", "[UNK]")
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": keys.flag("tokenizer.ggml.normalizer.strip_accents"),
            "lowercase": lowers is not False,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": _MAX_CHARS,
            "vocab": {text: index for index, text in enumerate(tokens)},
        },
        "post_processor": pair_frame(
            tokens,
            _special(keys, tokens, "cls", _special(keys, tokens, "bos", "[CLS]")),
            [_special(keys, tokens, "seperator", "[SEP]")],
            second_type=1,
        ),
    }


def _word_piece(text: str) -> str:
    if text.startswith("[") and text.endswith("]") and len(text) > len("[]"):
        return text  # as older conversions have "[CLS]", without its kind
    return text[1:] if text.startswith(_SPACE) else f"##{text}"


def unigram(keys: Keys, tokens: list[str]) -> Json:
    """XLM-R's tokenizer."""
    scores = keys.numbers("tokenizer.ggml.scores", float, len(tokens))
    if scores is None:
        raise CheckpointError(f"{keys.path}: tokenizer.ggml.scores is missing")
    unknown = _special(keys, tokens, "unknown", "<unk>")
    end = _special(keys, tokens, "eos", "</s>")
    squeezes = keys.flag("tokenizer.ggml.remove_extra_whitespaces") is not False
    normalizers: list[Json] = []
    if (charsmap := keys.value("tokenizer.ggml.precompiled_charsmap")) is not None:
        coded = base64.b64encode(_bytes(keys, charsmap)).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": coded})
    if squeezes:
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    prefix = keys.flag("tokenizer.ggml.add_space_prefix") is not False
    spaces = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "always" if prefix else "never",
        "split": True,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": {
            "type": "Unigram",
            "unk_id": tokens.index(unknown),
            "vocab": [[text, score] for text, score in zip(tokens, scores, strict=True)],
            "byte_fallback": False,
        },
        "post_processor": pair_frame(
            tokens, _special(keys, tokens, "bos", "<s>"), [end, end], second_type=0
        ),
    }


def _bytes(keys: Keys, value: Any) -> bytes:
    # bytes() of a number would be as many zeros.
    if not isinstance(value, list) or not all(
        isinstance(one, int) and -128 <= one < 256 for one in value
    ):
        raise keys.error("tokenizer.ggml.precompiled_charsmap", "a list of bytes")
    return bytes(one & 255 for one in value)


def _special(keys: Keys, tokens: list[str], role: str, usual: str) -> str:
    """The token of a role, or the one that most models have for it."""
    found = keys.token_of(role, tokens)
    if found is None and usual not in tokens:
        raise CheckpointError(
            f"{keys.path}: tokenizer.ggml.{role}_token_id is missing, and there is no token "
            f"{usual!r}"
        )
    return usual if found is None else found


def pair_frame(tokens: list[str], before: str, between: list[str], second_type: int) -> Json:
    """The tokens around a text and a pair: one before it, the first of `between` after each text,
    and the others between the two."""

    def special(text: str, type_id: int) -> Json:
        return {"SpecialToken": {"id": text, "type_id": type_id}}

    end = between[0]
    single = [special(before, 0), {"Sequence": {"id": "A", "type_id": 0}}, special(end, 0)]
    second = [{"Sequence": {"id": "B", "type_id": second_type}}, special(end, second_type)]
    inner = [special(text, 0) for text in between[1:]]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *inner, *second],
        "special_tokens": {
            text: {"id": text, "ids": [tokens.index(text)], "tokens": [text]}
            for text in {before, *between}
        },
    }

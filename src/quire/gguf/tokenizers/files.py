"""tokenizer.json and tokenizer_config.json, of the metadata of a GGUF file.

Kinds: BPE with its merges (`byte_pairs`); SentencePiece's BPE, whose merges follow from the pieces
and their scores (`sentence_pieces`); and those of encoders (`encoders`). The result gives the ids
of the model's own tokenizer.json.
"""

from __future__ import annotations

import json
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.keys import Keys
from quire.gguf.tokenizers.byte_pairs import between_blanks, byte_level, word_pattern
from quire.gguf.tokenizers.encoders import pair_frame, unigram, word_pieces
from quire.gguf.tokenizers.end_tokens import end_token_ids
from quire.gguf.tokenizers.sentence_pieces import sentence_pieces
from quire.gguf.tokenizers.word_patterns import WITH_MARKED_SPACES

Json = dict[str, Any]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_MAX_TOKENS = 1 << 22
_ROLES = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding",
    "cls_token": "cls", "sep_token": "seperator", "mask_token": "mask",
}  # fmt: skip
"""Names in tokenizer_config.json, and in files with `_token_id` (`seperator` is their spelling)."""
_OF_KINDS = {
    "llama": sentence_pieces, "gemma4": sentence_pieces, "bert": word_pieces, "t5": unigram,
    "whitespace": between_blanks,
}  # fmt: skip
_ALWAYS_WITH_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
"""Some files of Gemma 4 say that they have no start token. Source: llama.cpp."""


def token_texts(keys: Keys) -> list[str]:
    """The vocabulary by id. Raises CheckpointError where there is none."""
    tokens = keys.texts("tokenizer.ggml.tokens")
    if not tokens or len(tokens) > _MAX_TOKENS:
        raise CheckpointError(
            f"{keys.path}: tokenizer.ggml.tokens has {len(tokens or ())} tokens; 1 to "
            f"{_MAX_TOKENS} are read"
        )
    table = keys.tensor("token_embd.weight")
    if table is not None and len(tokens) > table.shape[0]:
        raise CheckpointError(
            f"{keys.path}: there are {len(tokens)} tokens, and token_embd.weight has "
            f"{table.shape[0]} rows"
        )
    return tokens


def tokenizer_files(keys: Keys) -> dict[str, str]:
    """The texts of tokenizer.json and tokenizer_config.json, by name."""
    tokens = token_texts(keys)
    own = keys.text("tokenizer.huggingface.json")
    if own:
        return {"tokenizer.json": own, "tokenizer_config.json": _dump(_config(keys, tokens))}
    tokenizer, adds_bos = _made(keys, tokens)
    if tokenizer["model"]["type"] != "WordPiece":
        _change_letters(keys, tokenizer)
    tokenizer["added_tokens"] = _added_tokens(keys, tokens)
    if "post_processor" not in tokenizer:
        tokenizer["post_processor"] = _frame(keys, tokens, adds_bos)
    return {
        "tokenizer.json": _dump({"version": "1.0", **tokenizer}),
        "tokenizer_config.json": _dump(_config(keys, tokens)),
    }


def _made(keys: Keys, tokens: list[str]) -> tuple[Json, bool]:
    """The tokenizer without added tokens, and whether a start token comes first where the file does
    not say. Replaces `tokens` by the spelling of the tokenizer."""
    kind = keys.text("tokenizer.ggml.model") or ""
    if kind == "gpt2" and keys.text("tokenizer.ggml.pre") in WITH_MARKED_SPACES:
        return sentence_pieces(keys, tokens, has_prefix=False), False
    if kind == "gpt2":
        pattern = word_pattern(keys)
        return byte_level(keys, tokens, pattern), pattern.add_bos
    if kind not in _OF_KINDS:
        raise UnsupportedModelError(
            f"{keys.path}: tokenizer.ggml.model is {quoted(kind)}; gpt2, llama, gemma4, bert, t5 "
            "and whitespace are read. Give the model's own tokenizer: tokenizer=DIRECTORY"
        )
    return _OF_KINDS[kind](keys, tokens), kind != "whitespace"


def _change_letters(keys: Keys, tokenizer: Json) -> None:
    """Adds steps that lower letters and strip accents, where the file says so."""
    kinds = {"lowercase": ["Lowercase"], "strip_accents": ["NFD", "StripAccents"]}
    steps = [
        {"type": kind}
        for name, found in kinds.items()
        if keys.flag(f"tokenizer.ggml.normalizer.{name}")
        for kind in found
    ]
    if steps:
        own = tokenizer["normalizer"]
        all_steps = [*([] if own is None else [own]), *steps]
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": all_steps}


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _added_tokens(keys: Keys, tokens: list[str]) -> list[Json]:
    """Tokens that are found in a text whole: control tokens, those that end a reply, and those that
    a user defined."""
    kinds = keys.numbers("tokenizer.ggml.token_type", int, len(tokens)) or []
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    roles = {keys.token_of(name, tokens) for name in _ROLES.values()}
    roles |= {tokens[token_id] for token_id in end_token_ids(keys, tokens)}
    found = []
    for token_id, text in enumerate(tokens):
        kind = kinds[token_id] if kinds else 1
        is_special = kind in (_CONTROL, _UNKNOWN) or text in roles
        if text and (is_special or kind == _USER_DEFINED) and ids[text] == token_id:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            found.append({"id": token_id, "content": text, **flags, "special": is_special})
    return found


def _frame(keys: Keys, tokens: list[str], adds_bos: bool) -> Json | None:
    """The tokens around a text."""
    says_bos, says_eos = (keys.flag(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos"))
    if _ALWAYS_WITH_BOS & {keys.text(f"tokenizer.ggml.{name}") for name in ("model", "pre")}:
        says_bos = True
    before = keys.token_of("bos", tokens) if (adds_bos if says_bos is None else says_bos) else None
    after = keys.token_of("eos", tokens) if says_eos else None
    if keys.architecture in ("bert", "modern-bert") and before and after:
        between = [after, after] if keys.architecture == "bert" else [after]  # RoBERTa's, or BERT's
        return pair_frame(tokens, before, between, second_type=0)

    def special(text: str | None, type_id: int) -> list[Json]:
        return [] if text is None else [{"SpecialToken": {"id": text, "type_id": type_id}}]

    def sequence(name: str, type_id: int) -> list[Json]:
        own = {"Sequence": {"id": name, "type_id": type_id}}
        return [*special(before, type_id), own, *special(after, type_id)]

    used = {text for text in (before, after) if text is not None}
    if not used:
        return None
    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": [*sequence("A", 0), *sequence("B", 1)],
        "special_tokens": {
            text: {"id": text, "ids": [tokens.index(text)], "tokens": [text]} for text in used
        },
    }


def _config(keys: Keys, tokens: list[str]) -> Json:
    """Roles of tokens, and the chat templates."""
    found: Json = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for role, name in _ROLES.items():
        if (text := keys.token_of(name, tokens)) is not None:
            found[role] = text
    found["clean_up_tokenization_spaces"] = False
    if keys.text("tokenizer.ggml.model") == "bert":
        found["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    prefix = "tokenizer.chat_template"
    main = keys.text(prefix)
    named = {key[len(prefix) + 1 :]: keys.text(key) for key in keys.names(f"{prefix}.")}
    if named:
        texts = {**({"default": main} if main else {}), **named}
        found["chat_template"] = [{"name": n, "template": text} for n, text in texts.items()]
    elif main:
        found["chat_template"] = main
    return found

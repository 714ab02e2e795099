"""tokenizer.json and tokenizer_config.json, of the metadata of a GGUF file.

Kinds: `gpt2`, byte-level BPE with its merges; `llama`, SentencePiece's BPE, whose merges follow
from the pieces and their scores; and those of encoders (`encoders`). The result gives the ids of
the model's own tokenizer.json.
"""

from __future__ import annotations

import json
from typing import Any

from quire.errors import CheckpointError, UnsupportedModelError, quoted
from quire.gguf.keys import Keys
from quire.gguf.tokenizers.encoders import pair_frame, unigram, word_pieces
from quire.gguf.tokenizers.sentence_pieces import derived_merges
from quire.gguf.tokenizers.word_patterns import WORD_PATTERNS, WordPattern

Json = dict[str, Any]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_MAX_TOKENS = 1 << 22
_ROLES = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding",
    "cls_token": "cls", "sep_token": "seperator", "mask_token": "mask",
}  # fmt: skip
"""Names in tokenizer_config.json, and in files with `_token_id` (`seperator` is their spelling)."""
_OF_ENCODERS = {"bert": word_pieces, "t5": unigram}
_SPACE = "▁"


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
    kind = keys.text("tokenizer.ggml.model")
    if kind == "gpt2":
        pattern = _word_pattern(keys)
        tokenizer, adds_bos = _byte_level(keys, tokens, pattern), pattern.add_bos
    elif kind in ("llama", "gemma4"):  # the latter's pieces are those of Gemma's, with merges
        tokenizer, adds_bos = _sentence_pieces(keys, tokens), True
    elif kind in _OF_ENCODERS:
        tokenizer, adds_bos = _OF_ENCODERS[kind](keys, tokens), True
    else:
        raise UnsupportedModelError(
            f"{keys.path}: tokenizer.ggml.model is {quoted(kind)}; gpt2, llama, gemma4, bert and "
            "t5 are read. Give the model's own tokenizer: tokenizer=DIRECTORY"
        )
    tokenizer["added_tokens"] = _added_tokens(keys, tokens)
    if "post_processor" not in tokenizer:
        tokenizer["post_processor"] = _frame(keys, tokens, adds_bos)
    return {
        "tokenizer.json": _dump({"version": "1.0", **tokenizer}),
        "tokenizer_config.json": _dump(_config(keys, tokens)),
    }


def _dump(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _word_pattern(keys: Keys) -> WordPattern:
    name = keys.text("tokenizer.ggml.pre")
    pattern = WORD_PATTERNS.get(name or "")
    if pattern is None:
        raise UnsupportedModelError(
            f"{keys.path}: tokenizer.ggml.pre is {quoted(name)}, so that it is not known how texts "
            f"are cut into words; known are {', '.join(sorted(WORD_PATTERNS))}. Give the model's "
            "own tokenizer: tokenizer=DIRECTORY"
        )
    return pattern


def _byte_level(keys: Keys, tokens: list[str], pattern: WordPattern) -> Json:
    merges = keys.texts("tokenizer.ggml.merges")
    if merges is None:
        raise CheckpointError(f"{keys.path}: tokenizer.ggml.merges is missing")
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
        "model": _bpe(tokens, [_pair(keys, merge) for merge in merges], pattern.ignore_merges),
    }  # fmt: skip


def _pair(keys: Keys, merge: str) -> list[str]:
    """The two parts: the space between them is the first that does not begin the text."""
    space = merge.find(" ", 1)
    if space < 0 or space + 1 == len(merge):
        raise CheckpointError(
            f"{keys.path}: tokenizer.ggml.merges has {quoted(merge)}, which must be a pair"
        )
    return [merge[:space], merge[space + 1 :]]


def _bpe(tokens: list[str], merges: list[list[str]], ignore_merges: bool) -> Json:
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


def _sentence_pieces(keys: Keys, tokens: list[str]) -> Json:
    """Gemma stores runs of spaces as they are, and orders its pieces by id instead of score."""
    is_gemma = keys.architecture.startswith("gemma")
    if is_gemma:
        tokens[:] = [_SPACE * len(t) if t.isspace() and set(t) == {" "} else t for t in tokens]
    scores = keys.numbers("tokenizer.ggml.scores", float, len(tokens))
    if is_gemma or scores is None:
        scores = [-float(token_id) for token_id in range(len(tokens))]
    merges = keys.texts("tokenizer.ggml.merges")
    if merges is None:
        pairs = derived_merges(keys.path, tokens, scores)
    else:
        pairs = [_pair(keys, merge) for merge in merges]
    has_prefix = keys.flag("tokenizer.ggml.add_space_prefix")
    has_prefix = not is_gemma if has_prefix is None else has_prefix
    to_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    from_spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    normalizers = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
    decoders: list[Json] = [from_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(tokens, pairs, ignore_merges=False)
    model |= {
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": keys.token_of("unknown", tokens),
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, to_spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _added_tokens(keys: Keys, tokens: list[str]) -> list[Json]:
    """Tokens that are found in a text whole: control tokens, and those that a user defined."""
    kinds = keys.numbers("tokenizer.ggml.token_type", int, len(tokens)) or []
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    roles = {keys.token_of(name, tokens) for name in _ROLES.values()}
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
    prefix = "tokenizer.chat_template"
    main = keys.text(prefix)
    named = {key[len(prefix) + 1 :]: keys.text(key) for key in keys.names(f"{prefix}.")}
    if named:
        texts = {**({"default": main} if main else {}), **named}
        found["chat_template"] = [{"name": n, "template": text} for n, text in texts.items()]
    elif main:
        found["chat_template"] = main
    return found

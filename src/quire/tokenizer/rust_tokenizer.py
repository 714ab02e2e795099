"""Builds the Rust tokenizer from a checkpoint's files.

`tokenizer.json` holds everything and is taken as it is; `vocab.json` with `merges.txt` is a
byte-level BPE vocabulary of GPT-2's kind (GPT-2, OPT) or Qwen2's; `tekken.json` is Mistral's;
`tokenizer.model` is SentencePiece's or tiktoken's; `vocab.txt` is BERT's WordPiece. Called by
`Tokenizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.config.checkpoint.model_files import (
    has_file,
    read_bytes,
    read_json_object,
    read_optional_json_object,
    transformer_file,
)
from quire.errors import CheckpointError
from quire.log import get_logger
from quire.tokenizer.growth import check_growth
from quire.tokenizer.pieces import library_errors
from quire.tokenizer.special_tokens import SpecialTokens, TokenSpec, read_special_tokens
from quire.units import MiB, format_bytes

if TYPE_CHECKING:
    import tokenizers

logger = get_logger(__name__)

MAX_TOKENIZER_BYTES = 256 * MiB
TEKKEN = "tekken.json"
MODEL = "tokenizer.model"
VOCAB = "vocab.txt"

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END_OF_TEXT = "<|endoftext|>"
_GPT2_ROLES = ("bos_token", "eos_token", "unk_token")
_QWEN2_ROLES = ("eos_token", "pad_token", "unk_token")
_QWEN2 = "Qwen2Tokenizer"
_BYTE_LEVEL_CLASSES = {"", "GPT2Tokenizer", "OPTTokenizer", "WhisperTokenizer"}


@dataclass(frozen=True, slots=True)
class RustTokenizer:
    """The Rust tokenizer with all added tokens, and its special tokens by role."""

    backend: tokenizers.Tokenizer
    roles: Mapping[str, str]
    encode: Callable[[str], list[int]] | None = None
    """Gives a text's ids instead of `backend`, without special tokens around it."""


def build_rust_tokenizer(directory: Path, tokenizer_config: Mapping[str, Any]) -> RustTokenizer:
    """Reads whichever files there are. Raises CheckpointError."""
    found = _built(directory, tokenizer_config)
    if read_optional_json_object(transformer_file(directory)).get("do_lower_case") is True:
        return _lowercased(found)
    return found


def _lowercased(found: RustTokenizer) -> RustTokenizer:
    """With texts in lower case first, as sentence-transformers does it."""
    from tokenizers import normalizers

    before = found.backend.normalizer
    steps = [normalizers.Lowercase(), *([] if before is None else [before])]
    found.backend.normalizer = normalizers.Sequence(steps)
    own = found.encode
    if own is None:
        return found
    return RustTokenizer(found.backend, found.roles, lambda text: own(text.lower()))


def _built(directory: Path, tokenizer_config: Mapping[str, Any]) -> RustTokenizer:
    special = read_special_tokens(directory, tokenizer_config)
    path = directory / "tokenizer.json"
    if has_file(path):
        from tokenizers import Tokenizer

        _check_size(path)
        with library_errors(lambda words: CheckpointError(f"{path}: {words}")):
            backend = Tokenizer.from_file(str(path))
            backend.no_truncation()
            backend.no_padding()
            _without_dropout(backend, path)
            check_growth(backend, path)
        _add_tokens(backend, special, directory)
        return RustTokenizer(backend, special.roles)
    if has_file(directory / "vocab.json") and has_file(directory / "merges.txt"):
        backend = _byte_level_bpe(directory, tokenizer_config)
        special = _with_default_roles(backend, tokenizer_config, special)
        _add_tokens(backend, special, directory)
        _add_start_and_end(backend, tokenizer_config, special, directory)
        return RustTokenizer(backend, special.roles)
    if has_file(directory / TEKKEN):
        return _of_tekken(directory, special)
    if has_file(directory / MODEL):
        return _of_model(directory, tokenizer_config, special)
    if has_file(directory / VOCAB):
        return _of_words(directory, tokenizer_config, special)
    raise CheckpointError(
        f"{directory} has no tokenizer: no tokenizer.json, vocab.json with merges.txt, {TEKKEN}, "
        f"{MODEL} or {VOCAB}"
    )


def _of_model(directory: Path, config: Mapping[str, Any], special: SpecialTokens) -> RustTokenizer:
    from quire.tokenizer.formats.frames import add_frame
    from quire.tokenizer.formats.sentencepiece import build_sentencepiece
    from quire.tokenizer.formats.sentencepiece_parts import SentencePieceEncoder
    from quire.tokenizer.formats.tiktoken import build_tiktoken, is_tiktoken
    from quire.tokenizer.special_tokens import check_ids, with_gaps_filled

    path = directory / MODEL
    data = read_bytes(path, max_bytes=MAX_TOKENIZER_BYTES)
    roles: Mapping[str, str] = {}
    built = None
    if is_tiktoken(data):
        backend = build_tiktoken(data, path, config)
    else:
        built = build_sentencepiece(data, path, config)
        backend, roles = built.backend, built.roles
    check_growth(backend, path)
    special = SpecialTokens({**roles, **special.roles}, special.to_add)
    special = with_gaps_filled(special, backend.get_vocab_size(), path)
    _add_tokens(backend, special, directory)
    check_ids(backend, special, path)
    add_frame(backend, config, special.roles, directory / "tokenizer_config.json")
    if built is None or built.models is None:
        return RustTokenizer(backend, special.roles)
    own = SentencePieceEncoder(built.models, backend, built.symbols)
    return RustTokenizer(backend, special.roles, own.encode)


def _of_words(directory: Path, config: Mapping[str, Any], special: SpecialTokens) -> RustTokenizer:
    from quire.tokenizer.formats.wordpiece import ROLES, build_wordpiece

    backend = build_wordpiece(directory / VOCAB, config, special.roles, MAX_TOKENIZER_BYTES)
    found = {role: token for role, token in ROLES.items() if backend.token_to_id(token) is not None}
    roles = {**found, **special.roles}
    specs = tuple(TokenSpec(token, special=True) for token in dict.fromkeys(roles.values()))
    _add_tokens(backend, SpecialTokens(roles, (*special.to_add, *specs)), directory)
    return RustTokenizer(backend, roles)


def _of_tekken(directory: Path, special: SpecialTokens) -> RustTokenizer:
    from quire.tokenizer.formats.tekken import build_tekken

    path = directory / TEKKEN
    _check_size(path)
    found = build_tekken(path, MAX_TOKENIZER_BYTES)
    check_growth(found.backend, path)
    _add_tokens(found.backend, special, directory)
    return RustTokenizer(found.backend, {**found.roles, **special.roles})


def main_file(directory: Path) -> Path:
    """The file that holds the vocabulary, for messages."""
    paths = [directory / name for name in ("tokenizer.json", "vocab.json", TEKKEN, MODEL, VOCAB)]
    return next((path for path in paths if has_file(path)), paths[0])


def _without_dropout(backend: tokenizers.Tokenizer, path: Path) -> None:
    """Dropout is for training: with it the token ids of a text are random."""
    if getattr(backend.model, "dropout", None):
        logger.warning("%s: dropout of merges is left out", path)
        backend.model.dropout = None


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            f"{path}: {format_bytes(size)}, at most {format_bytes(MAX_TOKENIZER_BYTES)} are read"
        )


def _check_vocab(path: Path) -> None:
    """Refuses entries with an invalid or repeated id, which the library ignores silently."""
    ids = read_json_object(path, max_bytes=MAX_TOKENIZER_BYTES).values()
    if not all(type(token_id) is int and 0 <= token_id < 2**31 for token_id in ids):
        raise CheckpointError(f"{path}: a token has no id that is a whole number")
    if len(set(ids)) != len(ids):
        raise CheckpointError(f"{path}: two tokens have the same id")


def _kind(config: Mapping[str, Any]) -> str:
    return str(config.get("tokenizer_class") or "").removesuffix("Fast")


def _byte_level_bpe(directory: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind = _kind(config)
    if kind not in _BYTE_LEVEL_CLASSES and kind != _QWEN2:
        raise CheckpointError(
            f"{directory / 'tokenizer_config.json'}: a {kind} cannot be built from vocab.json and "
            "merges.txt; write a tokenizer.json to the directory with transformers: "
            "AutoTokenizer.from_pretrained(path).save_pretrained(path)"
        )
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    _check_vocab(vocab)
    _check_size(merges)
    with library_errors(lambda words: CheckpointError(f"{vocab} with {merges.name}: {words}")):
        backend = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    backend.decoder = decoders.ByteLevel()
    prefix = config.get("add_prefix_space") is True
    if kind == _QWEN2:
        words = pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated", invert=False)
        letters = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    return backend


def _with_default_roles(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special: SpecialTokens
) -> SpecialTokens:
    """Adds the default roles of the tokenizer's class where the files set none."""
    if backend.token_to_id(_END_OF_TEXT) is None:
        return special
    roles = dict.fromkeys(_QWEN2_ROLES if _kind(config) == _QWEN2 else _GPT2_ROLES, _END_OF_TEXT)
    spec = TokenSpec(_END_OF_TEXT, special=True)
    return SpecialTokens({**roles, **special.roles}, (*special.to_add, spec))


def _add_tokens(backend: tokenizers.Tokenizer, special: SpecialTokens, directory: Path) -> None:
    """Adds the tokens that are not among the tokenizer's added tokens, as transformers does."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [spec for spec in special.to_add if spec.content and spec.content not in known]
    added = [
        AddedToken(
            spec.content,
            single_word=spec.single_word,
            lstrip=spec.lstrip,
            rstrip=spec.rstrip,
            normalized=not spec.special if spec.normalized is None else spec.normalized,
            special=spec.special,
        )
        for spec in missing
    ]
    with library_errors(lambda words: CheckpointError(f"{directory}: added tokens: {words}")):
        backend.add_tokens(added)


def _add_start_and_end(
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    special: SpecialTokens,
    directory: Path,
) -> None:
    """`add_bos_token` and `add_eos_token`; a tokenizer.json says this itself."""
    from tokenizers import processors

    template, used = ["$A:0"], []
    for key, role, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", 2)):
        token = special.roles.get(role)
        if config.get(key) is not True or token is None:
            continue
        token_id = backend.token_to_id(token)
        if token_id is None:
            raise CheckpointError(
                f"{directory / 'tokenizer_config.json'}: {key} is set, and {role} {token!r} is not "
                "in the vocabulary; set one that is, or leave out the key"
            )
        template.insert(place, f"{token}:0")
        used.append((token, token_id))
    if used:
        source = directory / "tokenizer_config.json"
        with library_errors(lambda words: CheckpointError(f"{source}: bos or eos: {words}")):
            backend.post_processor = processors.TemplateProcessing(
                single=template, pair=[*template, "$B:1"], special_tokens=used
            )

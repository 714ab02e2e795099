"""Builds the Rust tokenizer from a checkpoint's files.

`tokenizer.json` holds everything and is taken as it is; `vocab.json` with `merges.txt` is a
byte-level BPE vocabulary of GPT-2's kind (GPT-2, OPT) or Qwen2's. Called by `Tokenizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from quire.config.model_files import read_json_object
from quire.errors import CheckpointError
from quire.tokenizer.special_tokens import SpecialTokens, TokenSpec, read_special_tokens
from quire.units import MiB, format_bytes

if TYPE_CHECKING:
    import tokenizers

MAX_TOKENIZER_BYTES = 256 * MiB

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END_OF_TEXT = "<|endoftext|>"
_GPT2_ROLES = ("bos_token", "eos_token", "unk_token")
_QWEN2_ROLES = ("eos_token", "pad_token", "unk_token")
_QWEN2 = "Qwen2Tokenizer"
_BYTE_LEVEL_CLASSES = {"", "GPT2Tokenizer", "OPTTokenizer"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """The Rust tokenizer with all added tokens, and its special tokens by role."""

    backend: tokenizers.Tokenizer
    roles: Mapping[str, str]


def load_tokenizer(directory: Path, tokenizer_config: Mapping[str, Any]) -> LoadedTokenizer:
    """Reads whichever files there are. Raises CheckpointError."""
    special = read_special_tokens(directory, tokenizer_config)
    path = directory / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer

        _check_size(path)
        backend = guarded(path, lambda: Tokenizer.from_file(str(path)))
        backend.no_truncation()
        backend.no_padding()
        _add_tokens(backend, special)
        return LoadedTokenizer(backend, special.roles)
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        backend = _byte_level_bpe(directory, tokenizer_config)
        special = _with_default_roles(backend, tokenizer_config, special)
        _add_tokens(backend, special)
        _add_start_and_end(backend, tokenizer_config, special)
        return LoadedTokenizer(backend, special.roles)
    if (directory / "tokenizer.model").is_file():
        raise CheckpointError(
            f"{directory} has a tokenizer.model alone; write a tokenizer.json beside it with "
            "transformers: AutoTokenizer.from_pretrained(path).save_pretrained(path)"
        )
    raise CheckpointError(
        f"{directory} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt"
    )


def guarded(path: Path, make: Callable[[], _T]) -> _T:
    """Runs the Rust library on a file's contents; whatever it throws becomes a CheckpointError."""
    try:
        return make()
    except Exception as error:
        raise CheckpointError(f"{path}: the tokenizers library refuses it: {error}") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the library's bugs end up here
            raise
        raise CheckpointError(f"{path}: the tokenizers library panics: {error}") from None


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            f"{path}: {format_bytes(size)}, at most {format_bytes(MAX_TOKENIZER_BYTES)} are read"
        )


def _check_vocab(path: Path) -> None:
    """Entries without an id of their own: the library would pass over them in silence."""
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
            f"{directory}: a {kind} cannot be built from vocab.json and merges.txt here; write "
            "a tokenizer.json beside them with transformers: "
            "AutoTokenizer.from_pretrained(path).save_pretrained(path)"
        )
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    _check_vocab(vocab)
    _check_size(merges)
    model = guarded(vocab, lambda: models.BPE.from_file(str(vocab), str(merges)))
    backend = Tokenizer(model)
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
    """The roles that the tokenizer's class fills where the files leave them open."""
    if backend.token_to_id(_END_OF_TEXT) is None:
        return special
    roles = dict.fromkeys(_QWEN2_ROLES if _kind(config) == _QWEN2 else _GPT2_ROLES, _END_OF_TEXT)
    spec = TokenSpec(_END_OF_TEXT, special=True)
    return SpecialTokens({**roles, **special.roles}, (*special.to_add, spec))


def _add_tokens(backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
    """Adds what the vocabulary does not know as added tokens yet, as transformers does."""
    from tokenizers import AddedToken

    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing = [spec for spec in special.to_add if spec.content and spec.content not in known]
    backend.add_tokens(
        [
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
    )


def _add_start_and_end(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special: SpecialTokens
) -> None:
    """`add_bos_token` and `add_eos_token`; a tokenizer.json says this itself."""
    from tokenizers import processors

    template, used = ["$A:0"], []
    for key, role, place in (("add_bos_token", "bos_token", 0), ("add_eos_token", "eos_token", 2)):
        token = special.roles.get(role)
        if config.get(key) is not True or token is None:
            continue
        token_id = backend.token_to_id(token)
        template.insert(place, f"{token}:0")
        used.append((token, token_id))
    if used:
        backend.post_processor = processors.TemplateProcessing(
            single=template, pair=[*template, "$B:1"], special_tokens=used
        )

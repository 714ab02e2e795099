"""Builds the Rust tokenizer from Mistral's `tekken.json`: a byte-level BPE by ranks, like tiktoken.

`{"config": {"pattern", "default_vocab_size", "default_num_special_tokens"}, "vocab": [{"rank",
"token_bytes"}], "special_tokens": [{"rank", "token_str"}]}`, with the bytes in base64. The id of a
special token is its rank; that of another one is its rank plus the number of special tokens. Of the
vocabulary only what `default_vocab_size` has room for counts. Called by `rust_tokenizer`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.config.checkpoint.model_files import read_json_object
from quire.errors import CheckpointError, quoted
from quire.tokenizer.formats.byte_pieces import MAX_TOKENS, byte_level_backend, check_bytes
from quire.tokenizer.pieces import library_errors

if TYPE_CHECKING:
    import tokenizers

_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_FIRST_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
"""The special tokens of files that do not list theirs."""


@dataclass(frozen=True, slots=True)
class TekkenTokenizer:
    """The tokenizer that was built from a tekken.json."""

    backend: tokenizers.Tokenizer
    roles: Mapping[str, str]


def build_tekken(path: Path, max_bytes: int) -> TekkenTokenizer:
    """Reads a tekken.json of at most `max_bytes`. Raises CheckpointError."""
    data = read_json_object(path, max_bytes=max_bytes)
    config = data.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("pattern"), str):
        raise CheckpointError(f"{path}: config.pattern is missing")
    specials = _specials(path, config, data.get("special_tokens"))
    pieces = _pieces(path, config, data.get("vocab"), len(specials))
    backend = byte_level_backend(path, config["pattern"], pieces, specials)
    with library_errors(lambda words: CheckpointError(f"{path}: {words}")):
        _add_start(backend, specials)
    return TekkenTokenizer(
        backend, {role: text for role, text in _ROLES.items() if text in specials}
    )


def _specials(path: Path, config: Mapping[str, Any], given: Any) -> list[str]:
    """The texts of the special tokens, by id; those without a name are numbered."""
    named = dict(enumerate(_FIRST_SPECIALS))
    if given is not None:
        named = {}
        for entry in _list(path, "special_tokens", given):
            rank, text = entry.get("rank"), entry.get("token_str")
            if type(rank) is not int or not isinstance(text, str) or not text or rank in named:
                raise CheckpointError(
                    f"{path}: special_tokens holds {quoted(entry):.100}; each entry must have "
                    "its own rank and a text"
                )
            named[rank] = text
    count = config.get("default_num_special_tokens", len(named))
    if type(count) is not int or not len(named) <= count <= MAX_TOKENS:
        raise CheckpointError(
            f"{path}: config.default_num_special_tokens is {quoted(count)}; there are {len(named)}"
        )
    if named and not 0 <= min(named) <= max(named) < count:
        raise CheckpointError(f"{path}: special_tokens: ranks must be from 0 to {count - 1}")
    return [named.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]


def _pieces(path: Path, config: Mapping[str, Any], given: Any, num_special: int) -> list[bytes]:
    """The bytes of the tokens, by rank."""
    entries = _list(path, "vocab", given)
    size = config.get("default_vocab_size", len(entries) + num_special)
    if type(size) is not int or not num_special < size <= MAX_TOKENS:
        raise CheckpointError(
            f"{path}: config.default_vocab_size is {quoted(size)}; it must be a number above the "
            f"{num_special} special tokens, and at most {MAX_TOKENS}"
        )
    pieces = []
    for rank, entry in enumerate(entries[: size - num_special]):
        try:
            piece = base64.b64decode(entry["token_bytes"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            raise CheckpointError(
                f"{path}: vocab, rank {rank}: token_bytes must be base64"
            ) from None
        if entry.get("rank") != rank:
            raise CheckpointError(f"{path}: vocab, entry {rank}: ranks must count from 0")
        pieces.append(piece)
    check_bytes(pieces, path)
    return pieces


def _list(path: Path, name: str, given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise CheckpointError(f"{path}: {name} must be a list of objects")
    return given


def _add_start(backend: tokenizers.Tokenizer, specials: Sequence[str]) -> None:
    """Texts begin with the start token."""
    from tokenizers import processors

    start = _ROLES["bos_token"]
    if start in specials:
        backend.post_processor = processors.TemplateProcessing(
            single=[f"{start}:0", "$A:0"],
            pair=[f"{start}:0", "$A:0", "$B:1"],
            special_tokens=[(start, specials.index(start))],
        )

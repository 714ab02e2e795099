"""`WhisperTokens`: the tokens with a meaning of a Whisper model, and its rules of decoding.

What generation_config.json lacks follows from the tokenizer and the sizes of the model, as in
openai-whisper. `forced_decoder_ids` is not read: a request says its language and task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import read_optional_json_object
from quire.config.whisper.alignment_heads import Heads, default_heads
from quire.config.whisper.special_tokens import (
    END,
    LANGUAGES,
    NO_TIMESTAMPS,
    START,
    TASKS,
    is_multilingual,
)
from quire.errors import CheckpointError, quoted
from quire.log import get_logger
from quire.tokenizer.tokenizer import Tokenizer

logger = get_logger(__name__)

_PREVIOUS, _LANGUAGE_MODEL = "<|startofprev|>", "<|startoflm|>"
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
_MAX_INITIAL_TIMESTAMP = 50
"""The first time is at most 1 s."""
_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
_SYMBOLS = (*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *_GROUPS.split())
_NOTES = "♩♪♫♬♭♮♯"
"""Symbols whose first token is not written either, if they have several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperTokens:
    """Ids of tokens, and what is suppressed when."""

    sot: int
    """Start of a transcript: the first token of a prompt, or the one after the previous text."""
    eot: int
    transcribe: int
    translate: int
    sot_prev: int
    """Start of the previous text."""
    no_speech: int
    no_timestamps: int
    first_timestamp: int
    """The token of 0.00 s; each of the following ones is 20 ms later."""
    languages: Mapping[str, int]
    """By code, such as "en"; empty for a model of English alone, whose prompts name no language."""
    suppress: tuple[int, ...]
    """Tokens that are never written."""
    begin_suppress: tuple[int, ...]
    """Tokens that are not written first."""
    alignment_heads: Heads
    """(layer, head) of the heads from which times of words are computed."""
    max_initial_timestamp_index: int
    is_multilingual: bool
    """False: prompts name neither a language nor a task."""


def read_whisper_tokens(
    directory: Path, tokenizer: Tokenizer, config: Mapping[str, Any]
) -> WhisperTokens:
    """Reads generation_config.json, if there is one. `config`: the checked config.json. Raises
    CheckpointError for fields that cannot be used, and a tokenizer without Whisper's tokens."""
    path = directory / "generation_config.json"
    return whisper_tokens(tokenizer, config, read_optional_json_object(path), str(path))


def whisper_tokens(
    tokenizer: Tokenizer, config: Mapping[str, Any], generation: Mapping[str, Any], source: str
) -> WhisperTokens:
    """Call `read_whisper_tokens`, with the contents of generation_config.json, whose file is
    `source`."""
    fields = _Fields(tokenizer, generation, source, config["vocab_size"])
    tasks = fields.ids("task_to_id")
    no_timestamps = fields.id("no_timestamps_token_id", NO_TIMESTAMPS)
    eot = fields.token(END)
    tokens = {
        "sot": fields.token(START),
        "eot": eot,
        **{task: tasks.get(task, fields.token(text)) for task, text in TASKS.items()},
        "sot_prev": fields.id("prev_sot_token_id", _PREVIOUS),
        "no_speech": fields.token(*_NO_SPEECH),
    }
    knows_several = generation.get("is_multilingual")
    if not isinstance(knows_several, bool | None):
        raise fields.error("is_multilingual", "true or false", True)
    if knows_several is None:
        knows_several = is_multilingual(config["vocab_size"])
    suppress = fields.list_of_ids("suppress_tokens")
    if suppress is None:
        others = {*tokens.values(), fields.token(_LANGUAGE_MODEL)} - {eot}
        suppress = tuple(sorted({*_without_speech(tokenizer), *others}))
    begin = fields.list_of_ids("begin_suppress_tokens")
    if begin is None:
        begin = (*_encoded(tokenizer, " "), eot)
    return WhisperTokens(
        **tokens,
        no_timestamps=no_timestamps,
        first_timestamp=no_timestamps + 1,
        languages=_languages(fields) if knows_several else {},
        suppress=suppress,
        begin_suppress=begin,
        alignment_heads=_heads(fields, config),
        max_initial_timestamp_index=fields.number(
            "max_initial_timestamp_index", _MAX_INITIAL_TIMESTAMP
        ),
        is_multilingual=knows_several,
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of generation_config.json, checked, and the tokenizer's tokens."""

    tokenizer: Tokenizer
    values: Mapping[str, Any]
    source: str
    vocab_size: int

    def error(self, key: str, what: str, example: Any) -> CheckpointError:
        return CheckpointError(
            f"{self.source}: {key} must be {what}, such as {example}, got "
            f"{quoted(self.values.get(key))}"
        )

    def token(self, *texts: str) -> int:
        """The id of the first of these tokens that the tokenizer has."""
        for text in texts:
            found = self.tokenizer.backend.token_to_id(text)
            if found is not None and found < self.vocab_size:
                return found
        raise CheckpointError(
            f"the tokenizer of a Whisper model must have the token {' or '.join(texts)}, with an "
            f"id below vocab_size, {self.vocab_size}"
        )

    def id(self, key: str, text: str) -> int:
        """An id, or that of the token `text` where the field is missing."""
        value = self.values.get(key)
        if value is None:
            return self.token(text)
        if not self._is_id(value):
            raise self.error(key, f"a token id below {self.vocab_size}", self.token(text))
        return int(value)

    def ids(self, key: str) -> Mapping[str, int]:
        """Ids by name; none where the field is missing."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(map(self._is_id, value.values())):
            raise self.error(key, f"an object of token ids below {self.vocab_size}", '{"a": 50259}')
        return value

    def list_of_ids(self, key: str) -> tuple[int, ...] | None:
        """Ids; None where the field is missing, or has openai-whisper's -1 for the default."""
        value = self.values.get(key)
        if value is None or value == [-1]:
            return None
        if not isinstance(value, list) or not all(map(self._is_id, value)):
            raise self.error(key, f"a list of token ids below {self.vocab_size}", [220, 50257])
        return tuple(value)

    def number(self, key: str, default: int) -> int:
        """A whole number that is not negative."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not int or value < 0:
            raise self.error(key, "a whole number from 0", default)
        return value

    def _is_id(self, value: object) -> bool:
        return type(value) is int and 0 <= value < self.vocab_size


def _languages(fields: _Fields) -> dict[str, int]:
    """The tokens of languages: the file's, or else all languages that the tokenizer has."""
    given = fields.ids("lang_to_id")
    if given:
        return {text.removeprefix("<|").removesuffix("|>"): id for text, id in given.items()}
    found = ((code, fields.tokenizer.backend.token_to_id(f"<|{code}|>")) for code in LANGUAGES)
    return {code: id for code, id in found if id is not None and id < fields.vocab_size}


def _heads(fields: _Fields, config: Mapping[str, Any]) -> Heads:
    """The file's heads. Some files of smaller models have those of the larger one from which they
    were made: then the default is taken."""
    value = fields.values.get("alignment_heads")
    if value is None or value == []:
        return default_heads(config)
    if not isinstance(value, list) or not all(_is_pair(pair) for pair in value):
        raise fields.error("alignment_heads", "a list of pairs [layer, head]", [[3, 1], [4, 2]])
    layers, heads = config["decoder_layers"], config["decoder_attention_heads"]
    if all(layer < layers and head < heads for layer, head in value):
        return tuple((layer, head) for layer, head in value)
    logger.warning(
        "%s: alignment_heads are not all in the %d layers of the model, so others are taken",
        fields.source,
        layers,
    )
    return default_heads(config)


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(one) is int and one >= 0 for one in value)
    )


def _without_speech(tokenizer: Tokenizer) -> set[int]:
    """Tokens of symbols that are not spoken, such as brackets and notes. A hyphen or quotation mark
    may stand within a word, not at its beginning."""
    found = {id for text in (" -", " '") for id in _encoded(tokenizer, text)[:1]}
    for symbol in (*_SYMBOLS, *_NOTES):
        for text in (symbol, f" {symbol}"):
            ids = _encoded(tokenizer, text)
            if len(ids) == 1 or symbol in _NOTES:
                found.update(ids[:1])
    return found


def _encoded(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    return tokenizer.encode(text, add_special_tokens=False)

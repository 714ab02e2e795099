"""`unpack_whisper`: a model directory for a file of whisper.cpp, or a directory of CTranslate2.

`whisper_file` finds the file of a path that a user gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import (
    has_file,
    parse_json_object,
    read_optional_json_object,
    read_text,
)
from quire.config.whisper.alignment_heads import heads_by_name
from quire.config.whisper.ctranslate2 import spec_of
from quire.config.whisper.ggml import is_ggml
from quire.config.whisper.special_tokens import (
    END,
    NO_TIMESTAMPS,
    START,
    timestamps,
    tokenizer_config,
    tokenizer_files,
)
from quire.config.whisper.tensors import read_whisper
from quire.errors import CheckpointError, ModelNotFoundError, quoted
from quire.gguf.unpacked import Contents, unpacked
from quire.log import get_logger, phase
from quire.units import MiB

logger = get_logger(__name__)

_VERSION = 2
"""Version of the unpacked files; increase it when their contents change."""
LINK_NAME = "model.whisper"
CT2_NAME = "model.bin"
_VOCABULARIES = ("vocabulary.json", "vocabulary.txt")
_SETTINGS = ("config.json", "tokenizer.json", *_VOCABULARIES)
"""Files of CTranslate2 that are read besides its model.bin."""
_MAX_TOKENIZER = 256 * MiB
_POSITIONS_PER_S = 50


def whisper_file(path: Path) -> Path | None:
    """The file of Whisper's weights that a path means: it is a file of whisper.cpp or CTranslate2
    itself, or a directory that has one and is not a checkpoint of transformers. None: it is
    neither. Raises ModelNotFoundError for a directory with several files."""
    if path.is_file():
        return path if is_ggml(path) or spec_of(path) is not None else None
    config, file = path / "config.json", path / CT2_NAME
    if file.is_file() and spec_of(file) is not None and not _is_of_transformers(config):
        return file
    if config.exists() or any(path.glob("*.safetensors")):
        return None
    files = sorted(file for file in path.glob("*.bin") if file.is_file() and is_ggml(file))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:8])
        raise ModelNotFoundError(
            f"{path} holds {len(files)} models of whisper.cpp: {names}; give the path of one"
        )
    return files[0] if files else None


def _is_of_transformers(config: Path) -> bool:
    found = read_optional_json_object(config)
    return "model_type" in found or "architectures" in found


def unpack_whisper(file: Path) -> Path:
    """The directory of the model in this file. Raises CheckpointError or UnsupportedModelError for
    a file that cannot be used, and ConfigError where no directory can be written."""
    file = file.absolute()
    others = [] if is_ggml(file) else [file.parent / name for name in _SETTINGS]
    files = [file, *(other for other in others if has_file(other))]
    return unpacked("whisper", _VERSION, files, lambda: _contents(file))


def _contents(file: Path) -> Contents:
    with phase(logger, f"{file.name} unpacked"):
        model = read_whisper(file)
        config, directory = model.config, file.parent
        tokens, vocab_size = model.tokens, config["vocab_size"]
        settings: Mapping[str, Any] = {}
        if tokens is not None:
            texts = tokenizer_files(list(tokens), vocab_size, file)
            heads = heads_by_name(file.name, config)
            settings = {"alignment_heads": [list(one) for one in heads]} if heads else {}
        else:
            settings = read_optional_json_object(directory / "config.json")
            texts = _ct2_tokenizer(directory, vocab_size)
        table = json.loads(texts["tokenizer_config.json"])["added_tokens_decoder"]
        generation = _generation_config(settings, str(directory / "config.json"))
    jsons = {
        "config.json": {**config, **_roles(texts, table)},
        "generation_config.json": {**generation, **_roles(texts, table)},
        "preprocessor_config.json": _feature_extractor(config),
    }
    return Contents(
        texts | {name: json.dumps(one, indent=2) for name, one in jsons.items()},
        {LINK_NAME: file},
    )


def _ct2_tokenizer(directory: Path, vocab_size: int) -> dict[str, str]:
    """The files of the tokenizer: the directory's own, with timestamps that it may lack; without
    one, a tokenizer of its vocabulary."""
    own = directory / "tokenizer.json"
    if not has_file(own):
        return tokenizer_files(_vocabulary(directory), vocab_size, directory)
    text = read_text(own, max_bytes=_MAX_TOKENIZER)
    first = _ids_of(parse_json_object(text, str(own)), own)[NO_TIMESTAMPS] + 1
    return {
        "tokenizer.json": text,
        "tokenizer_config.json": tokenizer_config(timestamps(first, vocab_size)),
    }


def _ids_of(tokenizer: Mapping[str, Any], path: Path) -> dict[str, int]:
    """The ids of the tokens that Whisper needs. Raises CheckpointError for a tokenizer without
    them."""
    added = tokenizer.get("added_tokens")
    found = {
        one["content"]: one["id"]
        for one in (added if isinstance(added, list) else [])
        if isinstance(one, dict) and type(one.get("id")) is int and one["id"] >= 0
        and one.get("content") in (END, START, NO_TIMESTAMPS)
    }  # fmt: skip
    for token in (END, START, NO_TIMESTAMPS):
        if token not in found:
            raise CheckpointError(f"{path}: added_tokens must have {token}")
    return found


def _vocabulary(directory: Path) -> list[bytes]:
    """The tokens before the special ones, of vocabulary.json or vocabulary.txt."""
    path = next((p for n in _VOCABULARIES if has_file(p := directory / n)), None)
    if path is None:
        raise CheckpointError(
            f"{directory} has no tokenizer: no tokenizer.json, {' or '.join(_VOCABULARIES)}"
        )
    text = read_text(path, max_bytes=_MAX_TOKENIZER)
    if path.suffix == ".json":
        tokens = parse_json_object(f'{{"tokens": {text}}}', str(path))["tokens"]
    else:
        tokens = text.split("\n")
    if not isinstance(tokens, list) or END not in tokens:
        raise CheckpointError(f"{path} must be a list of tokens with {END} among them")
    words = tokens[: tokens.index(END)]
    if not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{path} must be a list of tokens, all of them strings")
    try:
        return [bytes(map(_BYTES.__getitem__, word)) for word in words]
    except KeyError as error:
        raise CheckpointError(
            f"{path}: {quoted(str(error.args[0]))} is not a letter of GPT-2's alphabet of bytes"
        ) from None


_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(sorted({*range(256)} - _PRINTABLE))
}


def _roles(texts: Mapping[str, str], table: Mapping[str, Any]) -> dict[str, int]:
    """The ids of tokens with a role, in config.json and generation_config.json."""
    if own := texts.get("tokenizer.json"):
        ids = _ids_of(json.loads(own), Path("tokenizer.json"))
    else:
        ids = {one["content"]: int(token_id) for token_id, one in table.items()}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids[END])
    return {**ends, "decoder_start_token_id": ids[START]}


_FIELDS = {
    "alignment_heads": "alignment_heads",
    "suppress_ids": "suppress_tokens",
    "suppress_ids_begin": "begin_suppress_tokens",
}
"""Fields of CTranslate2's config.json, and their names in generation_config.json."""


def _generation_config(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    for key in _FIELDS:
        if not isinstance(settings.get(key, []), list):
            raise CheckpointError(f"{source}: {key} must be a list")
    return {name: settings[key] for key, name in _FIELDS.items() if key in settings}


def _feature_extractor(config: Mapping[str, Any]) -> dict[str, Any]:
    """preprocessor_config.json. The number of bins and of seconds follow from the encoder."""
    seconds = config["max_source_positions"] / _POSITIONS_PER_S
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": int(seconds) if seconds.is_integer() else seconds,
        "nb_max_frames": 2 * config["max_source_positions"],
        "n_samples": 320 * config["max_source_positions"],
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }

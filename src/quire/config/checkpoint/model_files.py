"""Reads the JSON files of a checkpoint directory: config.json, generation_config.json and so on.

Called when an engine is configured and when a tokenizer is loaded. Nothing from a checkpoint is
ever executed: `auto_map` and other references to code are ignored. Knows no model family: the
families in `models` interpret the keys.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from quire.config.checkpoint.never_generated import RULE_KEYS
from quire.errors import CheckpointError, ModelNotFoundError, quoted, reason
from quire.units import MiB, format_bytes

DEMO_MODEL = "demo"
"""The bundled model's name, which stands for it wherever a model is named."""
DEMO_MODEL_PATH = Path(__file__).parents[2] / "demo_model"
MAX_CONFIG_BYTES = 16 * MiB
"""Far larger than any published config.json."""

MODEL_SAMPLING_KEYS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)
"""Fields of `SamplingParams` that a model's generation_config.json may set."""
_QUANTISATION_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
    "quantization_config.json": "auto-round",
}
"""Files in which tools describe the quantisation, where config.json does not, and the
`quant_method` that they leave out. Sources: AutoGPTQ, AutoAWQ, ModelOpt, auto-round, as in vLLM's
`get_config_filenames`."""
_KEYS_OF_AWQ = frozenset({"w_bit", "q_group_size"})
"""AutoAWQ has written them to quantize_config.json too."""
_CHAT_SAMPLING: Mapping[str, float] = {
    "temperature": 0.5, "top_p": 0.95, "min_p": 0.05, "presence_penalty": 1.0,
}  # fmt: skip
"""The penalty is for small quantised models, which often repeat themselves without end. It is the
one that counts neither the prompt nor how often a token occurs, so that long replies and quotations
stay possible. docs/terminal.md has the measurements."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """A checkpoint's generation settings, and the file they come from, for messages."""

    values: Mapping[str, Any]
    source: str


def has_file(path: Path) -> bool:
    """Whether `path` is a regular file; False for a directory.

    Raises CheckpointError for a broken link, a pipe or device, and a path without permission.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_symlink():
            return False
        raise CheckpointError(
            f"{path}: links to {path.readlink()}, where there is nothing; the download may be "
            "incomplete"
        ) from None
    except (OSError, ValueError) as error:
        name = quoted(str(path))
        raise CheckpointError(f"{name}: cannot be read: {reason(error)}") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise CheckpointError(f"{path} must be a regular file")
    return stat.S_ISREG(mode)


def parse_json_object(text: str | bytes, source: str) -> dict[str, Any]:
    """A JSON object from text of bounded size; `source` names it in messages.

    Raises CheckpointError for invalid JSON, for a value that is not an object, for a repeated key
    (readers disagree on which one counts), and for a string with a lone surrogate, which cannot be
    encoded.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = json.loads(text, object_pairs_hook=_unique_pairs)
    except RecursionError:
        raise CheckpointError(f"{source}: JSON nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"{source}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: expected a JSON object, found {type(value).__name__}")
    if _SURROGATE.search(text):
        for string in _strings(value):
            if not _is_text(string):
                raise CheckpointError(
                    f"{source}: {string!r} must be valid Unicode, but has a lone surrogate"
                )
    return value


def read_bytes(path: Path, *, max_bytes: int) -> bytes:
    """A file of at most `max_bytes`. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            # `read` takes memory for what it is asked for. A device has no size.
            size = os.fstat(file.fileno()).st_size or max_bytes
            raw = file.read(min(size, max_bytes) + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > max_bytes:
        raise CheckpointError(f"{path}: larger than the {format_bytes(max_bytes)} allowed")
    return raw


def read_text(path: Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """A UTF-8 file of at most `max_bytes`. Raises CheckpointError."""
    raw = read_bytes(path, max_bytes=max_bytes)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text: {error.reason}") from None


def read_json_object(path: Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in a file of at most `max_bytes`. Raises CheckpointError."""
    return parse_json_object(read_text(path, max_bytes=max_bytes), str(path))


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file reads as empty. Raises as `read_json_object` does."""
    return read_json_object(path) if has_file(path) else {}


def read_config(directory: Path) -> dict[str, Any]:
    """config.json, with `quantization_config` from a separate file if config.json has none.

    Raises ModelNotFoundError if config.json is missing, CheckpointError if it is invalid.
    """
    path = directory / "config.json"
    if not has_file(path):
        raise ModelNotFoundError(
            f"{directory} holds no config.json: it is not a Hugging Face model directory"
            + _models_inside(directory)
        )
    config = read_json_object(path)
    if "quantization_config" not in config and "compression_config" not in config:
        config.update(_described_quantisation(directory))
    return config


def _described_quantisation(directory: Path) -> dict[str, Any]:
    for name, method in _QUANTISATION_FILES.items():
        if found := read_optional_json_object(directory / name):
            method = "awq" if _KEYS_OF_AWQ & found.keys() else method
            return {"quantization_config": {"quant_method": method, **found}}
    return {}


def _models_inside(directory: Path) -> str:
    """The models up to two levels below a directory, as a sentence; "" if there are none."""
    patterns = ("*/config.json", "*/*.gguf", "*/*/config.json")
    files = [file for pattern in patterns for file in islice(directory.glob(pattern), 8)]
    found = {file if file.suffix == ".gguf" else file.parent: None for file in files}
    names = ", ".join(sorted(str(place) for place in found)[:8])
    return f". There are models in it: {names}; give one of them" if found else ""


def read_generation_config(directory: Path, hf_config: Mapping[str, Any]) -> GenerationConfig:
    """generation_config.json; from the same keys of config.json where that file is missing."""
    path = directory / "generation_config.json"
    if has_file(path):
        return GenerationConfig(read_json_object(path), str(path))
    sampling = (*MODEL_SAMPLING_KEYS, "max_new_tokens", "skip_special_tokens")
    keys = (*sampling, "eos_token_id", *RULE_KEYS)
    values = {key: hf_config[key] for key in keys if hf_config.get(key) is not None}
    return GenerationConfig(values, str(directory / "config.json"))


def default_sampling_params(config: GenerationConfig) -> dict[str, float | int]:
    """The sampling defaults that a checkpoint recommends, under `SamplingParams`' names.

    `max_new_tokens` becomes `max_tokens`, as vLLM reads it. Raises CheckpointError for a value
    of another type: the ranges are checked by `SamplingParams`.
    """
    found: dict[str, float | int] = {}
    for key in (*MODEL_SAMPLING_KEYS, "max_new_tokens"):
        value = config.values.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise CheckpointError(f"{config.source}: {key} is {quoted(value)}, not a number")
        found["max_tokens" if key == "max_new_tokens" else key] = value
    skips = config.values.get("skip_special_tokens")
    if skips is not None:
        if not isinstance(skips, bool):
            raise CheckpointError(
                f"{config.source}: skip_special_tokens is {quoted(skips)}, not true or false"
            )
        found["skip_special_tokens"] = skips
    return found


def chat_sampling_params(model_defaults: Mapping[str, Any]) -> dict[str, float]:
    """Sampling defaults that the page, and the commands that talk to a person, add to the model's.
    The HTTP API and `LLM` do not add them.

    Empty where the model recommends how to sample. Without that, sampling at temperature 1 from
    the whole vocabulary would make small models write words at random. A repetition penalty that
    the model recommends replaces the presence penalty.
    """
    if any(name in model_defaults for name in ("temperature", "top_p", "top_k", "min_p")):
        return {}
    replaced = "presence_penalty" if "repetition_penalty" in model_defaults else ""
    return {name: value for name, value in _CHAT_SAMPLING.items() if name != replaced}


def eos_token_ids(config: GenerationConfig) -> tuple[int, ...]:
    """Every id under `eos_token_id`, in order, once each.

    The key holds one id or a list of them. Raises CheckpointError for anything else.
    """
    found: dict[int, None] = {}
    ids = config.values.get("eos_token_id")
    for value in ids if isinstance(ids, list) else [ids]:
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(
                f"{config.source}: eos_token_id holds {quoted(value)}, which is not a token id"
            )
        found[value] = None
    return tuple(found)


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            rest += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            rest += item


def _is_text(string: str) -> bool:
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} is given twice")
            seen.add(key)
    return found


_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")


def transformer_file(directory: Path) -> Path:
    """The file with the settings of sentence-transformers' module Transformer, which has one of
    several names; it need not exist."""
    files = [directory / f"sentence_{kind}_config.json" for kind in _KINDS]
    return next((file for file in files if file.is_file()), files[0])

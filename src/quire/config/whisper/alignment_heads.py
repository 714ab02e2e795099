"""Heads of the decoder whose attention to the sound follows the words, from which times of words
are computed.

Source: openai-whisper, `_ALIGNMENT_HEADS`, here as LAYER.HEAD. By their sizes, large-v1 cannot be
distinguished from large-v2, so its own generation_config.json must name its heads. A file of
whisper.cpp is known by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.config.checkpoint.model_files import read_optional_json_object
from quire.config.whisper.special_tokens import is_multilingual

_KEY = "alignment_heads"
_SIZES = ("d_model", "decoder_layers", "decoder_attention_heads", "vocab_size")
Heads = tuple[tuple[int, int], ...]

_ENGLISH = {
    (384, 4): "1.0 2.0 2.5 3.0 3.1 3.2 3.3 3.4",
    (512, 6): "3.3 4.7 5.1 5.5 5.7",
    (768, 12): "6.6 7.0 7.3 7.8 8.2 8.5 8.7 9.0 9.4 9.8 9.10 10.0 10.1 10.2 10.3 10.6 10.11 11.2 "
    "11.4",
    (1024, 24): "11.4 14.1 14.12 14.14 15.4 16.0 16.4 16.9 17.12 17.14 18.7 18.10 18.15 20.0 20.3 "
    "20.9 20.14 21.12",
}
"""By the width and the number of layers: tiny.en, base.en, small.en, medium.en."""
_SEVERAL = {
    (384, 4): "2.2 3.0 3.2 3.3 3.4 3.5",
    (512, 6): "3.1 4.2 4.3 4.7 5.1 5.2 5.4 5.6",
    (768, 12): "5.3 5.9 8.0 8.4 8.7 8.8 9.0 9.7 9.9 10.5",
    (1024, 24): "13.15 15.4 15.15 16.1 20.0 23.4",
    (1280, 4): "2.4 2.11 3.3 3.6 3.11 3.14",
    (1280, 32): "10.12 13.17 16.11 16.12 16.13 17.15 17.16 18.4 18.11 18.19 19.11 21.2 21.3 22.3 "
    "22.9 22.12 23.5 23.7 23.13 25.5 26.1 26.12 27.15",
}
"""tiny, base, small, medium, turbo, large-v2."""
_LARGE_V3 = "7.0 10.17 12.18 13.12 16.1 17.14 19.11 21.4 24.1 25.6"
_LARGE_V3_VOCAB = 51866
_LARGE_V1 = "9.19 11.2 11.4 11.17 22.7 22.11 22.17 23.2 23.15"


def with_alignment_heads(hf_config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """config.json of a Whisper model with the heads of its generation_config.json, or OpenAI's."""
    sizes = (hf_config.get(key) for key in _SIZES)
    is_whisper = hf_config.get("model_type") == "whisper" and all(type(n) is int for n in sizes)
    if not is_whisper or _KEY in hf_config:
        return dict(hf_config)
    heads = read_optional_json_object(directory / "generation_config.json").get(_KEY)
    return {**hf_config, _KEY: heads or [list(one) for one in default_heads(hf_config)]}


def default_heads(config: Mapping[str, Any]) -> Heads:
    """The heads of a model whose files do not name them, by its checked config.json: OpenAI's, by
    the sizes of the model; for other sizes all heads of the upper half of the layers."""
    layers, heads = config["decoder_layers"], config["decoder_attention_heads"]
    size, vocab_size = (config["d_model"], layers), config["vocab_size"]
    known = (_SEVERAL if is_multilingual(vocab_size) else _ENGLISH).get(size, "")
    if size == (1280, 32) and vocab_size >= _LARGE_V3_VOCAB:
        known = _LARGE_V3
    found = _read(known)
    if found and all(head < heads for _, head in found):
        return found
    return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))


def heads_by_name(name: str, config: Mapping[str, Any]) -> Heads:
    """The heads of a file of whisper.cpp whose name says more than its sizes; none for others."""
    is_large = [config[key] for key in _SIZES] == [1280, 32, 20, 51865]
    return _read(_LARGE_V1) if is_large and "large-v1" in name else ()


def _read(heads: str) -> Heads:
    return tuple((int(one), int(two)) for one, two in (h.split(".") for h in heads.split()))

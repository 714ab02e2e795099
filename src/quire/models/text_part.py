"""Finds the text model's configuration in a multimodal checkpoint.

Its config.json has the text model's configuration as a section. Older ones (Qwen2-VL) have the keys
at the top level, next to a section for images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.images.modality import MODALITIES

if TYPE_CHECKING:
    from quire.models.base import HfConfig

SECTIONS = ("text_config", "llm_config", "language_config")
DEEPSTACK = "num_deepstack_layers"
"""Key of the number of layers that get hidden states of the image encoder (Qwen3-VL)."""
TRANSPOSED = "transposed_weights"
"""Whether tensors with the matrices of all experts have transposed matrices (Qwen3-VL)."""
IMAGE_SPANS = "images_see_themselves"
"""Whether the tokens of an image see each other (Gemma 3 and 4)."""
PADDED_TOKENS = "tokens_like_padding"
"""Tokens whose rows of the layers' own tables are that of padding (Gemma 4)."""
_OUTER_KEYS = ("tie_word_embeddings", "eos_token_id", "quantization_config", "architectures")
"""Keys that may be outside of the section and then apply to it."""
_OMITTED: dict[str, dict[str, int]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "mistral": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen2": {
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}
"""Defaults of transformers' classes, by the section's `model_type`. Transformers 4 saves no value
that equals a default, so some files lack them (LLaVA 1.5, Pixtral, Qwen2-Audio)."""


def text_part(hf_config: HfConfig) -> HfConfig:
    """Return config.json of the text model: the section, if there is one, with the keys outside of
    it; else the whole."""
    section = _section(hf_config)
    if section is None:
        return hf_config
    outer = {
        key: hf_config[key]
        for key in _OUTER_KEYS
        if section.get(key) is None and hf_config.get(key) is not None
    }
    omitted = _OMITTED.get(str(section.get("model_type")), {})
    return {**omitted, **section, **outer, **_of_images(hf_config, section)}


def _of_images(hf_config: HfConfig, section: HfConfig) -> dict[str, Any]:
    """Settings of a text model for images, as keys of its configuration."""
    vision = hf_config.get("vision_config")
    if not isinstance(vision, Mapping):
        return {}
    layers = vision.get("deepstack_visual_indexes")
    found: dict[str, Any] = {}
    if isinstance(layers, list) and layers:
        found[DEEPSTACK] = len(layers)
    kind = hf_config.get("model_type")
    if kind == "gemma3" or section.get("use_bidirectional_attention") == "vision":
        found[IMAGE_SPANS] = True
    if kind == "gemma4":
        tokens = (hf_config.get(f"{name}_token_id") for name in MODALITIES)
        found[PADDED_TOKENS] = [one for one in tokens if one is not None]
    return found


def with_tied_head(hf_config: HfConfig, is_tied: bool) -> HfConfig:
    """Return the configuration with a tied head, or with an untied one."""
    tied = {"tie_word_embeddings": is_tied}
    return {**with_text_keys(hf_config, tied), **tied}


def with_text_keys(hf_config: HfConfig, keys: Mapping[str, Any]) -> HfConfig:
    """Return the configuration with these keys of the text model."""
    key = _section_key(hf_config)
    if key is None:
        return {**hf_config, **keys}
    return {**hf_config, key: {**hf_config[key], **keys}}


def has_other_parts(hf_config: HfConfig) -> bool:
    """Whether the checkpoint is multimodal."""
    if _section(hf_config) is not None:
        return True
    return any(isinstance(hf_config.get(one.section), Mapping) for one in MODALITIES.values())


def _section(hf_config: HfConfig) -> Mapping[str, Any] | None:
    key = _section_key(hf_config)
    found: Mapping[str, Any] | None = None if key is None else hf_config[key]
    return found


def _section_key(hf_config: HfConfig) -> str | None:
    found = ((key, hf_config.get(key)) for key in SECTIONS)
    return next((key for key, value in found if isinstance(value, Mapping) and value), None)

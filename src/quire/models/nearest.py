"""Finds the known architecture most similar to an unknown one, for the error that refuses it, and
says why some models can never run.

Architectures are compared by the keys of config.json: the keys that a family's builder does not
read are the differences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

from quire.errors import QuireError
from quire.models.base import HfConfig, ModelFamily
from quire.models.config_reader import ConfigReader

_WITHOUT_EFFECT = frozenset([
    "architectures", "model_type", "auto_map", "transformers_version", "torch_dtype", "dtype",
    "use_cache", "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
    "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "attn_pdrop", "pretraining_tp", "output_attentions", "output_hidden_states", "return_dict",
    "is_encoder_decoder", "is_decoder", "id2label", "label2id", "problem_type",
    "chunk_size_feed_forward", "custom_code", "tokenizer_class", "max_length", "min_length",
    "use_return_dict",
])  # fmt: skip
_MAX_KEYS = 8
_SUFFIXES = re.compile(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration|Model)$", re.IGNORECASE)
_DECODER = re.compile(r"(ForCausalLM|LMHeadModel|ModelWithLMHead|Decoder)$", re.IGNORECASE)
_OF_STATE = (
    "state_size", "ssm_", "mamba_", "lru_width", "attention_hidden_size", "linear_num_",
    "linear_conv_kernel_dim", "short_conv_kernel_size",
)  # fmt: skip
"""Prefixes of keys of models with a recurrent state: Mamba, RWKV, Griffin, gated delta rules."""
_UNLIKE = frozenset({"bitnet"})
"""Model types whose config.json has the keys of a known family but whose computation differs:
BitNet has norms inside attention and the MLP, and rounds activations."""
RELATIVES: dict[str, tuple[str, str]] = {
    "deepseek_v32": ("DeepseekV3ForCausalLM", "an indexer that chooses the positions to attend to"),
    "glm_moe_dsa": ("Glm4MoeLiteForCausalLM", "an indexer that chooses the positions to attend to"),
    "minimax": ("MiniMaxM2ForCausalLM", "lightning attention in most layers"),
    "olmo_hybrid": ("Qwen3_5ForCausalLM", "norms after each part"),
    "phi4flash": ("JambaForCausalLM", "layers that read the K and V of another half of the model"),
    "plamo2": ("JambaForCausalLM", "norms after each part, and Mamba 1 with heads"),
    "recurrent_gemma": ("Gemma2ForCausalLM", "gated linear recurrences (RG-LRU)"),
    "rwkv": ("Mamba2ForCausalLM", "the recurrence of RWKV"),
    "rwkv7": ("Qwen3_5ForCausalLM", "the recurrence of RWKV"),
    "xlstm": ("Mamba2ForCausalLM", "memories of long short-term kind"),
    "zamba": ("JambaForCausalLM", "attention layers that share one set of weights"),
    "zamba2": ("BambaForCausalLM", "attention layers that share one set of weights"),
}
"""By model types that are not supported: the supported architecture that is most like it, and what
it has that this one lacks."""
_LEAST_LIKENESS = 0.6
"""Minimum similarity of two names without suffixes, from 0 to 1; lower values count as 0."""
_USUAL = "llama"
"""Preferred family if the other criteria are equal."""


def why_never(config: HfConfig, architecture: str) -> str | None:
    """Return why neither Quire nor transformers' modules can run a model, according to its
    config.json; None if there is no such reason."""
    if config.get("is_encoder_decoder") is True:
        return "it has an encoder"
    if not _DECODER.search(architecture):
        return "it is not a text decoder"
    if any(key.startswith(_OF_STATE) for key in config):
        return "it has a recurrent state in addition to keys and values"
    return None


def relative_of(config: HfConfig) -> str | None:
    """Return a sentence about the nearest architecture of a model type whose differences are
    known; None for other types."""
    found = RELATIVES.get(str(config.get("model_type")))
    if found is None:
        return None
    architecture, difference = found
    return f"the nearest is {architecture}, and this model has {difference} besides"


def nearest(config: HfConfig, name: str, families: Iterable[ModelFamily]) -> str | None:
    """Return a sentence about the nearest architecture and the differences; None if there is
    none."""
    if config.get("model_type") in _UNLIKE:
        return None
    if (relative := relative_of(config)) is not None:
        return relative
    found: list[tuple[int, bool, float, bool, str, list[str]]] = []
    for family in families:
        reader = ConfigReader(config)
        try:
            family.build(reader)
        except QuireError:
            continue
        other = sorted(set(config) - reader.used - _WITHOUT_EFFECT)
        architecture = family.architectures[0]
        same_type = family.name == config.get("model_type")
        likeness, is_usual = _likeness(name, architecture), family.name == _USUAL
        found.append((-len(other), same_type, likeness, is_usual, architecture, other))
    if not found:
        return None
    *_, architecture, other = max(found)
    if not other:
        return (
            f"the nearest is {architecture}, which uses all keys of this config.json, but the "
            "model may compute something else; if it does not, run it as this architecture with "
            f'hf_overrides={{"architectures": ["{architecture}"]}}'
        )
    shown = ", ".join(other[:_MAX_KEYS]) + (
        f" and {len(other) - _MAX_KEYS} more" * (len(other) > _MAX_KEYS)
    )
    return f"the nearest is {architecture}, which does not use the keys {shown}"


def _likeness(name: str, architecture: str) -> float:
    """Return the similarity of two architectures' names; 0 if it is low."""
    first, second = (_SUFFIXES.sub("", text).lower() for text in (name, architecture))
    matcher = SequenceMatcher(None, first, second)
    if matcher.real_quick_ratio() < _LEAST_LIKENESS:  # their lengths alone say so
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= _LEAST_LIKENESS else 0.0

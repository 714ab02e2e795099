"""Which known architecture an unknown one is most like, and what differs; why others never run.

Only for the message that refuses it. A config.json is compared by its keys: a family builds its
program from it, and what it did not ask for is what differs.
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
"""Beginnings of keys of models that keep a state: Mamba, RWKV, Griffin, gated delta rules."""
_UNLIKE = frozenset({"bitnet"})
"""Types of models whose config.json has the keys of a known family, and which compute otherwise:
BitNet normalises inside attention and the MLP, and rounds activations."""
_LEAST_LIKENESS = 0.6
"""Of two names without these, from 0 to 1; below it a name says nothing."""
_USUAL = "llama"
"""The family that stands for all others, where nothing else decides."""


def why_never(config: HfConfig, architecture: str) -> str | None:
    """The reason why a model can run neither here nor with transformers' modules, as far as its
    config.json says it; None: it says nothing."""
    if config.get("is_encoder_decoder") is True:
        return "it has an encoder"
    if not _DECODER.search(architecture):
        return "it is not a decoder of text"
    if any(key.startswith(_OF_STATE) for key in config):
        return "it keeps a state in addition to keys and values"
    return None


def nearest(config: HfConfig, name: str, families: Iterable[ModelFamily]) -> str | None:
    """A sentence with the nearest architecture and what differs; None where no one is near."""
    if config.get("model_type") in _UNLIKE:
        return None
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
            f"the nearest is {architecture}, which reads all keys of this config.json, but the "
            "model may compute other things; if it does not, run it as that with "
            f'hf_overrides={{"architectures": ["{architecture}"]}}'
        )
    shown = ", ".join(other[:_MAX_KEYS]) + (
        f" and {len(other) - _MAX_KEYS} more" * (len(other) > _MAX_KEYS)
    )
    return f"the nearest is {architecture}, which has no meaning for its keys {shown}"


def _likeness(name: str, architecture: str) -> float:
    """Of the names of two architectures; 0 where they have little in common."""
    first, second = (_SUFFIXES.sub("", text).lower() for text in (name, architecture))
    matcher = SequenceMatcher(None, first, second)
    if matcher.real_quick_ratio() < _LEAST_LIKENESS:  # their lengths alone say so
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= _LEAST_LIKENESS else 0.0

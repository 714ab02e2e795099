"""The architectures of GGUF files that are read: one row each.

A row says which architecture of config.json it is, how its tensors are called there, and what
llama.cpp's conversion did to them. Source: llama.cpp, convert_hf_to_gguf.py and
gguf-py/gguf/tensor_mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import UnsupportedModelError
from quire.gguf.keys import Keys

Config = dict[str, Any]

_LAYER = re.compile(r"blk\.(?P<layer>\d{1,4})\.(?P<part>\w+)\.(?P<kind>weight|bias)")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_UNUSED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""What becomes a part of the configuration."""
_LLAMA_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA2_PARTS = {
    **_LLAMA_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _nothing(keys: Keys) -> Config:  # noqa: ARG001
    return {}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of `general.architecture`."""

    hf_name: str
    model_type: str
    parts: Mapping[str, str]
    """Names of a layer's modules, in the file and in checkpoints of transformers."""
    has_paired_rows: bool = False
    """Rows of q and k lie in the order of a rotation of neighbours, and are put back."""
    norm_offset: float = 0.0
    """What was added to the weights of norms, and is subtracted."""
    config: Callable[[Keys], Config] = _nothing
    """What config.json has beside the keys that all architectures share."""

    def tensor_name(self, name: str) -> str | None:
        """The name in checkpoints of transformers; None for what is no weight. An unknown name
        stays as it is, so that binding refuses it."""
        if name in _UNUSED:
            return None
        if match := _LAYER.fullmatch(name):
            part = self.parts.get(match["part"])
            if part is not None:
                return f"model.layers.{int(match['layer'])}.{part}.{match['kind']}"
        return _TOP.get(name, name)


def _biases(keys: Keys) -> Config:
    return {
        "attention_bias": keys.tensor("blk.0.attn_q.bias") is not None,
        "mlp_bias": keys.tensor("blk.0.ffn_gate.bias") is not None,
    }


def _granite(keys: Keys) -> Config:
    names = {
        "embedding_multiplier": "{arch}.embedding_scale",
        "residual_multiplier": "{arch}.residual_scale",
        "attention_multiplier": "{arch}.attention.scale",
        "logits_scaling": "{arch}.logit_scale",
    }
    scales = {name: keys.number(key) for name, key in names.items() if keys.value(key) is not None}
    return {**_biases(keys), **scales}


def _gemma(keys: Keys) -> Config:  # noqa: ARG001
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(keys: Keys) -> Config:
    return {
        **_gemma(keys),
        **_query_scale(keys, 46),
        "sliding_window": keys.whole("{arch}.attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.number("{arch}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("{arch}.final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys) -> Config:
    cap = keys.value("{arch}.final_logit_softcapping")
    return {
        **_gemma(keys),
        **_query_scale(keys, 62),
        "sliding_window": keys.whole("{arch}.attention.sliding_window", 1024),
        "rope_local_base_freq": keys.number("{arch}.rope.freq_base_swa", 10000.0),
        "rope_theta": keys.number("{arch}.rope.freq_base", 1e6),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.number("{arch}.final_logit_softcapping") if cap else None,
    }


def _query_scale(keys: Keys, layers_of_27b: int) -> Config:
    """The file does not say it: llama.cpp knows the models of 27B by their layers."""
    heads, hidden = keys.whole("{arch}.attention.head_count"), keys.whole("{arch}.embedding_length")
    if keys.whole("{arch}.block_count") == layers_of_27b and heads > 0:
        return {"query_pre_attn_scalar": hidden // heads}
    return {"query_pre_attn_scalar": keys.whole("{arch}.attention.key_length", 256)}


def _qwen3(keys: Keys) -> Config:
    return {"attention_bias": keys.tensor("blk.0.attn_q.bias") is not None}


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM", "llama", _LLAMA_PARTS, has_paired_rows=True, config=_biases
    ),
    "granite": Architecture(
        "GraniteForCausalLM", "granite", _LLAMA_PARTS, has_paired_rows=True, config=_granite
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _LLAMA_PARTS),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", _LLAMA_PARTS, config=_qwen3),
    "gemma": Architecture(
        "GemmaForCausalLM", "gemma", _LLAMA_PARTS, norm_offset=1.0, config=_gemma
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", "gemma2", _GEMMA2_PARTS, norm_offset=1.0, config=_gemma2
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", "gemma3_text", _GEMMA2_PARTS, norm_offset=1.0, config=_gemma3
    ),
}


def architecture_of(keys: Keys) -> Architecture:
    """The row of a file. Raises UnsupportedModelError."""
    row = ARCHITECTURES.get(keys.architecture)
    if row is None:
        raise UnsupportedModelError(
            f"{keys.path}: GGUF files of architecture {keys.architecture!r:.60} are not read; "
            f"those of {', '.join(sorted(ARCHITECTURES))} are"
        )
    return row

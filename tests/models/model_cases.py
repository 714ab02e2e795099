"""Tiny random checkpoints of every family at odd shapes, and what transformers computes on them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from mixture_cases import mixture_cases
from more_cases import more_cases
from numpy.typing import NDArray

PROMPT_TOKENS = 75
NEW_TOKENS = 64

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One checkpoint: its name in test ids, the config class and what it is given."""

    name: str
    config_class: type[transformers.PreTrainedConfig]
    settings: Mapping[str, Any] = field(hash=False)

    def __str__(self) -> str:
        return self.name


_EAGER = {"experts_implementation": "eager"}
"""The other ways to compute experts ask for sizes that are multiples of 16 bytes."""
_NO_SPECIAL_TOKENS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}


def _decoder(name: str, config_class: Any, **settings: Any) -> Case:
    """GQA 7:1, head dim 80, sizes that divide by nothing."""
    shape = {
        "vocab_size": 151, "hidden_size": 112, "intermediate_size": 90, "num_hidden_layers": 2,
        "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 80,
        "max_position_embeddings": 256, "initializer_range": 0.15, **_NO_SPECIAL_TOKENS,
    }  # fmt: skip
    return Case(name, config_class, {**shape, **settings})


def _qwen2(name: str, **settings: Any) -> Case:
    """Qwen2 has no head dim of its own: 8 here."""
    case = _decoder(name, transformers.Qwen2Config, hidden_size=56, **settings)
    return Case(
        name, case.config_class, {k: v for k, v in case.settings.items() if k != "head_dim"}
    )


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


def _gemma(name: str, config_class: Any, **settings: Any) -> Case:
    """Untied: a random tied head repeats the last token."""
    shape = {"head_dim": 24, "num_attention_heads": 6, "num_key_value_heads": 2,
             "hidden_size": 84, "tie_word_embeddings": False}  # fmt: skip
    return _decoder(name, config_class, **{**shape, **settings})


def _mixture(name: str, config_class: Any, **settings: Any) -> Case:
    """Seven experts of 27 numbers, of which three are taken; heads of 20."""
    shape = {
        "hidden_size": 60, "intermediate_size": 27, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 20, "num_experts": 7, "num_local_experts": 7,
        "num_experts_per_tok": 3, "moe_intermediate_size": 27,
    }  # fmt: skip
    return _decoder(name, config_class, **{**shape, **settings})


Llama, Mistral = transformers.LlamaConfig, transformers.MistralConfig
Qwen3 = transformers.Qwen3Config
Opt, Gpt2 = transformers.OPTConfig, transformers.GPT2Config

_OPT_SHAPE = {
    "vocab_size": 139, "hidden_size": 60, "ffn_dim": 101, "num_hidden_layers": 3,
    "num_attention_heads": 3, "max_position_embeddings": 150, "init_std": 0.2,
    **_NO_SPECIAL_TOKENS,
}  # fmt: skip
_GPT2_SHAPE = {
    "vocab_size": 149, "n_embd": 60, "n_layer": 3, "n_head": 5, "n_positions": 150,
    "initializer_range": 0.2, **_NO_SPECIAL_TOKENS,
}  # fmt: skip

CASES = [
    _decoder("llama-1-layer-tied", Llama, num_hidden_layers=1, tie_word_embeddings=True),
    _decoder("llama-5-layers-biases", Llama, num_hidden_layers=5, attention_bias=True,
             mlp_bias=True, hidden_act="gelu_pytorch_tanh"),
    _decoder("llama-derived-head-dim", Llama, head_dim=None, hidden_size=84,
             num_attention_heads=6, num_key_value_heads=3),
    _decoder("llama-linear", Llama, max_position_embeddings=64, **_rope("linear", factor=2.5)),
    _decoder("llama-llama3", Llama, max_position_embeddings=160, **_rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=40)),
    _decoder("llama-yarn", Llama, max_position_embeddings=160, **_rope(
        "yarn", factor=4.0, original_max_position_embeddings=40)),
    _decoder("llama-yarn-explicit", Llama, max_position_embeddings=160, **_rope(
        "yarn", factor=4.0, original_max_position_embeddings=40, attention_factor=0.8,
        beta_fast=16.0, beta_slow=2.0, truncate=False)),
    _decoder("llama-yarn-mscale", Llama, max_position_embeddings=160, **_rope(
        "yarn", factor=4.0, original_max_position_embeddings=40, mscale=0.9,
        mscale_all_dim=0.5)),
    _decoder("mistral-window", Mistral, sliding_window=9, num_attention_heads=6,
             num_key_value_heads=2, head_dim=20),
    _decoder("mistral-no-window", Mistral, sliding_window=None, tie_word_embeddings=True),
    _qwen2("qwen2"),
    _qwen2("qwen2-window-from-layer-1", num_hidden_layers=3, use_sliding_window=True,
             sliding_window=17, max_window_layers=1, tie_word_embeddings=True),
    _qwen2("qwen2-layer-types", use_sliding_window=True, sliding_window=16,
             layer_types=["sliding_attention", "full_attention"]),
    _decoder("qwen3-5-layers-tied", Qwen3, num_hidden_layers=5, tie_word_embeddings=True),
    _decoder("qwen3-biases", Qwen3, attention_bias=True),
    _gemma("gemma", transformers.GemmaConfig),
    _gemma("gemma-relu", transformers.GemmaConfig, attention_bias=True, hidden_act="relu"),
    _gemma("gemma2", transformers.Gemma2Config, num_hidden_layers=3, sliding_window=19,
           query_pre_attn_scalar=17, attn_logit_softcapping=4.0, final_logit_softcapping=3.0),
    _gemma("gemma3", transformers.Gemma3TextConfig, num_hidden_layers=6, sliding_window=21,
           query_pre_attn_scalar=30),
    _gemma("gemma3-linear", transformers.Gemma3TextConfig, num_hidden_layers=2,
           sliding_window=33, layer_types=["full_attention", "sliding_attention"],
           rope_parameters={
               "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
               "sliding_attention": {"rope_type": "default", "rope_theta": 3e3}}),
    _decoder("granite", transformers.GraniteConfig, embedding_multiplier=3.0,
             residual_multiplier=0.3, attention_multiplier=0.07, logits_scaling=2.5),
    _mixture("mixtral", transformers.MixtralConfig, sliding_window=19),
    _mixture("mixtral-all-experts", transformers.MixtralConfig, num_local_experts=3,
             num_experts=3),
    _mixture("qwen2-moe", transformers.Qwen2MoeConfig, num_hidden_layers=4, qkv_bias=True,
             intermediate_size=90, shared_expert_intermediate_size=53, decoder_sparse_step=2,
             num_key_value_heads=3),
    _mixture("qwen2-moe-normalised", transformers.Qwen2MoeConfig, norm_topk_prob=True,
             shared_expert_intermediate_size=35, num_experts_per_tok=1, use_sliding_window=True,
             sliding_window=23, max_window_layers=2),
    _mixture("qwen3-moe", transformers.Qwen3MoeConfig, num_hidden_layers=3, norm_topk_prob=True,
             mlp_only_layers=[1], head_dim=28, intermediate_size=90),
    _mixture("qwen3-moe-not-normalised", transformers.Qwen3MoeConfig, norm_topk_prob=False,
             attention_bias=True, use_sliding_window=True, sliding_window=21),
    _mixture("olmoe", transformers.OlmoeConfig, num_key_value_heads=3),
    _mixture("olmoe-clipped", transformers.OlmoeConfig, num_key_value_heads=3, clip_qkv=0.9),
    _mixture("granitemoe", transformers.GraniteMoeConfig,
             embedding_multiplier=3.0, residual_multiplier=0.3, attention_multiplier=0.07,
             logits_scaling=2.5),
    _mixture("granitemoe-shared", transformers.GraniteMoeSharedConfig,
             shared_intermediate_size=41, residual_multiplier=0.4),
    *mixture_cases(_mixture),
    Case("mpt", transformers.MptConfig, {
        "vocab_size": 151, "d_model": 66, "n_heads": 6, "n_layers": 3, "max_seq_len": 256,
        "initializer_range": 0.2, **_NO_SPECIAL_TOKENS}),
    Case("opt-before", Opt, _OPT_SHAPE),
    Case("opt-after-projected", Opt, {
        **_OPT_SHAPE, "do_layer_norm_before": False, "word_embed_proj_dim": 28}),
    Case("opt-bare", Opt, {
        **_OPT_SHAPE, "enable_bias": False, "layer_norm_elementwise_affine": False,
        "activation_function": "gelu", "tie_word_embeddings": False}),
    Case("opt-no-final-norm", Opt, {
        **_OPT_SHAPE, "_remove_final_layer_norm": True, "num_hidden_layers": 1}),
    Case("gpt2", Gpt2, _GPT2_SHAPE),
    Case("gpt2-scaled-by-layer", Gpt2, {
        **_GPT2_SHAPE, "scale_attn_by_inverse_layer_idx": True, "n_inner": 77,
        "tie_word_embeddings": False, "activation_function": "relu"}),
    Case("gpt2-unscaled", Gpt2, {
        **_GPT2_SHAPE, "scale_attn_weights": False, "initializer_range": 0.1, "n_layer": 1}),
]  # fmt: skip
CASES += more_cases(_decoder, _NO_SPECIAL_TOKENS)


@cache
def reference_model(case: Case, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The random model in float32, its weights rounded to `dtype` first. Norms and biases too."""
    torch.manual_seed(sum(map(ord, case.name)))
    config = case.config_class(**case.settings)
    model = transformers.AutoModelForCausalLM.from_config(config, **_EAGER).float().eval()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *_learned_buffers(model)]:
            # Initialised to 0 or 1, which would hide a missing one. Norms of heads may have a row
            # for each.
            if parameter.dim() == 1 or any(kind in name for kind in ("norm", "bias")):
                parameter.add_(torch.randn_like(parameter) * 0.2)
            parameter.copy_(parameter.to(dtype).float())
    return model


def _learned_buffers(model: transformers.PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """What is saved with the weights, but is none: the correction of routers, Gemma 4's factors."""
    kinds = ("correction_bias", "layer_scalar")
    return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(kinds)]


def write_checkpoint(case: Case, directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Saves the model as users have it: config.json and safetensors."""
    model = reference_model(case, dtype)
    # A copy: casting there and back would round the rotary frequencies, which are no weights.
    copy.deepcopy(model).to(dtype).save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    if config["architectures"] != [type(model).__name__]:
        raise RuntimeError(f"transformers wrote {config['architectures']}")
    return directory


def logits_of(case: Case, token_ids: list[int], dtype: torch.dtype = torch.float32) -> Floats:
    """What transformers computes in float32 with weights rounded to `dtype`: logits [T, V]."""
    return _logits(reference_model(case, dtype), token_ids)


def logits_of_checkpoint(directory: Path, token_ids: list[int], dtype: torch.dtype) -> Floats:
    """What transformers computes in `dtype` on a saved model, as its users load it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **_EAGER)
    return _logits(model.eval(), token_ids)


def _logits(model: transformers.PreTrainedModel, token_ids: list[int]) -> Floats:
    with torch.no_grad():
        found: Floats = model(torch.tensor([token_ids])).logits[0].float().numpy()
    return found


def size_of(error: Floats, case: Case) -> float:
    """Root mean square. With experts that of a row among the best tenth: where the logits of two
    experts are nearly equal, any rounding may choose the other one, and all later rows see it."""
    rows = np.square(error.astype(np.float64)).mean(axis=1)
    has_experts = not {"num_experts_per_tok", "top_k_experts"}.isdisjoint(case.settings)
    return float(np.sqrt(np.quantile(rows, 0.1) if has_experts else rows.mean()))


def prompt_of(case: Case, length: int = PROMPT_TOKENS) -> list[int]:
    """Random tokens, the same for the same case."""
    random = np.random.default_rng(sum(map(ord, case.name)))
    return [int(token) for token in random.integers(0, case.settings["vocab_size"], length)]

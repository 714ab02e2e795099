"""Families that transformers does not have, against transformers models of the same mathematics:
their tensors under the other names, and joined as the other checkpoints have them.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import Case, Floats, logits_of, prompt_of, reference_model
from model_harness import Runner, load
from safetensors.torch import save_file
from transformers import GlmConfig, GraniteConfig, LlamaConfig, Qwen2MoeConfig

from quire.backends.base import Backend
from quire.models.alibi import bloom_slopes

TOKENS = 60
N, K, H, D, F, V, L = 6, 2, 14, 84, 50, 97, 2
SHAPE = {
    "vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L,
    "num_attention_heads": N, "num_key_value_heads": K, "head_dim": H, "initializer_range": 0.15,
    "max_position_embeddings": 128, "eos_token_id": None, "bos_token_id": None,
    "pad_token_id": None, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
OURS = {key: value for key, value in SHAPE.items() if value is not None}
State = dict[str, torch.Tensor]


def state_of(case: Case) -> State:
    return {
        name: tensor.clone()
        for name, tensor in reference_model(case, torch.float32).state_dict().items()
    }


def renamed(state: State, *pairs: tuple[str, str]) -> State:
    for old, new in pairs:
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    return state


def joined(state: State, layer: str, into: str, grouped: bool = False) -> State:
    """q, k and v of a layer as one tensor each for weights and biases."""
    for kind in ("weight", "bias"):
        names = [f"{layer}.{part}_proj.{kind}" for part in "qkv"]
        if names[0] not in state:
            continue
        parts = [state.pop(name) for name in names]
        whole = torch.cat(parts)
        if grouped:
            rows = [part.unflatten(0, (K, -1)) for part in parts]
            whole = torch.cat(rows, 1).flatten(0, 1)
        state[f"{into}.{kind}"] = whole
    return state


def check(backend: Backend, path: Path, config: dict[str, Any], state: State, truth: Floats,
          case: Case) -> None:  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()},
              path / "model.safetensors")  # fmt: skip
    model = load(path, backend)
    runner = Runner(model)
    [logits] = runner.step([(runner.request(prompt_of(case, TOKENS)), TOKENS)])
    model.close()
    assert np.abs(logits - truth).max() < 1e-4 * np.abs(truth).max()


def truth_of(case: Case) -> Floats:
    return logits_of(case, prompt_of(case, TOKENS))


def test_internlm2(backend: Backend, tmp_path: Path) -> None:
    case = Case("internlm2", LlamaConfig, {**SHAPE, "attention_bias": True})
    state = state_of(case)
    for layer in range(L):
        prefix = f"model.layers.{layer}"
        state = joined(state, f"{prefix}.self_attn", f"{prefix}.attention.wqkv", grouped=True)
    state = renamed(
        state, ("self_attn.o_proj", "attention.wo"), ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"),
        ("embed_tokens", "tok_embeddings"), ("lm_head", "output"),
    )  # fmt: skip
    config = {**OURS, "architectures": ["InternLM2ForCausalLM"], "bias": True}
    check(backend, tmp_path, config, state, truth_of(case), case)


def test_exaone3(backend: Backend, tmp_path: Path) -> None:
    case = Case("exaone3", LlamaConfig, SHAPE)
    state = renamed(
        state_of(case), ("model.layers", "transformer.h"), ("model.", "transformer."),
        ("embed_tokens", "wte"), ("transformer.norm", "transformer.ln_f"),
        ("self_attn", "attn.attention"), ("o_proj", "out_proj"), ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"), ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down_proj", "mlp.c_proj"),
    )  # fmt: skip
    config = {**OURS, "architectures": ["ExaoneForCausalLM"], "num_layers": L,
              "layer_norm_epsilon": 1e-5, "activation_function": "silu"}  # fmt: skip
    for key in ("num_hidden_layers", "rms_norm_eps"):
        del config[key]
    check(backend, tmp_path, config, state, truth_of(case), case)


def test_minicpm(backend: Backend, tmp_path: Path) -> None:
    """Granite has the same factors, each by itself."""
    settings = {**SHAPE, "embedding_multiplier": 3.0, "residual_multiplier": 1.4 / L**0.5,
                "attention_multiplier": H**-0.5, "logits_scaling": D / 24}  # fmt: skip
    case = Case("minicpm", GraniteConfig, settings)
    config = {**OURS, "architectures": ["MiniCPMForCausalLM"], "scale_emb": 3.0,
              "scale_depth": 1.4, "dim_model_base": 24}  # fmt: skip
    check(backend, tmp_path, config, state_of(case), truth_of(case), case)


def test_chatglm(backend: Backend, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 5e4, "partial_rotary_factor": 0.5}
    settings = {**SHAPE, "head_dim": 16, "attention_bias": True, "rope_parameters": rope}
    case = Case("chatglm", GlmConfig, settings)
    state = state_of(case)
    for layer in range(L):
        prefix = f"model.layers.{layer}.self_attn"
        into = f"model.layers.{layer}.self_attention.query_key_value"
        state = joined(state, prefix, into)
    state = renamed(
        state, ("model.layers", "transformer.encoder.layers"), ("self_attn.o_proj",
        "self_attention.dense"), ("gate_up_proj", "dense_h_to_4h"), ("down_proj",
        "dense_4h_to_h"), ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("lm_head", "transformer.output_layer"),
    )  # fmt: skip
    config = {
        "architectures": ["ChatGLMModel"], "num_layers": L, "padded_vocab_size": V,
        "hidden_size": D, "ffn_hidden_size": F, "kv_channels": 16, "num_attention_heads": N,
        "multi_query_attention": True, "multi_query_group_num": K, "seq_length": 128,
        "layernorm_epsilon": 1e-5, "rmsnorm": True, "post_layer_norm": True, "rope_ratio": 5.0,
        "add_bias_linear": False, "add_qkv_bias": True, "original_rope": True,
    }  # fmt: skip
    check(backend, tmp_path, config, state, truth_of(case), case)


@pytest.mark.parametrize("architecture", ["BaiChuanForCausalLM", "BaichuanForCausalLM"])
def test_baichuan(backend: Backend, tmp_path: Path, architecture: str) -> None:
    """13B: ALiBi, given to transformers as a mask, and rotations by angles of 0."""
    case = Case(architecture, LlamaConfig, {**SHAPE, "num_key_value_heads": N})
    state, truth = state_of(case), truth_of(case)
    if architecture == "BaichuanForCausalLM":
        truth = with_alibi(case)
    for layer in range(L):
        prefix = f"model.layers.{layer}.self_attn"
        state = joined(state, prefix, f"{prefix}.W_pack")
    config = {**OURS, "architectures": [architecture]}
    del config["num_key_value_heads"]
    check(backend, tmp_path, config, state, truth, case)


def with_alibi(case: Case) -> Floats:
    model = reference_model(case, torch.float32)
    rotary: Any = model.model.rotary_emb
    kept = rotary.inv_freq.clone()
    distance = torch.arange(TOKENS)[None, :] - torch.arange(TOKENS)[:, None]
    bias = torch.tensor(bloom_slopes(N))[:, None, None] * distance
    bias = bias.masked_fill(distance > 0, torch.finfo(torch.float32).min)
    try:
        rotary.inv_freq.zero_()
        with torch.no_grad():
            tokens = torch.tensor([prompt_of(case, TOKENS)])
            found: Floats = model(tokens, attention_mask=bias[None]).logits[0].numpy()
        return found
    finally:
        rotary.inv_freq.copy_(kept)


def test_deepseek_moe(backend: Backend, tmp_path: Path) -> None:
    """Qwen2-MoE whose gate of the shared expert is one half for every token."""
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 22,
               "shared_expert_intermediate_size": 44, "norm_topk_prob": False,
               "mlp_only_layers": [0], "qkv_bias": False}  # fmt: skip
    kept = {key: value for key, value in SHAPE.items() if key != "head_dim"}
    case = Case("deepseek", Qwen2MoeConfig, {**kept, **experts})
    model = copy.deepcopy(reference_model(case, torch.float32))
    state = model.state_dict()
    for name, tensor in state.items():
        if "shared_expert_gate" in name:
            tensor.zero_()
    with torch.no_grad():
        truth = model(torch.tensor([prompt_of(case, TOKENS)])).logits[0].numpy()
    state = {name: tensor.clone() for name, tensor in state.items() if "expert_gate" not in name}
    for name in state:
        if name.endswith("shared_expert.down_proj.weight"):
            state[name] *= 0.5
    state = renamed(state, ("shared_expert.", "shared_experts."))
    config = {
        **{key: value for key, value in kept.items() if value is not None},
        "architectures": ["DeepseekForCausalLM"], "n_routed_experts": 5, "n_shared_experts": 2,
        "num_experts_per_tok": 2, "moe_intermediate_size": 22, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax",
    }  # fmt: skip
    check(backend, tmp_path, config, state, truth, case)

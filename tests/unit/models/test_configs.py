"""config.json as hostile input: every family, every wrong value, a clear error of our own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models import build_program, model_facts, name_map
from quire.models.config_reader import ConfigReader

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 50, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "vocab_size": 50, "hidden_size": 32, "ffn_dim": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "vocab_size": 50, "n_embd": 32, "n_layer": 2,
    "n_head": 4, "n_positions": 64,
}  # fmt: skip
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}
ALL = {"llama": LLAMA, "opt": OPT, "gpt2": GPT2, "qwen2": QWEN2, "qwen3": QWEN3, "mistral": MISTRAL}

REQUIRED = [(name, key) for name, config in ALL.items() for key in config
            if key not in ("architectures", "num_key_value_heads", "rms_norm_eps")]  # fmt: skip
JUNK = ["32", 0, -1, 1.5, True, [32], {"a": 1}, 10**30, float("nan")]
HUGE = 10**400
"""A whole number beyond all floats, which JSON can hold."""


@pytest.mark.parametrize("name", ALL)
def test_the_smallest_config_works(name: str) -> None:
    program, facts = build_program(ALL[name]), model_facts(ALL[name])
    assert program.name == name
    assert len(program.memories()) == facts.num_layers == 2
    assert program.vocab_size == facts.vocab_size == 50
    assert facts.max_model_len == 64
    op = program.attention_ops()[0]
    assert (op.num_heads, op.num_kv_heads) == (facts.num_heads, facts.num_kv_heads)
    assert op.head_dim == facts.head_dim == (128 if name == "qwen3" else 8)


@pytest.mark.parametrize(("name", "key"), REQUIRED)
def test_a_missing_or_null_key_is_named_with_a_value_that_works(name: str, key: str) -> None:
    for config in ({k: v for k, v in ALL[name].items() if k != key}, {**ALL[name], key: None}):
        with pytest.raises(
            CheckpointError, match=rf'config.json must have {key}; add it, .*"{key}": \d'
        ):
            build_program(config)
        with pytest.raises(CheckpointError, match=key):
            model_facts(config)


@pytest.mark.parametrize(("name", "key"), REQUIRED)
@pytest.mark.parametrize("value", JUNK, ids=str)
def test_an_impossible_size_is_named(name: str, key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"{key} is .*for example"):
        build_program({**ALL[name], key: value})


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("llama", {"hidden_size": 33}, "does not divide into 4 heads"),
        ("opt", {"hidden_size": 33}, "does not divide into 4 heads"),
        ("gpt2", {"n_embd": 33}, "does not divide into 4 heads"),
        ("gpt2", {"n_embd": 8192, "n_head": 1}, "at most 1024"),
        ("llama", {"num_key_value_heads": 3}, "a divisor of 4 heads"),
        ("llama", {"head_dim": 7}, "even"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ("llama", {"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ("llama", {"tie_word_embeddings": 1}, "true or false"),
        ("llama", {"hidden_act": 3}, "hidden_act"),
        ("llama", {"rope_theta": 0}, "rope_theta"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "must have factor"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
         "must have low_freq_factor"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                                    "high_freq_factor": 4}}, "above low_freq_factor"),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("qwen2", {"layer_types": ["full_attention"]}, "a list of 2 strings"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
        ("llama", {"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together(name: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        model_facts({**ALL[name], **changes})


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("llama", {"hidden_act": "mish"}, "'mish' is not supported; supported are silu"),
        ("llama", {"rope_scaling": {"rope_type": "3d"}}, "'3d' is not supported"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 2.0}}}, "full_attention"),
        ("llama", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
        ("opt", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    name: str, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=complaint):
        build_program({**ALL[name], **changes})


def test_windows() -> None:
    assert model_facts({**MISTRAL, "sliding_window": 16}).sliding_window == 16
    mixed = {**QWEN2, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    assert [op.window for op in build_program(mixed).attention_ops()] == [None, 16]
    assert model_facts(mixed).sliding_window is None
    unused = {**QWEN2, "sliding_window": 16, "max_window_layers": 0}
    assert [op.window for op in build_program(unused).attention_ops()] == [None, None]


def test_context_length_counts_the_rope_scaling_as_it_is_meant() -> None:
    def length(**scaling: Any) -> int:
        return model_facts({**LLAMA, "rope_scaling": scaling}).max_model_len

    assert length(type="linear", factor=2.5) == 160
    assert length(type="dynamic", factor=2.0) == 128
    assert length(type="yarn", factor=4.0, original_max_position_embeddings=16) == 64
    assert length(
        rope_type="llama3", factor=8.0, low_freq_factor=1, high_freq_factor=4,
        original_max_position_embeddings=16,
    ) == 64  # fmt: skip


def test_eos_ids() -> None:
    assert model_facts(LLAMA).eos_token_ids == ()
    assert model_facts({**LLAMA, "eos_token_id": 2}).eos_token_ids == (2,)
    assert model_facts({**LLAMA, "eos_token_id": [2, 7]}).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("name", "stored", "canonical"),
    [
        ("llama", "model.norm.weight", "model.norm.weight"),
        ("llama", "norm.weight", "model.norm.weight"),
        ("llama", "lm_head.weight", "lm_head.weight"),
        ("llama", "model.layers.1.self_attn.rotary_emb.inv_freq", None),
        ("opt", "decoder.layers.0.fc1.bias", "model.decoder.layers.0.fc1.bias"),
        ("opt", "model.decoder.layers.0.fc1.bias", "model.decoder.layers.0.fc1.bias"),
        ("opt", "layers.0.fc1.bias", "model.decoder.layers.0.fc1.bias"),
        ("opt", "lm_head.weight", None),
        ("opt", "decoder.version", None),
        ("gpt2", "h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "transformer.wte.weight", "transformer.wte.weight"),
        ("gpt2", "h.0.attn.bias", None),
        ("gpt2", "transformer.h.11.attn.masked_bias", None),
        ("gpt2", "lm_head.weight", None),
        ("gpt2", "h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_names(name: str, stored: str, canonical: str | None) -> None:
    assert name_map(ALL[name]).canonical(stored) == canonical


def test_the_head_of_a_tied_model_may_be_ignored_and_no_other() -> None:
    assert name_map({**QWEN3, "tie_word_embeddings": True}).canonical("lm_head.weight") is None
    assert name_map({**GPT2, "tie_word_embeddings": False}).canonical("lm_head.weight")


@pytest.mark.parametrize(
    "value", [HUGE, -HUGE, math.inf, -math.inf, math.nan, True, "1", [1]], ids=lambda _: ""
)
def test_a_number_is_one_of_a_range(value: Any) -> None:
    reader = ConfigReader({"one": value, "two": [1.0, value]})
    with pytest.raises(CheckpointError, match=r"config.json: one .* a number from 0 to 10"):
        reader.number("one", 0, 10, example=1)
    with pytest.raises(CheckpointError, match=r"config.json: two .* 2 numbers from 0 to 10"):
        reader.numbers("two", 2, 0, 10, example=1)


@pytest.mark.parametrize("value", [HUGE, math.nan, True, "x", None], ids=lambda _: "")
def test_limits_are_numbers(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: one .* a list of two numbers"):
        ConfigReader({"one": [0, value]}).limits("one", (0.0, math.inf))
    assert ConfigReader({"one": [0, "Infinity"]}).limits("one", (0.0, 1.0)) == (0.0, math.inf)

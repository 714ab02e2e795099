"""Rotary frequencies against transformers' own, the dynamic scaling at its full length, and the
factors of longrope through the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_cases import Case, logits_of, prompt_of, write_checkpoint
from model_harness import Runner, load
from transformers import LlamaConfig, MiniCPM3Config, Phi3Config, PhimoeConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire import LLM, SamplingParams
from quire.backends.base import Backend
from quire.models.config_reader import ConfigReader
from quire.models.rope import SHORT_FACTORS, rotary

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096,
     "attention_factor": 1.25, "beta_fast": 20.0, "beta_slow": 3.0},
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
     "mscale": 1.0, "mscale_all_dim": 0.707, "truncate": False},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: str(scaling["rope_type"]))
@pytest.mark.parametrize(("head_dim", "theta"), [(128, 500000.0), (80, 10000.0), (6, 1e6)])
def test_frequencies(scaling: dict[str, Any], head_dim: int, theta: float) -> None:
    parameters = {**scaling, "rope_theta": theta}
    config = LlamaConfig(
        hidden_size=head_dim * 2, num_attention_heads=2, head_dim=head_dim,
        max_position_embeddings=131072, rope_parameters=parameters,
    )  # fmt: skip
    theirs = LlamaRotaryEmbedding(config)
    ours = rotary(ConfigReader(config.to_dict()), head_dim)
    np.testing.assert_allclose(ours.inv_freq, theirs.inv_freq.numpy(), rtol=2e-6)
    assert ours.scale == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("length", [120, 60])
def test_dynamic_is_what_transformers_uses_at_the_full_length(
    backend: Backend, tmp_path: Path, length: int
) -> None:
    """transformers adjusts the base to each length; ours is fixed at the full extended length."""
    shape = {
        "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 40,
        "initializer_range": 0.2, "eos_token_id": None, "bos_token_id": None,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0},
    }  # fmt: skip
    case = Case("dynamic", LlamaConfig, shape)
    model = load(write_checkpoint(case, tmp_path), backend)
    runner = Runner(model)
    tokens = prompt_of(case, length)
    [found] = runner.step([(runner.request(tokens), length)])
    model.close()
    # Causal: the first tokens' logits are the same however many follow.
    full = tokens + prompt_of(case, 120)[length:]
    truth = logits_of(case, full)[:length]
    assert np.abs(found - truth).max() < 1e-4 * np.abs(truth).max()


def _longrope(dim: int, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 40,
        "short_factor": [1.0 + 0.02 * i for i in range(dim // 2)],
        "long_factor": [1.5 + 0.3 * i for i in range(dim // 2)], **more,
    }  # fmt: skip


AT_LENGTHS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 40},
    "yarn-as-a-ratio": {"rope_type": "yarn", "factor": None,
                        "original_max_position_embeddings": 40},
    "longrope": _longrope(32),
    "longrope-with-a-factor": _longrope(32, factor=9.0),
    "longrope-scaled": _longrope(32, attention_factor=0.7),
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 40},
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
assert {ROPE_INIT_FUNCTIONS[name.partition("-")[0]] for name in AT_LENGTHS} == {
    *ROPE_INIT_FUNCTIONS.values()
}


@pytest.mark.parametrize("length", [10, 40, 41, 160, 480])
@pytest.mark.parametrize("name", AT_LENGTHS)
def test_every_kind_below_and_above_the_original_length(name: str, length: int) -> None:
    """Only longrope and dynamic depend on the length: of longrope one set of factors holds for all
    texts of an engine, and dynamic has the base of its full length, 480 here."""
    kind = name.partition("-")[0]
    parameters = {"rope_type": kind, "rope_theta": 1e4, **AT_LENGTHS[name]}
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=160,
        rope_parameters=parameters,
    )  # fmt: skip
    seq_len = 480 if kind == "dynamic" else length
    theirs, scale = ROPE_INIT_FUNCTIONS[kind](config, seq_len=seq_len)
    ours = rotary(ConfigReader({**config.to_dict(), SHORT_FACTORS: length <= 40}), 32)
    np.testing.assert_allclose(ours.inv_freq, theirs.numpy(), rtol=2e-6)
    assert ours.scale == pytest.approx(scale, rel=1e-12)


_SHAPE = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 160,
    "initializer_range": 0.2, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
    "tie_word_embeddings": False, "original_max_position_embeddings": 40,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "q_lora_rank": 14,
}  # fmt: skip
LONGROPE = [
    Case("phi3", Phi3Config, {**_SHAPE, "rope_parameters": _longrope(12)}),
    Case("phi3-partial", Phi3Config, {
        **_SHAPE, "hidden_size": 64,
        "rope_parameters": _longrope(12, partial_rotary_factor=0.75)}),
    Case("minicpm3", MiniCPM3Config, {**_SHAPE, **_LATENT, "rope_parameters": _longrope(8)}),
    Case("phimoe", PhimoeConfig, {
        **_SHAPE, "num_local_experts": 3,
        "rope_parameters": _longrope(12, short_mscale=1.3, long_mscale=1.1)}),
]  # fmt: skip


@pytest.mark.parametrize("case", LONGROPE, ids=str)
def test_factors_of_longrope_through_the_engine(case: Case, tmp_path: Path) -> None:
    """Texts up to the original length have the numbers of transformers, if max_model_len is at most
    that length; longer ones have them with the whole context. transformers computes long texts of
    PhiMoE with the short factors, so these are left out."""
    directory = write_checkpoint(case, tmp_path)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=3, ignore_eos=True)
    options: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32", "num_threads": 1}
    for length, max_model_len in ((30, None), (30, 40), (30, 33), (120, 160)):
        if case.name == "phimoe" and length > 40:
            continue
        tokens = prompt_of(case, length)
        logits = logits_of(case, tokens)[-1].astype(np.float64)
        truth = logits - np.log(np.exp(logits).sum())
        with LLM(str(directory), max_model_len=max_model_len, **options) as llm:
            [found] = llm.generate({"prompt_token_ids": tokens}, params, use_tqdm=False)
        assert found.outputs[0].logprobs is not None
        for token, one in found.outputs[0].logprobs[0].items():
            assert abs(one.logprob - truth[token]) < 1e-3

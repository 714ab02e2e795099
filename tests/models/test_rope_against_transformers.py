"""Rotary frequencies against transformers' own, and the dynamic scaling at its full length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_cases import Case, logits_of, prompt_of, write_checkpoint
from model_harness import Runner, load
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire.backends.base import Backend
from quire.models.config_reader import ConfigReader
from quire.models.rope import rotary

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

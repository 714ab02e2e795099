"""Rope scalings of GGUF files: the longest contexts, and the frequencies that they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import random_tensors, write_model

from quire.config.checkpoint.model_files import read_config
from quire.config.model_lookup.hub import resolve_model
from quire.models import model_facts
from quire.models.config_reader import ConfigReader
from quire.models.rope import rotary

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 32,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
GEMMA = {
    **SHAPE, "architectures": ["Gemma3ForCausalLM"], "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 32,
    "attn_logit_softcapping": None, "final_logit_softcapping": None,
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("cache")
YARN = {"type": "yarn", "factor": 4.0}
SHORT, LONG = [1.0] * 8, [2.0] * 8
FACTORS = {
    f"rope_factors_{name}.weight": np.array(values, np.float32)
    for name, values in (("short", SHORT), ("long", LONG))
}


def read(path: Path, keys: dict[str, Any], added: dict[str, Any] | None = None) -> dict[str, Any]:
    """config.json of a file with these keys of `rope.`."""
    named = {f"rope.scaling.{key}": value for key, value in keys.items()}
    if (old := named.pop("rope.scaling.old", None)) is not None:
        named["rope.scale_linear"] = old
    file = write_model(path / "m.gguf", "llama", SHAPE, random_tensors(SHAPE), added, **named)
    return read_config(resolve_model(str(file)))


@pytest.mark.parametrize(
    ("keys", "length", "scaling"),
    [
        ({}, 512, None),
        ({"type": "none", "factor": 4.0}, 512, None),
        ({"type": "linear", "factor": 2.5}, 1280, {"rope_type": "linear", "factor": 2.5}),
        ({"factor": 2.5}, 1280, {"rope_type": "linear", "factor": 2.5}),
        ({"type": "linear", "factor": 0.0}, 512, None),
        ({"type": "linear"}, 512, None),
        ({"old": 2.0}, 1024, {"rope_type": "linear", "factor": 2.0}),
        ({"type": "linear", "old": 2.0}, 1024, {"rope_type": "linear", "factor": 2.0}),
        (YARN, 512, {"rope_type": "yarn", "factor": 4.0}),
        *(
            ({**YARN, "original_context_length": original}, length,
             {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": original})
            for original, length in ((512, 2048), (128, 512), (64, 512))
        ),
        ({**YARN, "original_context_length": 512, "yarn_ext_factor": 0.0}, 2048,
         {"rope_type": "linear", "factor": 4.0}),
    ],
)  # fmt: skip
def test_lengths(
    keys: dict[str, Any], length: int, scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    """What a file lacks is as in llama.cpp."""
    config = read(tmp_path, keys)
    assert model_facts(config).max_model_len == length
    wanted = {key: value for key, value in SHAPE.items() if key != "partial_rotary_factor"}
    if scaling is not None:
        wanted["rope_scaling"] = scaling
    assert rotary(ConfigReader(config), 16) == rotary(ConfigReader(wanted), 16)


@pytest.mark.parametrize(("factor", "scale"), [({}, 1.0), ({"attn_factor": 1.25}, 1.25)])
def test_lengths_of_longrope(factor: dict[str, float], scale: float, tmp_path: Path) -> None:
    """The short factors hold up to the original length."""
    config = read(tmp_path, {"original_context_length": 128, **factor}, FACTORS)
    facts = model_facts(config)
    assert (facts.max_model_len, facts.short_rope_len) == (512, 128)
    plain = np.array(rotary(ConfigReader(SHAPE), 16).inv_freq)
    found = rotary(ConfigReader(config), 16)
    assert (found.inv_freq, found.scale) == (tuple(plain / 2.0), scale)


def test_gemma_3_states_its_length(tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
            "attention.sliding_window": 32}  # fmt: skip
    file = write_model(tmp_path / "m.gguf", "gemma3", GEMMA, random_tensors(GEMMA), **keys)
    assert model_facts(read_config(resolve_model(str(file)))).max_model_len == 512

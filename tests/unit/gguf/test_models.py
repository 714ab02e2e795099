"""A model as a GGUF file is the model that it was made of: the same program, the same tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import random_tensors, write_model

from quire.config.checkpoint.model_files import read_config, read_generation_config
from quire.config.model_lookup.hub import resolve_model
from quire.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from quire.models import build_program, model_facts, name_map
from quire.weights import bind, open_checkpoint
from quire.weights.gguf_store import GgufStore

SHAPE = {
    "vocab_size": 300, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "hidden_act": "silu",
}  # fmt: skip
GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {"architectures": ["LlamaForCausalLM"]}, {}),
    "llama-biases-tied": (
        "llama",
        {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True,
         "tie_word_embeddings": True},
        {},
    ),
    "llama-linear": (
        "llama",
        {"architectures": ["LlamaForCausalLM"],
         "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
    ),
    "qwen2-yarn": (
        "qwen2",
        {"architectures": ["Qwen2ForCausalLM"], "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 128},
    ),
    "qwen3": ("qwen3", {"architectures": ["Qwen3ForCausalLM"]}, {}),
    "granite": (
        "granite",
        {"architectures": ["GraniteForCausalLM"], "embedding_multiplier": 12.0,
         "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 8.0},
        {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.015625,
         "logit_scale": 8.0},
    ),
    "granite-without-attention-scale": (
        "granite",
        {"architectures": ["GraniteForCausalLM"], "embedding_multiplier": 1.0,
         "residual_multiplier": 1.0, "attention_multiplier": 0.25, "logits_scaling": 8.0},
        {"logit_scale": 8.0},
    ),
    "gemma": ("gemma", {"architectures": ["GemmaForCausalLM"], **GELU}, {}),
    "gemma2": (
        "gemma2",
        {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 64,
         "query_pre_attn_scalar": 16, "attn_logit_softcapping": 40.0,
         "final_logit_softcapping": 20.0, **GELU},
        {"attention.sliding_window": 64, "attn_logit_softcapping": 40.0,
         "final_logit_softcapping": 20.0},
    ),
    "gemma3": (
        "gemma3",
        {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 32,
         "query_pre_attn_scalar": 16, "num_hidden_layers": 7, "rope_local_base_freq": 10000.0,
         "attn_logit_softcapping": None, "final_logit_softcapping": None, **GELU},
        {"attention.sliding_window": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_program_and_tensors_are_those_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    architecture, own, more = CASES[name]
    config = {**SHAPE, **own}
    tensors = random_tensors(config)
    directory = resolve_model(
        str(write_model(tmp_path / "m.gguf", architecture, config, tensors, **more))
    )
    found = read_config(directory)
    program = build_program(found)
    assert str(program) == str(build_program(config))
    facts, wanted = model_facts(found), model_facts(config)
    assert facts.max_model_len == wanted.max_model_len
    store = bind(program, open_checkpoint(directory), name_map(found).canonical)
    is_exact = not architecture.startswith("gemma")
    assert set(store.names()) == set(tensors)
    for tensor, values in tensors.items():
        loaded = store.get(tensor).to_float32()
        assert loaded.shape == values.shape
        if is_exact or "norm" not in tensor:
            assert np.array_equal(loaded, values), tensor
        else:  # 1 was added in float32
            assert np.allclose(loaded, values, rtol=0, atol=2e-7), tensor


def test_paired_rows_are_put_back_for_each_head_count(tmp_path: Path) -> None:
    """A store that forgot the rows of k, or took q's heads for them, would differ."""
    config = {**SHAPE, "architectures": ["LlamaForCausalLM"]}
    tensors = random_tensors(config)
    store = GgufStore([write_model(tmp_path / "m.gguf", "llama", config, tensors)])
    for part in ("q_proj", "k_proj"):
        name = f"model.layers.1.self_attn.{part}.weight"
        assert not np.array_equal(store.raw(name).view("<f4").squeeze(), tensors[name])
        assert np.array_equal(store.get(name).to_float32(), tensors[name])
        order = store.row_order(name)
        assert order is not None
        raw = store.raw(name).view("<f4").squeeze()
        assert np.array_equal(raw[order], tensors[name])


def test_llama3_scaling_follows_from_the_factors(tmp_path: Path) -> None:
    from quire.models.config_reader import ConfigReader
    from quire.models.rope import rotary

    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    config = {**SHAPE, "architectures": ["LlamaForCausalLM"], "head_dim": 64,
              "rope_theta": 500000.0}  # fmt: skip
    scaled = rotary(ConfigReader({**config, "rope_scaling": scaling}), 64).inv_freq
    plain = rotary(ConfigReader(config), 64).inv_freq
    factors = (np.array(plain) / np.array(scaled)).astype(np.float32)
    tensors = random_tensors(config)
    added = {"rope_freqs.weight": factors}
    path = write_model(tmp_path / "m.gguf", "llama", config, tensors, added)
    assert read_config(resolve_model(str(path)))["rope_scaling"] == scaling
    factors[10] *= 1.01
    path = write_model(tmp_path / "other.gguf", "llama", config, tensors, added)
    with pytest.raises(UnsupportedModelError, match="not those of Llama 3's scaling"):
        resolve_model(str(path))


def test_granite_without_rotation_is_refused(tmp_path: Path) -> None:
    config = {**SHAPE, "architectures": ["GraniteForCausalLM"]}
    more = {"logit_scale": 1.0, "rope.scaling.finetuned": False}
    path = write_model(tmp_path / "m.gguf", "granite", config, random_tensors(config), **more)
    with pytest.raises(UnsupportedModelError, match="Granite models without rotary embeddings"):
        resolve_model(str(path))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    config = {**SHAPE, "architectures": ["LlamaForCausalLM"]}
    path = write_model(tmp_path / "m.gguf", "llama9", config, random_tensors(config))
    with pytest.raises(UnsupportedModelError, match=r"architecture 'llama9' are not read; .*llama"):
        resolve_model(str(path))


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    config = {**SHAPE, "architectures": ["LlamaForCausalLM"]}
    added = {"blk.0.attn_sinks.weight": np.ones(6, np.float32)}
    path = write_model(tmp_path / "m.gguf", "llama", config, random_tensors(config), added)
    directory = resolve_model(str(path))
    found = read_config(directory)
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'blk.0.attn_sinks.weight'"):
        bind(build_program(found), open_checkpoint(directory), name_map(found).canonical)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {**SHAPE, "architectures": ["LlamaForCausalLM"]}
    return write_model(tmp_path / "tiny-Q8_0.gguf", "llama", config, random_tensors(config))


def test_ends_and_recommended_sampling(model: Path, cache: Path) -> None:
    directory = resolve_model(str(model))
    assert directory.is_relative_to(cache)
    config = read_generation_config(directory, read_config(directory))
    assert config.values["eos_token_id"] == [259]


def test_a_file_is_unpacked_once_and_again_when_it_changes(model: Path) -> None:
    first = resolve_model(str(model))
    stamp = (first / "config.json").stat().st_mtime_ns
    assert resolve_model(str(model)) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    os.utime(model, ns=(1, 1))
    second = resolve_model(str(model))
    assert second != first
    model.rename(model.with_name("other.gguf"))
    resolve_model(str(model.with_name("other.gguf")))
    assert not second.exists()  # its file is gone


def test_a_directory_with_one_file_and_names_of_files(model: Path, tmp_path: Path) -> None:
    wanted = resolve_model(str(model))
    place = tmp_path / "place"
    place.mkdir()
    model.rename(place / model.name)
    only = resolve_model(str(place))
    assert only != wanted
    assert only == resolve_model(f"{place}:{model.name}") == resolve_model(f"{place}:q8_0")
    (place / "tiny-Q4_0.gguf").write_bytes((place / model.name).read_bytes())
    assert resolve_model(str(place)) == resolve_model(f"{place}:q4_0")  # nearest to Q4_K_M
    with pytest.raises(ModelNotFoundError, match="may be any of"):
        resolve_model(f"{place}:tiny")
    with pytest.raises(ModelNotFoundError, match=r"no GGUF file 'q6_k'; it holds tiny-Q4_0.gguf"):
        resolve_model(f"{place}:q6_k")


def test_other_weights_come_first_unless_a_gguf_is_asked_for(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model(str(tmp_path), prefers_gguf=True) == resolve_model(str(model))


def test_a_model_in_the_hubs_cache(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repo = hub / "models--org--tiny"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    model.rename(snapshot / model.name)
    assert resolve_model("org/tiny:Q8_0") == resolve_model("org/tiny")
    with pytest.raises(ModelNotFoundError, match="lacks the GGUF file Q4_K_M"):
        resolve_model("org/tiny:Q4_K_M")


def test_links_of_other_directories_are_not_followed(model: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "gguf-0000"
    hostile.mkdir()
    (hostile / "config.json").write_text("{}")
    (hostile / "model.gguf").symlink_to(model)
    with pytest.raises(CheckpointError, match="outside of the checkpoint"):
        open_checkpoint(hostile)


def test_without_a_home_the_directory_is_temporary(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = resolve_model(str(model))
    assert directory.parent.parent == tmp_path
    assert set(open_checkpoint(directory).names())


def test_an_embedder_pools_as_its_file_says(tmp_path: Path) -> None:
    """The key is llama.cpp's; a generator has 0 or none."""
    from quire.models.pooling.reading import read_sentence_model

    config = {**SHAPE, "architectures": ["Qwen3ForCausalLM"]}
    tensors = random_tensors(config)
    for number, pooling in ((3, "last"), (1, "mean"), (0, None)):
        path = write_model(
            tmp_path / f"{number}.gguf", "qwen3", config, tensors, pooling_type=number
        )
        found = read_sentence_model(resolve_model(str(path)))
        assert (found and found.pooling_type) == pooling
        assert found is None or found.normalizes

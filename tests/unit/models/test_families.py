"""What all families have in common: defaults, wrappers, refusals, the list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quire.cli.app import main
from quire.cli.commands.library import markdown
from quire.errors import UnsupportedModelError
from quire.images.modality import MODALITIES
from quire.models import ModelRegistry, build_program, model_facts, name_map
from quire.models.text_part import text_part

transformers = pytest.importorskip("transformers")
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = pytest.importorskip(
    "transformers.models.auto.modeling_auto"
).MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

SIZES = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "d_model", "n_heads",
    "n_layers", "num_layers", "max_seq_len", "ffn_dim", "ffn_hidden_size", "model_type",
    "architectures",
    # OLMo's class has another default than its published files, which all have the key.
    "num_key_value_heads",
    "mamba_d_ssm",
}  # fmt: skip
OTHER_DEFAULTS = {
    "GraniteMoeHybridForCausalLM", "NemotronHForCausalLM", "KimiLinearForCausalLM",
}  # fmt: skip
"""Of which the default is a model of Mamba layers alone, or has experts that are not supported, or
has layers that every published file lists."""
NAMES = {*ModelRegistry.get_supported_archs()} - OTHER_DEFAULTS


@pytest.mark.sweep(24)
@pytest.mark.parametrize(
    "architecture", sorted(NAMES & {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()})
)
def test_keys_that_a_file_leaves_out_have_the_defaults_of_the_class(architecture: str) -> None:
    config_class = getattr(transformers, architecture).config_class
    full = json.loads(json.dumps(config_class().to_dict(), default=str))
    full["architectures"] = [architecture]
    short = {key: value for key, value in full.items() if key in SIZES}
    assert build_program(short) == build_program(full)


LLAMA = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
WRAPPED = {
    "architectures": ["Mistral3ForConditionalGeneration"], "tie_word_embeddings": True,
    "vision_config": {"hidden_size": 8}, "text_config": {**LLAMA, "model_type": "mistral"},
    "eos_token_id": 2,
}  # fmt: skip


def test_the_text_part_of_a_wrapper_is_the_model() -> None:
    assert build_program(WRAPPED).name == "mistral"
    facts = model_facts(WRAPPED)
    assert facts.tie_word_embeddings
    assert facts.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.text_model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", None),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("vision_tower.blocks.0.weight", None),
        ("model.vision_tower.blocks.0.weight", None),
        ("multi_modal_projector.linear_1.weight", None),
        ("visual.merger.bias", None),
        ("mtp.layers.0.weight", None),
    ],
)
def test_names_of_a_wrapper(stored: str, canonical: str | None) -> None:
    assert name_map(WRAPPED).canonical(stored) == canonical


def test_parts_that_are_left_out_are_counted() -> None:
    names = name_map(WRAPPED)
    stored = ["vision_tower.a", "vision_tower.b", "mtp.c", "language_model.model.norm.weight"]
    line = "only the text model is computed; unused: mtp (1 tensors), vision_tower (2 tensors)"
    assert names.summary(stored) == line
    assert names.summary(stored[3:]) is None
    line = "only text and images are computed; unused: audio_tower (1 tensors), mtp (1 tensors)"
    assert names.summary([*stored, "audio_tower.d"], MODALITIES["image"]) == line


def test_a_model_of_text_alone_has_no_parts_to_leave_out() -> None:
    names = name_map({**LLAMA, "architectures": ["LlamaForCausalLM"]})
    assert names.canonical("vision_tower.a") == "model.vision_tower.a"


def test_an_unknown_architecture_is_compared_with_the_nearest() -> None:
    config = {**LLAMA, "architectures": ["LlamaxForCausalLM"]}
    with pytest.raises(UnsupportedModelError, match=r"nearest is LlamaForCausalLM, which uses all"):
        build_program(config)
    with pytest.raises(UnsupportedModelError, match=r"does not use the keys foo_d_state"):
        build_program({**config, "foo_d_state": 3})


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("YiForCausalLM", {}, "LlamaForCausalLM, which uses all keys"),
        ("MyOwnForCausalLM", {"foo": 1}, "LlamaForCausalLM, which does not use the keys foo"),
        ("Qwen4ForCausalLM", {"gate": 1}, "Qwen3ForCausalLM, which does not use the keys ga"),
        ("NemotronXForCausalLM", {"pattern": "M"}, "NemotronForCausalLM, which does not use"),
        ("DeepseekV4ForCausalLM", {"kv_lora_rank": 5, "n_routed_experts": 8}, "Deepseek"),
    ],
)
def test_the_nearest_is_by_keys_and_then_by_name(
    name: str, more: dict[str, object], words: str
) -> None:
    """A name that is like no other one says nothing: then it is Llama."""
    with pytest.raises(UnsupportedModelError, match=f"the nearest is .*{words}"):
        build_program({**LLAMA, **more, "architectures": [name]})


def test_quire_models_lists_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ModelRegistry.get_supported_archs())
    assert main(["models", "--json"]) == 0
    assert "Phi3ForCausalLM" in json.loads(capsys.readouterr().out)["phi3"][1]


def test_the_documents_have_the_list() -> None:
    """`quire models --markdown` prints it."""
    page = Path(__file__).parents[3] / "docs" / "models.md"
    assert markdown() in page.read_text()


def test_internlm_3_is_llama_with_biases() -> None:
    config = {**LLAMA, "rms_norm_eps": 1e-5, "head_dim": 16, "num_key_value_heads": 2}
    names = {"architectures": ["InternLM3ForCausalLM"], "bias": True, "qkv_bias": True}
    flags = {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True}
    assert build_program({**config, **names}).ops == build_program({**config, **flags}).ops


def test_sections_lack_what_is_the_value_of_the_class() -> None:
    """As transformers 4 has saved the configurations of Qwen2-Audio and LLaVA 1.5."""
    transformers = pytest.importorskip("transformers")
    kinds = {"llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config"}
    for kind, name in kinds.items():
        found = text_part({"text_config": {"model_type": kind}})
        own = getattr(transformers, name)()
        assert found.keys() >= {"hidden_size", "num_hidden_layers", "num_attention_heads"}
        assert all(getattr(own, key) == value for key, value in found.items())
        given = {"model_type": kind, "hidden_size": 64}
        assert text_part({"text_config": given})["hidden_size"] == 64


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("BloomForCausalLM", {"n_embed": 24, "n_layer": 2, "n_head": 6}),
        ("MptForCausalLM", {"d_model": 24, "n_layers": 2, "n_heads": 6, "max_seq_len": 32}),
        ("GPT2LMHeadModel", {"n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 32}),
        ("OPTForCausalLM", {"word_embed_proj_dim": 24, "ffn_dim": 40}),
        ("GPTJForCausalLM", {"n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 32}),
        ("GPTNeoXForCausalLM", {"intermediate_size": 40, "rotary_pct": 0.5}),
        ("FalconForCausalLM", {}),
        ("FalconForCausalLM", {"new_decoder_architecture": True, "num_kv_heads": 2}),
        ("FalconForCausalLM", {"multi_query": False, "bias": True}),
    ],
    ids=str,
)
def test_a_number_of_kv_heads_that_the_class_does_not_read_changes_nothing(
    name: str, given: dict[str, object]
) -> None:
    """The tensors of attention are those of the model of transformers."""
    model_class = getattr(transformers, name)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
             "vocab_size": 50, "max_position_embeddings": 32}  # fmt: skip
    config = {"architectures": [name], **sizes, **given}
    stray = {**config, "num_key_value_heads": 3}
    program = build_program(stray)
    assert program == build_program(config)
    assert model_facts(stray) == model_facts(config)
    theirs = model_class(model_class.config_class.from_dict(stray)).state_dict()
    parts = (part for param in program.params() for part in param.parts)
    shapes = {part.name: part.shape for part in parts if "att" in part.name}
    assert {key: tuple(theirs[key].shape) for key in shapes} == shapes != {}

"""From architecture names to families."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.errors import CheckpointError, UnsupportedModelError
from quire.models import ModelDescription, ModelFamily, ModelRegistry, build_program, name_map
from quire.models.families.llama import FAMILY as LLAMA
from quire.models.registry import _BUILT_IN, _ModelRegistry

CONFIG = {
    "architectures": ["MyForCausalLM"], "vocab_size": 50, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[_ModelRegistry]:
    fresh = _ModelRegistry(_BUILT_IN)
    monkeypatch.setattr("quire.models.description.ModelRegistry", fresh)
    return fresh


def test_every_built_in_row_leads_to_a_family_that_lists_it() -> None:
    for architecture in ModelRegistry.get_supported_archs():
        family = ModelRegistry.resolve([architecture])
        assert architecture in family.architectures


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"\['MyForCausalLM'\].*`quire models` lists all"
    ):
        build_program(CONFIG)


def test_the_first_known_architecture_counts() -> None:
    config = {**CONFIG, "architectures": ["MyForCausalLM", "LlamaForCausalLM"]}
    assert ModelDescription(config).family is LLAMA


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [1], {}])
def test_no_architectures(architectures: object) -> None:
    with pytest.raises(CheckpointError, match=r'"architectures": \["LlamaForCausalLM"\]'):
        name_map({**CONFIG, "architectures": architectures})


@pytest.mark.parametrize("family", [LLAMA, "quire.models.families.llama:FAMILY"])
def test_a_custom_architecture(registry: _ModelRegistry, family: ModelFamily | str) -> None:
    registry.register_model("MyForCausalLM", family)
    assert "MyForCausalLM" in registry.get_supported_archs()
    assert build_program(CONFIG).name == "llama"


def test_bad_registrations(registry: _ModelRegistry) -> None:
    with pytest.raises(ValueError, match=r"package\.module:ATTRIBUTE"):
        registry.register_model("MyForCausalLM", "quire.models.families.llama")
    with pytest.raises(TypeError, match="must be a ModelFamily or package"):
        registry.register_model("MyForCausalLM", 7)  # type: ignore[arg-type]
    registry.register_model("MyForCausalLM", "quire.models.families.llama:_spec")
    with pytest.raises(TypeError, match="not a ModelFamily"):
        build_program(CONFIG)

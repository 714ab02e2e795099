"""What the refusal of an architecture says: never advice that does not help."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire.models.nearest import RELATIVES
from quire.models.registry import ModelRegistry
from quire.models.transformers import choice

LLAMA: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 64, "hidden_act": "silu",
}  # fmt: skip


def refusal(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> str:
    """Where neither torch nor transformers is installed."""
    monkeypatch.setattr(choice, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedModelError) as caught:
        choice.with_model_impl(config, "auto")
    return str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "more", "reason"),
    [
        ("XlmRobertaForSequenceClassification", {}, "it is not a text decoder"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "it has an encoder"),
        ("Zamba2ForCausalLM", {"mamba_d_state": 16}, "it has a recurrent state"),
        ("RecurrentGemmaForCausalLM", {"lru_width": 4}, "it has a recurrent state"),
        ("RwkvForCausalLM", {"attention_hidden_size": 64}, "it has a recurrent state"),
        (
            "BitNetForCausalLM",
            {"model_type": "bitnet", "quantization_config": {"quant_method": "bitnet"}},
            "load the unquantised checkpoint",
        ),
    ],
)
def test_what_never_runs_is_offered_neither_the_extra_nor_a_family(
    monkeypatch: pytest.MonkeyPatch, architecture: str, more: dict[str, Any], reason: str
) -> None:
    text = refusal(monkeypatch, {"architectures": [architecture], **LLAMA, **more})
    assert reason in text
    assert "pip install" not in text
    assert "the nearest is" not in text


def test_what_may_run_is_offered_both(monkeypatch: pytest.MonkeyPatch) -> None:
    text = refusal(monkeypatch, {"architectures": ["YiForCausalLM"], **LLAMA})
    assert "the nearest is LlamaForCausalLM" in text
    assert "pip install 'quire-engine[transformers]'" in text


def test_bitnet_is_not_offered_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights of 16 bits have all keys of Llama."""
    config = {"architectures": ["BitNetForCausalLM"], "model_type": "bitnet", **LLAMA}
    text = refusal(monkeypatch, config)
    assert "LlamaForCausalLM" not in text
    assert "pip install 'quire-engine[transformers]'" in text


@pytest.mark.parametrize(("model_type", "found"), RELATIVES.items())
def test_known_relatives_are_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, model_type: str, found: tuple[str, str]
) -> None:
    architecture, difference = found
    config = {"architectures": ["SomeForCausalLM"], "model_type": model_type, "state_size": 16}
    text = refusal(monkeypatch, {**LLAMA, **config})
    assert f"the nearest is {architecture}, and this model has {difference} besides" in text
    assert architecture in ModelRegistry.get_supported_archs()

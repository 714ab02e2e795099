"""Encoders whose checkpoints are written for code of their own, and the choice of a runner."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import UnsupportedModelError
from quire.models import ModelDescription, ModelRegistry, build_program
from quire.models.pooling.head import PoolingHead, marked
from quire.program import Attention, Rope

BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip


def test_gte_scales_its_frequencies() -> None:
    """`ntk` by a factor of 2: the base is doubled, and all frequencies are divided."""
    config = {
        **BERT, "architectures": ["NewModel"], "rope_theta": 500.0, "type_vocab_size": 0,
        "rope_scaling": {"type": "ntk", "factor": 2.0},
    }  # fmt: skip
    program = ModelDescription(marked(config, PoolingHead("cls"))).program
    [rope] = {op.inv_freq for op in program.ops if isinstance(op, Rope)}
    wanted = [1000.0 ** (-i / 8) / 2 ** (2 / 8) for i in (0, 2, 4, 6)]
    assert rope == pytest.approx(wanted)


def test_an_encoder_keeps_nothing_and_cannot_generate() -> None:
    program = ModelDescription(marked(BERT, PoolingHead("mean"))).program
    attentions = [op for op in program.ops if isinstance(op, Attention)]
    assert [(op.layer, op.is_causal) for op in attentions] == [(None, False)] * 2
    assert program.memories() == ()
    assert program.needs_whole_requests
    with pytest.raises(UnsupportedModelError, match="is an encoder, which cannot generate text"):
        build_program(BERT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"is_decoder": True}, "is_decoder is true; supported is false"),
        ({"architectures": ["XLMRobertaModel"], "is_decoder": True}, "is_decoder is true"),
    ],
)
def test_settings_that_would_change_the_vectors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        ModelDescription(marked({**BERT, **settings}, PoolingHead("cls"))).program  # noqa: B018


@pytest.mark.parametrize(
    ("architecture", "row"),
    [
        ("BertForSequenceClassification", "BertModel"),
        ("MPNetForMaskedLM", "MPNetModel"),
        ("Qwen3ForSequenceClassification", "Qwen3ForCausalLM"),
        ("MistralModel", "MistralForCausalLM"),
        ("Qwen2ForProcessRewardModel", "Qwen2ForCausalLM"),
        ("Gemma3TextModel", "Gemma3ForCausalLM"),
        ("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM"),
        ("GPT2ForSequenceClassification", "GPT2LMHeadModel"),
        ("ChatGLMModel", "ChatGLMModel"),
        ("T5EncoderModel", None),
    ],
)
def test_classes_of_one_model_have_one_row(architecture: str, row: str | None) -> None:
    assert ModelRegistry.row_name(architecture) == row

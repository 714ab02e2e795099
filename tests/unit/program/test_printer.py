"""A program as text."""

from __future__ import annotations

from quire.models import build_program
from quire.program.printer import format_program

CONFIG = {
    "architectures": ["MistralForCausalLM"], "vocab_size": 50, "hidden_size": 32,
    "intermediate_size": 40, "num_hidden_layers": 28, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 16,
}  # fmt: skip


def test_equal_layers_are_folded() -> None:
    text = format_program(build_program(CONFIG)).splitlines()
    assert text[:3] == [
        "program mistral",
        "  %embed[32] = embed(embed_tokens[50x32])",
        "  layers 0..27 x28",
    ]
    assert "    %q[32] %k[16] %v[16] = linear(%norm, qkv.weight[64x32])" in text
    assert any(line.startswith("    %sum[32] = add(%in, %o)") for line in text)
    assert text[-1].startswith("  %logits[50] = logits(")
    assert len(text) < 25


def test_layers_that_differ_are_not_folded_together() -> None:
    config = {
        **CONFIG, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True,
        "max_window_layers": 20,
    }  # fmt: skip
    text = format_program(build_program(config))
    assert "layers 0..19 x20" in text
    assert "layers 20..27 x8" in text
    assert text.count("window=16") == 1


def test_unfolded_text_has_one_line_per_op() -> None:
    program = build_program(CONFIG)
    text = format_program(program, fold=False).splitlines()
    assert len(text) == len(program.ops) + 1
    assert "  %layers.3.o[32] = linear(%layers.3.attention, layers.3.o.weight[32x32])" in text
